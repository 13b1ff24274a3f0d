"""Whether two methods differ: tests of the differences between their values on the same folds."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from peer.research.statistics.tables import defined

DEPTH = 300  # of the continued fraction, which needs O(sqrt(a + b)): enough for ten thousand folds


@dataclass(frozen=True, slots=True)
class PairedT:
    """Student's paired test, two-sided; ``undefined`` pairs are left out.

    Without two pairs there is no test, and no ``t`` and ``p`` where all differences are the same.
    """

    pairs: int
    undefined: int
    difference: float | None
    low: float | None
    high: float | None
    t: float | None
    p: float | None


@dataclass(frozen=True, slots=True)
class Wilcoxon:
    """The signed-rank test, two-sided and exact; pairs without a difference are left out, ``undefined`` ones too."""

    pairs: int
    undefined: int
    statistic: float | None
    p: float | None


def paired_t(values: Sequence[float | None], others: Sequence[float | None], *, level: float = 0.95) -> PairedT:
    """Test whether the mean difference over folds is 0.

    Folds of a cross-validation share training samples, so that p is smaller than it would be with new data.

    Args:
        values: one a fold, None or not finite where undefined.
        others: the other method's, on the same folds.
        level: of the interval of the mean difference ``values - others``, in (0, 1).

    Raises:
        ValueError: the lengths differ.
    """
    differences = _differences(values, others)
    pairs, undefined = len(differences), len(values) - len(differences)
    if pairs < 2:
        return PairedT(pairs, undefined, differences[0] if pairs else None, None, None, None, None)
    mean = statistics.fmean(differences)
    error = statistics.stdev(differences) / math.sqrt(pairs)
    reach = t_quantile(1 - level, pairs - 1) * error
    t = mean / error if error else None
    p = None if t is None else t_tails(t, pairs - 1)
    return PairedT(pairs, undefined, mean, mean - reach, mean + reach, t, p)


def wilcoxon(values: Sequence[float | None], others: Sequence[float | None]) -> Wilcoxon:
    """Test whether the differences over folds lie around 0, by their ranks; five folds cannot have p below 1/16.

    Args:
        values: one a fold, None or not finite where undefined.
        others: the other method's, on the same folds.

    Returns:
        ``statistic`` is the smaller sum of ranks of one sign, equal differences having their mean rank.

    Raises:
        ValueError: the lengths differ.
    """
    found = _differences(values, others)
    undefined = len(values) - len(found)
    differences = sorted((value for value in found if value), key=abs)
    if not differences:
        return Wilcoxon(0, undefined, None, None)
    sizes = [abs(value) for value in differences]
    # Twice the mean rank of equals is whole: first place plus last place, from 1.
    doubled = [sizes.index(size) + 1 + sizes.index(size) + sizes.count(size) for size in sizes]
    positive = sum(rank for rank, value in zip(doubled, differences, strict=True) if value > 0)
    smaller = min(positive, sum(doubled) - positive)
    ways: Counter[int] = Counter({0: 1})
    for rank in doubled:
        ways = ways + Counter({total + rank: number for total, number in ways.items()})
    tail = sum(number for total, number in ways.items() if total <= smaller)
    return Wilcoxon(len(differences), undefined, smaller / 2, min(1.0, 2 * tail / 2 ** len(differences)))


def t_tails(t: float, degrees: int) -> float:
    """The probability that Student's t with these degrees of freedom is at least as far from 0."""
    return incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def t_quantile(tails: float, degrees: int) -> float:
    """The t > 0 outside of which, on both sides together, lies the probability ``tails`` in (0, 1)."""
    low, high = 0.0, 1.0
    while t_tails(high, degrees) > tails:
        high *= 2
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if t_tails(middle, degrees) > tails else (low, middle)
    return high


def incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b) for a, b > 0 and x in [0, 1].

    Source: the continued fraction of DLMF 8.17.22.
    """
    if x in (0.0, 1.0):
        return x
    upper = x > (a + 1) / (a + b + 2)  # where the fraction of the other tail converges
    if upper:
        a, b, x = b, a, 1 - x
    fraction = 1.0
    for step in range(DEPTH, 0, -1):
        m, odd = divmod(step, 2)
        numerator = -(a + m) * (a + b + m) if odd else m * (b - m)
        fraction = 1 + numerator * x / ((a + step - 1) * (a + step)) / fraction
    front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    found = math.exp(front + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)) / fraction
    return 1 - found if upper else found


def _differences(values: Sequence[float | None], others: Sequence[float | None]) -> list[float]:
    """Of the pairs that are defined."""
    if len(values) != len(others):
        raise ValueError(f"{len(values)} values and {len(others)} are no pairs")
    return [value - other for value, other in zip(values, others, strict=True) if defined(value) and defined(other)]
