"""[privacy] of federation.toml: noise that would not hold what it promises is refused, with the key and the reason."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest

from fakes.drafts import draft
from peer.core.privacy import mu_of
from peer.core.roster import Sha256
from peer.errors import ConfigError
from peer.methods.registry import PLANS
from peer.site.config.privacy_table import site_noise_problems
from peer.site.config.schema import FederationConfig
from peer.site.config.site_tables import AdaptersConfig, EgressConfig, ModelConfig, TrainingConfig
from peer.site.membership.amendment import NEVER, SETTINGS

NOISE = {"mechanism": "noise", "epsilon": 3, "people": 150}
DIGEST = Sha256("ab" * 32)
LINEAR = ModelConfig(name="linear")


def federation(*, method: Any = "fedavg", privacy: Any = None, **keys: Any) -> FederationConfig:
    roster = [{"name": f"site-{number}"} for number in range(keys.pop("sites", 3))]
    table = {key: value for key, value in {**NOISE, **(privacy or {})}.items() if value is not None}
    keys = {"shared_model": {"name": "resnet10", "norm": "group"}, **keys}
    if keys["shared_model"] is None:
        del keys["shared_model"]
    return FederationConfig.parse(draft("trial", method=method, privacy=table, site=roster, **keys), "federation.toml")


def test_all_rounds_together_keep_to_epsilon() -> None:
    config = federation(rounds=8, stages={"train": {"unit": "epoch", "count": 5}})
    noise = config.noise
    assert noise is not None
    assert (noise.steps, noise.delta, noise.clip, noise.people) == (40, 1e-4, 1.0, 150)
    assert noise.mu_squared(40) == pytest.approx(mu_of(3, 1e-4) ** 2)
    fine_tuned = federation(method="fedavg_ft", rounds=8, stages={"train": {"count": 5}}).noise
    assert fine_tuned is not None
    assert fine_tuned.steps == 35, "the last round trains at home"
    assert federation(method="feddal", rounds=2, stages={"train": {"count": 5}}).noise.steps == 20  # type: ignore[union-attr]
    assert federation(privacy=dict.fromkeys(NOISE)).noise is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy": {"mechanism": "none"}}, "privacy.epsilon: only noise has a use for it"),
        ({"privacy": {"epsilon": 0}}, "privacy.epsilon: "),
        ({"privacy": {"epsilon": 101}}, "privacy.epsilon: "),
        ({"privacy": {"delta": 1}}, "privacy.delta: "),
        ({"privacy": {"delta": 1e-3}}, "privacy.delta: 0.001 is above a tenth of 1 / people = 1 / 150; lower it"),
        ({"privacy": {"clip": 0}}, "privacy.clip: "),
        ({"privacy": {"people": 0}}, "privacy.people: "),
        ({"privacy": {"epsilon": 1e-9, "delta": 1e-9}}, "privacy.epsilon: 1e-09 over .* steps takes noise of .* clip"),
        ({"method": "local"}, "privacy.mechanism: local sends nothing; take another method, such as fedavg"),
        ({"method": "fedskd"}, "privacy.mechanism: fedskd .*similarity loss compares the samples of several people"),
        ({"method": "fedproto"}, "privacy.mechanism: fedproto .*prototypes are means of features"),
        ({"method": "statistics", "rounds": 1}, "privacy.people: statistics bounds what its sums have of a person by"),
        (
            {"method": {"name": "fedvisit", "distillation": "both"}},
            "privacy.mechanism: fedvisit has losses of one person that depend",
        ),
        ({"method": "dfml"}, "privacy.mechanism: dfml has losses of one person that depend .* absent_classes"),
        ({"method": "fedavg_ft", "rounds": 1}, "rounds: fedavg_ft sends nothing in its last round"),
        ({"weighting": "samples"}, "weighting: the number of samples would leave without noise"),
        ({"global_test": True}, "global_test: figures of each site's people would leave without noise"),
    ],
)  # fmt: skip
def test_what_would_leave_without_noise_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        federation(**keys)


def one_shot(*, privacy: Any = None, **keys: Any) -> FederationConfig:
    return federation(method="pooled_head", privacy={"people": None, **(privacy or {})}, **{"rounds": 1, **keys})


def test_sums_have_noise_once_which_sites_share_under_masks() -> None:
    noise = one_shot().noise
    assert noise is not None
    assert (noise.steps, noise.people, noise.sharers, noise.colluders) == (1, 1, 1, None)
    assert noise.clip == pytest.approx(math.sqrt(2))
    assert noise.share == pytest.approx(1 / mu_of(3, 1e-4))
    secure = {"secure": True}
    assert one_shot(aggregate=secure).noise == noise, "each adds it all where one of three may be absent"
    assert one_shot(aggregate=secure | {"members_min": 3}).noise == dataclasses.replace(noise, sharers=2, colluders=1)
    shared = one_shot(sites=7, aggregate=secure | {"members_min": 6, "colluders_max": 2}).noise
    assert shared == dataclasses.replace(noise, sharers=4, colluders=2)
    trained = federation(aggregate=secure | {"members_min": 3}).noise
    assert trained is not None
    assert trained.sharers == 1, "after several steps, a sum of weights is no sum of noised gradients"


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy": {"people": 9}}, "privacy.people: pooled_head bounds what its sums have of a person by itself"),
        ({"privacy": {"clip": 2.0}}, "privacy.clip: pooled_head bounds"),
        ({"privacy": {"epsilon": None}}, 'privacy.epsilon: mechanism = "noise" needs it'),
        ({"rounds": 2}, "rounds: pooled_head would send the same sums again, with other noise; set rounds = 1"),
        ({"privacy": {"epsilon": 1e-9, "delta": 1e-9}}, "privacy.epsilon: 1e-09 over 1 steps takes noise of .* clip"),
    ],
)
def test_sums_with_noise_that_would_not_hold_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^federation.toml: {message}"):
        one_shot(**keys)


@pytest.mark.parametrize("key", ["epsilon", "people"])
def test_noise_needs_its_numbers(key: str) -> None:
    with pytest.raises(ConfigError, match=f'privacy.{key}: mechanism = "noise" needs it'):
        federation(privacy={key: None})


@pytest.mark.parametrize(
    ("egress", "training", "key"),
    [
        ({"training_set_size": True}, {}, "egress.training_set_size"),
        ({"leak_auc_max": 0.7}, {}, "egress.leak_auc_max"),
        ({}, {"class_weights": "balanced"}, "training.class_weights"),
        ({}, {"class_sampling": "balanced"}, "training.class_sampling"),
        ({}, {"clip_norm": 1.0}, "training.clip_norm"),
        ({}, {"processes": 2, "batch_size": 8}, "training.processes"),
    ],
)
def test_a_site_s_keys_that_would_break_the_guarantee_are_refused(
    egress: dict[str, Any], training: dict[str, Any], key: str
) -> None:
    plan = PLANS["fedavg"]
    problems = list(site_noise_problems(EgressConfig(**egress), TrainingConfig(**training), LINEAR, plan))
    assert [problem.partition(":")[0] for problem in problems] == [key]
    assert list(site_noise_problems(EgressConfig(), TrainingConfig(class_weights=(1.0, 2.0)), LINEAR, plan)) == []


def test_no_amendment_changes_the_noise() -> None:
    assert "privacy" in NEVER
    assert "privacy" not in SETTINGS


def of_site(method: str, **model: Any) -> list[str]:
    table = ModelConfig.model_construct(**{**ModelConfig().model_dump(), **model})
    return list(site_noise_problems(EgressConfig(), TrainingConfig(), table, PLANS[method]))


BATCH_NORM = r"resnet10 has batch norm, .*; write norm = \"group\", or take a network without batch norm"


def test_batch_norm_is_refused_before_anything_is_built() -> None:
    """So `simulate --dry-run`, `federation create` and `check` name the network, which have no data to train on."""
    for method in ("fedavg", "ditto", "feddal", "proxyfl"):
        with pytest.raises(ConfigError, match=f"shared_model.norm: {BATCH_NORM}"):
            federation(method=method, shared_model={"name": "resnet10"})
    with pytest.raises(ConfigError, match=r"shared_model.norm: messenger_classification has batch norm"):
        federation(method="mh_pflid", shared_model=None)
    assert federation(method="pooled_head", rounds=1, shared_model={"name": "resnet10"}, privacy={"people": None}).noise
    assert federation(shared_model={"name": "linear"}, task={"kind": "tabular", "classes": 2, "column": [
        {"name": "age", "kind": "number", "range": [20, 90]}
    ]}).noise  # fmt: skip
    assert federation(shared_model={"name": "resnet10"}, privacy=dict.fromkeys(NOISE)).noise is None


def test_a_site_s_own_batch_norm_is_refused_where_its_model_has_noise() -> None:
    (problem,) = of_site("feddal")
    assert re.fullmatch(f"model.parameters.norm: {BATCH_NORM}", problem)
    assert of_site("feddal", parameters={"norm": "group"}) == []
    assert of_site("ditto") == of_site("pooled_head") == [], "it never leaves, or does not train"
    assert of_site("feddal", name="monai.networks.nets.DenseNet121") == [], "the worker tells"
    assert of_site("feddal", freeze=("stem",)) == of_site("feddal", adapters=AdaptersConfig(layers=("stem",))) == []
