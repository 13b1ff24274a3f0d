"""The graph of the phases: every phase can be reached and left, and no other step happens."""

from __future__ import annotations

from typing import Any

import pytest

from peer.core import events
from peer.core.phases import BUSY, NEXT, Phase, drawing
from peer.core.state import IllegalTransitionError, SiteState


def reachable(start: Phase) -> set[Phase]:
    reached, open_ends = {start}, [start]
    while open_ends:
        new = NEXT[open_ends.pop()] - reached
        reached |= new
        open_ends += new
    return reached


def test_every_phase_is_reached_and_ends_with_the_daemon() -> None:
    assert reachable(Phase.NEW) == set(Phase)
    for phase in Phase:
        assert Phase.GONE in reachable(phase)
    assert NEXT[Phase.GONE] == frozenset()


def test_no_phase_follows_itself_and_none_comes_before_the_first() -> None:
    for phase, followers in NEXT.items():
        assert phase not in followers
        assert Phase.NEW not in followers


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.NEW, Phase.GONE)])
def test_a_site_that_works_writes_its_checkpoint_before_it_leaves(phase: Phase) -> None:
    assert (Phase.LEAVING in NEXT[phase]) == (phase in BUSY)


def test_a_step_that_is_not_in_the_graph_raises(rules: Any) -> None:
    site = SiteState(rules("asia", ("asia", "europe")))
    with pytest.raises(IllegalTransitionError, match="from phase new to adopt"):
        site.enter(Phase.ADOPT)
    assert site.phase == Phase.NEW


def test_the_steps_of_an_event_are_told(solo: Any) -> None:
    site = solo(sites=("asia", "europe"), schedule_kind="derangement").begin()
    assert site.site.steps == [(Phase.GATHERING, Phase.PACING), (Phase.PACING, Phase.EXCHANGE)]
    site.feed(events.Ticked())
    assert site.site.steps == []


def test_the_drawing_shows_every_phase() -> None:
    words = set(drawing().replace(",", " ").split())
    assert {str(phase) for phase in Phase} <= words
