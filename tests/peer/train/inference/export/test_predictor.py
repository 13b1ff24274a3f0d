"""A site's predictor: the same predictions, and no part of a site that did not agree."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import models
from peer.methods.dflmoe import stages as dflmoe
from peer.methods.method import Method, predict_locally
from peer.methods.registry import PLANS
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.export.predictor import Shares, build, build_predictor, find_problem
from peer.train.trainer import INITIAL, Trainer

IMAGES = torch.randn(3, 2, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        pytest.param("dflmoe", {"mixing": "gate"}, id="heads"),
        pytest.param("dflmoe_models", {}, id="models", marks=pytest.mark.nightly),
    ],
)
def test_a_mixture_is_what_the_site_predicts_with(make_mixing, name: str, parameters: dict[str, Any]) -> None:
    site = make_mixing(name, **parameters)
    trainer = Trainer(site.setting)
    trainer.load(site.state, site.sources)
    expected = trainer.predict(IMAGES)
    predictor, description = build_predictor(trainer, site.state, site.sources)
    with torch.no_grad():
        assert torch.equal(predictor(IMAGES), expected)
        again = build(**description)
        again.load_state_dict(predictor.state_dict())
        assert torch.equal(again(IMAGES), expected)
    assert description["experts"]["beta"]["part"] == ("model" if name == "dflmoe_models" else "head")
    assert find_problem(description) is None


def test_without_others_the_local_network_is_alone_and_nothing_of_them_is_left(make_mixing: Callable[..., Any]) -> None:
    site = make_mixing()
    trainer = Trainer(site.setting)
    predictor, description = build_predictor(trainer, site.state, ())
    local = trainer.site_networks.dam
    with torch.no_grad():
        assert torch.equal(predictor(IMAGES), local(IMAGES).prediction)
        trainer.load(site.state, site.sources)
        assert not torch.equal(predictor(IMAGES), trainer.predict(IMAGES))
    assert description == {"network": local.spec}
    assert predictor.state_dict().keys() == {f"dam.{name}" for name in local.state_dict()}


def test_a_method_that_does_not_mix_gives_its_local_network(make_hospital: Callable[[str], Any]) -> None:
    trainer = make_hospital("time_series").trainer()
    expected = trainer.predict(IMAGES)
    predictor, description = build_predictor(trainer, INITIAL, ())
    with torch.no_grad():
        assert torch.equal(predictor(IMAGES), expected)
        shares = Shares(predictor, trainer.settings.task)(IMAGES)
    assert torch.allclose(shares, expected.softmax(dim=1))
    assert description.keys() == {"network"}


def test_every_method_but_lc_fed_and_fedsm_predicts_in_a_way_that_can_be_taken_away() -> None:
    kept = set()
    for name, plan in PLANS.items():
        method = Method.of(plan)
        alone = method.predict is predict_locally or plan.defaults().get("predict") == "model"
        if not (alone or method.one_network is not None or method.predict is dflmoe.predict):
            kept.add(name)
    assert kept == {"fedsm", "lc_fed"}


def test_a_method_whose_predictor_no_file_can_hold_is_refused_with_what_to_do() -> None:
    network = models.build({"name": "resnet5", "spatial_dims": 1, "in_channels": 1, "classes": 2, "hyper": {}})
    trainer: Any = SimpleNamespace(
        load=lambda state, sources: None,
        site_networks=SimpleNamespace(dam=network, networks={}),
        method=Method.of(PLANS["lc_fed"]),
        settings=SimpleNamespace(method="lc_fed", parameters={}),
    )
    with pytest.raises(UnusableConfigurationError, match=r"'lc_fed' predicts .* use `mhfl-peer predict`"):
        build_predictor(trainer, "state", ())


@pytest.mark.parametrize("where", ["network", "experts"])
def test_a_description_from_elsewhere_may_name_what_another_site_may_name(where: str) -> None:
    sizes = {"spatial_dims": 1, "in_channels": 1, "classes": 2}
    good = {"name": "resnet5", **sizes, "hyper": {}}
    bad = {"name": "os:system", **sizes, "hyper": {}, "head": "x"}
    description = {"network": bad} if where == "network" else {"network": good, "experts": {"x": {"network": bad}}}
    assert "os:system" in str(find_problem(description))
    assert find_problem({}) == "it describes no network"
