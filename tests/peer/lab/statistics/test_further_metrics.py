"""Further metrics against scikit-learn and MONAI, by hand, and from an installed package."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monai.metrics import compute_hausdorff_distance
from numpy.typing import NDArray
from sklearn.metrics import cohen_kappa_score, roc_curve

from peer.core.tasks import CLASSIFYING
from peer.errors import ConfigError
from peer.lab.statistics import further_metrics
from peer.lab.statistics.further_metrics import (
    ENTRY_POINTS,
    FURTHER_METRICS,
    FurtherMetric,
    find_further_metric,
    further_metric_names,
    hausdorff_95,
    kappa,
    sensitivity_at,
)

Install = Callable[..., None]
OURS = FurtherMetric(CLASSIFYING, "share of class 0", lambda probabilities, labels: float(np.mean(labels == 0)))


def drawn(classes: int, samples: int = 60, seed: int = 0) -> tuple[NDArray[Any], NDArray[Any]]:
    """Probabilities with ties, and labels of every class."""
    random = np.random.default_rng(seed)
    logits = random.integers(0, 5, (samples, classes)) / 2
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return chances, random.permutation(np.arange(samples) % classes)


def test_the_page_names_the_built_in_ones() -> None:
    page = Path(__file__).parents[4] / "deploy" / "plugins.md"
    listed = page.read_text("utf-8").partition("The built-in ones:\n")[2].partition("\n\n#")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == FURTHER_METRICS.keys()


@pytest.mark.parametrize("specificity", [0.5, 0.9, 0.95])
@pytest.mark.parametrize("seed", range(4))
def test_sensitivity_is_that_of_the_roc_curve(specificity: float, seed: int) -> None:
    probabilities, labels = drawn(2, seed=seed)
    false_positives, true_positives, _ = roc_curve(labels, probabilities[:, 1], drop_intermediate=False)
    best = max(true_positives[false_positives <= 1 - specificity + 1e-9])
    assert sensitivity_at(specificity, probabilities, labels) == pytest.approx(best)


def test_sensitivity_by_hand() -> None:
    scores = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.81, 0.85, 0.82, 0.9, 0.5])
    labels = np.array([0] * 10 + [1, 1, 1])
    probabilities = np.stack([1 - scores, scores], axis=1)
    # One of ten negatives may be above the threshold: those over 0.81 are positive.
    assert sensitivity_at(0.9, probabilities, labels) == pytest.approx(2 / 3)
    assert sensitivity_at(0.95, probabilities, labels) == pytest.approx(1 / 3)
    assert sensitivity_at(0.9, probabilities, np.zeros_like(labels)) is None


def test_sensitivity_of_several_classes_is_the_mean_of_those_that_have_one() -> None:
    probabilities = np.array([[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.5, 0.4, 0.1]])
    assert sensitivity_at(0.9, probabilities, np.array([0, 0, 1, 1])) == 1.0
    assert sensitivity_at(0.9, probabilities, np.array([1, 1, 0, 0])) == 0.0


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("weights", [None, "quadratic"])
def test_kappa_is_scikit_learns(classes: int, weights: str | None) -> None:
    probabilities, labels = drawn(classes)
    expected = cohen_kappa_score(labels, probabilities.argmax(1), weights=weights)
    assert kappa(probabilities, labels, quadratic=weights is not None) == pytest.approx(expected)


def test_kappa_by_hand_and_where_there_is_none() -> None:
    labels = np.array([0, 0, 0, 1])
    probabilities = np.eye(2)[[0, 0, 1, 1]]
    assert kappa(probabilities, labels) == pytest.approx((0.75 - 0.5) / (1 - 0.5))
    assert kappa(np.eye(2)[[0, 0]], np.array([0, 0])) is None


@pytest.mark.parametrize("dimensions", [2, 3])
def test_surface_distance_is_monais(dimensions: int) -> None:
    random = np.random.default_rng(0)
    maps = [random.integers(0, 3, (9,) * dimensions) * (random.random((9,) * dimensions) < 0.4) for _ in range(2)]
    one_hot = [torch.from_numpy(np.stack([each == label for label in range(3)])[None]) for each in maps]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of libraries that MONAI tries
        expected = compute_hausdorff_distance(*one_hot, include_background=False, percentile=95).mean()
    assert hausdorff_95(*maps) == pytest.approx(float(expected), rel=1e-5)


def test_surface_distance_by_hand() -> None:
    truth, predicted = np.zeros((2, 12), dtype=np.int64)
    truth[2:4], predicted[5:7] = 1, 1
    assert hausdorff_95(predicted, truth) == pytest.approx(2.95)  # of the distances 2 and 3
    predicted[9] = 2  # a class that the truth has not
    assert hausdorff_95(predicted, truth) == pytest.approx(2.95)  # of the distances 2 and 3
    assert hausdorff_95(np.zeros(12), truth) is None


def test_a_package_adds_a_metric(distribution: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(further_metrics, "OURS", OURS, raising=False)
    distribution("some-metrics", "1.0", ENTRY_POINTS, share="peer.lab.statistics.further_metrics:OURS")
    assert {"hd95", "share"} <= set(further_metric_names())
    assert find_further_metric("share").value(*drawn(2)) == 0.5


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("share", "peer.lab.statistics.further_metrics:kappa", "names no FurtherMetric"),
        ("share", "no.such.module:METRIC", "cannot be loaded: No module named 'no'"),
        ("auc", "peer.lab.statistics.further_metrics:kappa", "is a task's own"),
        ("other", "peer.lab.statistics.further_metrics:kappa", "is in 0 installed packages"),
    ],
)
def test_an_entry_point_that_gives_no_metric_is_refused(
    distribution: Install, name: str, target: str, reason: str
) -> None:
    distribution("some-metrics", "1.0", ENTRY_POINTS, share=target)
    with pytest.raises(ConfigError, match=reason):
        find_further_metric(name)


@pytest.mark.parametrize("value", [1.5, -0.5, float("nan")])
def test_a_value_outside_the_bounds_is_refused(value: float) -> None:
    metric = FurtherMetric(CLASSIFYING, "odd", lambda probabilities, labels: value)
    with pytest.raises(ConfigError, match=r"metric 'odd' is .*, outside its bounds 0.0 to 1.0"):
        metric.value(*drawn(2))
