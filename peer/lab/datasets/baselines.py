"""Trivial baselines, which a network must beat: the AUC of one plain number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

POOLED = "pooled"


def auc(scores: Sequence[float], labels: Sequence[int]) -> float | None:
    """Compute the area under the ROC curve: how often class 1 scores higher than class 0 (ties count half).

    None if one of the classes has no sample.
    """
    values, classes = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    ones, zeros = values[classes == 1], np.sort(values[classes == 0])
    if not ones.size or not zeros.size:
        return None
    below = np.searchsorted(zeros, ones, side="left") + np.searchsorted(zeros, ones, side="right")
    return float(below.mean() / 2 / zeros.size)


def surface(volume: NDArray[np.float32]) -> float:
    """Compute the surface of an antialiased solid, in voxel faces: the sum of neighbours' differences."""
    return float(sum(np.abs(np.diff(volume, axis=axis)).sum(dtype=np.float64) for axis in range(volume.ndim)))


def baseline_aucs(
    scores: Mapping[str, Sequence[float]], labels: Mapping[str, Sequence[int]]
) -> dict[str, float | None]:
    """Compute the AUC of one number for each site's samples, and for all of them under ``pooled``."""
    pooled = auc([s for site in scores for s in scores[site]], [c for site in scores for c in labels[site]])
    return {**{site: round_score(auc(scores[site], labels[site])) for site in scores}, POOLED: round_score(pooled)}


def round_score(value: float | None) -> float | None:
    """Round the value to four digits: a few hundred samples support no more."""
    return None if value is None else round(value, 4)
