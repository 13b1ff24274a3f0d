"""Calibration: how far a classifier's probabilities match its accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.classification import Labels, Probabilities

BINS = 15
"""Number of bins of equal width, as in Guo et al. 2017."""


@dataclass(frozen=True, slots=True)
class Reliability:
    """The samples by the probability of their predicted class, in bins of equal width on [0, 1].

    A sample on an edge is in the lower bin. ``confidence`` and ``accuracy`` are means over the
    samples of a bin, NaN where ``counts`` is 0.
    """

    counts: NDArray[np.int64]
    confidence: NDArray[np.float64]
    accuracy: NDArray[np.float64]


def reliability(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> Reliability:
    """Compute the curve of a reliability diagram.

    Args:
        probabilities: ``(n, classes)``; the first of several largest ones is the prediction.
        labels: ``(n,)``.
    """
    confidences = probabilities.max(axis=1)
    hits = probabilities.argmax(axis=1) == labels
    numbers = np.clip(np.ceil(confidences * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(numbers, minlength=bins)
    with np.errstate(invalid="ignore"):
        confidence, accuracy = (
            np.bincount(numbers, weights=values, minlength=bins) / counts
            for values in (confidences, hits.astype(np.float64))
        )
    return Reliability(counts, confidence, accuracy)


def expected_calibration_error(probabilities: Probabilities, labels: Labels, *, bins: int = BINS) -> float | None:
    """Compute the mean distance between confidence and accuracy over the bins, weighted by their samples.

    None without samples. With few samples it is above zero even for a perfectly calibrated network.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, eq. 3.
    """
    if not len(labels):
        return None
    curve = reliability(probabilities, labels, bins=bins)
    distances = np.abs(curve.accuracy - curve.confidence)
    return float(np.nansum(distances * curve.counts) / len(labels))


def brier_score(probabilities: Probabilities, labels: Labels) -> float | None:
    """Compute the mean squared distance of probabilities from the truth, summed over classes; None without samples.

    Source: Brier 1950. From 0 to 2; for two classes it is twice the score of class 1 alone.
    """
    if not len(labels):
        return None
    truth = np.eye(probabilities.shape[1])[labels]
    return float(np.mean(((probabilities - truth) ** 2).sum(axis=1)))
