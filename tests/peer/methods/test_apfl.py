"""APFL: descent on both models and the share equals algorithm 1 in float64; the mixture predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes.two_layers import BATCH, SINGLE, Arrays, TwoLayers, arrays, cross_entropy, descend, gradient, logits
from peer.methods.apfl.stages import APFL, SHARE, mixed_network
from peer.methods.method import DAM, GLOBAL
from peer.methods.registry import PLANS

RATE = 0.3


def mix(alpha: float, personal: Arrays, mean: Arrays) -> Arrays:
    return {name: alpha * personal[name] + (1 - alpha) * mean[name] for name in personal}


@pytest.mark.parametrize("adaptive", [True, False])
def test_descent_is_that_of_the_algorithm(make_site: Any, adaptive: bool) -> None:
    site = make_site("apfl", TwoLayers(1), BATCH.images, shared=lambda: TwoLayers(2), alpha=0.4, adaptive=adaptive)
    site.networks[SHARE].double()
    alpha = float(site.networks[SHARE].alpha.detach())
    personal, mean = arrays(site.networks[DAM]), arrays(site.networks[GLOBAL])
    values = descend(site.method.stages["train"](site.context), steps=4, rate=RATE)
    for step in range(4):
        mixed = mix(alpha, personal, mean)
        expected = {"ce_mixed": cross_entropy(mixed), "ce_global": cross_entropy(mean), "alpha": alpha}
        assert values[step] == pytest.approx(expected, rel=SINGLE)
        of_mixed, of_mean = gradient(mixed), gradient(mean)
        of_alpha = sum((of_mixed[name] * (personal[name] - mean[name])).sum() for name in mean)
        for name in mean:
            personal[name] -= RATE * alpha * of_mixed[name]
            mean[name] -= RATE * of_mean[name]
        alpha = min(max(alpha - RATE * float(of_alpha), 0.0), 1.0) if adaptive else alpha
    for network, expected_arrays in ((DAM, personal), (GLOBAL, mean)):
        for name, value in arrays(site.networks[network]).items():
            np.testing.assert_allclose(value, expected_arrays[name], rtol=1e-5, atol=1e-7)
    prediction = site.method.predict(site.context, BATCH.images).detach().numpy()
    np.testing.assert_allclose(prediction, logits(mix(alpha, personal, mean)), rtol=1e-5, atol=1e-6)
    exported = mixed_network(site.networks, {})(BATCH.images).prediction.detach().numpy()
    np.testing.assert_allclose(exported, prediction, rtol=1e-12)


def test_the_share_stays_within_0_and_1(make_site: Any) -> None:
    site = make_site("apfl", TwoLayers(1), BATCH.images, shared=lambda: TwoLayers(2), alpha=1.0)
    site.networks[SHARE].alpha.data.fill_(1.5)
    mixed = site.method.predict(site.context, BATCH.images)
    assert torch.equal(mixed, site.networks[DAM](BATCH.images).prediction)


def test_the_global_model_alone_is_sent() -> None:
    plan = PLANS["apfl"]
    assert (plan.artifact, plan.never_leaves, APFL.artifact_network) == ("proxy", ("model", "head"), GLOBAL)
