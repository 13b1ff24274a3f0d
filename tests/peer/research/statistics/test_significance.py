"""Paired tests against scipy, by hand, and where there is nothing to test."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from peer.research.statistics.significance import incomplete_beta, paired_t, t_quantile, t_tails, wilcoxon

OURS, THEIRS = [0.81, 0.78, 0.84, 0.80, 0.79], [0.77, 0.79, 0.80, 0.75, 0.78]


@given(st.floats(0.1, 500), st.floats(0.1, 500), st.floats(0, 1))
def test_the_incomplete_beta_function(a: float, b: float, x: float) -> None:
    assert incomplete_beta(a, b, x) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 4, 24, 199])
def test_the_tails_of_t(degrees: int) -> None:
    for t in (0.0, 0.01, 1.0, 2.776, -2.776, 12.0):
        assert t_tails(t, degrees) == pytest.approx(2 * stats.t.sf(abs(t), degrees), rel=1e-9)
    for tails in (0.5, 0.05, 0.001):
        assert t_quantile(tails, degrees) == pytest.approx(stats.t.ppf(1 - tails / 2, degrees), rel=1e-9)


def test_the_quantile_in_every_textbook() -> None:
    assert t_quantile(0.05, 4) == pytest.approx(2.776, abs=5e-4)


def test_a_paired_test_by_hand() -> None:
    # Differences .04, -.01, .04, .05, .01: mean .026, squared deviations .00252, so that s is .0251.
    found = paired_t(OURS, THEIRS)
    error = math.sqrt(0.00252 / 4 / 5)
    assert (found.pairs, found.undefined) == (5, 0)
    assert found.difference == pytest.approx(0.026)
    assert found.t == pytest.approx(0.026 / error)
    assert (found.low, found.high) == pytest.approx((0.026 - 2.7764451 * error, 0.026 + 2.7764451 * error))


@given(st.integers(0, 2**32), st.integers(2, 30), st.sampled_from([0.9, 0.95, 0.99]))
def test_paired_tests_agree_with_scipy(seed: int, folds: int, level: float) -> None:
    draw = np.random.default_rng(seed)
    ours, theirs = draw.normal(0.1, 1, folds), draw.normal(0, 1, folds)
    found, expected = paired_t(ours.tolist(), theirs.tolist(), level=level), stats.ttest_rel(ours, theirs)
    assert found.t == pytest.approx(expected.statistic)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-6)
    ends = expected.confidence_interval(level)
    assert (found.low, found.high) == pytest.approx((ends.low, ends.high))


def test_undefined_pairs_are_left_out() -> None:
    found = paired_t([None, *OURS, 0.5], [0.3, *THEIRS, math.nan])
    assert (found.pairs, found.undefined) == (5, 2)
    assert found.p == paired_t(OURS, THEIRS).p


def test_without_two_pairs_there_is_no_test() -> None:
    one = paired_t([0.5, None], [0.25, 0.1])
    assert (one.pairs, one.undefined, one.difference, one.t, one.p, one.low) == (1, 1, 0.25, None, None, None)
    assert paired_t([], []).difference is None


def test_differences_that_are_all_the_same_have_no_t() -> None:
    found = paired_t([1.0, 2.0, 3.0], [0.5, 1.5, 2.5])
    assert (found.difference, found.low, found.high, found.t, found.p) == (0.5, 0.5, 0.5, None, None)


@given(st.integers(0, 2**32), st.integers(1, 20))
def test_signed_ranks_agree_with_scipy(seed: int, folds: int) -> None:
    ours = np.random.default_rng(seed).normal(0.2, 1, folds)
    found, expected = wilcoxon(ours.tolist(), [0.0] * folds), stats.wilcoxon(ours, method="exact")
    assert (found.statistic, found.pairs) == (expected.statistic, folds)
    assert found.p == pytest.approx(expected.pvalue)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=9))
def test_ties_are_counted_exactly(differences: list[int]) -> None:
    found = wilcoxon(differences, [0] * len(differences))
    ranked = [value for value in differences if value]
    if not ranked:
        assert (found.pairs, found.statistic, found.p) == (0, None, None)
        return
    ranks = stats.rankdata(np.abs(ranked))
    sums = [min(ranks @ np.array(signs), ranks.sum() - ranks @ np.array(signs))
            for signs in itertools.product((0, 1), repeat=len(ranks))]  # fmt: skip
    positive = ranks[np.array(ranked) > 0].sum()
    assert found.statistic == min(positive, ranks.sum() - positive)
    assert found.p == pytest.approx(np.mean(np.array(sums) <= found.statistic))


def test_five_folds_cannot_be_more_significant() -> None:
    found = wilcoxon([1, 2, 3, 4, 5], [0, None, 0, 0, 0])
    assert (found.p, found.undefined) == (1 / 8, 1)
    assert wilcoxon([1, 2, 3, 4, 5], [0] * 5).p == 1 / 16


def test_pairs_are_of_the_same_folds() -> None:
    for test in (paired_t, wilcoxon):
        with pytest.raises(ValueError, match="2 values and 3 are no pairs"):
            test([0.1, 0.2], [0.1, 0.2, 0.3])
