"""One battery over every method: stages as in the plan, finite terms that train their networks,
predictions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
import torch

import models
from peer.methods.method import DAM, Batch, Method, StageContext
from peer.methods.registry import PLANS
from peer.methods.supervised import supervised_loss

METHODS = {name: Method.of(plan) for name, plan in PLANS.items()}
BATCH = Batch(torch.randn(5, 2, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1]))
LABEL_MAPS = Batch(BATCH.images, torch.arange(5 * 32).reshape(5, 32) % 3)


def task(method: str) -> str:
    return "segmentation" if "classification" in PLANS[method].not_for else "classification"


def network(seed: int, width: int = 4, task: str = "classification") -> models.Network:
    torch.manual_seed(seed)
    name, hyper = ("unet", {"depth": 1}) if task == "segmentation" else ("resnet10", {})
    return models.create_model(name, spatial_dims=1, in_channels=2, classes=3, width=width, **hyper)


@pytest.fixture
def make_context(make_site: Any) -> Callable[..., StageContext]:
    """Makes what a site under a method has, with artifacts from this many others."""

    def make(name: str, received: int = 0) -> Any:
        others: dict[str, Any] = {f"site-{seed}": network(seed, width=6) for seed in range(1, 1 + received)}
        if PLANS[name].artifact == "head":
            others = {site: other.head for site, other in others.items()}
        dam, shared = network(0, task=task(name)), partial(network, 9, task=task(name))
        return make_site(name, dam, BATCH.images, shared=shared, received=others, task=task(name)).context

    return make


@pytest.mark.parametrize(
    ("method", "base", "options"),
    [
        ("fedavg", "local", {}),
        ("fedbn", "local", {}),
        ("lg_fedavg", "local", {}),
        ("fedprox", "local", {"mu": 0.0}),
        ("fedproto", "local", {"width": 4}),
        ("fedtgp", "local", {"width": 4}),
        ("dfml", "local", {}),
        ("ditto", "local", {"lambda": 0.0, "shared": lambda: network(2)}),
        ("proxyfl", "local", {"alpha": 0.0, "shared": lambda: network(2)}),
        ("fedsm", "local", {"shared": lambda: network(2)}),
        ("scaffold", "fedavg", {"shared": lambda: network(2)}),
    ],
)
def test_the_local_model_learns_as_without_what_the_method_adds(
    make_site: Any, method: str, base: str, options: dict[str, Any]
) -> None:
    """Nothing was received, in the first round nothing is corrected, and the options take the rest away."""
    states = []
    for name, chosen in ((method, options), (base, {})):
        at = make_site(name, network(0), BATCH.images, **chosen)
        at.context = dataclasses.replace(at.context, round=6)
        at.step("train", BATCH, steps=3)
        states.append(at.networks[DAM].state_dict())
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())


SCENES = [(name, 0) for name in METHODS] + [("fedskd", 1), ("dflmoe", 2), ("dflmoe_models", 2), ("dflmoe_averaged", 2)]


def test_methods_are_those_of_the_plans() -> None:
    for name, method in METHODS.items():
        assert method.stages.keys() == PLANS[name].stages.keys()
        assert method.artifact_network == DAM or method.artifact_network in method.local_networks
        beside = PLANS[name].shared == "beside" or PLANS[name].artifact in ("proxy", "prototype", "prediction", "sums")
        assert beside == (method.artifact_network in method.local_networks)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        *((name, "predictions") for name in ("fedmd", "pfeddf", "ds_pfl", "kt_pfl")),
        *((name, "prototypes") for name in ("fedproto", "fedtgp")),
    ],
)
def test_where_anything_else_is_sent_no_model_ever_leaves(name: str, network: str) -> None:
    assert (METHODS[name].artifact_network, PLANS[name].never_leaves) == (network, ("model", "head"))


@pytest.mark.parametrize("name", ["LOCALE", "train"])
def test_an_implementation_that_is_no_method_is_refused(name: str) -> None:
    plan = dataclasses.replace(PLANS["local"], implementation=f"peer.methods.local.stages:{name}")
    with pytest.raises(ValueError, match=f"peer.methods.local.stages:{name} is no Method with the plan's stages train"):
        Method.of(plan)


@pytest.mark.parametrize(("name", "received"), SCENES)
def test_a_stage_has_finite_terms_that_move_all_that_learns(make_context: Any, name: str, received: int) -> None:
    for build in METHODS[name].stages.values():
        stage = build(make_context(name, received))

        def forward(network: str, *inputs: Any, part: str = "", networks: Mapping[str, Any] = stage.networks) -> Any:
            return (networks[network].get_submodule(part) if part else networks[network])(*inputs)

        for steps in stage.passes:
            for step in steps:
                terms = step.losses(LABEL_MAPS if task(name) == "segmentation" else BATCH, forward)
                assert all(term.value.shape == () and torch.isfinite(term.value) for term in terms.values())
                if not step.trains:
                    continue
                torch.autograd.backward(torch.stack([term.value * term.weight for term in terms.values()]).sum())
                for learns in step.trains:
                    moved = [p.grad is not None for p in stage.networks[learns].parameters() if p.requires_grad]
                    # With no head from elsewhere a mixture's transform has nothing to transform for.
                    assert any(moved) if learns == "mixture" else all(moved), learns
                means = {term: float(value.value.detach()) for term, value in terms.items()}
                assert all(isinstance(value, float) for value in stage.summary(means).values())


@pytest.mark.parametrize(
    "name", [name for name in METHODS if not name.startswith("dflmoe") and name not in ("apfl", "fedsm", "lc_fed")]
)
def test_a_prediction_is_that_of_the_local_model(make_context: Any, name: str) -> None:
    at = make_context(name)
    at.dam.eval()
    assert torch.equal(METHODS[name].predict(at, BATCH.images), at.dam(BATCH.images).prediction)


@pytest.mark.parametrize("name", METHODS)
def test_an_own_network_with_stages_fits_every_method(name: str) -> None:
    output = network(0, task=task(name)).eval()(BATCH.images)
    assert METHODS[name].check_local(output, output, PLANS[name].defaults(), masks=False) is None
    assert METHODS[name].check_received(output, output, PLANS[name].defaults()) is None


def test_methods_choose_their_loss_of_segmentation() -> None:
    chosen = {name: PLANS[name].defaults()["segmentation_loss"] for name in ("mh_pflid", "feddal", "dflmoe", "fedskd")}
    assert chosen == {"mh_pflid": "dice", "feddal": "ce", "dflmoe": "dice_ce", "fedskd": "dice_ce"}
    assert supervised_loss("segmentation", "dice").name == "dice"
