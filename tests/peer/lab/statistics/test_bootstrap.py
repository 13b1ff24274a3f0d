"""Intervals over subjects: whole ones are drawn, seeded, and what is undefined is counted."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from peer.classification import resampled_area
from peer.lab.statistics.bootstrap import Counts, Statistic, interval


def mean_of(values: NDArray[np.float64]) -> Statistic:
    """The mean of each resample's samples."""
    return lambda counts: counts @ values / counts.sum(axis=1)


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    values = np.random.default_rng(0).normal(size=400)
    result = interval(mean_of(values), [str(i) for i in range(400)], seed=0)
    assert result.value == pytest.approx(values.mean())
    half_width = stats.norm.ppf(0.975) * values.std() / 20
    assert (result.low, result.high) == pytest.approx(
        (values.mean() - half_width, values.mean() + half_width), abs=0.01
    )
    assert (result.subjects, result.resamples, result.undefined, result.level) == (400, 2000, 0, 0.95)


def test_whole_subjects_are_drawn() -> None:
    subjects = ["a", "b", "a", None, "b", None, "c"]
    seen_counts: list[Counts] = []

    def statistic(counts: Counts) -> NDArray[np.float64]:
        seen_counts.extend(counts)
        return np.zeros(len(counts))

    result = interval(statistic, subjects, seed=0, resamples=200)
    assert result.subjects == 5
    assert len(seen_counts) == 201  # all samples too
    for counts in seen_counts:
        assert counts[0] == counts[2]
        assert counts[1] == counts[4]
        assert counts[0] + counts[1] + counts[3] + counts[5] + counts[6] == 5
    assert len({tuple(counts.tolist()) for counts in seen_counts}) > 50


def test_resamples_without_a_value_are_counted() -> None:
    scores, positive = np.array([0.1, 0.2, 0.9]), np.array([False, False, True])

    result = interval(lambda counts: resampled_area(scores, positive, counts), ["a", "b", "c"], seed=0, resamples=3000)
    # Without the positive: 8 of 27; without a negative: 1 of 27.
    assert result.undefined == pytest.approx(1000, abs=100)
    assert (result.value, result.low, result.high) == (1.0, 1.0, 1.0)


def test_a_statistic_that_is_never_defined_has_no_interval() -> None:
    result = interval(lambda counts: np.full(len(counts), np.nan), ["a", "b"], seed=0, resamples=10)
    assert (result.value, result.low, result.high, result.undefined) == (None, None, None, 10)


def test_the_seed_decides() -> None:
    values = np.random.default_rng(0).normal(size=30)
    subjects = [str(i) for i in range(30)]
    first, same, other = (interval(mean_of(values), subjects, seed=s) for s in (0, 0, 1))
    assert first == same != other


def test_the_level_sets_the_width() -> None:
    values = np.arange(100.0)
    intervals = [interval(mean_of(values), [None] * 100, seed=0, level=level) for level in (0.5, 0.95)]
    assert intervals[1].low < intervals[0].low < intervals[0].high < intervals[1].high


def test_no_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="no sample"):
        interval(mean_of(np.zeros(0)), [], seed=0)
