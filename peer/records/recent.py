"""The newest finished rounds: who contributed to the last one, and how long the rest will take at that pace."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from peer.core.status import LastRound

ROUNDS = 10
"""As many as the deadlines look back on."""


class Recent:
    """What `status` says of finished rounds.

    Args:
        rows: `committed` rows of a journal, oldest first, each with ``time`` (Unix seconds), ``round`` and ``body``.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        self.last: LastRound | None = None
        self._times_s: deque[float] = deque(maxlen=ROUNDS + 1)
        for row in rows:
            self.add(row["round"], row["body"], time_s=row["time"])

    def add(self, round: int, body: Mapping[str, Any], *, time_s: float) -> None:
        """A round was finished."""
        self._times_s.append(time_s)
        self.last = {
            "round": round,
            "contributors": body["contributors"],
            "missing": body["missing"],
            "duration_s": body["duration_s"],
        }

    def left_s(self, rounds: int, *, now_s: float) -> float | None:
        """How long so many rounds will take, the one in hand among them: the median from one end to the next.

        Nothing where fewer than two rounds are known. A pause or a daemon that was down counts as one long round at
        most.
        """
        times_s = list(self._times_s)
        if len(times_s) < 2:
            return None
        pace_s = statistics.median(later - earlier for earlier, later in itertools.pairwise(times_s))
        spent_s = min(max(0.0, now_s - times_s[-1]), pace_s)
        return round(max(0.0, rounds * pace_s - spent_s), 1) if rounds else 0.0


def duration(seconds: float) -> str:
    """As people say it: seconds, minutes, or hours and minutes."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"
