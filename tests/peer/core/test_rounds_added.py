"""Rounds that an amendment adds to a federation whose sites had finished their last one."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core.phases import Phase

FOUR = ("africa", "america", "asia", "europe")
ROUNDS, MORE = 4, 8


def done(run: Any, rounds: int) -> bool:
    """Whether every site has finished so many rounds, and stays."""
    living = [machine.round for machine in run.machines.values() if machine.round is not None]
    return all((each.phase, each.memory.committed) == (Phase.DONE, rounds) for each in living)


def add_rounds(simulation: Any, method: str, *, killed: str = "", late_s: float = 0.5, **changes: Any) -> Any:
    """A federation that has finished its rounds, and then those that an amendment adds.

    Each site learns of the amendment within ``late_s``; the ``killed`` one when it starts again.
    """
    run = simulation(FOUR, rounds=ROUNDS, seed=3, method=method, stay=True, **changes)
    run.run(until=lambda: done(run, ROUNDS))
    if killed:
        run.kill_for(killed, 4.0)
    run.amend(ROUNDS, late_s=late_s, rounds=MORE)
    run.run(until=lambda: done(run, MORE))
    return run


@pytest.mark.parametrize(("killed", "late_s"), [("", 0.5), ("asia", 0.5), ("", 30.0)])
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("method", ["fedskd", "dflmoe", "fedproto"])
def test_an_added_round_uses_what_its_origins_made_by_the_rule(
    simulation: Any, method: str, staleness: int, killed: str, late_s: float
) -> None:
    run = add_rounds(simulation, method, staleness=staleness, killed=killed, late_s=late_s)
    for name in FOUR:
        made_in = run.machines[name].rules.made_in
        assert [round for round, _ in run.committed(name)] == list(range(1, MORE + 1))
        for round, body in run.committed(name):
            assert body["missing"] == {}, (name, round)
            used = {source["site"]: source["sha256"] for source in body["sources"]}
            assert used == {origin: run.made(origin)[made_in(round)] for origin in used}, (name, round)


@pytest.mark.parametrize("staleness", [0, 1])
def test_rounds_that_are_added_in_the_last_one_are_served_as_well(simulation: Any, staleness: int) -> None:
    run = simulation(FOUR, rounds=ROUNDS, seed=3, method="fedskd", staleness=staleness)
    run.run(until=lambda: run.machines["asia"].round.number == ROUNDS)
    run.amend(ROUNDS, rounds=MORE)
    run.run_to_end()
    assert all(body["missing"] == {} for name in FOUR for _, body in run.committed(name))


def test_what_would_serve_a_round_after_the_last_one_is_not_published(simulation: Any) -> None:
    run = simulation(FOUR, rounds=ROUNDS, seed=3, method="fedskd", staleness=1)
    run.run_to_end()
    for machine in run.machines.values():
        assert max(round for kind, round, _ in machine.rows if kind == "published") == ROUNDS


@pytest.mark.parametrize("activation", [0.0, 0.5, 1.0])
def test_a_federation_that_circulates_its_models_first_trains_the_added_rounds(
    simulation: Any, activation: float
) -> None:
    run = add_rounds(simulation, "fedskd", parameters={"activation": activation})
    for name in FOUR:
        assert [round for round, _ in run.committed(name)] == list(range(1, MORE + 1))
        assert all(body["missing"] == {} for _, body in run.committed(name)), name
        stretches = run.kinds(name).count("adopted")
        assert stretches == {0.0: 0, 0.5: 1, 1.0: 2}[activation], "the models come home after each circulating stretch"


@pytest.mark.parametrize("method", ["fedcross", "fedcross_ft"])
def test_models_that_came_home_come_home_again_after_the_added_rounds(simulation: Any, method: str) -> None:
    run = add_rounds(simulation, method)
    for name in FOUR:
        assert run.kinds(name).count("adopted") == 2
