"""Metrics of numbers, beside scikit-learn's and values by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from peer.regression import mae, r2, rmse


@given(st.integers(0, 2**32), st.integers(2, 40))
def test_they_are_those_of_scikit_learn(seed: int, samples: int) -> None:
    predictions, targets = np.random.default_rng(seed).normal(5, 3, size=(2, samples))
    assert rmse(predictions, targets) == pytest.approx(reference.root_mean_squared_error(targets, predictions))
    assert mae(predictions, targets) == pytest.approx(reference.mean_absolute_error(targets, predictions))
    assert r2(predictions, targets) == pytest.approx(reference.r2_score(targets, predictions))


def test_by_hand() -> None:
    predictions, targets = np.array([1.0, 2.0, 6.0]), np.array([1.0, 3.0, 5.0])
    assert rmse(predictions, targets) == pytest.approx((2 / 3) ** 0.5)
    assert mae(predictions, targets) == pytest.approx(2 / 3)
    assert r2(predictions, targets) == pytest.approx(1 - 2 / 8)
    assert r2(predictions, np.full(3, 4.0)) is None
    assert rmse(np.float32([1e8]), np.array([1e8 + 1])) == 1


@pytest.mark.parametrize("metric", [rmse, mae, r2])
@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        (np.ones(2), np.ones(3), r"shape \(2,\) and targets of \(3,\)"),
        (np.ones((2, 1)), np.ones((2, 1)), r"\(2, 1\) are not both"),
        (np.ones(0), np.ones(0), "no sample"),
        (np.array([np.nan]), np.ones(1), "finite"),
        (np.ones(1), np.array([np.inf]), "finite"),
    ],
)
def test_what_does_not_fit_is_refused(metric, predictions, targets, message) -> None:
    with pytest.raises(ValueError, match=message):
        metric(predictions, targets)
