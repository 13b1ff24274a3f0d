"""From the two files to the state machine's rules."""

from typing import Any

import pytest

from fakes.drafts import draft
from peer.core.roster import RoundKey, SiteName
from peer.site.config.rules import make_rules
from peer.site.config.schema import FederationConfig
from peer.site.config.site_tables import EgressConfig

KEY = RoundKey(b"\x07" * 32)
KEYS = {
    "method": {"name": "fedskd", "gamma": 2}, "seed": 3, "evaluation_every": 2, "quorum": 1,
    "schedule": {"kind": "ring", "staleness": 1},
    "fallback": {"kind": "stale", "staleness_rounds_max": 2}, "pace": {"wait_max_s": 90, "linger_s": 7},
    "site": [{"name": "asia"}, {"name": "europe"}],
}  # fmt: skip


def rules_of(global_test: bool = True, **options: Any) -> Any:
    text = draft("trial", rounds=5, global_test=global_test, **KEYS)
    return make_rules(FederationConfig.parse(text, "federation.toml"), SiteName("asia"), KEY, **options)


def test_the_rules_are_what_the_federation_says() -> None:
    egress = EgressConfig(evaluate=True, evaluation_samples_min=25)
    rules = rules_of(without=frozenset({SiteName("europe")}), stay=True, egress=egress)
    assert (rules.site, rules.rounds, rules.method) == ("asia", 5, "fedskd")
    assert (rules.schedule_kind, rules.staleness) == ("ring", 1)
    assert (rules.fallback, rules.staleness_rounds_max, rules.quorum, rules.evaluation_every) == ("stale", 2, 1, 2)
    assert (rules.pace.wait_max_s, rules.pace.linger_s, rules.parameters["gamma"]) == (90, 7, 2.0)
    assert (rules.others, rules.stay, rules.evaluation_samples_min) == ((), True, 25)


@pytest.mark.parametrize(
    ("global_test", "egress", "denied"),
    [
        (True, EgressConfig(evaluate=True), None),
        (True, EgressConfig(), "not permitted by asia: its [egress] evaluate is false"),
        (False, EgressConfig(evaluate=True), "federation.toml does not have global_test = true"),
        (True, None, "federation.toml does not have global_test = true"),
    ],
)
def test_remote_evaluation_needs_the_federation_s_wish_and_the_site_s_policy(
    global_test: bool, egress: EgressConfig | None, denied: str | None
) -> None:
    assert rules_of(global_test, egress=egress).evaluation_denied == denied


def test_the_rules_of_a_secure_sum_are_what_the_federation_says() -> None:
    assert (rules_of().secure, rules_of().sums_in(1)) == (False, False)
    text = draft(
        "trial",
        method="fedavg",
        shared_model={"name": "resnet10"},
        weighting="samples",
        aggregate={"secure": True, "colluders_max": 2, "clip": 3.0},
        site=[{"name": name} for name in ("africa", "asia", "europe", "oslo")],
    )
    rules = make_rules(FederationConfig.parse(text, "federation.toml"), SiteName("asia"), KEY)
    assert (rules.secure, rules.colluders, rules.sum_clip, rules.weighted) == (True, 2, 3.0, True)
    ring = rules.ring(1)
    assert rules.sums_in(1)
    assert (ring.bits, ring.members, ring.clip, ring.weighted) == (64, 4, 3.0, True)
