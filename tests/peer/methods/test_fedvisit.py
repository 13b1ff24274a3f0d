"""FedVisit: the losses of a visit against a literal float64 version, what teaches whom, and whose turn each step is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import models
from fakes.small_sites import BATCH, DRAW, EXACT, resnet
from peer.methods.fedvisit.stages import check_local, check_received
from peer.methods.method import DAM, TWIN, Batch, visitor_name
from peer.methods.registry import PLANS

ALPHA, GAMMA = visitor_name("alpha"), visitor_name("gamma")


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site that two models visit."""

    def make(**parameters: Any) -> Any:
        visitors = {"alpha": resnet(1, 6), "gamma": resnet(2, 2)}
        return make_site("fedvisit", resnet(0), BATCH.images, received=visitors, **parameters)

    return make


def softmax(logits: Tensor, temperature: float) -> np.ndarray:
    e = np.exp(logits.detach().numpy() / temperature)
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_the_losses_by_the_equations(site: Any, temperature: float) -> None:
    at = site(kd=2.0, temperature=temperature).exact()
    dam, visitor = (at.networks[name](EXACT.images).prediction for name in (DAM, "alpha"))
    w, v = softmax(dam, temperature), softmax(visitor, temperature)
    labels = EXACT.targets.numpy()
    expected = {
        "ce_dam": -np.log(softmax(dam, 1.0)[range(5), labels]).mean(),
        "ce_visitor": -np.log(softmax(visitor, 1.0)[range(5), labels]).mean(),
        "kl_from_visitor": (v * np.log(v / w)).sum(1).mean(),
        "kl_from_dam": (w * np.log(w / v)).sum(1).mean(),
    }
    terms = at.terms("train", EXACT)
    assert {name: float(term.value.detach()) for name, term in terms.items()} == pytest.approx(expected, rel=1e-6)
    kd = 2.0 * temperature**2
    assert {name: term.weight for name, term in terms.items()} == {
        "ce_dam": 1, "ce_visitor": 1, "kl_from_visitor": kd, "kl_from_dam": kd,
    }  # fmt: skip


def test_a_teacher_is_a_constant(site: Any) -> None:
    for name, student, teacher in (("kl_from_visitor", DAM, "alpha"), ("kl_from_dam", "alpha", DAM)):
        at = site()
        torch.autograd.backward(at.terms("train", BATCH)[name].value)
        assert at.learns(student)
        assert at.untouched(teacher)


@pytest.mark.parametrize(
    ("distillation", "terms"),
    [
        ("none", set()),
        ("logits", {"kl_from_visitor", "kl_from_dam"}),
        ("similarity", {"batch", "position"}),
        ("both", {"kl_from_visitor", "kl_from_dam", "batch", "position"}),
    ],
)
def test_what_is_distilled(site: Any, distillation: str, terms: set[str]) -> None:
    names = site(distillation=distillation).terms("train", BATCH).keys()
    assert names - {"ce_dam", "ce_visitor"} == terms


def test_images_are_compared_by_their_mean_absolute_difference(make_site: Any) -> None:
    def model(seed: int) -> models.Network:
        torch.manual_seed(seed)
        return models.create_model("srresnet6", spatial_dims=2, in_channels=1, classes=1, width=4, scale=2)

    batch = Batch(torch.rand(2, 1, 8, 8, generator=DRAW), torch.rand(2, 1, 16, 16, generator=DRAW))
    at = make_site("fedvisit", model(0), batch.images, received={"alpha": model(1)}, task="super_resolution")
    terms = at.terms("train", batch)
    assert set(terms) == {"l1_dam", "l1_visitor", "l1_from_visitor", "l1_from_dam"}
    own, visitor = (at.networks[name](batch.images).prediction for name in (DAM, "alpha"))
    gap = (own - visitor).abs().mean()
    assert torch.allclose(terms["l1_from_dam"].value, gap)


@pytest.mark.parametrize("method", ["fedvisit", "fedvisit_twin"])
def test_numbers_are_compared_as_they_are_learnt_so_that_labels_weigh_as_much(make_site: Any, method: str) -> None:
    batch = Batch(torch.rand(4, 3, 1, generator=DRAW), torch.rand(4, 1, generator=DRAW))

    def model(seed: int) -> models.Network:
        torch.manual_seed(seed)
        return models.create_model("mlp", spatial_dims=1, in_channels=3, classes=1, width=4)

    at = make_site(method, model(0), batch.images, received={"alpha": model(1)}, task="number")
    for network in at.networks.values():
        network.eval()  # without dropout
    own = TWIN if method == "fedvisit_twin" else DAM
    mine, visitors = (at.networks[name](batch.images).prediction for name in (own, "alpha"))
    terms = at.terms("train", batch)
    name = "mse_twin_from_visitor" if own == TWIN else "mse_from_visitor"
    assert torch.allclose(terms[name].value, (mine - visitors).square().mean())
    assert terms[name].weight == terms[f"mse_{own}"].weight == 1


@pytest.mark.parametrize(("steps", "shares"), [(5, (3, 2)), (4, (2, 2)), (1, (1, 0))])
def test_the_steps_are_divided_among_the_visitors(site: Any, steps: int, shares: tuple[int, int]) -> None:
    at = site()
    loop = at.step("train", BATCH, steps=steps)
    assert loop.pass_steps == shares
    assert loop.steps == steps
    assert [len(at.modes[name]) for name in (DAM, ALPHA, GAMMA)] == [steps, *shares]
    assert all(at.modes[DAM])


def test_a_header_trains_or_is_frozen(site: Any) -> None:
    for header, moved in (("open", {"weight", "bias"}), ("fixed_bias", {"weight"}), ("frozen", set())):
        at = site(header=header)
        visitor = at.networks["alpha"]
        before = {name: value.clone() for name, value in visitor.state_dict().items()}
        at.step("train", BATCH, steps=2)
        changed = {name for name, value in visitor.state_dict().items() if not torch.equal(value, before[name])}
        head = {f"{visitor.head_name}.{name}" for name in ("weight", "bias")}
        assert changed & head == {f"{visitor.head_name}.{name}" for name in moved}
        assert changed - head


def test_without_a_visitor_the_local_model_trains_on_labels(make_site: Any) -> None:
    at = make_site("fedvisit", resnet(0), BATCH.images)
    assert at.terms("train", BATCH).keys() == {"ce_dam"}


def test_stage_features_are_demanded_where_they_are_compared() -> None:
    full = resnet(0).eval()(BATCH.images)
    bare = full._replace(taps=())
    chosen = PLANS["fedvisit"].defaults()
    assert check_local(bare, None, chosen, masks=False) is None
    assert check_received(full, bare, chosen) is None
    compared = {**chosen, "distillation": "both"}
    assert "name its layers in [model] features" in (check_local(bare, None, compared, masks=False) or "")
    assert "choose no stage" in (check_received(full, bare, compared) or "")
    assert check_received(full, full, compared) is None
