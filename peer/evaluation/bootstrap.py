"""How sure a number is: percentile intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.evaluation.statistics import defined
from peer.training.seeding import derive

RESAMPLES = 2000  # the ends of a 95 % interval then are the 50th values from either end

Places = NDArray[np.int64]


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
    statistic: Callable[[Places], float | None],
    subjects: Sequence[str | None],
    *,
    seed: int,
    level: float = 0.95,
    resamples: int = RESAMPLES,
) -> Interval:
    """The interval of a statistic when subjects, not images, are drawn anew, with replacement.

    Args:
        statistic: of samples by their places, which may repeat; None or not finite where undefined.
        subjects: whose each sample is; one with None is its own subject.
        seed: another seed, other resamples.
        level: in (0, 1).
        resamples: how many.

    Raises:
        ValueError: there is no sample.
    """
    if not subjects:
        raise ValueError("there is no sample to draw from")
    together: dict[str | int, list[int]] = {}
    for place, subject in enumerate(subjects):
        together.setdefault(place if subject is None else subject, []).append(place)
    groups = [np.array(places, dtype=np.int64) for places in together.values()]
    draw = np.random.default_rng(derive("bootstrap", seed))
    drawn = (draw.integers(len(groups), size=len(groups)) for _ in range(resamples))
    found = [statistic(np.concatenate([groups[group] for group in chosen])) for chosen in drawn]
    values = [value for value in found if defined(value)]
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2]).tolist() if values else (None, None)
    return Interval(
        value=statistic(np.arange(len(subjects))),
        low=low,
        high=high,
        level=level,
        subjects=len(groups),
        resamples=resamples,
        undefined=resamples - len(values),
    )
