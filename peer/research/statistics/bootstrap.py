"""How sure a number is: percentile intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.core.seeds import derive

RESAMPLES = 2000  # the ends of a 95 % interval then are the 50th values from either end

Counts = NDArray[np.int64]
"""How often each sample is in each resample, ``(resamples, samples)``."""

Statistic = Callable[[Counts], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """A statistic of all samples, and between which values lie ``level`` of the resamples where it is defined.

    ``undefined`` resamples are left out; ``low`` and ``high`` are None where that is all.
    """

    value: float | None
    low: float | None
    high: float | None
    level: float
    subjects: int
    resamples: int
    undefined: int


def interval(
    statistic: Statistic,
    subjects: Sequence[str | None],
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """The interval of a statistic when subjects, not images, are drawn anew, with replacement.

    Args:
        statistic: of each resample, ``(resamples,)``, from its counts; not finite where undefined.
        subjects: whose each sample is; one with None is its own subject.
        seed: another seed, other resamples.
        level: in (0, 1).
        resamples: how many.

    Raises:
        ValueError: there is no sample.
    """
    if not subjects:
        raise ValueError("there is no sample to draw from")
    numbers: dict[str | int, int] = {}
    group = [numbers.setdefault(place if name is None else name, len(numbers)) for place, name in enumerate(subjects)]
    draw = np.random.default_rng(derive("bootstrap", seed))
    drawn = draw.integers(len(numbers), size=(resamples, len(numbers)))
    counts = np.stack([np.bincount(chosen, minlength=len(numbers)) for chosen in drawn])[:, group]
    resampled = statistic(counts)
    values = resampled[np.isfinite(resampled)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist() if len(values) else (None, None)
    (whole,) = statistic(np.ones((1, len(subjects)), dtype=np.int64)).tolist()
    return Interval(
        value=whole if np.isfinite(whole) else None,
        low=low,
        high=high,
        level=level,
        subjects=len(numbers),
        resamples=resamples,
        undefined=resamples - len(values),
    )
