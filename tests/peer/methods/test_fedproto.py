"""FedProto: terms, descent and prototypes equal the formulas in float64; nothing but prototypes is sent."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, feature, gradient
from models import Output
from peer.methods.fedproto.stages import FEDPROTO, PROTOTYPES, pool
from peer.methods.method import DAM, Batch
from peer.methods.registry import PLANS

RATE, WEIGHT = 0.2, 0.4
TARGETS = BATCH.targets.numpy()


@pytest.fixture
def site(make_site: Any) -> Any:
    """A site with the prototypes of classes 0 and 1; nobody has class 2."""
    at = make_site("fedproto", TwoLayers(1), BATCH.images, width=4, **{"lambda": WEIGHT})
    table = at.networks[PROTOTYPES].double().network
    table.prototypes.copy_(torch.randn(3, 4, generator=torch.Generator().manual_seed(5)))
    table.counts.copy_(torch.tensor([1.0, 1.0, 0.0]))
    return at


def test_descent_is_that_of_the_formulas(site: Any) -> None:
    weights, drawn_to = arrays(site.networks[DAM]), site.networks[PROTOTYPES].network.prototypes.numpy().copy()
    values = descend(site.method.stages["train"](site.context), steps=3, rate=RATE)
    x = BATCH.images.flatten(1).numpy()
    for step in range(3):
        distance, of_body = 0.0, gradient(weights)["body.weight"]
        of_head = gradient(weights)["fc.weight"]
        for number in (0, 1):
            rows = number == TARGETS
            gap = feature(weights)[rows].mean(0) - drawn_to[number]
            distance += float((gap**2).sum())
            of_body = of_body + WEIGHT * 2 * np.outer(gap, x[rows].mean(0))
        expected = {"ce_dam": cross_entropy(weights), "prototype_distance": distance}
        assert values[step] == pytest.approx(expected, rel=SINGLE)
        weights["body.weight"] -= RATE * of_body
        weights["fc.weight"] -= RATE * of_head
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-7)


def test_prototypes_are_the_mean_features_of_the_classes_over_all_batches(site: Any) -> None:
    before, weights = site.state(), arrays(site.networks[DAM])
    stage = site.method.stages[PROTOTYPES](site.context)
    other = Batch(BATCH.images.flip(0) * 2, torch.tensor([1, 1, 0, 1, 0, 0]))
    for batch in (BATCH, other):
        site.step(stage, batch)
    features = np.concatenate([feature(weights), feature(weights, other)])
    targets = np.concatenate([TARGETS, other.targets.numpy()])
    table = site.networks[PROTOTYPES].network
    for number in range(3):
        expected = features[targets == number].mean(0)
        np.testing.assert_allclose(table.prototypes[number].numpy(), expected, rtol=1e-5, atol=1e-7)
    assert table.counts.tolist() == np.bincount(targets).tolist()
    assert site.moved(before) == {PROTOTYPES}


def test_the_nearest_prototype_predicts_where_the_federation_says_so(make_site: Any) -> None:
    at = make_site("fedproto", TwoLayers(1), BATCH.images, width=4, predict="nearest")
    table = at.networks[PROTOTYPES].double().network
    table.prototypes.copy_(torch.eye(3, 4))
    table.counts.copy_(torch.tensor([1.0, 1.0, 0.0]))
    distances = ((feature(arrays(at.networks[DAM]))[:, None] - np.eye(3, 4)) ** 2).sum(2)
    prediction = at.method.predict(at.context, BATCH.images).detach().numpy()
    np.testing.assert_allclose(prediction[:, :2], -distances[:, :2], rtol=1e-5)
    assert (prediction.argmax(1) < 2).all(), "a class without a prototype is never the nearest"


def test_features_of_any_width_are_averaged_to_one() -> None:
    features = torch.arange(12.0).reshape(2, 6)
    assert torch.equal(pool(features, 6), features)
    assert torch.equal(pool(features, 3), torch.tensor([[0.5, 2.5, 4.5], [6.5, 8.5, 10.5]]))
    assert pool(features, 8).shape == (2, 8)


def test_a_head_that_takes_maps_is_refused() -> None:
    output = Output(torch.zeros(1, 3), (), torch.zeros(1, 4, 2), torch.zeros(1, 4, 2))
    problem = FEDPROTO.check_local(output, None, PLANS["fedproto"].defaults(), masks=False)
    assert problem == "the model's head takes features of shape (4, 2); a prototype is one vector"
