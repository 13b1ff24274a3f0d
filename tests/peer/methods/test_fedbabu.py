"""FedBABU: descent equals the formulas in float64; the head moves in the last round alone, and never leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, gradient
from peer.methods.fedbabu.stages import FEDBABU
from peer.methods.method import DAM, HEAD
from peer.methods.registry import PLANS

RATE = 0.3


@pytest.mark.parametrize(("stage", "trained"), [("train", {"body.weight"}), ("finetune", {"body.weight", "fc.weight"})])
def test_descent_is_that_of_the_formulas(make_site: Any, stage: str, trained: set[str]) -> None:
    site = make_site("fedbabu", TwoLayers(1), BATCH.images)
    weights = arrays(site.networks[DAM])
    built = site.method.stages[stage](site.context)
    for name, parameter in site.networks[DAM].named_parameters():
        parameter.requires_grad_(name in trained)  # as the loop freezes it
    for values in descend(built, steps=3, rate=RATE):
        assert values == pytest.approx({"ce_dam": cross_entropy(weights)}, rel=SINGLE)
        gradients = gradient(weights)
        for name in trained:
            weights[name] -= RATE * gradients[name]
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-7)


def test_all_but_the_head_is_sent_and_the_last_round_sends_nothing() -> None:
    plan = PLANS["fedbabu"]
    assert FEDBABU.artifact_tensors(TwoLayers(), {}) == ["body.weight"]
    assert (plan.never_leaves, plan.last_round) == ((HEAD,), ("train:finetune",))
