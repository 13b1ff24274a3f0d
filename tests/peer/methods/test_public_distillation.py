"""FedMD and KT-pFL: descent and coefficients equal the formulas in float64; predictions alone are sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, backward, descend, logits, softmax
from peer.methods.method import DAM, Batch
from peer.methods.public_distillation.stages import COEFFICIENTS, PREDICTIONS
from peer.methods.public_distillation.tables import PublicImages

RATE = 0.3
PUBLIC_BATCH = Batch(BATCH.images.flip(0), BATCH.targets)
"""The public images; a stage's batch has four samples, so that two steps go once and a bit through them."""
FOUR = Batch(BATCH.images[:4], BATCH.targets[:4])
COUNT = len(PUBLIC_BATCH.images)


def tables(site: Any, *origins: str) -> dict[str, np.ndarray]:
    """Random predictions for these sites, the own ones among them; those of others are received."""
    draw, values = torch.Generator().manual_seed(11), {}
    for origin in origins:
        own = site.networks[PREDICTIONS]
        network = own if origin == "beta" else type(own)(type(own.network)(classes=3, samples=COUNT), **SIZES)
        network.network.logits.copy_(torch.randn(COUNT, 3, generator=draw) * 2)
        network.network.taken.fill_(1)
        values[origin] = network.network.logits.double().numpy().copy()
        if origin != "beta":
            site.context.received[origin] = network
    return values


SIZES: dict[str, Any] = {"features": [], "head": "mean", "spatial_dims": 1, "in_channels": 1, "classes": 3}


def indices(step: int) -> np.ndarray:
    return (4 * step + np.arange(4)) % COUNT


def part(rows: np.ndarray) -> Batch:
    return Batch(PUBLIC_BATCH.images[rows], PUBLIC_BATCH.targets[rows])


def test_the_public_images_are_predicted_whole_and_nothing_is_trained(make_site: Any) -> None:
    site = make_site("fedmd", TwoLayers(1), BATCH.images)
    before = site.state()
    site.step("predict", FOUR)
    table = site.networks[PREDICTIONS].network
    expected = logits(arrays(site.networks[DAM]), PUBLIC_BATCH)
    np.testing.assert_allclose(table.logits.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert table.taken == 1
    assert site.moved(before) == {PREDICTIONS}


def test_fedmd_descends_on_the_distance_to_the_mean_logits(make_site: Any) -> None:
    site = make_site("fedmd", TwoLayers(1), BATCH.images)
    mean, weights = tables(site, "beta")["beta"], arrays(site.networks[DAM])
    values = descend(site.method.stages["digest"](site.context), steps=3, rate=RATE, batch=FOUR)
    for step in range(3):
        rows = indices(step)
        gap = logits(weights, part(rows)) - mean[rows]
        assert values[step] == pytest.approx({"digest": np.abs(gap).mean()}, rel=SINGLE)
        slope = backward(weights, np.sign(gap) / gap.size, part(rows))
        weights = {name: value - RATE * slope[name] for name, value in weights.items()}
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-6)


def test_without_predictions_of_anybody_fedmd_digests_nothing(make_site: Any) -> None:
    assert make_site("fedmd", TwoLayers(1), BATCH.images).step("digest", FOUR).stage.trains == ()


def test_kt_pfl_mixes_by_coefficients_that_take_a_step_a_round(make_site: Any) -> None:
    site = make_site("kt_pfl", TwoLayers(1), BATCH.images, rho=0.5, coefficient_rate=0.2, sharpness=4.0)
    start = torch.tensor([0.5, 0.2, 0.3])
    site.networks[COEFFICIENTS].shares.copy_(start)
    predictions = tables(site, "beta", "gamma")  # alpha's did not arrive
    stage = site.method.stages["digest"](site.context)

    stacked = np.stack([predictions["beta"], predictions["gamma"]])
    shares = np.array([0.2, 0.3]) / 0.5
    own, others = softmax(predictions["beta"]), softmax(np.tensordot(shares, stacked, 1))
    of_mixture = (others - own) / COUNT  # the gradient of KL(own || mixture) in the mixture's logits
    gradient = np.array([(of_mixture * each).sum() for each in stacked]) + 0.5 * 2 * (shares - 0.5) / 2
    powers = np.exp(4.0 * (shares - 0.2 * gradient))
    shares = powers / powers.sum()
    np.testing.assert_allclose(site.networks[COEFFICIENTS].shares.numpy(), [0, *shares], rtol=1e-5)

    mixture, weights = softmax(np.tensordot(shares, stacked, 1)), arrays(site.networks[DAM])
    values = descend(stage, steps=3, rate=RATE, batch=FOUR)
    for step in range(3):
        rows = indices(step)
        student = softmax(logits(weights, part(rows)))
        divergence = (mixture[rows] * (np.log(mixture[rows]) - np.log(student))).sum(1).mean()
        assert values[step] == pytest.approx({"digest": divergence}, rel=1e-4)
        slope = backward(weights, (student - mixture[rows]) / len(rows), part(rows))
        weights = {name: value - RATE * slope[name] for name, value in weights.items()}
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-4, atol=1e-6)


def test_the_public_images_come_in_turn_and_no_checkpoint_holds_them() -> None:
    public = PublicImages(torch.zeros(5, 1, 2))
    assert [public.take(3).tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert public.state_dict().keys() == {"position"}
