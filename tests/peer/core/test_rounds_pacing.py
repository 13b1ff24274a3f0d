"""When a round begins, when a site jumps, what it discards, and what one lying peer can cause."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from peer.core import commands, events
from peer.core.messages import Heartbeat, Unavailable
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rules import PaceRules

FIVE = ("africa", "america", "asia", "europe", "oceania")
LIE = 1_000_000


def committed(round: int, *, state: str = "s") -> list[Any]:
    """The journal of a site that knows no more than that it has committed a round."""
    artifact = {"kind": "model", "owner": "europe", "sha256": "ab" * 32, "bytes": 1, "steps": 0, "spec": {}}
    body = {"state": state, "artifact": artifact, "samples": {}, "threads": 1, "device": "cpu"}
    return [("initialised", 0, body), ("skipped", round + 1, {"from": 1})]


def number(site: Any) -> int:
    """The round that a site is in, or 0 between rounds."""
    return site.site.memory.open.number if site.site.memory.open is not None else 0


def surrounded(solo: Any, others: dict[str, int], *, liars: tuple[str, ...] = (), **rules: Any) -> Any:
    """A site that has committed round 2 and hears peers in these rounds; the liars prove nothing."""
    site = solo(sites=tuple(sorted({"europe", *others})), rows=committed(2), **{"rounds": 50, **rules})
    for name, round in others.items():
        site.site.peers.hear(name, Heartbeat(1, round, "train"), site.now_s)
        if name not in liars:
            site.site.peers.prove(name, round)
    site.feed(events.Ticked())
    return site


# Gathering.


def test_round_one_begins_once_everybody_answered(solo: Any) -> None:
    site = solo().begin("africa", "america")
    site.wait(100_000)
    assert site.site.phase == Phase.GATHERING
    site.greet("africa", "america", "asia")
    assert number(site) == 1


def test_a_peer_that_greeted_and_ended_is_waited_for_until_it_is_back(solo: Any) -> None:
    site = solo().begin("africa")
    site.wait(60)
    site.greet("america", "asia")
    assert site.site.phase == Phase.GATHERING, "africa is silent"
    site.beat("america")
    site.beat("asia")
    site.beat("africa", 0, "gone")
    assert site.site.phase == Phase.GATHERING
    site.beat("africa", 0, "initialising")
    assert site.site.phase == Phase.GATHERING
    site.beat("africa", 0, "gathering")
    assert number(site) == 1


def test_a_peer_that_is_never_ready_holds_round_one_for_the_longest_wait_only(solo: Any) -> None:
    site = solo(pace=PaceRules(wait_max_s=300)).begin("africa")
    site.beat("africa", 0, "initialising")
    site.greet("america", "asia")
    for _ in range(100):
        assert site.site.phase == Phase.GATHERING
        site.wait(2.9)
        for name in ("africa", "america", "asia"):
            site.beat(name, 0, "initialising" if name == "africa" else "gathering")
    site.wait(20)
    assert number(site) == 1


def test_round_one_begins_after_gather_s(solo: Any) -> None:
    site = solo(pace=PaceRules(gather_s=60)).begin("asia")
    site.wait(59.9)
    assert site.site.phase == Phase.GATHERING
    site.beat("asia")
    site.wait(0.2)
    assert number(site) == 1


def test_who_comes_late_does_not_wait_for_a_site_that_the_others_do_without(solo: Any) -> None:
    site = solo(sites=FIVE[:4], rounds=50).begin("africa", "america")
    site.prove("africa", "america", round=20)
    site.beat("africa", 20)
    assert site.site.phase == Phase.GATHERING, "one site may lie"
    site.beat("america", 20)
    assert number(site) == 20


def test_of_three_one_is_enough_to_say_that_it_began(solo: Any) -> None:
    site = solo(sites=("africa", "asia", "europe"), rounds=50).begin("africa")
    site.beat("africa", 0)
    assert site.site.phase == Phase.GATHERING
    site.beat("africa", 1)
    assert number(site) == 1


@pytest.mark.parametrize("size", [4, 5])
def test_one_liar_cannot_start_a_federation_early(solo: Any, size: int) -> None:
    site = solo(sites=FIVE[:size]).begin("asia")
    for _ in range(10):
        site.beat("asia", LIE)
    site.wait(3600)
    assert site.site.phase == Phase.GATHERING


def test_whoever_is_named_absent_is_not_gathered(solo: Any) -> None:
    site = solo(without=frozenset({"africa", "america"})).begin("africa")
    assert site.site.phase == Phase.GATHERING
    site.greet("asia")
    assert number(site) == 1


# Pace.


@pytest.mark.parametrize(("others", "opens"), [((0, 0, 0), 0), ((0, 1, 9), 3), ((1, 1, 0), 3), ((0, 0, 9), 0)])
def test_a_site_runs_ahead_of_the_lower_median_by_two_at_most(solo: Any, others: tuple[int, ...], opens: int) -> None:
    assert number(surrounded(solo, dict(zip(("africa", "america", "asia"), others, strict=True)))) == opens


def test_a_site_that_lags_jumps_to_two_others_at_the_median(solo: Any) -> None:
    site = solo(rows=committed(2), rounds=50)
    site.greet()
    assert number(site) == 3, "nobody has said where he is"
    site = solo(rows=committed(2), rounds=50)
    for name in ("africa", "america"):
        site.beat(name, 9, "paused")
    assert number(site) == 3, "who is paused sets no pace"


def test_the_jump_is_to_the_median_and_says_what_it_left_out(solo: Any) -> None:
    site = surrounded(solo, {"africa": 9, "america": 12, "asia": 40})
    assert number(site) == 12
    assert site.body("skipped")["from"] == 3
    assert ("published", 12) in [(kind, round) for kind, round, _ in site.audit.rows]
    while "committed" not in site.kinds:
        if site.fetches:
            site.unavailable(next(iter(site.fetches)), Unavailable.RETIRED)
        site.finish()
    assert site.body("committed")["skipped"] == list(range(1, 12))


@pytest.mark.parametrize(("middle", "opens"), [(5, 3), (6, 6)])
def test_a_lag_of_two_is_no_reason_to_jump(solo: Any, middle: int, opens: int) -> None:
    assert number(surrounded(solo, {"africa": middle, "asia": middle})) == opens


def test_nobody_jumps_past_the_last_round(solo: Any) -> None:
    assert number(surrounded(solo, {"africa": LIE, "asia": LIE}, rounds=7)) == 7


@pytest.mark.parametrize(
    "honest", [{"africa": 2}, {"africa": 2, "america": 3}, {"africa": 2, "america": 2, "oceania": 3}]
)
def test_one_liar_makes_nobody_skip_a_round(solo: Any, honest: dict[str, int]) -> None:
    site = surrounded(solo, {**honest, "asia": LIE}, liars=("asia",))
    assert number(site) == 3
    assert site.kinds.count("skipped") == 1, "only the one that the journal began with"


@pytest.mark.parametrize(
    ("sites", "liars"), [(("asia",), ("asia",)), (("africa", "america", "asia"), ("america", "asia"))]
)
def test_liars_that_prove_nothing_make_nobody_skip_a_round(
    solo: Any, sites: tuple[str, ...], liars: tuple[str, ...]
) -> None:
    """One liar of two sites, and two of four: their word was enough to leave out every round but the last."""
    site = surrounded(solo, {name: 50 if name in liars else 2 for name in sites}, liars=liars)
    for round in range(3, 8):
        assert number(site) == round
        for name in sites:
            site.beat(name, 50 if name in liars else round)
        while number(site) == round:
            if site.fetches:
                site.unavailable(next(iter(site.fetches)), Unavailable.SKIPPED)
            else:
                site.finish()
    assert site.kinds.count("skipped") == 1, "only the one that the journal began with"


@pytest.mark.parametrize(("said", "opened"), [("asia", 3), ("africa asia", 20)])
def test_a_round_of_more_members_is_jumped_to_on_the_word_of_two(solo: Any, said: str, opened: int) -> None:
    """The only other member of the next round may lie about one in which this site hears others, too."""
    site = solo(sites=("asia", "europe"), rows=committed(2), rounds=50)
    site.learn(4, members="africa asia europe")
    for name in said.split():
        site.prove(name, round=20)
        site.beat(name, 20)
    assert number(site) == opened


def test_a_claim_counts_up_to_the_round_after_the_proven_one(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), rows=committed(2), rounds=50)
    site.prove("asia", round=9)
    site.beat("asia", 40)
    assert number(site) == 10
    assert site.body("skipped")["proven"] == {"asia": 10}


@pytest.mark.parametrize(("proven", "opened"), [(51, 40), (52, 3)])
def test_a_proof_of_a_round_after_the_last_one_proves_nothing(solo: Any, proven: int, opened: int) -> None:
    """A site that has done all rounds signs that it is in the round after the last one."""
    site = solo(sites=("asia", "europe"), rows=committed(2), rounds=50)
    site.prove("asia", round=proven)
    site.beat("asia", 40)
    assert number(site) == opened


def test_a_round_after_the_last_one_is_refused_by_name_and_moves_nobody(solo: Any) -> None:
    site = solo(sites=FIVE[:2], site="africa", rows=committed(2), rounds=50)
    for _ in range(20):
        site.beat("america", 51)
    assert number(site) == 3, "the claim counts for nothing"
    reasons = [refusal["reason"] for refusal in site.site.refusals]
    assert reasons == ["claims a round after the last one (50)"]


@pytest.mark.parametrize(("progress", "patience_s"), [(0.0, 60), (1e-6, 240)])
def test_a_peer_that_beats_and_does_not_get_on_holds_nobody_for_ever(
    solo: Any, progress: float, patience_s: float
) -> None:
    """One hung worker of three, or a liar who claims ever more progress: the lower median is its round."""
    site = solo(sites=FIVE[:3], site="africa", rows=committed(5), rounds=50, pace=PaceRules(wait_max_s=60))
    waited_s, claimed = 0, 0.0
    while number(site) == 0:
        claimed += progress
        pulse = Heartbeat(1, 1, "train", claimed, 1, 1)
        site.feed(events.PeerHeard(SiteName("asia"), pulse))
        site.beat("america", 5, "pacing")
        if number(site) == 0:
            site.wait(5)
            waited_s += 5
        assert waited_s <= patience_s
    assert (number(site), waited_s) == (6, patience_s)


@pytest.mark.parametrize("claims", [[(0, 0), (1, 0)], [(1, beat // 10) for beat in range(500)]])
def test_rounds_that_go_back_and_forth_or_end_twice_are_no_progress(solo: Any, claims: list[tuple[int, int]]) -> None:
    site = solo(sites=FIVE[:3], site="africa", rows=committed(5), rounds=50, pace=PaceRules(wait_max_s=60))
    waited_s = 0
    while number(site) == 0:
        round, ended = claims[waited_s // 5 % len(claims)]
        site.feed(events.PeerHeard(SiteName("asia"), Heartbeat(1, round, "train", 0.0, round, ended)))
        site.beat("america", 5, "pacing")
        site.wait(5)
        waited_s += 5
        assert waited_s <= 240 + 60
    assert number(site) == 6


def test_circulating_rounds_are_never_jumped(solo: Any) -> None:
    site = surrounded(solo, {"africa": 40, "asia": 40}, parameters={"activation": 0.5})
    assert number(site) == 3


# Isolation.


def test_an_isolated_site_waits_a_day_and_then_goes_on_alone_to_the_end(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), rows=committed(1), rounds=3)
    site.wait(15)
    assert site.site.phase == Phase.ISOLATED
    site.wait(86_399)
    assert site.site.phase == Phase.ISOLATED
    site.wait(2)
    assert number(site) == 2
    site.finish()
    assert number(site) == 3, "it was isolated once, not before every round"
    assert site.kinds.count("isolated") == 1


def test_a_byte_ends_the_isolation_and_starts_its_clock_anew(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), rows=committed(3), rounds=9, pace=PaceRules(isolated_s=100))
    site.wait(15 + 99)
    site.beat("asia", 1)
    assert site.site.phase == Phase.PACING, "heard, but too far behind to go on"
    site.wait(15 + 99)
    assert site.site.phase == Phase.ISOLATED
    site.wait(2)
    assert number(site) == 4


# The end.


def test_a_site_that_is_told_to_stay_stays(solo: Any) -> None:
    site = solo(sites=FIVE[:3], site="africa", rows=committed(1), rounds=1, stay=True)
    site.beat("america", 1, "done")
    site.beat("asia", 1, "done")
    site.wait(100_000)
    assert site.site.phase == Phase.DONE


def test_who_averaged_the_same_has_the_same_mean_and_who_did_not_is_named(simulation: Any) -> None:
    run = simulation(
        ("africa", "america", "asia", "europe"),
        method="feddal",
        rounds=3,
        quorum=1,
        pace=PaceRules(deadline_floor_s=5.0, linger_s=60.0),
    )
    run.slow = {"africa": 4.0, "america": 4.0}  # asia, which waits longest for europe, still delivers to both
    run.cut.add(("asia", "europe"))
    run.run_to_end()
    compared: dict[tuple[str, str], set[bool]] = {}
    for name, machine in run.machines.items():
        for kind, _, body in machine.rows:
            if kind == "compared":
                compared.setdefault((name, body["site"]), set()).add(body["agrees"])
    assert compared[("africa", "america")] == {True}
    assert compared[("africa", "europe")] == {False}


def test_a_thousand_rounds_without_a_copy_of_the_slot_are_no_recursion(solo: Any) -> None:
    sites = tuple(f"site-{number:02d}" for number in range(60))
    rounds = sys.getrecursionlimit()
    site = solo(sites[0], sites, method="fedcross", rounds=rounds, without=frozenset(sites[1:]))
    site.finish()
    for _ in range(rounds):
        if site.site.phase != Phase.TRAIN:
            break
        site.finish()
    idle = [body for kind, _, body in site.audit.rows if kind == "chosen" and not body["sources"]]
    assert len(idle) > rounds / 2
    assert site.kinds.count("committed") == rounds


# What is kept.


def test_published_artifacts_stay_for_the_rounds_that_the_rules_name(solo: Any) -> None:
    site = solo(
        sites=("asia", "europe"), rounds=9, schedule_kind="derangement", pace=PaceRules(artifact_rounds_max=2)
    ).begin()
    gone = []
    for round in range(1, 6):
        site.beat("asia", round, published=round)
        site.deliver("asia")
        gone += [command.sha256 for command in site.finish() if isinstance(command, commands.Discard)]
    assert sorted(site.site.memory.published) == [(4, "europe"), (5, "europe"), (6, "europe")]
    assert len(gone) == 5 + 3, "five received ones and those of rounds 1 to 3"


def test_no_file_of_a_method_that_publishes_within_the_round_is_left_behind(simulation: Any) -> None:
    run = simulation(FIVE[:3], method="dflmoe", rounds=9)
    run.run_to_end()
    for machine in run.machines.values():
        assert machine.files == machine.round.memory.needed_digests()
        origins = [source.origin for source in machine.round.memory.received.values()]
        assert sorted(origins) == list(machine.rules.others), "the cache has one head of every peer"


def test_an_owner_keeps_its_newest_published_copy_while_its_model_travels(solo: Any) -> None:
    pace = PaceRules(artifact_rounds_max=1, lead_rounds_max=99)
    site = solo(sites=("asia", "europe"), method="fedcross", rounds=9, schedule_kind="derangement", pace=pace).begin()
    site.deliver("asia")
    for _ in range(4):
        site.finish()
    assert sorted(site.site.memory.published) == [(1, "europe"), (4, "asia"), (5, "asia")]
