"""FedTGP: terms and descent equal the formulas in float64; nothing but prototypes is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import models
from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, feature, gradient
from peer.methods.fedproto.stages import PROTOTYPES
from peer.methods.fedtgp.stages import TRAINED, distance, separation
from peer.methods.method import DAM

RATE, WEIGHT, WIDTH = 0.2, 0.4, 4
TARGETS = BATCH.targets.numpy()
OTHERS = np.random.default_rng(3).normal(size=(2, 3, WIDTH))


def table(prototypes: Any, counts: list[float]) -> models.Network:
    """What another site sends."""
    spec = {"name": "peer.methods.fedtgp.table:ClassMeans", "hyper": {"width": WIDTH}, "head": "nearest"}
    built = models.build({**spec, "spatial_dims": 1, "in_channels": 1, "classes": 3})
    built.network.prototypes.copy_(torch.as_tensor(prototypes))
    built.network.counts.copy_(torch.tensor(counts))
    return built


@pytest.fixture
def make(make_site: Any) -> Any:
    """A site between two others: it lacks class 2, alpha lacks class 1, gamma has all."""

    def make(**parameters: float) -> Any:
        received = {"alpha": table(OTHERS[0], [3, 0, 2]), "gamma": table(OTHERS[1], [1, 1, 1])}
        at = make_site("fedtgp", TwoLayers(1), BATCH.images, width=WIDTH, received=received, **parameters)
        at.exact()
        own = at.networks[PROTOTYPES].network
        own.prototypes.copy_(torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(5)))
        own.counts.copy_(torch.tensor([1.0, 4.0, 0.0]))
        return at

    return make


def contrast(trained: dict[str, Any], points: Any, classes: Any, margin_max: float) -> float:
    """The loss of the prototypes, by its formula."""
    hidden = np.maximum(trained["embedding"] @ trained["generator.0.weight"].T + trained["generator.0.bias"], 0)
    prototypes = hidden @ trained["generator.2.weight"].T + trained["generator.2.bias"]
    means = [points[classes == number].mean(0) for number in range(3)]
    margin = min(max(float(np.linalg.norm(one - other)) for one in means for other in means), margin_max)
    total = 0.0
    for point, number in zip(points, classes, strict=True):
        gaps = np.linalg.norm(point - prototypes, axis=1)
        gaps[number] += margin
        total += gaps[number] + np.log(np.exp(-gaps).sum())
    return total / len(points)


@pytest.mark.parametrize("margin_max", [100.0, 0.5])
def test_prototypes_are_trained_on_those_of_all_sites(make: Any, margin_max: float) -> None:
    at = make(margin_max=margin_max)
    own = at.networks[PROTOTYPES].network.prototypes.numpy()
    points = np.concatenate([OTHERS[0][[0, 2]], own[[0, 1]], OTHERS[1]]).astype(np.float32).astype(np.float64)
    classes, trained = np.array([0, 2, 0, 1, 0, 1, 2]), at.networks[TRAINED]
    before, weights = at.state(), arrays(trained)
    stage = at.method.stages["refine"](at.context)
    (values,) = descend(stage, steps=1, rate=RATE)
    assert values["prototype_contrast"] == pytest.approx(contrast(weights, points, classes, margin_max), rel=SINGLE)
    assert trained.known.tolist() == [1, 1, 1]
    assert at.moved(before) == {TRAINED}
    for name, moved in arrays(trained).items():
        slopes = np.zeros_like(moved)
        for place in np.ndindex(moved.shape):  # central differences
            for sign in (1, -1):
                shifted = {key: value.copy() for key, value in weights.items()}
                shifted[name][place] += sign * 1e-5
                slopes[place] += sign * contrast(shifted, points, classes, margin_max) / 2e-5
        np.testing.assert_allclose(moved, weights[name] - RATE * slopes, atol=1e-6)


def test_descent_is_that_of_the_formulas(make: Any) -> None:
    at = make(**{"lambda": WEIGHT})
    trained = at.networks[TRAINED]
    trained.known.copy_(torch.tensor([1.0, 0.0, 1.0]))
    near, weights = trained().detach().numpy(), arrays(at.networks[DAM])
    values = descend(at.method.stages["train"](at.context), steps=3, rate=RATE)
    x, rows = BATCH.images.flatten(1).numpy(), TARGETS != 1
    for step in range(3):
        gaps = (feature(weights) - near[TARGETS])[rows]
        expected = {"ce_dam": cross_entropy(weights), "prototype_distance": float((gaps**2).mean())}
        assert values[step] == pytest.approx(expected, rel=SINGLE)
        step_of = gradient(weights)
        of_body = step_of["body.weight"] + WEIGHT * 2 * gaps.T @ x[rows] / gaps.size
        weights["body.weight"] -= RATE * of_body
        weights["fc.weight"] -= RATE * step_of["fc.weight"]
    for name, value in arrays(at.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-7)


def test_before_the_first_exchange_the_labels_alone_teach(make: Any) -> None:
    at = make()
    terms = at.terms("train", BATCH)
    assert float(terms["prototype_distance"].value.detach()) == 0.0


def test_a_distance_of_nothing_has_no_gradient() -> None:
    points = torch.zeros(2, 3, requires_grad=True)
    distance(points, torch.tensor([[0.0, 0.0, 0.0], [3.0, 4.0, 0.0]])).sum().backward()
    assert points.grad is not None
    assert points.grad.tolist() == [[0, 0, 0], [pytest.approx(-0.6), pytest.approx(-0.8), 0]]
    assert separation(torch.ones(2, 3), torch.tensor([1, 1])) == 0.0
