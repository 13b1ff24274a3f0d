"""Metrics of several labels, beside scikit-learn's and values by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from peer.classification import LabelScores, label_scores

NAN = np.nan


@given(st.integers(0, 2**32), st.integers(2, 30))
def test_labels_are_scored_as_by_scikit_learn(seed: int, samples: int) -> None:
    draw = np.random.default_rng(seed)
    probabilities = draw.integers(11, size=(samples, 4)) / 10
    labels = draw.integers(2, size=(samples, 4)).astype(float)
    predicted = probabilities > 0.5
    scores = label_scores(probabilities, labels)
    for label, area in enumerate(scores.areas):
        if area is None:
            assert len(np.unique(labels[:, label])) == 1
        else:
            assert area == pytest.approx(reference.roc_auc_score(labels[:, label], probabilities[:, label]))
    assert scores.accuracy == pytest.approx(np.mean(predicted == labels))
    occurring = predicted.any(0) | (labels == 1).any(0)
    f1 = reference.f1_score(labels, predicted, average=None, zero_division=0)[occurring]
    assert scores.f1_macro == (pytest.approx(f1.mean()) if occurring.any() else None)


def test_labels_that_are_not_known_count_nowhere() -> None:
    probabilities = np.array([[0.9, 0.9, 0.1, 0.6], [0.2, 0.5, 0.2, 0.9], [0.6, 0.8, 0.3, 0.1]])
    labels = np.array([[1.0, 1.0, 0.0, NAN], [NAN, 1.0, 0.0, NAN], [0.0, NAN, 0.0, NAN]])
    # F1: 2/3; 2/3, as 0.5 is no positive; the other labels have neither a known positive nor a prediction of one.
    assert label_scores(probabilities, labels) == LabelScores(
        auc=1.0, areas=[1.0, None, None, None], accuracy=5 / 7, f1_macro=pytest.approx(2 / 3), samples=3
    )
    changed = np.where(np.isnan(labels), 1 - probabilities, probabilities)
    assert label_scores(changed, labels) == label_scores(probabilities, labels)
    nothing = label_scores(probabilities, np.full((3, 4), NAN))
    assert (nothing.auc, nothing.accuracy, nothing.f1_macro) == (None, None, None)


@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 2)), r"shape \(2, 3\) do not fit labels of shape \(2, 2\)"),
        (np.ones(2), np.ones(2), "do not fit"),
        (np.ones((0, 2)), np.ones((0, 2)), "do not fit"),
        (np.ones((1, 1)), np.full((1, 1), 2.0), "must be 0, 1, or NaN"),
        (np.full((1, 1), 1.1), np.ones((1, 1)), r"in \[0, 1\]"),
        (np.full((1, 1), NAN), np.ones((1, 1)), r"in \[0, 1\]"),
    ],
)
def test_labels_that_do_not_fit_are_refused(probabilities, labels, message) -> None:
    with pytest.raises(ValueError, match=message):
        label_scores(probabilities, labels)
