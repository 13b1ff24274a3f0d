"""One battery over every method: its stages are its plan's, it trains what it may, it predicts."""

from __future__ import annotations

import pytest
import torch

import models
from peer.core.plan import PLANS
from peer.methods import METHODS
from peer.methods.method import DAM, Batch, Scene
from peer.methods.supervised import SUPERVISED


def network(seed: int, width: int = 4) -> models.Network:
    torch.manual_seed(seed)
    return models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=width)


def scene(method: str, received: int) -> Scene:
    others = tuple(network(seed, width=6) for seed in range(1, 1 + received))
    return Scene("classification", PLANS[method].defaults(), network(0), others)


BATCH = Batch(torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1]))
SCENES = [("local", 0), ("fedskd", 0), ("fedskd", 1)]


def test_methods_are_those_of_the_plans() -> None:
    assert METHODS.keys() == PLANS.keys()
    for name, method in METHODS.items():
        assert method.stages.keys() == PLANS[name].stages.keys()


@pytest.mark.parametrize(("name", "received"), SCENES)
def test_a_stage_has_finite_terms_that_move_the_local_model(name: str, received: int) -> None:
    for build in METHODS[name].stages.values():
        stage = build(scene(name, received))
        terms = stage.losses(BATCH, lambda name, images, networks=stage.networks: networks[name](images))
        assert all(term.value.shape == () and torch.isfinite(term.value) for term in terms.values())
        torch.autograd.backward(sum(term.value * term.weight for term in terms.values()))
        assert all(parameter.grad is not None for parameter in stage.networks[DAM].parameters())
        means = {term: float(value.value.detach()) for term, value in terms.items()}
        assert all(isinstance(value, float) for value in stage.summary(means).values())


@pytest.mark.parametrize("name", METHODS)
def test_a_prediction_is_that_of_the_local_model(name: str) -> None:
    dam = network(0).eval()
    prediction = METHODS[name].predict({DAM: dam}, BATCH.images)
    assert torch.equal(prediction, dam(BATCH.images).prediction)


@pytest.mark.parametrize("name", METHODS)
def test_an_own_network_with_stages_fits_every_method(name: str) -> None:
    output = network(0).eval()(BATCH.images)
    assert METHODS[name].unfit(output, PLANS[name].defaults(), masks=False) is None
    assert METHODS[name].mismatch(output, output, PLANS[name].defaults()) is None


@pytest.mark.parametrize("task", SUPERVISED)
def test_a_supervised_loss_is_a_mean_over_the_batch(task: str) -> None:
    logits, targets = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    loss = SUPERVISED[task].loss
    assert loss(logits.repeat(3, 1), targets.repeat(3)).item() == pytest.approx(loss(logits, targets).item())
    by_hand = -logits.log_softmax(1)[torch.arange(4), targets].mean()
    assert SUPERVISED["classification"].loss(logits, targets).item() == pytest.approx(by_hand.item())
