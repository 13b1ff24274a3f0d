"""Duration of the computation of who receives from whom."""

from __future__ import annotations

import time
from collections.abc import Iterable

from row import Row, below

from peer.core import schedule
from peer.core.roster import RoundKey, Sha256

ROUND_KEY = RoundKey(bytes(range(32)))
FEDERATION = Sha256("fe" * 32)


def measure(*, quick: bool) -> list[Row]:
    """One huge round, and a long run of small ones."""
    return [
        below("schedule: 1 round of 10⁶ sites", seconds(range(1, 2), 10**6), "s", 5),
        below("schedule: 1000 rounds of 100 sites", seconds(range(1, 1001), 100), "s", 1),
    ]


def seconds(rounds: Iterable[int], sites: int) -> float:
    """The time to compute the schedule of these rounds."""
    start = time.perf_counter()
    for number in rounds:
        schedule.order(round_key=ROUND_KEY, federation_digest=FEDERATION, round=number, sites=sites)
    return time.perf_counter() - start
