"""DFML: descent of three models at a site equals the formula in float64; the weight of the others is cyclic."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from fakes.two_layers import (
    BATCH,
    SINGLE,
    Arrays,
    TwoLayers,
    arrays,
    backward,
    descend,
    gradient,
    logits,
    softmax,
)  # fmt: skip
from peer.methods.dfml.stages import LEAST, PEAK, chosen_network, is_peak, leave_out, weight
from peer.methods.method import DAM, visitor_name
from peer.methods.registry import PLANS

RATE, ROUND = 0.3, 4
CYCLE = {"alpha_min": 0.1, "alpha_max": 0.7, "cycle": 8}
NAMES = (DAM, visitor_name("alpha"), visitor_name("gamma"))


@pytest.fixture
def site(make_site: Any) -> Any:
    received = {"alpha": TwoLayers(2, width=6), "gamma": TwoLayers(3)}
    at = make_site("dfml", TwoLayers(1), BATCH.images, received=received, **CYCLE)
    at.context = dataclasses.replace(at.context, round=ROUND)
    return at


def divergence(teacher: np.ndarray, student: np.ndarray) -> float:
    return float((teacher * (np.log(teacher) - np.log(student))).sum(1).mean())


def test_descent_is_that_of_the_formula(site: Any) -> None:
    alpha = 0.1 + 0.6 * (1 - np.cos(2 * np.pi * 3 / 8)) / 2
    stage = site.method.stages["train"](site.context)
    weights: dict[str, Arrays] = {name: arrays(stage.networks[name]) for name in NAMES}
    sizes = {name: sum(value.size for value in each.values()) for name, each in weights.items()}
    for values in descend(stage, steps=3, rate=RATE):
        shares = {name: softmax(logits(each)) for name, each in weights.items()}
        slopes = {}
        for name in NAMES:
            others = [other for other in NAMES if other != name]
            total = sum(sizes[other] for other in others)
            slope = {key: (1 - alpha) * value for key, value in gradient(weights[name]).items()}
            for other in others:
                assert values[f"kl_{name}_from_{other}"] == pytest.approx(
                    divergence(shares[other], shares[name]), rel=1e-5
                )
                error = (shares[name] - shares[other]) / len(shares[name])
                of_divergence = backward(weights[name], error)
                for key in slope:
                    slope[key] = slope[key] + alpha * sizes[other] / total * of_divergence[key]
            slopes[name] = slope
        for name in NAMES:
            for key in slopes[name]:
                weights[name][key] -= RATE * slopes[name][key]
    for name in NAMES:
        for key, value in arrays(stage.networks[name]).items():
            np.testing.assert_allclose(value, weights[name][key], rtol=1e-4, atol=1e-6)


def test_the_weight_of_the_others_is_cyclic() -> None:
    weights = [weight(round, CYCLE) for round in range(1, 18)]
    assert weights[:9] == pytest.approx([0.1, 0.188, 0.4, 0.612, 0.7, 0.612, 0.4, 0.188, 0.1], abs=1e-3)
    assert weights[8:] == pytest.approx(weights[:9])
    assert [round for round in range(1, 18) if is_peak(round, CYCLE)] == [5, 13]


def test_absent_classes_are_left_out_of_the_supervised_loss(site: Any) -> None:
    predictions = torch.randn(4, 3, 2, 2)
    kept = leave_out(predictions, [0, 2])
    assert torch.equal(kept[:, [0, 2]], predictions[:, [0, 2]])
    assert (kept[:, 1] == LEAST).all()
    assert leave_out(predictions, []) is predictions
    site.context = dataclasses.replace(site.context, classes_present=(0, 1))
    own = logits(arrays(site.networks[DAM]))[:, :2]
    rows = [row for row, target in enumerate(BATCH.targets.tolist()) if target < 2]
    batch = dataclasses.replace(BATCH, images=BATCH.images[rows], targets=BATCH.targets[rows])
    expected = -np.log(softmax(own[rows])[range(len(rows)), batch.targets.numpy()]).mean()
    assert site.terms("train", batch)["ce_dam"].value.item() == pytest.approx(expected, rel=SINGLE)


def test_the_model_of_the_last_peak_is_kept_and_predicts_where_the_federation_says_so(make_site: Any) -> None:
    at = make_site("dfml", TwoLayers(1), BATCH.images, **CYCLE, predict="peak")
    assert chosen_network(at.networks, at.context.parameters) is at.networks[DAM]
    after_peak = {name: value.clone() for name, value in at.networks[DAM].state_dict().items()}
    for round in (6, 7, 8):
        at.context = dataclasses.replace(at.context, round=round)
        at.step("train", BATCH)
    kept = chosen_network(at.networks, at.context.parameters)
    assert kept is at.networks[PEAK].network
    assert all(torch.equal(value, after_peak[name]) for name, value in kept.state_dict().items())
    assert torch.equal(at.method.predict(at.context, BATCH.images), kept(BATCH.images).prediction)
    assert PLANS["dfml"].defaults()["predict"] == "model"
