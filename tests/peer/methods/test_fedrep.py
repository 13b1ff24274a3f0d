"""FedRep: descent of head and body in turn equals the formula in float64; the head never leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import models
from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, cross_entropy, descend, gradient
from peer.methods.fedrep.stages import FEDREP
from peer.methods.method import DAM, HEAD
from peer.methods.registry import PLANS

RATE = 0.3


def test_descent_is_that_of_the_formulas(make_site: Any) -> None:
    site = make_site("fedrep", TwoLayers(1), BATCH.images)
    weights = arrays(site.networks[DAM])
    for stage, trained in (("head", "fc.weight"), ("body", "body.weight")):
        built = site.method.stages[stage](site.context)
        site.networks[DAM].requires_grad_(False)  # as the loop freezes it
        site.networks[DAM].get_parameter(trained).requires_grad_(True)
        for values in descend(built, steps=3, rate=RATE):
            assert values == pytest.approx({"ce_dam": cross_entropy(weights)}, rel=SINGLE)
            weights[trained] -= RATE * gradient(weights)[trained]
    for name, value in arrays(site.networks[DAM]).items():
        np.testing.assert_allclose(value, weights[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("stage", "modes"), [("head", {DAM: [False]}), ("body", {DAM: [True]})])
def test_each_stage_moves_its_own_part_alone(make_site: Any, stage: str, modes: dict[str, list[bool]]) -> None:
    torch.manual_seed(0)
    dam = models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=4)
    images = torch.randn(5, 2, 40, generator=torch.Generator().manual_seed(0))
    site = make_site("fedrep", dam, images)
    before = {name: value.clone() for name, value in dam.state_dict().items()}
    site.step(stage, BATCH.__class__(images, torch.tensor([0, 1, 2, 0, 1])), steps=2)
    moved = {name for name, value in dam.state_dict().items() if not torch.equal(value, before[name])}
    head = {name for name in before if name.startswith(f"{dam.head_name}.")}
    assert moved == (head if stage == "head" else before.keys() - head)
    assert {name: modes[:1] for name, modes in site.modes.items() if name == DAM} == modes
    assert all(parameter.requires_grad for parameter in dam.parameters()), "the loop thaws all of it"


def test_all_but_the_head_is_sent() -> None:
    network, plan = TwoLayers(), PLANS["fedrep"]
    assert FEDREP.artifact_tensors(network, {}) == ["body.weight"]
    assert plan.never_leaves == (HEAD,)
    assert plan.evaluation_denied == "each site's head stays there"
