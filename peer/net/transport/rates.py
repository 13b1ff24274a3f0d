"""A token bucket, for rates of calls and of bytes, and the clock that it runs by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def loop_time() -> float:
    """The daemon's one monotonic clock, that of its event loop, in seconds."""
    return asyncio.get_running_loop().time()


class TokenBucket:
    """Allows ``rate`` takes a second on average and ``burst`` at once."""

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
