"""Distillation on public images: targets, descent, coefficients and averages equal the formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, backward, descend, logits, softmax
from peer.methods.method import DAM, Batch, Stage
from peer.methods.public_distillation.fusion import mean_state
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


@pytest.mark.parametrize("method", ["fedmd", "pfeddf", "ds_pfl"])
def test_without_predictions_of_anybody_nothing_is_digested(make_site: Any, method: str) -> None:
    assert make_site(method, TwoLayers(1), BATCH.images).step("digest", FOUR).stage.trains == ()


def check_divergence(site: Any, stage: Stage, targets: np.ndarray) -> None:
    """Three steps descend on the divergence of the local model from these probabilities of the public images."""
    weights = arrays(site.networks[DAM])
    values = descend(stage, steps=3, rate=RATE, batch=FOUR)
    for step in range(3):
        rows = indices(step)
        student = softmax(logits(weights, part(rows)))
        divergence = (targets[rows] * (np.log(targets[rows]) - np.log(student))).sum(1).mean()
        assert values[step] == pytest.approx({"digest": divergence}, rel=1e-4)
        slope = backward(weights, (student - targets[rows]) / len(rows), part(rows))
        weights = {name: value - RATE * slope[name] for name, value in weights.items()}
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-4, atol=1e-6)


def test_pfeddf_descends_on_the_divergence_from_the_mean_logits(make_site: Any) -> None:
    site = make_site("pfeddf", TwoLayers(1), BATCH.images)
    mean = tables(site, "beta")["beta"]
    check_divergence(site, site.method.stages["digest"](site.context), softmax(mean))


def test_ds_pfl_sends_probabilities_and_descends_on_the_divergence_from_their_sharpened_mean(make_site: Any) -> None:
    site = make_site("ds_pfl", TwoLayers(1), BATCH.images, temperature=0.2)
    site.step("predict", FOUR)
    table, own = site.networks[PREDICTIONS].network, softmax(logits(arrays(site.networks[DAM]), PUBLIC_BATCH))
    np.testing.assert_allclose(table.logits.numpy(), own, rtol=1e-5, atol=1e-6)
    mean = (own + softmax(logits(arrays(TwoLayers(2)), PUBLIC_BATCH))) / 2
    table.logits.copy_(torch.from_numpy(mean))  # as the aggregate does
    check_divergence(site, site.method.stages["digest"](site.context), softmax(mean / 0.2))


def test_ds_pfl_sharpens_each_label_by_itself(make_site: Any) -> None:
    site = make_site("ds_pfl", TwoLayers(1), BATCH.images, task="labels", temperature=0.2)
    site.step("predict", FOUR)
    predicted = logits(arrays(site.networks[DAM]), PUBLIC_BATCH)
    share, mean = 1 / (1 + np.exp(-predicted)), site.networks[PREDICTIONS].network.logits
    np.testing.assert_allclose(mean.numpy(), share, rtol=1e-5, atol=1e-6)
    mean.copy_(mean.square())
    rows = indices(0)
    target = 1 / (1 + np.exp(-(2 * share[rows] ** 2 - 1) / 0.2))
    (terms,) = descend(site.method.stages["digest"](site.context), steps=1, rate=RATE, batch=FOUR)
    own = share[rows]
    divergence = target * np.log(target / own) + (1 - target) * np.log((1 - target) / (1 - own))
    assert terms["digest"] == pytest.approx(divergence.mean(), rel=1e-4)


def test_feddf_averages_its_architecture_and_distils_the_average_from_the_mean_logits_of_all(make_site: Any) -> None:
    others = {"gamma": TwoLayers(3), "alpha": TwoLayers(2, width=6)}
    site = make_site("feddf", TwoLayers(1), BATCH.images, received=others)
    own, gamma, alpha = (arrays(network) for network in (site.networks[DAM], others["gamma"], others["alpha"]))
    targets = softmax(sum(logits(weights, PUBLIC_BATCH) for weights in (own, gamma, alpha)) / 3)
    stage = site.method.stages["fuse"](site.context)
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, (own[name] + gamma[name]) / 2, rtol=1e-12)
    assert stage.trains == (DAM,)
    check_divergence(site, stage, targets)
    assert all(np.array_equal(value, gamma[name]) for name, value in arrays(others["gamma"]).items())


def test_a_site_that_received_no_model_keeps_its_own(make_site: Any) -> None:
    site = make_site("feddf", TwoLayers(1), BATCH.images)
    before = site.state()
    assert site.step("fuse", FOUR).stage.trains == ()
    assert site.moved(before) == {"public"}, "the next public images"


def test_a_mean_of_states_rounds_once_and_takes_the_largest_count() -> None:
    norms = [nn.BatchNorm1d(2) for _ in range(3)]
    for number, norm in enumerate(norms):
        norm.num_batches_tracked.fill_(number)
        norm.running_mean.fill_(0.1 * number)
    mean = mean_state(norms)
    assert mean["num_batches_tracked"] == 2
    assert mean["running_mean"].dtype == torch.float32
    np.testing.assert_allclose(mean["running_mean"].numpy(), [0.1, 0.1], rtol=1e-6)


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

    check_divergence(site, stage, softmax(np.tensordot(shares, stacked, 1)))


def test_the_public_images_come_in_turn_and_no_checkpoint_holds_them() -> None:
    public = PublicImages(torch.zeros(5, 1, 2))
    assert [public.take(3).tolist() for _ in range(3)] == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert public.state_dict().keys() == {"position"}
