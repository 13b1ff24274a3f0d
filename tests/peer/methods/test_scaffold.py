"""SCAFFOLD: rounds of plain descent at two sites equal algorithm 1, option II, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, gradient
from peer.methods.method import DAM, Batch
from peer.methods.scaffold.stages import CONTROL, OWN_CONTROL

RATE, STEPS = 0.3, 3
BATCHES = BATCH, Batch(BATCH.images.flip(0) * 1.5, BATCH.targets)
"""The data of two sites."""


def round_of(at: Any, batch: Batch) -> list[Any]:
    stage = at.method.stages["train"](at.context)
    ((step,),) = stage.passes
    return descend(stage, steps=STEPS, rate=RATE, batch=batch, after_backward=step.after_backward)


def test_rounds_are_those_of_the_algorithm(make_site: Any) -> None:
    sites = [make_site("scaffold", TwoLayers(1), batch.images, shared=lambda: TwoLayers(1)) for batch in BATCHES]
    mean = arrays(TwoLayers(1))
    common = {name: np.zeros_like(value) for name, value in mean.items()}
    own = [dict(common) for _ in sites]
    for _ in range(3):
        trained = []
        for number, (at, batch) in enumerate(zip(sites, BATCHES, strict=True)):
            weights = {name: value.copy() for name, value in mean.items()}
            for values in round_of(at, batch):
                assert values == pytest.approx({"ce_dam": cross_entropy(weights, batch)}, rel=SINGLE)
                slope = gradient(weights, batch)
                for name in weights:
                    weights[name] -= RATE * (slope[name] - own[number][name] + common[name])
            own[number] = {
                name: own[number][name] - common[name] + (mean[name] - weights[name]) / (STEPS * RATE) for name in mean
            }
            trained.append(weights)
            for name, value in own[number].items():
                sent = at.networks[CONTROL].of(name).numpy(), at.networks[OWN_CONTROL].of(name).numpy()
                np.testing.assert_allclose(sent, [value, value], rtol=1e-4, atol=1e-6)
        mean = {name: (trained[0][name] + trained[1][name]) / 2 for name in mean}
        common = {name: (own[0][name] + own[1][name]) / 2 for name in mean}
        for at in sites:  # what every site's aggregate does
            for name in mean:
                at.networks[DAM].get_parameter(name).data.copy_(torch.from_numpy(mean[name]))
                at.networks[CONTROL].of(name).copy_(torch.from_numpy(common[name]))
    assert any(np.abs(own[0][name] - own[1][name]).max() > 0.01 for name in mean), "the sites' gradients differ"
