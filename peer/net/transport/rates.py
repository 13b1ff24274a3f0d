"""A token bucket that limits rates of calls and bytes, and its clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_time() -> float:
    """Return the time of the event loop's monotonic clock, the daemon's only one, in seconds."""
    return asyncio.get_running_loop().time()


class TokenBucket:
    """Rate limiter: ``rate`` tokens a second on average, up to ``burst`` at once."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_s = clock()

    def take(self, count: float = 1.0) -> bool:
        """Consume tokens; return False if the bucket has too few."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s
        if self._tokens < count:
            return False
        self._tokens -= count
        return True
