"""FedDAL: eqs. 1 to 3 in float64, the two steps of a batch, the ablations, maps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.small_sites import MAPS, resnet, u_net
from losses import consensus, feeding_loss, forward_kl, transfer_loss
from models import Output
from peer.methods.feddal.stages import check_local
from peer.methods.method import DAM, PROXY, Batch, Stage
from peer.methods.registry import PLANS

BATCH = Batch(torch.randn(8, 2, 40, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
EXACT = Batch(5 * BATCH.images.double(), BATCH.targets)


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site with two ResNets."""

    def make(*, classes: int = 4, **parameters: Any) -> Any:
        shared = partial(resnet, 6, 2, classes)
        return make_site("feddal", resnet(0, 4, classes), BATCH.images, shared=shared, **parameters)

    return make


@pytest.fixture
def dense(make_site: Any) -> Any:
    """Makes a site that segments, with two U-Nets of different depth."""

    def make(**parameters: Any) -> Any:
        shared = partial(u_net, 1, 1)
        return make_site("feddal", u_net(0, 2), MAPS.images, shared=shared, task="segmentation", **parameters)

    return make


# --- the losses -------------------------------------------------------------------------------------------------------
def losses_of(private: Tensor, proxy: Tensor, targets: Tensor, top: int) -> dict[str, float]:
    """The losses of both networks; ``tests/losses/test_mutual.py`` has their equations."""
    losses = {
        "forward_kl": forward_kl(private, proxy),
        "feeding": feeding_loss(private, proxy, top=top),
        "one": feeding_loss(private, proxy, top=top, weights=1.0),
        "transfer": transfer_loss(private, proxy, top=top),
        "consensus": consensus(private, proxy, top=top).mean(),
        "ce_dam": F.cross_entropy(private, targets),
        "ce_proxy": F.cross_entropy(proxy, targets),
    }
    return {name: loss.item() for name, loss in losses.items()}


def predictions(at: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return tuple(at.networks[name](batch.images).prediction for name in (DAM, PROXY))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_proxy_learns_the_private_distribution(site: Any, alpha: float) -> None:
    at = site(proxy_supervision=alpha).exact()
    expected = losses_of(*predictions(at, EXACT), EXACT.targets, 1)
    terms = at.terms("train", EXACT)
    weights = {"forward_kl": 1.0} | ({"ce_proxy": alpha} if alpha else {})
    assert {name: term.weight for name, term in terms.items()} == weights
    for name in weights:
        assert terms[name].value.item() == pytest.approx(expected[name], rel=1e-6)


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize(
    ("parameters", "feeding"),
    [({}, "feeding"), ({"consensus": "one"}, "one"), ({"backward": "transfer"}, "transfer")],
)
def test_the_private_model_is_fed_with_the_classes_of_the_proxy(
    site: Any, top: int, parameters: dict[str, Any], feeding: str
) -> None:
    at = site(top=top, **parameters).exact()
    expected = losses_of(*predictions(at, EXACT), EXACT.targets, top)
    terms = at.terms("train", EXACT, step=1)
    assert {name: term.weight for name, term in terms.items()} == {"ce_dam": 1.0, "feeding": 1.0, "consensus": 0.0}
    assert terms["ce_dam"].value.item() == pytest.approx(expected["ce_dam"], rel=1e-6)
    assert terms["feeding"].value.item() == pytest.approx(expected[feeding], rel=1e-9, abs=1e-12)
    assert terms["consensus"].value.item() == pytest.approx(expected["consensus"])
    assert 0 < expected["consensus"] < 1


def test_the_composite_loss_has_the_divergence_in_both_steps(site: Any) -> None:
    at = site(forward_kl_updates_private=True).exact()
    expected = losses_of(*predictions(at, EXACT), EXACT.targets, 1)["forward_kl"]
    term = at.terms("train", EXACT, step=1)["forward_kl_private"]
    assert (term.value.item(), term.weight) == (pytest.approx(expected), 1.0)
    torch.autograd.backward(term.value)
    assert at.learns(DAM) >= {"conv1.weight", "fc.weight"}


# --- the two steps ----------------------------------------------------------------------------------------------------
def test_on_each_batch_first_the_proxy_then_the_private_model(site: Any) -> None:
    at = site()
    loop = at.step("train", BATCH, steps=2)
    assert loop.steps == 2
    assert at.modes == {DAM: [False, True] * 2, PROXY: [True, False] * 2}
    assert set(loop.optimisers) == set(loop.moments()) == {DAM, PROXY}


@pytest.mark.parametrize(("step", "learns", "stays"), [(0, PROXY, DAM), (1, DAM, PROXY)])
def test_a_step_moves_one_network_and_leaves_the_other_bit_by_bit(
    site: Any, step: int, learns: str, stays: str
) -> None:
    at = site(proxy_supervision=1.0)
    before, whole = at.state(), at.method.stages["train"](at.context)
    at.step(Stage(whole.networks, ((whole.passes[0][step],),)), BATCH)
    assert at.moved(before) == {learns}
    assert at.learns(learns) == dict(at.networks[learns].named_parameters()).keys()
    assert at.untouched(stays)


def test_the_private_model_hears_the_proxy_that_has_just_learnt(site: Any) -> None:
    together, apart = site(), site()
    losses = together.step("train", BATCH).losses()
    whole = apart.method.stages["train"](apart.context)
    for step in whole.passes[0]:
        losses_apart = apart.step(Stage(whole.networks, ((step,),)), BATCH).losses()
    assert losses_apart["feeding"] == losses["feeding"]
    assert not apart.moved(together.state())
    stale = site()
    unlearnt = stale.method.stages["train"](stale.context)
    stale.step(Stage(unlearnt.networks, ((unlearnt.passes[0][1],),)), BATCH)
    assert stale.moved(together.state()) == {DAM, PROXY}


def test_without_alternation_all_batches_are_the_proxys_first(site: Any) -> None:
    at = site(alternating=False)
    loop = at.step("train", BATCH, steps=2)
    assert loop.steps == 4
    assert at.modes == {DAM: [False, False, True, True], PROXY: [True, True, False, False]}


def test_losses_in_bf16_are_near_those_in_fp32(site: Any) -> None:
    exact, rough = (
        site(consensus="one", proxy_supervision=1.0).step("train", BATCH, precision=precision).losses()
        for precision in ("fp32", "bf16")
    )
    assert rough == pytest.approx(exact, rel=0.1, abs=0.13)  # 1 of 8 samples may change its mind
    assert rough != exact


@pytest.mark.parametrize(("classes", "top", "fits"), [(2, 1, True), (2, 2, False), (8, 2, True), (8, 9, False)])
def test_one_class_at_least_is_left_out(classes: int, top: int, fits: bool) -> None:
    own = Output(torch.zeros(1, classes), (), torch.zeros(1, 4), torch.zeros(1, 4))
    problem = check_local(own, own, {**PLANS["feddal"].defaults(), "top": top}, masks=False)
    assert problem == (None if fits else f"[method] top = {top} must be less than the {classes} classes")


# --- segmentation -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("parameters", [{}, {"top": 2}, {"backward": "transfer"}])
def test_every_pixel_is_a_sample(dense: Any, parameters: dict[str, Any]) -> None:
    at = dense(**parameters).exact()
    batch = Batch(MAPS.images.double(), MAPS.targets)
    expected = losses_of(*predictions(at, batch), batch.targets, parameters.get("top", 1))
    proxy_terms, private_terms = at.terms("train", batch), at.terms("train", batch, step=1)
    assert proxy_terms["forward_kl"].value.item() == pytest.approx(expected["forward_kl"])
    assert private_terms["feeding"].value.item() == pytest.approx(expected[parameters.get("backward", "feeding")])
    assert private_terms["consensus"].value.item() == pytest.approx(expected["consensus"])
    assert private_terms["ce_dam"].value.item() == pytest.approx(expected["ce_dam"], rel=1e-6)


@pytest.mark.parametrize("loss", ["ce", "dice_ce", "dice"])
def test_segmentation_chooses_its_supervised_loss(dense: Any, loss: str) -> None:
    at = dense(segmentation_loss=loss, proxy_supervision=1.0)
    losses = at.step("train", MAPS).losses()
    assert losses.keys() == {"total", "forward_kl", f"{loss}_proxy", f"{loss}_dam", "feeding", "consensus"}
    assert all(np.isfinite(value) for value in losses.values())
