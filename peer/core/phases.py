"""The phases of a site and the graph of their transitions, which the state machine checks.

``python -m peer.core.phases`` prints its drawing for ``peer/README.md``; a test in ``tests/meta`` compares the two.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence


class Phase(enum.StrEnum):
    NEW = "new"
    INITIALISING = "initialising"
    GATHERING = "gathering"
    PACING = "pacing"
    ISOLATED = "isolated"
    HELD = "held"
    EXCHANGE = "exchange"
    TRAIN = "train"
    RETURNS = "returns"
    AGGREGATE = "aggregate"
    EVALUATE = "evaluate"
    HANDBACK = "handback"
    ADOPT = "adopt"
    PAUSED = "paused"
    LEAVING = "leaving"
    DONE = "done"
    FAILED = "failed"
    GONE = "gone"


QUEUED = "queued"
"""Phase that a site states instead of a busy one while its worker waits for its turn at the GPU: it is alive,
but slow."""

BUSY = frozenset({Phase.INITIALISING, Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE, Phase.ADOPT})
"""Phases in which the worker has an order."""

IN_ROUND = frozenset({Phase.EXCHANGE, Phase.TRAIN, Phase.AGGREGATE})
"""Phases whose order a method's plan determines."""
BETWEEN = frozenset({Phase.PACING, Phase.ISOLATED, Phase.HELD})
"""Phases in which a site waits for its next round."""
IDLE_STOP = frozenset({Phase.PAUSED, Phase.GONE})
"""Phases that the operator can enforce while the worker has no order."""
BUSY_STOP = frozenset({Phase.PAUSED, Phase.LEAVING})
"""Phases that the operator can enforce while the worker must first write its checkpoint."""
AFTER_COMMIT = frozenset({Phase.PACING, Phase.HANDBACK})
RESUMED = IN_ROUND | {
    Phase.INITIALISING, Phase.GATHERING, Phase.PACING, Phase.RETURNS, Phase.EVALUATE, Phase.HANDBACK,
}  # fmt: skip
"""Phases in which a site may continue after a pause; its memory determines which."""

NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.NEW: RESUMED | {Phase.DONE, Phase.GONE},
    Phase.INITIALISING: BUSY_STOP | {Phase.GATHERING, Phase.PACING, Phase.GONE},
    Phase.GATHERING: IDLE_STOP | {Phase.PACING},
    Phase.PACING: IDLE_STOP | IN_ROUND | {Phase.ISOLATED, Phase.HELD, Phase.HANDBACK, Phase.DONE},
    Phase.ISOLATED: IDLE_STOP | {Phase.PACING, Phase.HANDBACK},
    Phase.HELD: IDLE_STOP | {Phase.PACING, Phase.HANDBACK},
    Phase.EXCHANGE: IDLE_STOP | IN_ROUND - {Phase.EXCHANGE} | AFTER_COMMIT | {Phase.EVALUATE},
    Phase.TRAIN: BUSY_STOP | IN_ROUND - {Phase.TRAIN} | AFTER_COMMIT | {Phase.RETURNS, Phase.EVALUATE, Phase.FAILED},
    Phase.RETURNS: IDLE_STOP | {Phase.AGGREGATE},
    Phase.AGGREGATE: BUSY_STOP
    | IN_ROUND - {Phase.AGGREGATE}
    | {Phase.RETURNS, Phase.PACING, Phase.EVALUATE, Phase.FAILED},
    Phase.EVALUATE: BUSY_STOP | {Phase.PACING, Phase.HANDBACK, Phase.FAILED},
    Phase.HANDBACK: IDLE_STOP | {Phase.ADOPT, Phase.EVALUATE, Phase.PACING},
    Phase.ADOPT: BUSY_STOP | {Phase.HANDBACK, Phase.EVALUATE, Phase.PACING, Phase.FAILED},
    Phase.PAUSED: RESUMED | {Phase.GONE},
    Phase.FAILED: frozenset({Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE, Phase.HANDBACK, Phase.GONE}),
    Phase.DONE: frozenset({Phase.PACING, Phase.GONE}),
    Phase.LEAVING: frozenset({Phase.GONE}),
    Phase.GONE: frozenset(),
}
"""phase -> the phases that may follow it. Any other step is a bug of this program, and raises."""

BESIDE = (Phase.NEW, Phase.PAUSED, Phase.FAILED, Phase.LEAVING, Phase.GONE)
"""Phases that the drawing shows beside the rounds."""
COURSE = tuple(phase for phase in Phase if phase not in BESIDE)


def drawing() -> str:
    """Draw the graph as a Mermaid state diagram: the rounds as one box, the other phases around it."""
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
    """Build an arrow's label: its phases inside the box, or all but the others if that is shorter."""
    others = [phase for phase in COURSE if phase not in phases]
    if not others:
        return f"{word} any phase"
    return f"{word} {', '.join(phases)}" if len(phases) <= len(others) else f"{word} any phase but {', '.join(others)}"


if __name__ == "__main__":
    print(drawing())
