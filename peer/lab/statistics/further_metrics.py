"""Metrics that an experiment names beside its task's own; an installed package can add some.

The daemons neither compute nor exchange them.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.core.metrics import METRICS
from peer.core.tasks import CLASSIFYING
from peer.errors import ConfigError
from peer.lab.statistics.calibration import brier_score

ENTRY_POINTS = "mhfl_peer.metrics"
"""The group in which an installed package names its metrics: ``name = "module:METRIC"``."""


@dataclass(frozen=True, slots=True)
class FurtherMetric:
    """A metric that a report shows for every site, in a table of its own.

    Attributes:
        tasks: the kinds of tasks that have it.
        heading: its name above a table.
        function: returns the value, or None if it is undefined. Of classification and time series it
            gets all of a site's test samples: probabilities ``(n, classes)`` and labels ``(n,)``. Of
            segmentation it gets one sample: the predicted and the true label map, ``(*space)``. Of
            super-resolution it gets one image and its reference, ``(c, *space)``.
        unit: of its values; empty for a share.
        higher_is_better: the direction.
        bounds: the lowest and the highest possible value; None without one.
        remark: a sentence below the table, on what is undefined.
    """

    tasks: frozenset[str]
    heading: str
    function: Callable[[NDArray[Any], NDArray[Any]], float | None]
    unit: str = ""
    higher_is_better: bool = True
    bounds: tuple[float | None, float | None] = (0.0, 1.0)
    remark: str = ""

    def value(self, predicted: NDArray[Any], truth: NDArray[Any]) -> float | None:
        """Compute the value. Raise ``ConfigError`` if it is not finite or outside the bounds."""
        value = self.function(predicted, truth)
        if value is None:
            return None
        low, high = self.bounds
        if not np.isfinite(value) or (low is not None and value < low) or (high is not None and value > high):
            problem = f"metric {self.heading!r} is {value}, outside its bounds {low} to {high}"
            raise ConfigError(problem, "ask the makers of the package")
        return float(value)


def sensitivity_at(specificity: float, probabilities: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Compute the highest sensitivity of a threshold with at least this specificity.

    Returns:
        For two classes that of class 1; for more the mean over the classes, each against the rest.
        Classes without positives or without negatives are left out; None if all are.
    """
    classes = probabilities.shape[1]
    sensitivities = []
    for label in range(classes) if classes > 2 else (1,):
        scores, is_positive = probabilities[:, label], labels == label
        negatives = np.sort(scores[~is_positive])[::-1]
        false_positives = int((1 - specificity) * len(negatives) + 1e-9)  # (1 - 0.9) * 10 is less than 1
        if is_positive.any() and len(negatives):
            sensitivities.append(np.mean(scores[is_positive] > negatives[min(false_positives, len(negatives) - 1)]))
    return float(np.mean(sensitivities)) if sensitivities else None


def kappa(probabilities: NDArray[Any], labels: NDArray[Any], *, quadratic: bool = False) -> float | None:
    """Compute Cohen's kappa of labels and predicted classes, on request with weights of squared differences.

    Returns:
        None if all labels and all predictions are one class.
    """
    classes = probabilities.shape[1]
    pairs = labels * classes + probabilities.argmax(axis=1)
    table = np.bincount(pairs, minlength=classes**2).reshape(classes, classes) / len(labels)
    differences = np.subtract.outer(np.arange(classes), np.arange(classes))
    weights = differences**2 if quadratic else differences != 0
    by_chance = float(np.sum(weights * np.outer(table.sum(axis=1), table.sum(axis=0))))
    return 1 - float(np.sum(weights * table)) / by_chance if by_chance else None


def hausdorff_95(predicted: NDArray[Any], truth: NDArray[Any]) -> float | None:
    """Compute the 95th percentile of the distance between surfaces, the larger of both directions, in voxels.

    Returns:
        The mean over the foreground classes that both label maps have; None if there is none.
    """
    from scipy import ndimage

    distances = []
    for label in np.intersect1d(predicted[predicted > 0], truth[truth > 0]):
        surfaces = [mask ^ ndimage.binary_erosion(mask) for mask in (predicted == label, truth == label)]
        maps = [ndimage.distance_transform_edt(~surface) for surface in surfaces]
        distances.append(max(np.percentile(maps[1 - side][surfaces[side]], 95) for side in (0, 1)))
    return float(np.mean(distances)) if distances else None


FURTHER_METRICS: Mapping[str, FurtherMetric] = {
    "sensitivity_at_90": FurtherMetric(CLASSIFYING, "sensitivity at 90 % specificity", partial(sensitivity_at, 0.90)),
    "sensitivity_at_95": FurtherMetric(CLASSIFYING, "sensitivity at 95 % specificity", partial(sensitivity_at, 0.95)),
    "kappa": FurtherMetric(CLASSIFYING, "Cohen's kappa", kappa, bounds=(-1.0, 1.0)),
    "kappa_quadratic": FurtherMetric(
        CLASSIFYING, "quadratic kappa", partial(kappa, quadratic=True), bounds=(-1.0, 1.0)
    ),
    "brier": FurtherMetric(
        CLASSIFYING,
        "Brier score",
        brier_score,
        higher_is_better=False,
        bounds=(0.0, 2.0),
        remark="Brier score: "
        "the squared distance of the probabilities from the truth, summed over classes, from 0 to 2.",
    ),
    "hd95": FurtherMetric(
        frozenset({"segmentation"}),
        "HD95",
        hausdorff_95,
        unit="voxels",
        higher_is_better=False,
        bounds=(0.0, None),
        remark="HD95: voxels of the network's input; of the classes that truth and prediction both have.",
    ),
}
"""The built-in ones."""


def further_metric_names() -> list[str]:
    """Return the names of the built-in and of installed packages' metrics."""
    return sorted({*FURTHER_METRICS, *(point.name for point in importlib.metadata.entry_points(group=ENTRY_POINTS))})


@functools.cache
def find_further_metric(name: str) -> FurtherMetric:
    """Find a metric. Raise ``ConfigError`` unless exactly one package has it, or its entry point names none."""
    if name in FURTHER_METRICS:
        return FURTHER_METRICS[name]
    points = list(importlib.metadata.entry_points(group=ENTRY_POINTS, name=name))
    if name in METRICS or len(points) != 1:
        reason = "is a task's own" if name in METRICS else f"is in {len(points)} installed packages"
        raise ConfigError(f"metric {name!r} {reason}", "give it another name, or install the one package that has it")
    try:
        metric = points[0].load()
    except Exception as error:  # a third party's module
        raise ConfigError(f"metric {name!r} cannot be loaded: {error}", "ask the makers of the package") from error
    if not isinstance(metric, FurtherMetric):
        raise ConfigError(f"metric {name!r} names no FurtherMetric, but {metric!r}", "ask the makers of the package")
    return metric
