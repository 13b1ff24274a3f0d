"""Rounds whose artifacts are one round older than the plan's: which artifact serves which round."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.core_site import discarded, of
from peer.core import commands
from peer.core.messages import Heartbeat
from peer.core.phases import Phase

FOUR = ("africa", "america", "asia", "europe")
TWO = {"sites": ("asia", "europe"), "schedule_kind": "derangement", "staleness": 1}


def published(rows: Any) -> list[tuple[int, str]]:
    """The round and the digest of every artifact that a site has published, in order."""
    return [(round, body["artifact"]["sha256"]) for kind, round, body in rows if kind == "published"]


@pytest.mark.parametrize(
    ("method", "staleness", "rounds"),
    [("fedskd", 0, [0, 1, 2]), ("fedskd", 1, [0, 0, 1]), ("dflmoe", 0, [1, 2, 3]), ("dflmoe", 1, [1, 1, 2])],
)
def test_the_first_two_rounds_use_what_the_first_one_would(
    rules: Any, method: str, staleness: int, rounds: list[int]
) -> None:
    own = rules("asia", FOUR, method=method, staleness=staleness)
    assert [own.made_in(round) for round in (1, 2, 3)] == rounds


@pytest.mark.parametrize("method", ["fedskd", "dflmoe", "fedproto", "kt_pfl"])
@pytest.mark.parametrize("staleness", [0, 1])
def test_every_round_uses_what_its_origin_made_by_the_rule(simulation: Any, method: str, staleness: int) -> None:
    run = simulation(FOUR, rounds=5, seed=3, method=method, staleness=staleness)
    run.run_to_end()
    made = {name: run.made(name) for name in run.machines}
    for name, machine in run.machines.items():
        rules = machine.rules
        assert published(machine.rows) == [(round, made[name][rules.made_in(round)]) for round in range(1, 6)], (
            "one artifact for each round, and none for a round after the last"
        )
        used = {
            (round, source["site"]): source["sha256"]
            for round, body in run.committed(name)
            for source in body["sources"]
        }
        assert used, "a site that used nothing would show nothing"
        assert used == {(round, origin): made[origin][rules.made_in(round)] for round, origin in used}
        assert all(body["missing"] == {} for _, body in run.committed(name))


@pytest.mark.parametrize("method", ["fedskd", pytest.param("dflmoe", marks=pytest.mark.nightly)])
def test_kills_at_any_moment_change_no_bit(simulation: Any, method: str) -> None:
    fixed = {"rounds": 4, "method": method, "staleness": 1, "schedule_kind": "ring"}
    undisturbed = simulation(FOUR, **fixed)
    undisturbed.run_to_end()
    for fuse in range(6, 60, 3):
        run = simulation(FOUR, seed=fuse, **fixed)
        run.machines["asia"].fuses.append(fuse)
        run.run_to_end()
        assert not run.machines["asia"].fuses, "the site was killed"
        assert run.final_states() == undisturbed.final_states()


def test_the_artifact_of_the_next_round_is_fetched_and_there_while_this_one_trains(solo: Any) -> None:
    site = solo(**TWO, rounds=4).begin()
    site.deliver("asia")
    for _ in range(3):
        assert site.site.phase == Phase.TRAIN
        site.deliver("asia")  # although asia may still train in the same round
        out = site.finish()
    assert [(round, digest) for round, digest in published(site.audit.rows)][:2] == [
        (1, site.body("initialised")["artifact"]["sha256"]),
        (2, site.body("initialised")["artifact"]["sha256"]),
    ]
    assert [round for round, _ in published(site.audit.rows)] == [1, 2, 3, 4]
    assert [order.round for order in of(out, commands.Train)] == [4], "the last round begins without a wait"


def test_a_crash_between_the_two_publications_of_an_artifact_loses_neither(solo: Any) -> None:
    site = solo(**TWO)
    out = site.finish(crash_after=2)  # initialised, published for round 1
    assert [order.round for order in of(out, commands.Publish)] == [1, 2]
    assert [round for round, _ in published(site.audit.rows)] == [1, 2]


def test_a_jump_publishes_for_the_round_that_it_enters_and_the_next(solo: Any) -> None:
    site = solo(sites=FOUR, rounds=20, staleness=1)
    site.finish()
    for name in FOUR[:3]:
        site.site.peers.hear(name, Heartbeat(1, 12, "train"), site.now_s)
        site.site.peers.prove(name, 12)
    site.greet()
    initial = site.body("initialised")["artifact"]["sha256"]
    assert published(site.audit.rows) == [(round, initial) for round in (1, 2, 12, 13)]


def test_a_file_that_comes_again_for_the_next_round_stays_while_it_is_asked_for(solo: Any, artifact: Any) -> None:
    """The initial model serves two rounds: the file must be there when the second fetch says so."""
    site = solo(**TWO, rounds=3).begin()
    initial = artifact("asia", "initial asia")
    site.deliver("asia", artifact=initial)
    out = site.finish()
    assert not of(out, commands.Discard)
    out = site.deliver("asia", artifact=initial)
    assert [source.round for order in of(out, commands.Train) for source in order.sources] == [2]
    site.deliver("asia")
    out = site.finish()
    assert [order.sha256 for order in of(out, commands.Discard)] == [initial.sha256]


def test_a_peer_that_is_always_late_leaves_its_last_file_alone(solo: Any, artifact: Any) -> None:
    site = solo(**TWO, rounds=4).begin()
    for round in (1, 2, 3):
        site.deliver("asia")
        before = [artifact("asia", f"asia for {round - 1}").sha256] if round > 1 else []
        assert discarded(site.finish()) == before, "the next one is fetched, and may be the file of this round"


def test_a_mean_of_tables_takes_the_own_table_of_the_same_round(solo: Any) -> None:
    site = solo(**TWO, method="fedproto", rounds=4)
    sent = []
    for _ in range(30):
        if isinstance(site.order, commands.Aggregate) and site.site.phase == Phase.AGGREGATE:
            sent.append((site.order.round, site.order.sent.round, site.order.sent.artifact.sha256))
        if site.fetches and site.site.phase in (Phase.EXCHANGE, Phase.TRAIN):
            site.deliver("asia")
        elif site.site.phase in (Phase.GATHERING, Phase.PACING):
            site.greet()
            site.beat("asia", site.site.memory.committed + 1)
        elif site.site.phase == Phase.DONE:
            break
        else:
            site.finish()
    own = dict(published(site.audit.rows))
    assert sent == [(round, round, own[round]) for round in (1, 2, 3, 4)]
    assert own[1] == own[2] != own[3]


@pytest.mark.parametrize(("finished", "goes_back"), [(0, True), (1, False)])
def test_a_round_that_diverges_goes_back_unless_it_has_published(solo: Any, finished: int, goes_back: bool) -> None:
    """What serves round 2 is of round 1: round 2 itself has published once it serves round 3."""
    site = solo(**TWO, method="dflmoe", rounds=4).begin()
    site.finish()
    site.deliver("asia")
    site.finish()
    for _ in range(finished):
        site.finish()
        site.deliver("asia")
    assert (site.order.round, site.order.stage) == (2, "decide" if finished else "local")
    site.fail("divergence", "the loss is nan")
    assert ("reverted" in site.kinds) == goes_back
