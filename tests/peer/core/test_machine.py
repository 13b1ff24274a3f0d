"""State machines in a federation: no site trains a round twice, and none waits for ever."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peer.core.phases import Phase
from peer.core.rules import PaceRules

FIVE = ("africa", "america", "asia", "europe", "oceania")
FOUR = FIVE[:4]
METHODS = ("fedskd", "fedcross", "dflmoe", "feddal", "mh_pflid")
FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def check_invariants(simulation: Any) -> None:
    """Invariants of any run: rounds rise, sources are scheduled and recent, no file is left over."""
    for name, machine in simulation.machines.items():
        rounds = [round for round, _ in simulation.committed(name)]
        assert rounds == sorted(set(rounds)), f"{name} committed a round twice: {rounds}"
        rules = machine.rules
        for round, body in simulation.committed(name):
            pattern, sources = rules.pattern(round), body["sources"]
            origins = [source["site"] for source in sources]
            assert set(body["contributors"]) == {name, *origins}
            assert all(source["fallback"] or source["round"] == round for source in sources)
            if pattern == "permutation":
                turn = rules.turn(round)
                assert origins == ([] if turn == name else [turn]) or (origins == [] and turn in body["missing"])
                allowed = rules.staleness_rounds_max if rules.fallback == "stale" else 0
                assert all(0 <= round - source["round"] <= allowed for source in sources)
            elif pattern == "circulate":
                assert len(sources) <= 1
                assert all(0 <= source["round"] <= round for source in sources)
            elif pattern == "none":
                assert sources == []
            else:
                assert origins == sorted(set(origins) - {name})
                if not rules.plan.keeps_last_received:
                    assert all(source["round"] == round for source in sources)
                    assert set(origins) | set(body["missing"]) == set(rules.roster) - {name}
        for receiver, round, purpose in machine.sent:
            if purpose == "train" and rules.pattern(round) == "permutation":
                assert rules.roster.names[rules.order(round)[rules.roster.index(receiver)]] == name
        if machine.round is not None:
            assert machine.files >= machine.round.memory.needed_digests()


def test_isolated_site_waits_then_catches_up(simulation: Any) -> None:
    run = simulation(FOUR, rounds=20)
    run.run(until=lambda: len(run.committed("europe")) == 1)
    run.cut = {link for name in FOUR for link in (("europe", name), (name, "europe"))}
    europe = run.machines["europe"]
    run.run(until=lambda: europe.round.phase == Phase.ISOLATED)
    run.run(until=lambda: len(run.committed("asia")) >= 14)
    run.cut = set()
    run.run_to_end()
    check_invariants(run)
    assert run.committed("europe")[-1][0] == 20
    skipped = [round for _, body in run.committed("europe") for round in body["skipped"]]
    assert skipped, "it jumped over the rounds that the others had passed"


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_circulating_models_come_home_with_all_their_steps(simulation: Any, share: float) -> None:
    run = simulation(FOUR, rounds=4, parameters={"activation": share})
    run.run_to_end()
    check_invariants(run)
    for name, machine in run.machines.items():
        circulated = int(4 * share)
        kinds = [kind for kind, _, _ in machine.rows]
        assert kinds.count("adopted") == 1
        assert "slot_lost" not in kinds
        for round, body in run.committed(name):
            if round <= circulated:
                slot = machine.rules.turn(round)
                assert [source["site"] for source in body["sources"]] == [machine.rules.holder(round, slot)]
        assert [round for round, _ in run.committed(name)] == [1, 2, 3, 4]
        assert "evaluated" in kinds


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("method", ["local", *METHODS])
def test_every_method_trains_every_round_with_any_number_of_sites(simulation: Any, method: str, size: int) -> None:
    run = simulation(FIVE[:size], method=method, rounds=3)
    run.run(until=run.finished)
    check_invariants(run)
    for name in run.machines:
        assert run.machines[name].exit.fault == ""
        assert [round for round, _ in run.committed(name)] == [1, 2, 3]
        assert run.kinds(name).count("evaluated") == 1
        assert all(body["missing"] == {} and not body["below_quorum"] for _, body in run.committed(name))
        assert not {"refused", "ignored", "isolated", "slot_lost", "skipped"} & set(run.kinds(name))


@pytest.mark.parametrize("dead", [1, 2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_sites_that_never_come_back_do_not_stop_the_others(simulation: Any, method: str, dead: int) -> None:
    run = simulation(FOUR, method=method, rounds=6, pace=PaceRules(linger_s=60, isolated_s=300))
    run.run(until=lambda: all(len(run.committed(name)) >= 1 for name in FOUR))
    for name in FOUR[:dead]:
        run.kill(name)
    killed_s = run.now_s
    run.run_to_end()
    check_invariants(run)
    for name in FOUR[dead:]:
        assert [round for round, _ in run.committed(name)] == [1, 2, 3, 4, 5, 6]
    assert run.now_s - killed_s < 15 + 5 * 10 + 60 + (300 if dead == 3 else 0) + 15


@pytest.mark.parametrize("sites", [FOUR[1:], FOUR])
def test_a_site_that_lost_its_disk_catches_up_although_another_is_dead(simulation: Any, sites: tuple[str, ...]) -> None:
    run = simulation(sites, rounds=9)
    run.run(until=lambda: all(len(run.committed(name)) >= 4 for name in sites))
    run.kill(sites[0])
    run.kill(sites[1])
    lost = run.machines[sites[1]]
    lost.rows, lost.files = [], set()
    run.at(20, lambda: run.start(sites[1]))
    run.run(until=lambda: all(run.machines[name].exit is not None for name in sites[1:]))
    check_invariants(run)
    assert lost.round.memory.generation == 2, "its peers remembered more of it than it did itself"
    for name in sites[1:]:
        assert run.committed(name)[-1][0] == 9


@pytest.mark.nightly
@settings(max_examples=40, deadline=None, suppress_health_check=FIXTURES)
@given(
    seed=st.integers(0, 2**32),
    method=st.sampled_from(METHODS),
    share=st.sampled_from([0.0, 0.5, 1.0]),
    kills=st.lists(st.tuples(st.sampled_from(FOUR[:3]), st.floats(0.5, 80), st.floats(0.5, 8)), max_size=5),
)
def test_kills_within_the_silence_limit_change_no_bit(
    simulation: Any, seed: int, method: str, share: float, kills: list[tuple[str, float, float]]
) -> None:
    fixed = {"rounds": 3, "work_s": 4.0, "method": method, "parameters": {"activation": share}}
    calm = simulation(FOUR[:3], **fixed)
    calm.run_to_end()
    run = simulation(FOUR[:3], seed=seed, **fixed)
    for name, at_s, gone_s in kills:
        run.at(at_s, partial(run.kill_for, name, gone_s))
    run.run(until=run.finished)
    check_invariants(run)
    assert run.final_states() == calm.final_states()


@pytest.mark.parametrize("share", [0.0, pytest.param(0.5, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("method", METHODS)
def test_a_kill_between_any_two_commands_changes_no_bit(simulation: Any, method: str, share: float) -> None:
    fixed = {"rounds": 2, "method": method, "parameters": {"activation": share}, "schedule_kind": "ring"}
    calm = simulation(("asia", "europe"), **fixed)
    calm.run_to_end()
    commands = calm.machines["europe"].carried_out
    assert commands > 20
    for last in range(commands):
        run = simulation(("asia", "europe"), dead=("europe",), **fixed)
        run.machines["europe"].fuses = [last]
        run.start("europe")
        run.run(until=run.finished)
        check_invariants(run)
        assert run.final_states() == calm.final_states(), f"killed after command {last}"
        kinds = run.kinds("europe")
        assert not {"skipped", "refused", "slot_lost"} & set(kinds)
