"""The phases of a site and which may follow which: the one graph that the state machine checks and README draws.

``python -m peer.core.phases`` prints the drawing in ``peer/README.md``; a test in ``tests/meta`` says when it is stale.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence


class Phase(enum.StrEnum):
    """What a site is doing."""

    NEW = "new"
    INITIALISING = "initialising"
    GATHERING = "gathering"
    PACING = "pacing"
    ISOLATED = "isolated"
    EXCHANGE = "exchange"
    TRAIN = "train"
    AGGREGATE = "aggregate"
    EVALUATE = "evaluate"
    HANDBACK = "handback"
    ADOPT = "adopt"
    PAUSED = "paused"
    LEAVING = "leaving"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"


BUSY = frozenset({Phase.INITIALISING, Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE, Phase.ADOPT})
"""Phases in which the worker has an order."""

IN_ROUND = frozenset({Phase.EXCHANGE, Phase.TRAIN, Phase.AGGREGATE})
"""The phases that a method's plan orders as it likes."""
IDLE_STOP = frozenset({Phase.PAUSED, Phase.GONE})
"""What the operator can do to a phase in which the worker has no order."""
BUSY_STOP = frozenset({Phase.PAUSED, Phase.LEAVING})
"""What the operator can do to a phase in which the worker must write its checkpoint first."""
AFTER_COMMIT = frozenset({Phase.PACING, Phase.HANDBACK})
RESUMED = IN_ROUND | {Phase.INITIALISING, Phase.GATHERING, Phase.PACING, Phase.EVALUATE, Phase.HANDBACK}
"""Where a site goes on after a pause: wherever its memory says that it was."""

NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEW: RESUMED | {Phase.DONE},
    Phase.INITIALISING: BUSY_STOP | {Phase.GATHERING, Phase.PACING, Phase.GONE},
    Phase.GATHERING: IDLE_STOP | {Phase.PACING},
    Phase.PACING: IDLE_STOP | IN_ROUND | {Phase.ISOLATED, Phase.DONE},
    Phase.ISOLATED: IDLE_STOP | {Phase.PACING},
    Phase.EXCHANGE: IDLE_STOP | IN_ROUND - {Phase.EXCHANGE} | AFTER_COMMIT | {Phase.EVALUATE},
    Phase.TRAIN: BUSY_STOP | IN_ROUND - {Phase.TRAIN} | AFTER_COMMIT | {Phase.EVALUATE, Phase.FAILED},
    Phase.AGGREGATE: BUSY_STOP | IN_ROUND - {Phase.AGGREGATE} | {Phase.PACING, Phase.EVALUATE, Phase.FAILED},
    Phase.EVALUATE: BUSY_STOP | {Phase.PACING, Phase.FAILED},
    Phase.HANDBACK: IDLE_STOP | {Phase.ADOPT, Phase.EVALUATE, Phase.PACING},
    Phase.ADOPT: BUSY_STOP | {Phase.HANDBACK, Phase.EVALUATE, Phase.PACING, Phase.FAILED},
    Phase.PAUSED: RESUMED | {Phase.GONE},
    Phase.FAILED: frozenset({Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE, Phase.HANDBACK, Phase.GONE}),
    Phase.DONE: frozenset({Phase.GONE}),
    Phase.LEAVING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""phase -> the phases that may follow it. Any other step is a bug of this program, and raises."""

BESIDE = (Phase.NEW, Phase.PAUSED, Phase.FAILED, Phase.LEAVING, Phase.GONE)
"""Phases that are drawn beside the course of the rounds."""
COURSE = tuple(phase for phase in Phase if phase not in BESIDE)


def drawing() -> str:
    """The graph as a Mermaid state diagram: the course of the rounds as one box, the other phases around it."""
    lines = ["stateDiagram-v2", "    [*] --> new", '    state "the rounds" as rounds {']
    lines += [f"        {phase} --> {after}" for phase, after in _steps(COURSE, COURSE)]
    lines.append("    }")
    lines += [f"    {phase} --> {after}" for phase, after in _steps(BESIDE, BESIDE)]
    for phase in BESIDE:
        into = [before for before in COURSE if phase in NEXT[before]]
        out = [after for after in COURSE if after in NEXT[phase]]
        lines += [f"    rounds --> {phase} : {_named('from', into)}"] if into else []
        lines += [f"    {phase} --> rounds : {_named('to', out)}"] if out else []
    return "\n".join([*lines, "    gone --> [*]"])


def _steps(before: Sequence[Phase], after: Sequence[Phase]) -> Iterator[tuple[Phase, Phase]]:
    return ((phase, follower) for phase in before for follower in after if follower in NEXT[phase])


def _named(word: str, phases: Sequence[Phase]) -> str:
    """The phases of the box that an arrow is about, by the shorter of the two lists."""
    others = [phase for phase in COURSE if phase not in phases]
    if not others:
        return f"{word} any phase"
    return f"{word} {', '.join(phases)}" if len(phases) <= len(others) else f"{word} any phase but {', '.join(others)}"


if __name__ == "__main__":
    print(drawing())
