"""Student's paired t-test of the difference between two methods on the same folds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from peer.lab.statistics.means import defined


@dataclass(frozen=True, slots=True)
class PairedT:
    """The result of Student's paired test, two-sided; ``undefined`` pairs are left out.

    With fewer than two pairs there is no interval. ``t`` and ``p`` are None there, and where all
    differences are equal.
    """

    pairs: int
    undefined: int
    difference: float | None
    low: float | None
    high: float | None
    t: float | None
    p: float | None


def paired_t(values: Sequence[float | None], others: Sequence[float | None], *, level: float = 0.95) -> PairedT:
    """Test whether the mean difference over folds is 0.

    Folds of a cross-validation share training samples, so that p is smaller than with new data.

    Args:
        values: one method's value of each fold; None or not finite where undefined.
        level: of the confidence interval of the mean difference ``values - others``, in (0, 1).

    Raises:
        ValueError: the lengths differ.
    """
    differences = _differences(values, others)
    pairs, undefined = len(differences), len(values) - len(differences)
    if pairs < 2:
        return PairedT(pairs, undefined, differences[0] if pairs else None, None, None, None, None)
    from scipy import special  # of the extra `research`; other functions need this module without it

    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(pairs)
    half_width = float(special.stdtrit(pairs - 1, (1 + level) / 2)) * error
    t = mean / error if error else None
    p = None if t is None else 2 * float(special.stdtr(pairs - 1, -abs(t)))
    return PairedT(pairs, undefined, mean, mean - half_width, mean + half_width, t, p)


@dataclass(frozen=True, slots=True)
class MeanRatio:
    """A ratio of means with its interval; an unbounded end is None."""

    value: float | None
    low: float | None
    high: float | None


def ratio_of_means(numerators: Sequence[float], denominators: Sequence[float], *, level: float = 0.95) -> MeanRatio:
    """Compute the ratio of the means of paired values, with Fieller's interval.

    The interval holds the ratios r for which Student's test does not reject that the mean of
    ``numerators - r * denominators`` is 0. It is bounded where the mean denominator differs from 0
    significantly.

    Source: Fieller 1954, Some problems in interval estimation.
    Raises:
        ValueError: the lengths differ.
    """
    if len(numerators) != len(denominators):
        raise ValueError(f"{len(numerators)} values and {len(denominators)} are no pairs")
    pairs = len(numerators)
    above, below = (statistics.fmean(values) if pairs else 0.0 for values in (numerators, denominators))
    value = above / below if below else None
    if pairs < 2 or value is None:
        return MeanRatio(value, None, None)
    from scipy import special

    factor = float(special.stdtrit(pairs - 1, (1 + level) / 2)) ** 2 / pairs
    covariance = statistics.covariance(numerators, denominators)
    # The ends solve square * r**2 - 2 * middle * r + rest = 0.
    square = below**2 - factor * statistics.variance(denominators)
    middle = above * below - factor * covariance
    rest = above**2 - factor * statistics.variance(numerators)
    if square <= 0:
        return MeanRatio(value, None, None)
    half_width = math.sqrt(max(0.0, middle**2 - square * rest)) / square
    return MeanRatio(value, middle / square - half_width, middle / square + half_width)


def _differences(values: Sequence[float | None], others: Sequence[float | None]) -> list[float]:
    """Return the differences of the pairs whose values are both defined."""
    if len(values) != len(others):
        raise ValueError(f"{len(values)} values and {len(others)} are no pairs")
    return [value - other for value, other in zip(values, others, strict=True) if defined(value) and defined(other)]
