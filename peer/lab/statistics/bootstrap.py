"""Percentile intervals of a statistic, from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.core.seeds import derive

RESAMPLES = 2000  # the ends of a 95 % interval are then the 50th values from either end

Counts = NDArray[np.int64]
"""Count of each sample in each resample, ``(resamples, samples)``."""

Statistic = Callable[[Counts], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Interval:
    """The value of a statistic on all samples, and the bounds of a percentile interval.

    A share of ``level`` of the resamples lies in [``low``, ``high``]. The ``undefined`` resamples
    are left out; ``low`` and ``high`` are None where all resamples are undefined.
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
    """Compute the interval of a statistic by drawing subjects, not images, with replacement.

    Args:
        statistic: maps the counts to the value of each resample, ``(resamples,)``; not finite where
            undefined.
        subjects: of each sample; a sample with None is a subject by itself.

    Raises:
        ValueError: there is no sample.
    """
    if not subjects:
        raise ValueError("there is no sample to draw from")
    numbers: dict[str | int, int] = {}
    subject_of_sample = [
        numbers.setdefault(index if name is None else name, len(numbers)) for index, name in enumerate(subjects)
    ]
    rng = np.random.default_rng(derive("bootstrap", seed))
    drawn_subjects = rng.integers(len(numbers), size=(resamples, len(numbers)))
    subject_counts = np.stack([np.bincount(drawn, minlength=len(numbers)) for drawn in drawn_subjects])
    resampled = statistic(subject_counts[:, subject_of_sample])
    values = resampled[np.isfinite(resampled)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist() if len(values) else (None, None)
    (full_sample_value,) = statistic(np.ones((1, len(subjects)), dtype=np.int64)).tolist()
    return Interval(
        value=full_sample_value if np.isfinite(full_sample_value) else None,
        low=low,
        high=high,
        level=level,
        subjects=len(numbers),
        resamples=resamples,
        undefined=resamples - len(values),
    )
