"""[privacy] of federation.toml: what contradicts the noise is refused when the file is read."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.drafts import draft
from peer.errors import ConfigError
from peer.site.config.privacy_table import site_noise_problems
from peer.site.config.schema import FederationConfig
from peer.site.config.site_tables import EgressConfig, TrainingConfig

NOISE = {"mechanism": "noise", "epsilon": 3.0, "people": 150}


def federation(*, privacy: Any = NOISE, **keys: Any) -> FederationConfig:
    roster = [{"name": name} for name in ("asia", "europe", "africa")]
    tables = {"method": "fedavg", "rounds": 10, "stages": {"train": {"unit": "epoch", "count": 4}}, **keys}
    tables = {"shared_model": {"name": "resnet10"}, "privacy": privacy, "site": roster, **tables}
    return FederationConfig.parse(draft("trial", **tables), "federation.toml")


def test_there_is_no_noise_unless_the_file_says_so() -> None:
    assert federation(privacy={}).noise is None


def test_noise_is_that_of_all_steps_of_all_rounds() -> None:
    noise = federation().noise
    assert noise is not None
    assert (noise.epsilon, noise.delta, noise.clip, noise.people, noise.steps) == (3.0, 1e-4, 1.0, 150, 40)


def test_the_noise_is_part_of_the_settings_that_sites_agree_on() -> None:
    digests = {federation(privacy={**NOISE, "epsilon": epsilon}).digest for epsilon in (1.0, 3.0)}
    assert len(digests | {federation(privacy={}).digest}) == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"privacy": {"epsilon": 1.0}}, "privacy.epsilon: only noise has a use for it"),
        ({"privacy": {"people": 10}}, "privacy.people: only noise has a use for it"),
        ({"privacy": {"mechanism": "noise", "people": 10}}, 'privacy.epsilon: mechanism = "noise" needs it'),
        ({"privacy": {"mechanism": "noise", "epsilon": 1.0}}, 'privacy.people: mechanism = "noise" needs it'),
        ({"method": "local"}, "privacy.mechanism: local sends nothing; take another method"),
        ({"weighting": "samples"}, "weighting: the number of samples would leave without noise"),
        ({"global_test": True}, "global_test: figures of each site's people would leave without noise"),
        (
            {"privacy": {**NOISE, "epsilon": 1e-9, "delta": 1e-12}},
            "privacy.epsilon: 1e-09 over 40 steps takes noise of .* raise it",
        ),
    ],
)
def test_what_would_leave_without_noise_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        federation(**keys)


@pytest.mark.parametrize(
    ("egress", "training", "key"),
    [
        ({"training_set_size": True}, {}, "egress.training_set_size"),
        ({}, {"class_weights": "balanced"}, "training.class_weights"),
        ({}, {"clip_norm": 1.0}, "training.clip_norm"),
        ({}, {"processes": 2}, "training.processes"),
    ],
)
def test_a_site_s_keys_that_would_break_the_guarantee_are_refused(egress: Any, training: Any, key: str) -> None:
    (problem,) = site_noise_problems(EgressConfig(**egress), TrainingConfig(**training))
    assert problem.startswith(f"{key}: ")


def test_a_site_without_such_keys_has_no_problem() -> None:
    assert list(site_noise_problems(EgressConfig(), TrainingConfig(class_weights=(1.0, 2.0)))) == []
