"""No wait without an end: a peer that lives and never delivers costs a bounded share of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer.core import commands, limits
from peer.core.epochs import PaceRules
from peer.core.liveness import patience_s
from peer.core.messages import Heartbeat
from peer.core.phases import Phase

WAIT_MAX_S = 600.0
ROUNDS = 40
ROUND_S = 60.0
"""More than a round of the simulated sites takes: its stages, beats and transfers."""
LIAR = "mallory"
HONEST = ("africa", "asia", "europe")
PACE = PaceRules(wait_max_s=WAIT_MAX_S, linger_s=WAIT_MAX_S)


@pytest.mark.nightly
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_every_site_reaches_the_last_round_beside_a_peer_that_lives_and_never_delivers(
    simulation: Any, data: Any
) -> None:
    """Whatever it claims, in every method; without the allowance each round would cost ``wait_max_s``."""
    draw = data.draw
    crawl_s = draw(st.sampled_from([0.0, 0.9 * WAIT_MAX_S, 3.9 * WAIT_MAX_S]), label="seconds a claimed round")
    ahead = draw(st.sampled_from([-3, 0, 1, ROUNDS]), label="ahead")
    phase = draw(st.sampled_from([Phase.TRAIN, Phase.EXCHANGE, Phase.INITIALISING, Phase.PACING]), label="phase")

    def claim(furthest: int, passed_s: float) -> Heartbeat:
        round = int(passed_s / crawl_s) + 1 if crawl_s else furthest + ahead
        progress = (passed_s % 1e6) / 1e6
        return Heartbeat(1, min(ROUNDS, max(0, round)), str(phase), progress, 0, 0)

    sites = (LIAR, *HONEST[: draw(st.integers(1, 3), label="honest sites")])
    federation = simulation(
        sites,
        dead=(LIAR,),
        method=draw(st.sampled_from(["fedskd", "fedcross", "dflmoe", "feddal", "fedavg"]), label="method"),
        rounds=ROUNDS,
        pace=PACE,
        global_test=draw(st.booleans(), label="global test"),
        evaluation_permitted=True,
        evaluation_every=5,
    )
    federation.withhold(LIAR, claim)
    federation.run(until=lambda: all(federation.machines[name].exit is not None for name in sites[1:]), limit_s=1e6)
    for name in sites[1:]:
        assert federation.committed(name)[-1][0] == ROUNDS
        memory = federation.machines[name].round.memory
        allowance_s = limits.WAITS_IN_VAIN_MAX * WAIT_MAX_S + limits.WAIT_IN_VAIN_SHARE * memory.trained_s
        assert memory.in_vain_s.get(LIAR, 0.0) <= allowance_s
    asked_every = len(sites)  # rounds, on average
    waits_s = (1 + limits.PACING_WAITS_MAX * asked_every) * allowance_s + 3 * WAIT_MAX_S
    assert federation.now_s - 1000.0 <= ROUNDS * ROUND_S + waits_s


@pytest.fixture
def site(solo: Any) -> Any:
    """A site in its first exchange, whose one peer lives and answers "not yet" for ever."""
    return solo(sites=("asia", "europe"), method="fedskd", rounds=30, schedule_kind="ring", pace=PACE).begin("asia")


def wait_in_vain(site: Any, round: int = 1) -> float:
    """Let time pass until the site gives its peer up; returns how long it waited."""
    began_s = site.now_s
    while site.site.phase == Phase.EXCHANGE:
        site.beat("asia", round, "train")
        site.wait(3.0)
    assert site.body("chosen")["missing"] == {"asia": "slow"}
    return float(site.now_s - began_s)


def test_a_peer_that_answers_not_yet_for_ever_costs_its_allowance_and_not_each_round_a_wait(site: Any) -> None:
    """Nor does the site's lost patience with this peer change the deadline of others."""
    waits = []
    for round in range(1, 21):
        waits.append(wait_in_vain(site, round))
        site.finish()
    assert waits[:3] == pytest.approx([600, 300, 150], abs=6)
    assert sum(waits) <= 2 * WAIT_MAX_S + 0.25 * 20 + 20 * 3.0
    assert site.site.patience_s("asia") < 5
    assert site.site.memory.waits_s == [pytest.approx(2 * WAIT_MAX_S, abs=6)]


def test_what_a_peer_cost_outlives_a_restart(site: Any) -> None:
    wait_in_vain(site)
    before_s = site.site.patience_s("asia")
    assert before_s < WAIT_MAX_S
    site.restart()
    assert site.site.patience_s("asia") == before_s
    site.finish()
    assert site.site.patience_s("asia") > before_s, "the allowance grows with the time that the site trained"


@pytest.mark.parametrize(
    ("in_vain_s", "trained_s", "expected_s"),
    [(0, 0, 600), (600, 0, 300), (1200, 0, 0), (1300, 0, 0), (1200, 400, 50), (0, 10_000, 600)],
)
def test_the_patience(in_vain_s: float, trained_s: float, expected_s: float) -> None:
    assert patience_s(in_vain_s=in_vain_s, trained_s=trained_s, pace=PACE) == expected_s


def test_a_lent_model_that_never_comes_is_given_up(solo: Any) -> None:
    site = solo(rounds=5, global_test=True, evaluation_permitted=True, evaluation_every=1, pace=PACE).begin(
        evaluates=True
    )
    site.beat("asia", 1)
    assert "asia" in site.evaluation_fetches
    out = []
    for _ in range(int(WAIT_MAX_S / 3.0) + 1):
        site.beat("asia", 1)
        out += site.wait(3.0)
    assert commands.CancelFetch("asia", "evaluate") in out
    assert site.body("settled")["reason"] == "slow"


def test_every_phase_has_its_end_in_the_list() -> None:
    page = (Path(__file__).parents[3] / "peer" / "README.md").read_text("utf-8")
    table = page[page.index("## Waits, and their ends") :]
    assert [phase for phase in Phase if f"`{phase}`" not in table and phase not in (Phase.NEW, Phase.GONE)] == []
