"""FedDAL: eqs. 1 to 3 against a literal float64 version, the two steps of a batch, the ablations, maps."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import models
from models import Output
from peer.methods.feddal.stages import FEDDAL, check_local
from peer.methods.method import DAM, PROXY, Batch, Stage
from peer.methods.registry import PLANS

DRAW = torch.Generator().manual_seed(0)
BATCH = Batch(torch.randn(8, 2, 40, generator=DRAW), torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]))
EXACT = Batch(5 * BATCH.images.double(), BATCH.targets)
MAPS = Batch(torch.randn(2, 1, 16, 16, generator=DRAW), torch.randint(0, 3, (2, 16, 16), generator=DRAW))


def network(seed: int, width: int, classes: int = 4) -> models.Network:
    torch.manual_seed(seed)
    return models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=classes, width=width)


def u_net(seed: int, depth: int) -> models.Network:
    torch.manual_seed(seed)
    return models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=2, depth=depth)


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site with two ResNets."""

    def make(*, classes: int = 4, **parameters: Any) -> Any:
        shared = partial(network, 6, 2, classes)
        return make_site("feddal", network(0, 4, classes), BATCH.images, shared=shared, **parameters)

    return make


@pytest.fixture
def dense(make_site: Any) -> Any:
    """Makes a site that segments, with two U-Nets of different depth."""

    def make(**parameters: Any) -> Any:
        shared = partial(u_net, 1, 1)
        return make_site("feddal", u_net(0, 2), MAPS.images, shared=shared, task="segmentation", **parameters)

    return make


# --- the equations ----------------------------------------------------------------------------------------------------
def samples(logits: Tensor) -> np.ndarray:
    """Logits as one row a sample or pixel, float64."""
    return logits.detach().double().movedim(1, -1).flatten(0, -2).numpy()


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def literal(private: Tensor, proxy: Tensor, targets: Tensor, top: int) -> dict[str, float]:
    """Eqs. 1 to 3 sample by sample, with the consensus of sets."""
    w, p, labels = softmax(samples(private)), softmax(samples(proxy)), targets.flatten().tolist()
    rows: dict[str, list[float]] = {name: [] for name in ("forward_kl", "feeding", "one", "transfer", "consensus")}
    for a, b in zip(w, p, strict=True):
        s, z = (set(np.argsort(-x, kind="stable")[:top].tolist()) for x in (a, b))
        agreement = len(s & z) / len(s | z)
        rows["forward_kl"].append(sum(a * (np.log(a) - np.log(b))))
        rows["consensus"].append(agreement)
        rows["one"].append(sum(-np.log(a[c]) for c in z))
        rows["feeding"].append(agreement * rows["one"][-1])
        rows["transfer"].append(agreement * sum(b[c] * np.log(b[c] / a[c]) for c in z))
    means = {name: float(np.mean(values)) for name, values in rows.items()}
    return means | {
        "ce_dam": float(np.mean([-np.log(row[k]) for row, k in zip(w, labels, strict=True)])),
        "ce_proxy": float(np.mean([-np.log(row[k]) for row, k in zip(p, labels, strict=True)])),
    }


def predictions(at: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return tuple(at.networks[name](batch.images).prediction for name in (DAM, PROXY))


@pytest.mark.parametrize("alpha", [0.0, 0.5])
def test_the_proxy_learns_the_private_distribution(site: Any, alpha: float) -> None:
    at = site(proxy_supervision=alpha).exact()
    expected = literal(*predictions(at, EXACT), EXACT.targets, 1)
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
    expected = literal(*predictions(at, EXACT), EXACT.targets, top)
    terms = at.terms("train", EXACT, step=1)
    assert {name: term.weight for name, term in terms.items()} == {"ce_dam": 1.0, "feeding": 1.0, "consensus": 0.0}
    assert terms["ce_dam"].value.item() == pytest.approx(expected["ce_dam"], rel=1e-6)
    assert terms["feeding"].value.item() == pytest.approx(expected[feeding], rel=1e-9, abs=1e-12)
    assert terms["consensus"].value.item() == pytest.approx(expected["consensus"])
    assert 0 < expected["consensus"] < 1


def test_the_composite_loss_has_the_divergence_in_both_steps(site: Any) -> None:
    at = site(forward_kl_updates_private=True).exact()
    expected = literal(*predictions(at, EXACT), EXACT.targets, 1)["forward_kl"]
    term = at.terms("train", EXACT, step=1)["forward_kl_private"]
    assert (term.value.item(), term.weight) == (pytest.approx(expected), 1.0)
    torch.autograd.backward(term.value)
    assert at.learns(DAM) >= {"conv1.weight", "fc.weight"}


def test_descent_on_the_feeding_raises_the_classes_of_the_proxy(site: Any) -> None:
    at = site(top=2, consensus="one").exact()
    before, proxy = (samples(logits) for logits in predictions(at, EXACT))
    torch.autograd.backward(at.terms("train", EXACT, step=1)["feeding"].value)
    with torch.no_grad():
        for parameter in at.networks[DAM].parameters():
            parameter -= 1e-3 * parameter.grad
    after = samples(predictions(at, EXACT)[0])
    chosen = np.argsort(-proxy, axis=1, kind="stable")[:, :2]
    rises = [np.log(np.take_along_axis(softmax(x), chosen, 1)).sum() for x in (before, after)]
    assert rises[1] > rises[0]


def test_disagreement_between_two_classes_feeds_nothing_back(site: Any) -> None:
    at = site(classes=2).exact()
    with torch.no_grad():
        for name, logits in ((DAM, (9.0, 0.0)), (PROXY, (0.0, 9.0))):
            at.networks[name].head.weight.zero_()
            at.networks[name].head.bias.copy_(torch.tensor(logits))
    terms = at.terms("train", Batch(EXACT.images, EXACT.targets % 2), step=1)
    assert terms["consensus"].value == 0
    assert terms["feeding"].value == 0
    torch.autograd.backward(terms["feeding"].value)
    assert not at.learns(DAM)


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


def test_the_proxy_is_sent_whole(site: Any) -> None:
    proxy = site().networks[PROXY]
    assert FEDDAL.artifact_network == PROXY
    assert list(FEDDAL.artifact_tensors(proxy, {})) == list(proxy.state_dict())


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
    expected = literal(*predictions(at, batch), batch.targets, parameters.get("top", 1))
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
