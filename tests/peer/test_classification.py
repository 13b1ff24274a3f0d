"""Metrics of class probabilities, beside scikit-learn's and values by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from peer.classification import ClassScores, area_under_curve, auc, class_areas, class_scores, resampled_area


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 5))
def test_the_others_are_those_of_scikit_learn(seed: int, samples: int, classes: int) -> None:
    draw = np.random.default_rng(seed)
    probabilities = draw.dirichlet(np.ones(classes), size=samples).round(1)
    labels = draw.integers(0, classes, size=samples)
    predicted, scores = probabilities.argmax(axis=1), class_scores(probabilities, labels)
    recalls = reference.recall_score(labels, predicted, labels=np.unique(labels), average="macro")
    assert scores.balanced_accuracy == pytest.approx(recalls)
    every = reference.f1_score(labels, predicted, labels=range(classes), average="macro", zero_division=0)
    assert scores.f1_macro_all == pytest.approx(every)


def test_scores_by_hand() -> None:
    probabilities = np.array([[0.6, 0.3, 0.1, 0.0], [0.2, 0.5, 0.3, 0.0], [0.1, 0.5, 0.4, 0.0], [0.3, 0.3, 0.4, 0.0]])
    labels = np.array([0, 1, 2, 0])
    # Predicted are 0, 1, 1, 2. Recalls 1/2, 1, 0. F1 2/3, 2/3, 0 and, of the class that never occurs, 0.
    assert class_scores(probabilities, labels) == ClassScores(
        accuracy=0.5,
        balanced_accuracy=0.5,
        f1_macro=pytest.approx(4 / 9),
        f1_macro_all=pytest.approx(1 / 3),
        auc=pytest.approx((1 + 5 / 6 + 5 / 6) / 3),
        auc_undefined=1,
        samples=4,
    )
    only_predicted = class_scores(np.eye(3)[[0, 2]], np.array([0, 1]))
    assert only_predicted.f1_macro == pytest.approx(1 / 3)
    assert class_areas(probabilities, labels) == [1.0, pytest.approx(5 / 6), pytest.approx(5 / 6), None]


def test_ties_count_one_half() -> None:
    scores, positive = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True])
    assert area_under_curve(scores, positive) == (1 + 1 + 1 + 0.5) / 4
    assert area_under_curve(scores, ~positive) == 0.5 / 4
    assert area_under_curve(np.ones(4), positive) == 0.5
    assert area_under_curve(scores, np.ones(4, dtype=bool)) is None
    assert area_under_curve(scores, np.zeros(4, dtype=bool)) is None


def test_two_classes_have_the_area_of_class_1_and_one_class_has_none() -> None:
    probabilities = np.array([[0.9, 0.1], [0.4, 0.6], [0.3, 0.7]])
    scores = class_scores(probabilities, np.array([0, 1, 0]))
    assert (scores.auc, scores.auc_undefined) == (0.5, 0)
    assert auc(probabilities, np.array([1, 1, 1])) is None
    assert class_scores(probabilities, np.array([1, 1, 1])).auc_undefined == 1
    assert auc(np.empty((0, 2)), np.empty(0, dtype=np.int64)) is None


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.ones((3, 2)), np.array([0, 1]), r"shape \(3, 2\) do not fit 2 labels"),
        (np.ones((2, 1)), np.array([0, 0]), r"shape \(2, 1\) do not fit"),
        (np.ones(2), np.array([0, 1]), r"shape \(2,\) do not fit"),
        (np.ones((0, 2)), np.array([], dtype=int), "no sample"),
        (np.ones((2, 2)), np.array([0, 2]), r"labels are in \[0, 2\], not all in \[0, 2\)"),
        (np.ones((2, 2)), np.array([-1, 0]), r"labels are in \[-1, 0\]"),
    ],
)
def test_what_does_not_fit_is_refused(probabilities: np.ndarray, labels: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        class_scores(probabilities, labels)


def test_the_area_of_a_resample_is_that_of_its_samples() -> None:
    random = np.random.default_rng(3)
    scores = random.integers(6, size=30) / 5  # with ties
    positive = random.random(30) < 0.4
    counts = np.stack([np.bincount(random.integers(30, size=12), minlength=30) for _ in range(200)])
    areas = resampled_area(scores, positive, counts)
    for row, value in zip(counts, areas, strict=True):
        expected = area_under_curve(np.repeat(scores, row), np.repeat(positive, row))
        assert np.isnan(value) if expected is None else value == pytest.approx(expected)
