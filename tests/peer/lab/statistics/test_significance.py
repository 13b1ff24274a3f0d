"""The paired test against scipy's, by hand, and where there is nothing to test."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from peer.lab.statistics.significance import MeanRatio, paired_t, ratio_of_means

OURS, THEIRS = [0.81, 0.78, 0.84, 0.80, 0.79], [0.77, 0.79, 0.80, 0.75, 0.78]


def test_a_paired_test_by_hand() -> None:
    # Differences .04, -.01, .04, .05, .01: mean .026, squared deviations .00252, so that s is .0251.
    result = paired_t(OURS, THEIRS)
    error = math.sqrt(0.00252 / 4 / 5)
    assert (result.pairs, result.undefined) == (5, 0)
    assert result.difference == pytest.approx(0.026)
    assert result.t == pytest.approx(0.026 / error)
    assert (result.low, result.high) == pytest.approx((0.026 - 2.7764451 * error, 0.026 + 2.7764451 * error))


@given(st.integers(0, 2**32), st.integers(2, 30), st.sampled_from([0.9, 0.95, 0.99]))
def test_paired_tests_agree_with_scipy(seed: int, folds: int, level: float) -> None:
    draw = np.random.default_rng(seed)
    ours, theirs = draw.normal(0.1, 1, folds), draw.normal(0, 1, folds)
    result, expected = paired_t(ours.tolist(), theirs.tolist(), level=level), stats.ttest_rel(ours, theirs)
    assert result.t == pytest.approx(expected.statistic)
    assert result.p == pytest.approx(expected.pvalue)
    ends = expected.confidence_interval(level)
    assert (result.low, result.high) == pytest.approx((ends.low, ends.high))


def test_undefined_pairs_are_left_out() -> None:
    result = paired_t([None, *OURS, 0.5], [0.3, *THEIRS, math.nan])
    assert (result.pairs, result.undefined) == (5, 2)
    assert result.p == paired_t(OURS, THEIRS).p


def test_without_two_pairs_there_is_no_test() -> None:
    result = paired_t([0.5, None], [0.25, 0.1])
    assert (result.pairs, result.undefined, result.difference, result.t, result.p, result.low) == (
        1, 1, 0.25, None, None, None,
    )  # fmt: skip
    assert paired_t([], []).difference is None


def test_differences_that_are_all_the_same_have_no_t() -> None:
    result = paired_t([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert (result.difference, result.low, result.high, result.t, result.p) == (0.5, 0.5, 0.5, None, None)


def test_pairs_are_of_the_same_folds() -> None:
    with pytest.raises(ValueError, match="2 values and 3 are no pairs"):
        paired_t([0.1, 0.2], [0.1, 0.2, 0.3])


@given(st.integers(0, 2**32), st.integers(2, 30), st.sampled_from([0.9, 0.95, 0.99]))
def test_the_ends_of_a_ratio_are_where_scipys_test_begins_to_reject(seed: int, pairs: int, level: float) -> None:
    draw = np.random.default_rng(seed)
    gains, rooms = draw.normal(0.5, 1, pairs), draw.normal(1, 1, pairs)
    ratio = ratio_of_means(gains.tolist(), rooms.tolist(), level=level)
    assert ratio.value == pytest.approx(gains.mean() / rooms.mean())
    assert (ratio.low is None) == (stats.ttest_1samp(rooms, 0).pvalue >= 1 - level), "bounded where a room is certain"
    if ratio.low is not None and ratio.high is not None:
        assert ratio.low <= ratio.value <= ratio.high
        for end in (ratio.low, ratio.high):
            assert stats.ttest_1samp(gains - end * rooms, 0).pvalue == pytest.approx(1 - level, rel=1e-5)


def test_a_ratio_needs_two_pairs_and_a_denominator() -> None:
    assert ratio_of_means([1.0], [2.0]) == MeanRatio(0.5, None, None)
    assert ratio_of_means([], []) == MeanRatio(None, None, None)
    assert ratio_of_means([1.0, 2.0], [1.0, -1.0]).value is None
    with pytest.raises(ValueError, match="no pairs"):
        ratio_of_means([1.0], [])
