"""FedCross: a site trains any slot on its labels; nothing is averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fakes.small_sites import BATCH, resnet
from peer.core.plan import circulating
from peer.methods.fedcross.stages import FEDCROSS
from peer.methods.method import DAM, VISITOR
from peer.methods.registry import PLANS
from peer.methods.supervised import supervised_stage


@pytest.fixture
def site(make_site: Any) -> Any:
    """A site with a ResNet."""
    return make_site("fedcross", resnet(0), BATCH.images)


def test_every_round_circulates_and_nothing_is_averaged() -> None:
    plan = PLANS["fedcross"]
    assert circulating(plan, rounds=5, parameters={}) == 5
    assert "aggregate" not in plan.phases
    assert (FEDCROSS.local_networks, FEDCROSS.artifact_network) == ({}, DAM)
    model = resnet(0)
    assert list(FEDCROSS.artifact_tensors(model, {})) == list(model.state_dict())


def test_a_visitor_is_trained_alike_and_whole(site: Any) -> None:
    visitor, twin = resnet(3, width=6), resnet(3, width=6)
    before = site.state()
    loop = site.step(supervised_stage(site.context, VISITOR, visitor), BATCH)
    assert set(loop.optimisers) == {VISITOR}
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in visitor.parameters())
    assert not site.moved(before)
    torch.autograd.backward(F.cross_entropy(twin.train()(BATCH.images).prediction, BATCH.targets))
    for mine, literal in zip(visitor.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, literal.grad)
