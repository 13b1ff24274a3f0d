"""Calibration by hand, and against scikit-learn and a plain loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import mean_squared_error

from peer.lab.statistics.calibration import brier_score, expected_calibration_error, reliability


def draw(seed: int, samples: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    return generator.dirichlet(np.ones(classes), samples), generator.integers(classes, size=samples)


def test_by_hand() -> None:
    probabilities = np.array([[0.9, 0.1], [0.9, 0.1], [0.3, 0.7], [0.4, 0.6]])
    labels = np.array([0, 1, 1, 1])
    # Bins of 0.1: two samples in (0.8, 0.9], half of them right; 0.7 and 0.6 right.
    assert expected_calibration_error(probabilities, labels, bins=10) == pytest.approx((2 * 0.4 + 0.3 + 0.4) / 4)
    assert brier_score(probabilities, labels) == pytest.approx(2 * (0.01 + 0.81 + 0.09 + 0.16) / 4)


def test_an_edge_belongs_to_the_lower_bin_and_empty_bins_have_no_mean() -> None:
    curve = reliability(np.array([[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]]), np.array([0, 0, 0]), bins=4)
    assert curve.counts.tolist() == [0, 1, 1, 1]
    assert np.isnan(curve.accuracy[0])
    assert curve.confidence[1:].tolist() == [0.5, 0.75, 1.0]


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 6))
def test_the_error_is_that_of_a_plain_loop(seed: int, samples: int, classes: int) -> None:
    probabilities, labels = draw(seed, samples, classes)
    expected = 0.0
    for index in range(15):
        low, high = index / 15, (index + 1) / 15
        members = [row for row in range(samples) if low < probabilities[row].max() <= high]
        if members:
            confidence = np.mean([probabilities[row].max() for row in members])
            accuracy = np.mean([probabilities[row].argmax() == labels[row] for row in members])
            expected += len(members) / samples * abs(confidence - accuracy)
    assert expected_calibration_error(probabilities, labels) == pytest.approx(expected)


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(2, 6))
def test_the_score_is_scikit_learns(seed: int, samples: int, classes: int) -> None:
    probabilities, labels = draw(seed, samples, classes)
    truth = (labels[:, None] == np.arange(classes)).astype(float)
    assert brier_score(probabilities, labels) == pytest.approx(classes * mean_squared_error(truth, probabilities))


def test_without_samples_there_is_no_score() -> None:
    nothing = np.zeros((0, 3)), np.zeros(0, dtype=np.int64)
    assert (expected_calibration_error(*nothing), brier_score(*nothing)) == (None, None)
