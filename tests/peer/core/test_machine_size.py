"""The work of the state machine for one event does not grow with the federation.

The tests count the instructions of Python that an event costs, so that the load of the machine does
not matter. An event is allowed a look at every peer now and then: the mean over as many events as
there are peers counts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FrameType
from typing import Any

import pytest

from fakes.core_site import Solo, make_rules
from peer.core.phases import Phase

SMALL, LARGE = 12, 96
GROWTH_MAX = 1.5
"""Some look-ups are in tables that grow."""


class InstructionCount:
    """Counts the instructions that the program runs within ``with``."""

    def __init__(self) -> None:
        self.count = 0

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if "/peer/core/" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes = True
        self.count += event == "opcode"
        return self._trace

    def __enter__(self) -> InstructionCount:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)


def make_site(sites: int, **changes: Any) -> Solo:
    """A site whose worker has an initial model, of a federation of this size."""
    site = Solo(make_rules("site-000", [f"site-{number:03d}" for number in range(sites)], **changes))
    site.audit.check = lambda *_: None  # it compares whole memories, and is no part of the program
    site.finish()
    return site


def cost(site: Solo, phase: Phase, names: Sequence[str], *acts: Callable[[str], object]) -> float:
    """The instructions that a peer's acts cost, while the site stays in its phase."""
    assert site.site.phase == phase
    with InstructionCount() as instructions:
        for name in names:
            for act in acts:
                act(name)
    assert site.site.phase == phase
    return instructions.count / len(names)


def gather(sites: int) -> float:
    """A greeting, and a heartbeat, of each of the peers but one."""
    site = make_site(sites)
    beat = partial(site.beat, phase="gathering")
    return cost(site, Phase.GATHERING, site.rules.others[:-1], site.greet, beat)


def exchange(sites: int) -> float:
    """A heartbeat and the artifact of each of the peers but one, where each site receives from all."""
    site = begin_round(sites, method="fedavg")
    site.finish()
    return cost(site, Phase.EXCHANGE, site.rules.others[:-1], partial(site.beat, round=1), site.deliver)


def train(sites: int) -> float:
    """A heartbeat, and the artifact for the next exchange, of each of the peers but one while the worker trains."""
    site = begin_round(sites, method="fedavg")
    return cost(site, Phase.TRAIN, site.rules.others[:-1], partial(site.beat, round=1), site.deliver)


def borrow(sites: int) -> float:
    """A heartbeat, and the model that it lends, of each of the peers but one."""
    lending = {"global_test": True, "evaluation_permitted": True, "evaluation_every": 1}
    site = begin_round(sites, rounds=3, **lending)
    names = site.rules.others[:-1]
    assert set(names) < set(site.evaluation_fetches)
    instructions = cost(site, site.site.phase, names, partial(site.beat, round=1), site.lend)
    assert len(site.evaluation_fetches) == 1
    return instructions


def wait_for_pace(sites: int) -> float:
    """A heartbeat of each of the peers while the site is ahead of them."""
    site = begin_round(sites)
    for _ in range(20):
        if site.site.phase == Phase.PACING:
            break
        _go_on(site)
    return cost(site, Phase.PACING, site.rules.others, partial(site.beat, round=1))


def linger(sites: int) -> float:
    """The last heartbeat of each of the peers but one, after the last round."""
    site = begin_round(sites, rounds=1)
    while site.site.phase != Phase.DONE:
        _go_on(site)
    return cost(site, Phase.DONE, site.rules.others[:-1], partial(site.beat, round=1, phase="done"))


def begin_round(sites: int, *, method: str = "fedskd", **changes: Any) -> Solo:
    """A site in round 1, which all peers have begun."""
    site = make_site(sites, method=method, **changes)
    site.greet()
    for name in site.rules.others:
        site.beat(name, round=1, published=1)
    return site


def _go_on(site: Solo) -> None:
    """The artifact that the site waits for arrives, or its worker ends the stage."""
    if site.fetches:
        site.deliver(next(iter(site.fetches)))
    else:
        site.finish()


@pytest.mark.parametrize("work", [gather, train, exchange, borrow, wait_for_pace, linger])
def test_an_event_costs_no_more_where_there_are_more_peers(work: Callable[[int], float]) -> None:
    assert work(LARGE) < GROWTH_MAX * work(SMALL)
