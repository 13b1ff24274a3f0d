"""When an exchange gives up a peer, and which sources a round uses then."""

from __future__ import annotations

import math
from typing import Any

import pytest

from peer.core.artifacts import Source
from peer.core.exchange import Exchange, Want, best_copy, fallback, last_received
from peer.core.liveness import Peers
from peer.core.messages import Heartbeat
from peer.core.rules import PaceRules

THREE = ("africa", "asia", "europe")
FIVE = ("africa", "america", "asia", "europe", "oceania")


def source(artifact: Any, origin: str, round: int, *, owner: str = "", steps: int = 0, note: str = "") -> Source:
    return Source(origin, round, artifact(owner or origin, f"{origin} {round} {steps}", steps=steps), note)


def waiting(pattern: str, *origins: str, round: int = 3, slow_s: float = 100.0) -> Exchange:
    """An exchange that began at 0 and waits for these origins."""
    wants = {origin: Want(origin, origin, number, 0.0, 10_000.0) for number, origin in enumerate(origins)}
    return Exchange(round, pattern, "train", 0.0, slow_s, wants)


def near(*heard: str, at_s: float, phase: str = "train", published: int = 0) -> Peers:
    """A table of peers of which these were heard."""
    peers = Peers(silence_s=15.0)
    for name in heard:
        peers.hear(name, Heartbeat(1, 2, phase, 0.0, published, 2), at_s)
    return peers


def dropped(current: Exchange) -> dict[str, str]:
    return {name: want.dropped for name, want in current.wants.items() if want.dropped}


def test_who_was_never_heard_is_given_up_after_the_silence_limit(rules: Any) -> None:
    current = waiting("permutation", "asia")
    assert current.give_up(near(at_s=0), rules("europe", THREE), 14.9) == []
    given_up = current.give_up(near(at_s=0), rules("europe", THREE), 15.0)
    assert [want.origin for want in given_up] == ["asia"]
    assert dropped(current) == {"asia": "silent"}
    assert current.settled()
    assert current.give_up(near(at_s=0), rules("europe", THREE), 99.0) == []


@pytest.mark.parametrize("phase", ["paused", "leaving", "failed", "gone"])
def test_who_is_away_is_given_up_at_once(rules: Any, phase: str) -> None:
    current = waiting("permutation", "asia")
    current.give_up(near("asia", at_s=1.0, phase=phase, published=2), rules("europe", THREE), 2.0)
    assert dropped(current) == {"asia": phase}


def test_who_is_away_but_has_published_still_serves(rules: Any) -> None:
    current = waiting("permutation", "asia", round=3)
    current.give_up(near("asia", at_s=1.0, phase="paused", published=3), rules("europe", THREE), 2.0)
    assert dropped(current) == {}


def test_who_lives_has_until_the_slow_deadline(rules: Any) -> None:
    current = waiting("permutation", "asia", slow_s=100.0)
    current.give_up(near("asia", at_s=99.0), rules("europe", THREE), 99.9)
    assert dropped(current) == {}
    current.give_up(near("asia", at_s=99.0), rules("europe", THREE), 100.0)
    assert dropped(current) == {"asia": "slow"}


def test_deadlines_are_met_at_the_second_that_was_announced(rules: Any) -> None:
    opened_s, slow_s = 1000.3, 33.3
    current = Exchange(
        1, "permutation", "train", opened_s, slow_s, {"asia": Want("asia", "asia", 1, opened_s, 10_000.0)}
    )
    known, due_s = near("asia", at_s=1030.0), opened_s + slow_s
    assert due_s - opened_s < slow_s, "this sum is rounded down, else the test shows nothing"
    assert due_s in current.due_s(known, rules("europe", THREE), opened_s)
    current.give_up(known, rules("europe", THREE), due_s)
    assert dropped(current) == {"asia": "slow"}


def test_without_a_quorum_the_slow_are_waited_for(rules: Any, artifact: Any) -> None:
    own = rules("europe", FIVE, method="feddal", quorum=2, pace=PaceRules(wait_max_s=500.0))
    current = waiting("all_to_all", "africa", "america", "asia", slow_s=100.0)
    current.wants["africa"].received = source(artifact, "africa", 3)
    known = near("africa", "america", "asia", at_s=199.0)
    current.give_up(known, own, 200.0)
    assert dropped(current) == {}
    current.wants["america"].received = source(artifact, "america", 3)
    current.give_up(known, own, 200.0)
    assert dropped(current) == {"asia": "slow"}


def test_wait_max_ends_every_wait(rules: Any) -> None:
    own = rules("europe", FIVE, method="feddal", quorum=4, pace=PaceRules(wait_max_s=500.0))
    current = waiting("all_to_all", "africa", "america", slow_s=100.0)
    current.give_up(near("africa", "america", at_s=499.0), own, 499.9)
    assert dropped(current) == {}
    current.give_up(near("africa", "america", at_s=499.0), own, 500.0)
    assert dropped(current) == {"africa": "slow", "america": "slow"}


def test_the_wants_are_checked_again_at_each_end_of_a_wait_that_is_still_to_come(rules: Any) -> None:
    own = rules("europe", FIVE, method="feddal", pace=PaceRules(wait_max_s=500.0))
    current = waiting("all_to_all", "africa", slow_s=100.0)
    current.wants["africa"].patience_s = 40.0
    ends_s = [15.0, 40.0, 100.0, 500.0]  # africa's silence, the patience with it, the adaptive deadline, the bound
    assert [current.due_s(near("africa", at_s=0.0), own, now_s) for now_s in (0.0, *ends_s)] == [
        [end_s] for end_s in (*ends_s, math.inf)
    ]


def test_the_quorum_is_half_of_the_others_unless_it_is_set(rules: Any) -> None:
    assert [rules(FIVE[0], FIVE[:size]).epoch(1).quorum_others for size in (1, 2, 3, 4, 5)] == [0, 1, 1, 2, 2]
    assert rules("asia", FIVE, quorum=3).epoch(1).quorum_others == 3


def test_two_peers_must_have_begun_where_there_are_two_beside_a_missing_one(rules: Any) -> None:
    assert [rules(FIVE[0], FIVE[:size]).witnesses_of_a_start for size in (1, 2, 3, 4, 5)] == [0, 1, 1, 2, 2]


def test_sources_and_missing_are_in_roster_order(artifact: Any) -> None:
    current = waiting("all_to_all", "oceania", "asia", "africa", "america")
    current.wants["oceania"].received = source(artifact, "oceania", 3)
    current.wants["africa"].received = source(artifact, "africa", 3)
    current.wants["asia"].dropped = "silent"
    current.wants["america"].dropped = "refused"
    assert [received.origin for received in current.sources()] == ["africa", "oceania"]
    assert list(current.missing().items()) == [("america", "refused"), ("asia", "silent")]


def test_self_uses_nothing(rules: Any, artifact: Any) -> None:
    on_disk = [source(artifact, "asia", 2)]
    assert fallback(rules("europe", THREE), round=3, owner="asia", on_disk=on_disk) == ()


@pytest.mark.parametrize(("round", "used"), [(4, 3), (5, 3), (6, None)])
def test_stale_uses_the_newest_within_its_age(rules: Any, artifact: Any, round: int, used: int | None) -> None:
    own = rules("europe", THREE, fallback="stale", staleness_rounds_max=2)
    on_disk = [source(artifact, "asia", 2), source(artifact, "asia", 3), source(artifact, "africa", 3)]
    sources = fallback(own, round=round, owner="asia", on_disk=on_disk)
    assert [(copy.origin, copy.round, copy.fallback) for copy in sources] == (
        [("asia", used, "stale")] if used is not None else []
    )


def test_stale_never_uses_a_model_that_another_site_trained(rules: Any, artifact: Any) -> None:
    own = rules("europe", THREE, fallback="stale", staleness_rounds_max=5, parameters={"activation": 0.5})
    on_disk = [source(artifact, "africa", 2, owner="asia")]
    assert own.pattern(3) == "permutation"
    assert fallback(own, round=3, owner="asia", on_disk=on_disk) == ()


def test_a_circulating_slot_goes_on_with_the_copy_of_most_steps(rules: Any, artifact: Any) -> None:
    own = rules("europe", THREE, method="fedcross")
    on_disk = [
        source(artifact, "asia", 1, owner="asia", steps=0),
        source(artifact, "africa", 2, owner="asia", steps=40),
        source(artifact, "africa", 3, owner="africa", steps=99),
        source(artifact, "africa", 4, owner="asia", steps=80),
    ]
    (copy,) = fallback(own, round=4, owner="asia", on_disk=on_disk)
    assert (copy.origin, copy.round, copy.artifact.steps, copy.fallback) == ("africa", 2, 40, "stale")


def test_the_cache_keeps_the_newest_head_of_every_peer(rules: Any, artifact: Any) -> None:
    own = rules("europe", FIVE, method="dflmoe")
    fresh = [source(artifact, "asia", 4)]
    earlier = [
        source(artifact, "oceania", 3),
        source(artifact, "oceania", 5),
        source(artifact, "oceania", 1),
        source(artifact, "asia", 3),
        source(artifact, "europe", 3),
        source(artifact, "atlantis", 3),
    ]
    heads = last_received(own, round=4, fresh=fresh, earlier=earlier)
    assert [(head.origin, head.round, head.fallback) for head in heads] == [("asia", 4, ""), ("oceania", 3, "stale")]


@pytest.mark.parametrize(("round_steps", "best"), [(5, "europe"), (None, "asia")])
def test_the_best_copy_has_most_steps_where_these_are_checked_and_else_the_last_round(
    rules: Any, artifact: Any, round_steps: int | None, best: str
) -> None:
    copies = {"asia": source(artifact, "asia", 4, owner="europe", steps=5)}
    copies["europe"] = source(artifact, "europe", 3, owner="europe", steps=10)
    assert best_copy(copies.values(), rules("europe", THREE, round_steps=round_steps)).origin == best


def test_a_tie_goes_to_the_lowest_index(rules: Any, artifact: Any) -> None:
    copies = {name: source(artifact, name, 3, owner="europe", steps=5) for name in ("europe", "asia", "africa")}
    assert best_copy(copies.values(), rules("europe", THREE)).origin == "africa"
