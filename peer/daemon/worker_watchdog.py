"""Detects a hung worker from the signs of progress that its work gives."""

from __future__ import annotations

import os

COMPUTING_SHARE = 0.1
"""Share of a core below which a worker does not compute: it is stopped, or waits."""
COMPUTING_FACTOR = 4.0
"""Multiple of ``hang_s`` for a worker that computes: it may be in one long step, or compile."""
GAPS = 3.0
"""Multiple of the longest step so far that later steps may take."""
PATIENCE_FACTOR_MAX = 12.0
"""Upper bound in multiples of ``hang_s``: a slower model needs a larger ``hang_s``."""


class ProgressMonitor:
    """Measures how long the work has given no sign of progress, and how long it may.

    Time is counted in the watcher's own ticks. So the worker is not blamed for seconds in which the whole machine, or
    the daemon, stood still.

    Args:
        hang_s: time limit without a sign for a worker that does not compute.
    """

    def __init__(self, hang_s: float) -> None:
        self.hang_s = hang_s
        self._still_s = 0.0
        self._longest_gap_s = 0.0
        self._computed_s = 0.0

    @property
    def tick_s(self) -> float:
        """The time between two calls of ``elapse``."""
        return min(1.0, self.hang_s / 10)

    def begin(self) -> None:
        """Start measuring new work."""
        self._still_s = self._computed_s = 0.0

    def advance(self) -> None:
        """Record a sign of progress."""
        self._longest_gap_s = max(self._longest_gap_s, self._still_s)
        self.begin()

    def elapse(self, computed_s: float | None) -> str | None:
        """Count one tick; return why the worker counts as hung, or ``None``.

        Args:
            computed_s: CPU time that the worker used in this tick; ``None`` if the system does not tell.
        """
        self._still_s += self.tick_s
        self._computed_s += self.tick_s if computed_s is None else computed_s
        computes = self._computed_s >= COMPUTING_SHARE * self._still_s
        least_s = self.hang_s * (COMPUTING_FACTOR if computes else 1.0)
        patience_s = min(max(least_s, GAPS * self._longest_gap_s), PATIENCE_FACTOR_MAX * self.hang_s)
        if self._still_s < patience_s:
            return None
        did = "computed" if computes else "did not compute"
        return f"no sign of progress for {self._still_s:.0f} s, in which the worker {did} ([training] hang_s)"


def cpu_s(pid: int) -> float | None:
    """Return the CPU time of all threads of a process, in seconds; ``None`` if the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # utime and stime, see proc(5)
    except (OSError, ValueError, IndexError):
        return None
