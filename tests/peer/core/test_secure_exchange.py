"""The exchange of a round as a secure sum, in a federation in memory whose masks are real ones."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fakes.core_site import make_artifact
from fakes.core_world import Simulation
from peer.core.artifacts import Artifact
from peer.core.epochs import PaceRules
from peer.core.privacy import Spending
from peer.core.roster import SiteName

FOUR = ("africa", "america", "asia", "europe")
FIVE = (*FOUR, "oceania")
PACE = PaceRules(linger_s=60.0, wait_max_s=120.0, silence_s=30.0, gather_s=20.0)


def run_sums(sites: tuple[str, ...] = FOUR, *, seed: int = 0, rounds: int = 3, **changes: Any) -> Simulation:
    changes = {"method": "fedavg", "secure": True, "pace": PACE, **changes}
    return Simulation(sites, seed=seed, rounds=rounds, **changes)


def steps(run: Simulation, name: str, round: int) -> list[str]:
    rows = run.machines[SiteName(name)].rows
    return [body["step"] for kind, of, body in rows if kind == "sum" and of == round]


def refusals(run: Simulation) -> list[Any]:
    """Whom sites named, none of which lies."""
    return [body for machine in run.machines.values() for kind, _, body in machine.rows if kind == "refused"]


def contributors(run: Simulation, name: str) -> list[list[str]]:
    return [body["contributors"] for _, body in run.committed(name)]


def test_all_sites_add_up_each_round() -> None:
    run = run_sums()
    run.run(until=run.finished)
    for name in FOUR:
        assert contributors(run, name) == [list(FOUR)] * 3
        assert steps(run, name, 2) == ["keyed", "masked", "committed", "opened", "completed"]
        assert not run.machines[SiteName(name)].secrets, "the secrets of old rounds are gone"
    assert set(run.files.opened) == {1, 2, 3}


def test_no_bare_artifact_is_published() -> None:
    run = run_sums()
    run.run(until=run.finished)
    published = [
        body["artifact"] for machine in run.machines.values() for kind, _, body in machine.rows if kind == "published"
    ]
    assert len(published) == 12
    assert all(artifact["sha256"] in run.files.words and artifact["commitments"] for artifact in published)


def test_a_dead_site_costs_the_others_only_itself() -> None:
    run = run_sums(dead=["asia"])
    run.run_to_end()
    for name in ("africa", "america", "europe"):
        assert contributors(run, name) == [["africa", "america", "europe"]] * 3


def test_three_sites_without_one_have_no_sum_and_go_on() -> None:
    run = run_sums(FOUR[:3], dead=["asia"])
    run.run_to_end()
    for name in ("africa", "america"):
        assert contributors(run, name) == [[name]] * 3
        assert "abandoned" in steps(run, name, 1)
    assert not run.files.opened
    assert not run.files.words, "nothing was masked, so nothing left"


def seeds(quick: int, nightly: int) -> list[Any]:
    """A few seeds for each change, and the rest for the night."""
    return [*range(quick), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(quick, nightly))]


@pytest.mark.e2e
@pytest.mark.parametrize("seed", seeds(12, 100))
def test_sites_that_are_killed_between_any_two_commands_go_on(seed: int) -> None:
    run = run_sums(FIVE if seed % 2 else FOUR, seed=seed)
    for machine in run.machines.values():
        machine.fuses = sorted(run.random.sample(range(8, 140), run.random.randrange(4)))
    run.run(until=run.finished)
    assert run.files.totals, "no round had a sum"
    assert not refusals(run)


@pytest.mark.e2e
@pytest.mark.parametrize("seed", seeds(6, 60))
def test_links_that_lose_everything_for_a_while_cost_at_most_sums(seed: int) -> None:
    run = run_sums(FIVE, seed=seed)
    for _ in range(4):
        pair = tuple(run.random.sample(FIVE, 2))
        run.at(run.random.uniform(2.0, 30.0), lambda pair=pair: run.cut.add(pair))
        run.at(run.random.uniform(30.0, 90.0), lambda pair=pair: run.cut.discard(pair))
    run.run(until=run.finished)
    assert run.files.totals, "no round had a sum"
    assert not refusals(run)


def test_a_site_whose_secrets_are_gone_takes_no_part_in_that_round() -> None:
    run = run_sums()
    run.run(until=lambda: "masked" in steps(run, "asia", 2))
    run.kill("asia")
    run.machines[SiteName("asia")].secrets.clear()
    run.at(1.0, lambda: run.start("asia"))
    run.run(until=run.finished)
    assert steps(run, "asia", 2)[-1] == "abandoned"
    assert contributors(run, "europe")[2] == list(FOUR)
    assert "asia" not in contributors(run, "europe")[1]


def test_an_amendment_during_a_sum_changes_the_next_round() -> None:
    run = run_sums(FIVE, newcomers=["oceania"], rounds=4)
    run.run(until=lambda: any("keyed" in steps(run, name, 2) for name in FOUR))
    run.amend(3, members=" ".join(FIVE))
    run.run(until=run.finished)
    for name in FOUR:
        assert contributors(run, name)[1] == list(FOUR)
        assert contributors(run, name)[3] == list(FIVE)


@pytest.mark.parametrize("change", [{"expelled": "oceania", "members": " ".join(FOUR)}, {"rounds": 4}])
def test_an_amendment_of_the_round_whose_sum_has_begun_costs_nobody_the_sum(change: dict[str, Any]) -> None:
    """The sum keeps its epoch, for manifests and statements alike, whoever has learnt of the amendment."""
    run = run_sums(FIVE)
    run.run(until=lambda: all("keyed" in steps(run, name, 2) for name in FIVE))
    began_s = run.now_s
    run.amend(2, **change)
    run.run(until=lambda: all(len(run.committed(name)) >= 2 for name in FOUR))
    assert all({*FOUR} <= {*contributors(run, name)[1]} for name in FOUR)
    assert run.now_s < began_s + 60
    assert not refusals(run)


@pytest.mark.parametrize("fresh", [True, False])
def test_a_site_that_forgot_rounds_sits_out_those_that_it_may_have_been_in(fresh: bool) -> None:
    """After a restored backup, or a start with a new journal, it may have committed in any round of the others."""
    run = run_sums(FIVE, rounds=6)
    run.run(until=lambda: "committed" in steps(run, "asia", 4))
    machine = run.machines[SiteName("asia")]
    run.kill("asia")
    kept = [(kind, round) for kind, round, _ in machine.rows].index(("committed", 2)) + 1
    machine.rows = [] if fresh else machine.rows[:kept]
    machine.generation = 2
    machine.secrets.clear()
    run.at(1.0, lambda: run.start("asia"))
    run.run(until=run.finished)
    assert "masked" not in steps(run, "asia", 4)
    assert "asia" in contributors(run, "europe")[5]
    assert not refusals(run)


def test_a_site_whose_folder_is_an_older_copy_blames_nobody_for_the_key_that_it_forgot() -> None:
    """No peer has seen an artifact of it, so it cannot notice; the others have masked with its former key."""
    run = run_sums()
    run.run(until=lambda: "masked" in steps(run, "america", 1))
    machine = run.machines[SiteName("asia")]
    run.kill("asia")
    assert "keyed" in steps(run, "asia", 1)
    machine.rows = []
    machine.secrets.clear()
    run.at(1.0, lambda: run.start("asia"))
    run.run(until=run.finished)
    assert "keyed" in steps(run, "asia", 1)
    named = {kind: body["origin"] for kind, _, body in machine.rows if kind == "refused"}
    assert not named
    assert "asia" in contributors(run, "europe")[1]


def test_a_site_that_is_expelled_during_a_sum_is_waited_for_no_longer() -> None:
    run = run_sums(FIVE)
    run.run(until=lambda: all("keyed" in steps(run, name, 2) for name in FIVE))
    run.amend(3, members=" ".join(FOUR), expelled="oceania")
    run.run(until=lambda: all(len(run.committed(name)) == 3 for name in FOUR))
    assert all(contributors(run, name)[2] == list(FOUR) for name in FOUR)


def test_a_second_program_reads_the_rows_of_a_sum() -> None:
    run = run_sums()
    run.run(until=lambda: "opened" in steps(run, "europe", 1))
    run.kill("europe")
    run.start("europe")
    machine = run.machines[SiteName("europe")].round
    assert machine is not None
    assert [type(record).__name__ for record in machine.memory.sums[1]][:4] == [
        "SumKeyed",
        "SumMasking",
        "SumBound",
        "SumOpened",
    ]
    run.run(until=run.finished)
    assert dataclasses.asdict(run.files)["opened"][1] == frozenset(FOUR)


def test_a_site_whose_people_have_lost_what_they_may_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[str] = []

    def spent(owner: str, text: str, *, steps: int = 0, kind: Any = "model") -> Artifact:
        artifact = make_artifact(owner, text, steps=steps, kind=kind)
        if owner != "asia" or not steps:
            return artifact
        trained.append(text)
        return dataclasses.replace(artifact, spent=Spending(1.0, 1e-4, 3.0, exceeded=text != trained[0]))

    monkeypatch.setattr("fakes.core_site.make_artifact", spent)
    run = run_sums(FIVE)
    run.run(until=run.finished)
    others = [name for name in FIVE if name != "asia"]
    assert contributors(run, "europe") == [list(FIVE), others, others]
    assert steps(run, "asia", 1)[-1] == "completed"
    assert not {"keyed", "masked"} & {*steps(run, "asia", 2), *steps(run, "asia", 3)}
    assert not refusals(run)
