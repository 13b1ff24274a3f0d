"""Metrics of the probabilities of classes and labels, without torch: training and reports share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Labels = NDArray[np.int64]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClassScores:
    """The metrics of a classifier on one set of samples.

    ``balanced_accuracy`` is the mean recall over the classes that occur in the labels. ``f1_macro`` is the mean F1 over
    the classes that occur in labels or predictions, and ``f1_macro_all`` the mean over all classes of the task, where a
    class that never occurs has F1 0. ``auc`` is that of class 1 for two classes, and the mean one-vs-rest AUC for more.
    ``auc_undefined`` counts the classes left out of that mean, which lack a positive or a negative sample. ``auc`` is
    ``None`` if all classes are left out.
    """

    accuracy: float
    balanced_accuracy: float
    f1_macro: float
    f1_macro_all: float
    auc: float | None
    auc_undefined: int
    samples: int


@dataclass(frozen=True, slots=True)
class LabelScores:
    """The metrics of several labels that may hold at once, computed from the known labels alone.

    ``auc`` is the mean of the defined ``areas``; an area is ``None`` for a label without known positives or without
    known negatives. ``accuracy`` is over all known labels together. ``f1_macro`` is the mean F1 over the labels that
    occur among known truths or their predictions. Each is ``None`` where nothing defines it.
    """

    auc: float | None
    areas: list[float | None]
    accuracy: float | None
    f1_macro: float | None
    samples: int


def class_scores(probabilities: Probabilities, labels: Labels) -> ClassScores:
    """Compute the metrics of class probabilities.

    Args:
        probabilities: ``(n, classes)``, rows sum to 1; the prediction is the first of the largest
            ones in a row.
        labels: ``(n,)``, in [0, classes).

    Raises:
        ValueError: there is no sample, or the shapes or labels do not fit.
    """
    samples, classes = _check_shapes(probabilities, labels)
    predicted = probabilities.argmax(axis=1)
    hits = predicted == labels
    occurring = np.union1d(predicted, labels)
    recalls = [np.mean(hits[labels == k]) for k in np.unique(labels)]
    f1 = [_f1(predicted, labels, k) for k in range(classes)]
    areas = class_areas(probabilities, labels)
    # Of two classes only class 1 is scored: class 0 against the rest is the same number.
    scored = areas if classes > 2 else areas[1:]
    defined = [area for area in scored if area is not None]
    return ClassScores(
        accuracy=float(np.mean(hits)),
        balanced_accuracy=float(np.mean(recalls)),
        f1_macro=float(np.mean([f1[k] for k in occurring])),
        f1_macro_all=float(np.mean(f1)),
        auc=float(np.mean(defined)) if defined else None,
        auc_undefined=len(scored) - len(defined),
        samples=samples,
    )


def class_areas(probabilities: Probabilities, labels: Labels) -> list[float | None]:
    """Return the one-vs-rest AUC of each class; ``None`` for a class without positives or without negatives.

    Raises:
        ValueError: there is no sample, or the shapes or labels do not fit.
    """
    _, classes = _check_shapes(probabilities, labels)
    return [area_under_curve(probabilities[:, k], labels == k) for k in range(classes)]


def auc(probabilities: Probabilities, labels: Labels) -> float | None:
    """Return the AUC as in :func:`class_scores`; ``None`` if no class has one, or there are no samples."""
    return class_scores(probabilities, labels).auc if len(labels) else None


def label_scores(probabilities: Probabilities, labels: NDArray[np.float64]) -> LabelScores:
    """Compute the metrics of several labels that may hold at once; a label is predicted above a probability of 0.5.

    Args:
        probabilities: ``(n, labels)``, each in [0, 1].
        labels: ``(n, labels)`` of 0, 1, or NaN where it is not known.

    Raises:
        ValueError: there is no sample or label, the shapes do not fit, or a value is none of these.
    """
    if probabilities.ndim != 2 or probabilities.shape != labels.shape or not labels.size:
        raise ValueError(f"probabilities of shape {probabilities.shape} do not fit labels of shape {labels.shape}")
    known, positive, predicted = ~np.isnan(labels), labels == 1, probabilities > 0.5
    if not (positive | (labels == 0) | ~known).all():
        raise ValueError("labels must be 0, 1, or NaN where they are not known")
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise ValueError("probabilities must be in [0, 1]")
    areas = [area_under_curve(p[k], y[k]) for p, y, k in zip(probabilities.T, positive.T, known.T, strict=True)]
    defined = [area for area in areas if area is not None]
    occurring = (positive | predicted & known).any(axis=0)
    f1 = [
        _f1(p[k].astype(np.int64), y[k].astype(np.int64), 1)
        for p, y, k in zip(predicted.T[occurring], positive.T[occurring], known.T[occurring], strict=True)
    ]
    return LabelScores(
        auc=float(np.mean(defined)) if defined else None,
        areas=areas,
        accuracy=float(np.mean((predicted == positive)[known])) if known.any() else None,
        f1_macro=float(np.mean(f1)) if f1 else None,
        samples=len(labels),
    )


def area_under_curve(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float | None:
    """Return the probability that a positive scores higher than a negative, counting a tie as one half.

    Return ``None`` if either kind is missing.
    """
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return None
    # Mann-Whitney: tied scores share the mean of their first and last rank.
    _, tie, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[tie]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def resampled_area(
    scores: NDArray[np.float64], positive: NDArray[np.bool_], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Compute :func:`area_under_curve` of all resamples at once, ``(r,)``; NaN for those without positives or
    negatives.

    Args:
        counts: how often each resample contains each sample, ``(r, n)``.
    """
    positive_scores, negative_scores = scores[positive][:, None], scores[~positive][None]
    higher = (positive_scores > negative_scores) + 0.5 * (positive_scores == negative_scores)
    positive_counts = counts[:, positive].astype(np.float64)
    negative_counts = counts[:, ~positive].astype(np.float64)
    pairs = positive_counts.sum(axis=1) * negative_counts.sum(axis=1)
    won = ((positive_counts @ higher) * negative_counts).sum(axis=1)
    areas: NDArray[np.float64] = np.divide(won, pairs, out=np.full(len(counts), np.nan), where=pairs > 0)
    return areas


def _f1(predicted: Labels, labels: Labels, label: int) -> float:
    total = np.sum(predicted == label) + np.sum(labels == label)
    return float(2 * np.sum((predicted == label) & (labels == label)) / total) if total else 0.0


def _check_shapes(probabilities: Probabilities, labels: Labels) -> tuple[int, int]:
    """Return the numbers of samples and classes; raise ``ValueError`` if the arrays do not fit."""
    if probabilities.ndim != 2 or probabilities.shape[0] != len(labels) or probabilities.shape[1] < 2:
        raise ValueError(f"probabilities of shape {probabilities.shape} do not fit {len(labels)} labels")
    if not len(labels):
        raise ValueError("there is no sample to score")
    samples, classes = probabilities.shape
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels are in [{labels.min()}, {labels.max()}], not all in [0, {classes})")
    return samples, classes
