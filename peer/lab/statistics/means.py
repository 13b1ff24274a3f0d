"""Means and deviations over folds, seeds and sites, which leave out undefined values."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import TypeGuard


def defined(value: float | None) -> TypeGuard[float]:
    """Return whether a value is neither None nor NaN nor infinite."""
    return value is not None and math.isfinite(value)


def mean(values: Iterable[float | None]) -> float | None:
    """Average the defined values, exactly rounded in any order; None without any."""
    known = [value for value in values if defined(value)]
    return statistics.fmean(known) if known else None


def deviation(values: Sequence[float | None], *, ddof: int = 0) -> float | None:
    """Compute the standard deviation of the defined values, dividing by their number minus ``ddof``.

    Returns:
        None unless there are more defined values than ``ddof``.
    """
    known = [value for value in values if defined(value)]
    centre = mean(known)
    if centre is None or len(known) <= ddof:
        return None
    return math.sqrt(sum((value - centre) ** 2 for value in known) / (len(known) - ddof))
