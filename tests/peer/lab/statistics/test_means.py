"""What counts in a mean and a deviation."""

import math
import statistics

import pytest

from peer.lab.statistics.means import defined, deviation, mean


@pytest.mark.parametrize(("value", "expected"), [(0.0, True), (None, False), (math.nan, False), (math.inf, False)])
def test_what_counts(value: float | None, expected: bool) -> None:
    assert defined(value) is expected


def test_what_is_undefined_is_left_out() -> None:
    assert mean([0.5, None, 0.7, math.nan]) == pytest.approx(0.6)
    assert (mean([None]), mean([]), deviation([None])) == (None, None, None)


def test_the_deviation_is_that_of_all_folds_or_of_a_sample() -> None:
    assert deviation([0.6, 0.7, None, 0.8]) == pytest.approx(math.sqrt(0.02 / 3))
    assert deviation([0.6, 0.7, 0.8], ddof=1) == pytest.approx(statistics.stdev((0.6, 0.7, 0.8)))
    assert (deviation([0.6]), deviation([0.6], ddof=1)) == (0.0, None)
