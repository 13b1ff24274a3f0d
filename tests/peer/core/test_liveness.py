"""The failure detector and the adaptive deadline: values by hand."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.core import limits
from peer.core.epochs import PaceRules
from peer.core.liveness import FINISHED, Peers, Standing, lower_median, slow_after_s
from peer.core.messages import Heartbeat
from peer.core.roster import SiteName

ASIA, EUROPE, AFRICA = SiteName("asia"), SiteName("europe"), SiteName("africa")


def pulse(round: int, phase: str = "train", committed: int = 0) -> Heartbeat:
    return Heartbeat(1, round, phase, 0.0, 0, committed)


@pytest.mark.parametrize(
    ("rounds", "median"),
    [([], None), ([7], 7), ([3, 9], 3), ([1, 5, 9], 5), ([1, 2, 8, 9], 2), ([0, 0, 0, 10**6], 0)],
)
def test_the_lower_median(rounds: list[int], median: int | None) -> None:
    assert lower_median(Counter(rounds)) == median


@pytest.mark.parametrize(
    ("waits_s", "deadline_s"),
    [
        ([], 3600.0),  # nothing known: the bound
        ([10.0, 10.0], 3600.0),  # two rounds are not enough
        ([100.0, 100.0, 100.0], 100.0),  # median 100, MAD 0
        ([100.0, 110.0, 150.0], 150.0),  # median 110, deviations 10, 0, 40: MAD 10
        ([80.0, 100.0, 120.0, 140.0], 190.0),  # median 110, deviations 30, 10, 10, 30: MAD 20
        ([1.0, 1.0, 1.0], 60.0),  # the floor
        ([3000.0, 3300.0, 3500.0], 3600.0),  # median 3300, MAD 200: 4100 is over the bound
        ([9999.0, *[200.0] * 10], 200.0),  # only the last ten count
        ([200.0] * 9 + [9999.0], 200.0),  # one slow round moves nothing
    ],
)
def test_the_adaptive_deadline(waits_s: list[float], deadline_s: float) -> None:
    assert slow_after_s(waits_s, PaceRules(wait_max_s=3600.0, deadline_floor_s=60.0)) == pytest.approx(deadline_s)


def test_the_bound_is_stronger_than_the_floor() -> None:
    assert slow_after_s([1.0] * 3, PaceRules(wait_max_s=30.0, deadline_floor_s=60.0)) == 30.0


def test_silence_counts_from_the_last_byte() -> None:
    near = Peers(silence_s=15.0, began_s=100.0)
    near.hear(ASIA, None, 110.0)
    assert near.silent_at_s(ASIA) == 125.0
    assert not near.silent(ASIA, 124.999)
    assert near.silent(ASIA, 125.0)


def test_nobody_is_silent_before_he_could_be_heard() -> None:
    near = Peers(silence_s=15.0, began_s=100.0)
    assert near.silent_at_s(EUROPE) == 115.0
    assert not near.silent(EUROPE, 114.0)
    assert near.silent(EUROPE, 115.0)
    assert near.present([EUROPE], 101.0) == []


def test_a_byte_without_a_beat_keeps_the_last_state() -> None:
    near = Peers(silence_s=15.0)
    near.hear(ASIA, pulse(4), 1.0)
    near.hear(ASIA, None, 9.0)
    assert near.pulse(ASIA) == pulse(4)
    assert near.silent_at_s(ASIA) == 24.0


def test_only_those_at_work_and_heard_set_the_pace() -> None:
    near = Peers(silence_s=15.0)
    names = [SiteName(name) for name in ("a", "b", "c", "d", "e", "f")]
    for name, phase, at_s in zip(
        names, ("train", "paused", "leaving", "failed", "done", "train"), (9, 9, 9, 9, 9, 0), strict=True
    ):
        near.hear(name, pulse(ord(name[0]), phase), at_s)
    near.hear(SiteName("g"), None, 9.0)
    assert near.rounds([*names, SiteName("g")], 16.0, patience_s=lambda name: math.inf, unproven_max=999) == {
        "a": ord("a"),
        "e": ord("e"),
    }


@pytest.mark.parametrize(
    ("phase", "committed", "done"),
    [("done", 5, True), ("gone", 5, True), ("leaving", 5, True), ("gone", 3, False), ("train", 5, False)],
)
def test_a_site_that_left_early_is_not_done(phase: str, committed: int, done: bool) -> None:
    near = Peers(silence_s=15.0)
    assert not near.done(AFRICA, 5)
    near.hear(AFRICA, pulse(committed, phase, committed), 1.0)
    assert near.done(AFRICA, 5) is done


SIX = tuple(SiteName(name) for name in "abcdef")
STEPS = st.one_of(
    st.tuples(
        st.just("hear"), st.sampled_from(SIX), st.integers(0, 6), st.sampled_from(["new", "train", "paused", "done"])
    ),
    st.tuples(st.just("byte"), st.sampled_from(SIX)),
    st.tuples(st.just("prove"), st.sampled_from(SIX), st.integers(0, 6)),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 4.0, 15.0, 40.0])),
    st.tuples(st.just("patience"), st.sampled_from(SIX), st.sampled_from([0.0, 3.0, 30.0])),
    st.tuples(st.just("commit")),
)


def looked_up(near: Peers, name: SiteName, now_s: float, **rules: Any) -> Standing:
    """The standing of one peer, by the functions that look at it alone."""
    known, pace = near.pulse(name), near.rounds([name], now_s, **rules)
    finished = known.committed_round if known is not None and known.phase in FINISHED else None
    return Standing(near.present([name], now_s) == [name], near.ready(name), pace.get(name), finished)


@settings(max_examples=300, deadline=None)
@given(st.lists(STEPS, max_size=40))
def test_the_counts_are_those_of_every_peer_looked_up(steps: list[tuple[Any, ...]]) -> None:
    near, now_s, committed, patience = Peers(silence_s=15.0), 0.0, 0, dict.fromkeys(SIX, 30.0)
    for step, *values in steps:
        if step == "hear":
            name, round, phase = values
            near.hear(name, pulse(round, phase, round), now_s)
        elif step == "byte":
            near.hear(values[0], None, now_s)
        elif step == "prove":
            near.prove(*values)
        elif step == "wait":
            now_s += values[0]
        elif step == "patience":
            patience[values[0]] = values[1]
            near.heard.recount_s = -math.inf
        else:
            committed += 1
        rules = {"patience_s": patience.__getitem__, "unproven_max": committed + 1}
        heard = near.recount(now_s, **rules)
        assert heard.counts == Counter(looked_up(near, name, now_s, **rules) for name in heard)
        others = Counter(looked_up(near, name, now_s, **rules) for name in heard if name != SIX[0])
        assert dict(heard.counts_without(SIX[0])) == others
        assert all(near.silent_at_s(name) >= heard.recount_s for name in near.present(heard, now_s))


def test_who_waits_for_a_turn_at_its_gpu_is_slow_and_not_stalled_before_the_bound_on_claims() -> None:
    near = Peers(silence_s=15.0)
    for now_s in range(0, 1000, 5):
        near.hear(ASIA, pulse(3, "queued"), float(now_s))
        near.hear(EUROPE, pulse(3, "train"), float(now_s))
        assert near.stalled(EUROPE, now_s, patience_s=100.0) == (now_s >= 100)
        assert near.stalled(ASIA, now_s, patience_s=100.0) == (now_s >= 100 * limits.PACING_WAITS_MAX)
