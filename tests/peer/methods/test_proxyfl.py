"""ProxyFL: both losses against a literal float64 version, teachers that are constants, both steps from one forward."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fakes.small_sites import BATCH, EXACT, MAPS, resnet, u_net
from peer.methods.method import DAM, PROXY, Batch


@pytest.fixture
def site(make_site: Any) -> Any:
    """Makes a site with two ResNets."""

    def make(**parameters: Any) -> Any:
        return make_site("proxyfl", resnet(0), BATCH.images, shared=partial(resnet, 1, 2), **parameters)

    return make


def softmax(logits: Tensor) -> np.ndarray:
    e = np.exp(logits.detach().numpy())
    return e / e.sum(1, keepdims=True)


@pytest.mark.parametrize("alpha", [0.5, 0.2, 0.0])
def test_the_losses_by_the_equations(site: Any, alpha: float) -> None:
    at = site(alpha=alpha).exact()
    w, p = (softmax(at.networks[name](EXACT.images).prediction) for name in (DAM, PROXY))
    labels = EXACT.targets.numpy()
    expected = {
        "ce_dam": -np.log(w[range(5), labels]).mean(),
        "ce_proxy": -np.log(p[range(5), labels]).mean(),
        "kl_dam": (p * np.log(p / w)).sum(1).mean(),
        "kl_proxy": (w * np.log(w / p)).sum(1).mean(),
    }
    terms = at.terms("train", EXACT)
    assert {name: term.value.item() for name, term in terms.items()} == pytest.approx(expected, rel=1e-6)
    weights = {name: term.weight for name, term in terms.items()}
    assert weights == {"ce_dam": 1 - alpha, "ce_proxy": 1 - alpha, "kl_dam": alpha, "kl_proxy": alpha}
    assert expected["kl_dam"] != pytest.approx(expected["kl_proxy"], rel=0.01)


@pytest.mark.parametrize("name", [DAM, PROXY])
def test_a_teacher_is_a_constant(site: Any, name: str) -> None:
    at = site()
    torch.autograd.backward(at.terms("train", BATCH)[f"kl_{name}"].value)
    assert at.learns(name) == dict(at.networks[name].named_parameters()).keys()
    assert at.untouched(PROXY if name == DAM else DAM)


def test_both_learn_in_one_step_from_predictions_before_it(site: Any) -> None:
    at, twin = site(), site()
    before = at.state()
    loop = at.step("train", BATCH)
    assert at.modes == {DAM: [True], PROXY: [True]}
    assert set(loop.optimisers) == set(loop.moments()) == {DAM, PROXY}
    assert at.moved(before) == {DAM, PROXY}
    for network in twin.networks.values():
        network.train()
    private, proxy = (twin.networks[name](BATCH.images).prediction for name in (DAM, PROXY))
    for mine, other in ((private, proxy), (proxy, private)):
        kl = F.kl_div(mine.log_softmax(1), other.detach().softmax(1), reduction="batchmean")
        torch.autograd.backward(0.5 * F.cross_entropy(mine, BATCH.targets) + 0.5 * kl, retain_graph=True)
    for name in (DAM, PROXY):
        pairs = zip(at.networks[name].parameters(), twin.networks[name].parameters(), strict=True)
        for stepped, literal in pairs:
            torch.testing.assert_close(stepped.grad, literal.grad, rtol=1e-4, atol=1e-6)


def test_losses_in_bf16_are_near_those_in_fp32(site: Any) -> None:
    exact, rough = (site().step("train", BATCH, precision=precision).losses() for precision in ("fp32", "bf16"))
    assert rough == pytest.approx(exact, rel=0.1, abs=0.01)
    assert rough != exact


@pytest.mark.parametrize(("chosen", "name"), [({}, "ce"), ({"segmentation_loss": "dice_ce"}, "dice_ce")])
def test_segmentation_learns_pixel_by_pixel(make_site: Any, chosen: dict[str, str], name: str) -> None:
    shared = partial(u_net, 1, 1)
    at = make_site("proxyfl", u_net(0, 2), MAPS.images, shared=shared, task="segmentation", **chosen)
    losses = at.step("train", MAPS).losses()
    assert losses.keys() == {"total", f"{name}_dam", f"{name}_proxy", "kl_dam", "kl_proxy"}
    w, p = (softmax(at.exact().networks[key](MAPS.images.double()).prediction) for key in (DAM, PROXY))
    terms = at.terms("train", Batch(MAPS.images.double(), MAPS.targets))
    assert terms["kl_dam"].value.item() == pytest.approx((p * np.log(p / w)).sum(1).mean())
