"""Ditto: descent on both models equals the paper's formulas in float64; the personal model never leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, gradient
from peer.methods.ditto.stages import DITTO
from peer.methods.method import DAM, GLOBAL
from peer.methods.registry import PLANS

RATE, PULL = 0.3, 0.7


@pytest.fixture
def site(make_site: Any) -> Any:
    return make_site("ditto", TwoLayers(1), BATCH.images, shared=lambda: TwoLayers(2), **{"lambda": PULL})


def test_descent_is_that_of_the_formulas(site: Any) -> None:
    personal, mean = arrays(site.networks[DAM]), arrays(site.networks[GLOBAL])
    anchor = {name: value.copy() for name, value in mean.items()}
    values = descend(site.method.stages["train"](site.context), steps=4, rate=RATE)
    for step in range(4):
        distance = sum(((personal[name] - anchor[name]) ** 2).sum() for name in personal)
        expected = {"ce_dam": cross_entropy(personal), "ce_global": cross_entropy(mean), "proximal": distance}
        assert values[step] == pytest.approx(expected, rel=SINGLE)
        of_personal, of_mean = gradient(personal), gradient(mean)
        for name in personal:
            personal[name] -= RATE * (of_personal[name] + PULL * (personal[name] - anchor[name]))
            mean[name] -= RATE * of_mean[name]
    for network, expected_arrays in ((DAM, personal), (GLOBAL, mean)):
        for name, value in arrays(site.networks[network]).items():
            np.testing.assert_allclose(value, expected_arrays[name], rtol=1e-5, atol=1e-7)


def test_the_global_model_alone_is_sent() -> None:
    plan = PLANS["ditto"]
    assert (plan.artifact, plan.never_leaves, DITTO.artifact_network) == ("proxy", ("model", "head"), GLOBAL)
    assert plan.evaluation_denied == "the method lets no private model leave its site"
