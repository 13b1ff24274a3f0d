"""What `check` says of noise and of secure sums."""

from typing import Any

import pytest

from fakes.drafts import draft
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_tables import PrivacyConfig
from peer.view.preflight.finding import Finding
from peer.view.preflight.guarantees import check_guarantees

NOISE = {"mechanism": "noise", "epsilon": 3.0, "people": 150}
STEPS = {"train": {"unit": "epoch", "count": 4}}


def findings(epsilon_max: float | None = None, **keys: Any) -> dict[str, Finding]:
    roster = [{"name": f"site-{number}"} for number in range(4)]
    tables = {
        "method": "fedavg",
        "rounds": 10,
        "stages": STEPS,
        "shared_model": {"name": "resnet10", "norm": "group"},
        **keys,
    }
    federation = FederationConfig.parse(draft("trial", site=roster, **tables), "federation.toml")
    site = SiteConfig.model_construct(privacy=PrivacyConfig(epsilon_max=epsilon_max))
    return {finding.subject: finding for finding in check_guarantees(federation, site)}


def test_without_noise_and_masks_there_is_nothing_to_say() -> None:
    assert findings() == {}


def test_noise_is_said_in_figures() -> None:
    noise = findings(privacy=NOISE)["noise"]
    assert noise.verdict == "ok"
    assert noise.message == (
        "sigma 7.74 times the clip of 1, in 40 steps: ε 3 (δ 1e-4) for each person; no attack on a person beyond AUC "
        "0.72"
    )
    assert findings(3.0, privacy=NOISE)["noise"] == noise


@pytest.mark.parametrize(("epsilon_max", "round"), [(0.1, 1), (1.0, 2), (2.0, 5), (2.99, 10)])
def test_a_site_is_told_when_its_smaller_budget_is_spent(epsilon_max: float, round: int) -> None:
    """(0.3139 / 0.8176)^2 is 0.147 of ten rounds for epsilon 1: the first fits."""
    noise = findings(epsilon_max, privacy=NOISE)["noise"]
    assert noise.verdict == "warning"
    assert f"This site stops sending in round {round} at the latest" in noise.message


@pytest.mark.parametrize(
    ("keys", "holds"),
    [
        ({}, "words of 32 bits, 28 of them for the fraction: 4 sites × 2^28 < 2^31"),
        ({"weighting": "samples"}, "words of 64 bits, 40 of them for the fraction: 4 sites × weight 1048576 × 2^40"),
    ],
)
def test_the_ring_of_a_secure_sum_is_said(keys: Any, holds: str) -> None:
    ring = findings(aggregate={"secure": True}, **keys)["secure sums"]
    assert ring.verdict == "ok"
    assert ring.message.startswith(holds)
    assert ring.message.endswith("a sum needs 3 of 4 sites")


def test_shared_noise_is_said_with_what_it_is_if_all_others_conspire() -> None:
    keys = {"method": "pooled_head", "rounds": 1, "stages": {}, "shared_model": {"name": "linear"}}
    privacy = {"mechanism": "noise", "epsilon": 1.0}
    alone = findings(**keys, privacy=privacy)["noise"].message
    assert alone.startswith("sigma 3.19 times the clip of 1.41, in one step: ε 1 (δ 1e-4) for each person")
    assert "conspire" not in alone
    shared = findings(**keys, privacy=privacy, aggregate={"secure": True, "members_min": 4})
    text = ". Sites share it: this holds against 1 of the others together, and ε 1.87 if all others conspire"
    assert shared["noise"].message == alone + text
    assert shared["secure sums"].message.endswith("a sum needs 4 of 4 sites")


def test_whole_numbers_have_a_bound_of_their_own() -> None:
    keys = {"method": "statistics", "rounds": 1, "stages": {}, "aggregate": {"secure": True}}
    task = {"kind": "tabular", "classes": 2, "column": [{"name": "age", "kind": "number", "range": [0, 100]}]}
    message = findings(**keys, task=task)["secure sums"].message
    assert message.startswith("words of 64 bits, whole numbers up to 2.31e+18: 4 of them stay below 2^63")
