"""Metrics of predicted numbers, without torch: training and reports share them.

Predictions and targets are ``(n,)``, in the unit of the targets. Every function raises ``ValueError`` if the shapes
differ, a value is not finite, or there is no sample.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


def rmse(predictions: Numbers, targets: Numbers) -> float:
    """Return the root of the mean squared error, in the unit of the targets."""
    return float(np.sqrt(np.mean(_errors(predictions, targets) ** 2)))


def mae(predictions: Numbers, targets: Numbers) -> float:
    """Return the mean absolute error, in the unit of the targets."""
    return float(np.mean(np.abs(_errors(predictions, targets))))


def r2(predictions: Numbers, targets: Numbers) -> float | None:
    """Return the share of the targets' variance that the predictions explain; ``None`` for constant targets.

    It is at most 1, and below 0 where the targets' mean predicts better.
    """
    errors = _errors(predictions, targets)
    if targets.min() == targets.max():
        return None
    return float(1 - np.sum(errors**2) / np.sum((targets - np.mean(targets, dtype=np.float64)) ** 2))


def _errors(predictions: Numbers, targets: Numbers) -> Numbers:
    if predictions.ndim != 1 or predictions.shape != targets.shape:
        raise ValueError(f"predictions of shape {predictions.shape} and targets of {targets.shape} are not both (n,)")
    if not len(targets):
        raise ValueError("there is no sample to score")
    if not (np.isfinite(predictions).all() and np.isfinite(targets).all()):
        raise ValueError("predictions and targets must be finite")
    return predictions.astype(np.float64) - targets
