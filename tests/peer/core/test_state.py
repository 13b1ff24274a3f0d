"""The operations of a site's state: clocks, heartbeats, names of peers that misbehave."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core import commands, events, limits
from peer.core.messages import Seen
from peer.core.phases import Phase
from peer.core.rules import PaceRules
from peer.core.state import HALT_S


def announcements(out: list[commands.Command]) -> int:
    return sum(isinstance(command, commands.Announce) for command in out)


def test_several_changes_in_one_event_are_one_beat_after_the_last_row(solo: Any) -> None:
    site = solo()
    site.finish()
    out = site.greet("africa", "america") + site.greet("asia")
    assert announcements(out) == 1
    rows = [place for place, command in enumerate(out) if isinstance(command, commands.Persist)]
    announced = next(place for place, command in enumerate(out) if isinstance(command, commands.Announce))
    assert [out[place].kind for place in rows] == ["opened"]
    assert rows[-1] < announced
    assert site.site.phase == Phase.EXCHANGE


@pytest.mark.parametrize("request_", [events.PauseRequested(), events.StopRequested()])
def test_pause_and_stop_are_announced_before_the_worker_is_halted(solo: Any, request_: events.Event) -> None:
    site = solo()
    out = site.feed(request_)
    places = {type(command): place for place, command in enumerate(out)}
    assert places[commands.Announce] < places[commands.Halt]
    assert announcements(out) == 1


def test_a_clock_that_rings_early_is_set_again(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), pace=PaceRules(gather_s=50))
    site.finish()
    assert site.wake_s == 1050.0
    site.now_s = 1049.999_999
    out = site.feed(events.Ticked())
    assert out == [commands.WakeAt(1050.0)]
    site.now_s = 1050.0
    site.feed(events.Ticked())
    assert site.site.phase != Phase.GATHERING


def test_between_rounds_the_waits_are_those_of_the_next_one(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), pace=PaceRules(gather_s=50))
    site.finish()
    site.learn(1, pace=PaceRules(gather_s=20))
    assert site.wake_s == 1020.0


@pytest.mark.parametrize("began_s", [1000.1, 1000.3, 1001.7])
@pytest.mark.parametrize("wait_s", [33.3, 60.0, 75.1])
def test_a_wait_ends_at_the_very_second_that_the_clock_was_set_to(solo: Any, began_s: float, wait_s: float) -> None:
    pace = PaceRules(gather_s=wait_s, linger_s=wait_s, isolated_s=wait_s)
    site = solo(sites=("asia", "europe"), rounds=1, pace=pace)
    site.now_s = began_s
    site.restart([])
    site.finish()
    assert site.site.phase == Phase.GATHERING
    site.now_s = site.wake_s
    site.feed(events.Ticked())
    assert site.site.phase == Phase.ISOLATED
    site.now_s = site.wake_s
    site.feed(events.Ticked())
    assert site.site.phase == Phase.TRAIN
    site.finish()
    site.finish()
    assert site.site.phase == Phase.DONE
    site.now_s = site.wake_s
    site.feed(events.Ticked())
    assert site.site.phase == Phase.GONE


def test_a_leaving_site_waits_for_its_worker_no_longer_than_it_says(solo: Any) -> None:
    site = solo()
    site.feed(events.StopRequested())
    site.wait(HALT_S - 0.1)
    assert site.site.phase == Phase.LEAVING
    out = site.wait(0.2)
    assert out[-1] == commands.Exit()


def test_a_peer_is_named_once_for_each_reason(solo: Any) -> None:
    site = solo()
    for _ in range(3):
        site.feed(events.PeerRefused("asia", "the protocol version differs"))
        site.feed(events.PeerRefused("asia", "the roster digest differs"))
        site.feed(events.PeerRefused("africa", "the roster digest differs"))
    assert site.kinds.count("refused") == 3


def test_a_peer_that_finds_new_words_does_not_fill_the_journal(solo: Any) -> None:
    site = solo()
    for number in range(500):
        site.feed(events.PeerRefused("asia", f"the federation digest differs: {number}"))
    assert site.kinds.count("refused") == limits.REFUSALS_PER_PEER_MAX
    site.feed(events.PeerRefused("africa", "another matter"))
    assert site.site.refusals[-1]["site"] == "africa"
    assert len(site.site.refusals) == limits.REFUSALS_SHOWN_MAX


def test_a_beat_says_where_the_site_is(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), schedule_kind="derangement").begin()
    site.deliver("asia")
    site.feed(events.Progressed(1, 1, site.order.attempt, "train", 5, 20))
    pulse = site.site.pulse()
    assert (pulse.generation, pulse.round, pulse.phase, pulse.progress) == (1, 1, "train", 0.25)
    assert (pulse.published_round, pulse.committed_round) == (1, 0)
    site.finish()
    pulse = site.site.pulse()
    assert (pulse.round, pulse.progress, pulse.published_round, pulse.committed_round) == (2, 0.0, 2, 1)


def test_a_site_says_that_it_waits_for_its_turn_at_the_gpu_until_the_turn_has_come(solo: Any) -> None:
    site = solo(method="local")
    site.finish()
    order = site.order.attempt
    for attempt, ahead, told in (
        (order - 1, 2, "train"),
        (order, 2, "queued"),
        (order, 1, "queued"),
        (order, 0, "train"),
    ):
        site.feed(events.Queued(1, attempt, ahead))
        assert site.site.pulse().phase == told
    site.feed(events.Queued(1, order, 1))
    site.feed(events.PauseRequested())
    assert site.site.pulse().phase == "paused"


def test_a_worker_that_dies_in_the_queue_leaves_no_trace_of_it(solo: Any) -> None:
    site = solo(method="local")
    site.finish()
    site.feed(events.Queued(1, site.order.attempt, 1))
    site.feed(events.WorkFailed(1, site.order.attempt, "crash", "killed"))
    assert site.site.pulse().phase == "train"


@pytest.mark.parametrize(("step", "steps", "progress"), [(30, 20, 1.0), (-1, 20, 0.0), (5, 0, 0.0), (14, 20, 0.5)])
def test_progress_stays_a_share_whatever_a_worker_counts(solo: Any, step: int, steps: int, progress: float) -> None:
    site = solo(method="local")
    site.finish()
    site.feed(events.Progressed(1, 1, site.order.attempt, "train", step, steps))
    assert site.site.pulse().progress == progress


def test_a_site_tells_a_peer_the_newest_it_has_from_it(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), schedule_kind="derangement")
    assert site.site.seen("asia") is None
    site.finish()
    site.greet()
    site.deliver("asia", origin_generation=3)
    site.finish()
    site.deliver("asia", origin_generation=2)
    first = site.body("arrived")["source"]
    assert first["round"] == 2
    digest = site.site.memory.first_digests["asia"][(3, 1, "asia")]
    assert site.site.seen("asia") == Seen(3, 1, digest)
