"""A wall clock that is six seconds slow, for a process that has this folder on its PYTHONPATH."""

import time

_right = time.time


def _late() -> float:
    return _right() - 6.0


time.time = _late
