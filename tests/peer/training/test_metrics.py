"""Metrics against scikit-learn, and their conventions by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as reference

from peer.training.metrics import area_under_curve, classification, f1_macro, measure


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 5))
def test_metrics_agree_with_scikit_learn(seed: int, samples: int, classes: int) -> None:
    draw = np.random.default_rng(seed)
    scores = draw.integers(1, 6, size=(samples, classes)).astype(float)  # few values: many ties
    probabilities = scores / scores.sum(axis=1, keepdims=True)
    labels = draw.integers(0, classes, size=samples)
    found = classification(probabilities, labels)
    predicted = probabilities.argmax(axis=1)
    assert found["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
    assert found["f1_macro"] == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
    scored = [1] if classes == 2 else list(range(classes))
    defined = [k for k in scored if 0 < np.sum(labels == k) < samples]
    assert found["auc_undefined"] == len(scored) - len(defined)
    assert ("auc" in found) == bool(defined)
    if defined:
        areas = [reference.roc_auc_score(labels == k, probabilities[:, k]) for k in defined]
        assert found["auc"] == pytest.approx(np.mean(areas))


def test_area_by_hand() -> None:
    scores, positive = np.array([0.1, 0.4, 0.4, 0.8]), np.array([False, False, True, True])
    assert area_under_curve(scores, positive) == (1 + 1 + 1 + 0.5) / 4
    assert area_under_curve(scores, ~positive) == 0.5 / 4
    assert area_under_curve(scores, np.ones(4, dtype=bool)) is None
    assert area_under_curve(scores, np.zeros(4, dtype=bool)) is None


def test_f1_counts_a_class_that_is_only_predicted() -> None:
    assert f1_macro(np.array([0, 2]), np.array([0, 1])) == pytest.approx(1 / 3)


def test_one_class_only_has_no_auc() -> None:
    found = classification(np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 1]))
    assert found == {"accuracy": 0.5, "f1_macro": pytest.approx(1 / 3), "auc_undefined": 1.0, "samples": 2.0}


def test_measure_joins_batches_and_weighs_each_sample_alike() -> None:
    images, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    found = measure(lambda x: x * 2, F.cross_entropy, batches)
    assert found["loss"] == pytest.approx(F.cross_entropy(images * 2, labels).item())
    assert found["samples"] == 5
    assert measure(lambda x: x, F.cross_entropy, []) == {}
