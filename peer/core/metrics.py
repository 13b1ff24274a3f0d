"""The metrics of a model on test data; to add one, add its record here, and compute it in ``peer.train.metrics``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peer.core.tasks import CLASSIFYING

MetricName = Literal[
    "auc", "accuracy", "f1_macro", "dice", "pixel_accuracy", "psnr", "ssim", "r2", "rmse", "mae",
    "c_index", "auc_at_horizon", "integrated_brier",
]  # fmt: skip
"""The metrics; a task's first one is its main one, of which a higher value is better."""
UNITS = "units"
"""The unit of a metric in the unit of what is predicted."""
VALIDATION = "validation_"
"""Prefix of a metric on the site's validation split; metrics without it are of its test split."""


@dataclass(frozen=True, slots=True)
class Metric:
    """The properties of a metric that a program needs to show or compare it.

    Attributes:
        tasks: the objectives that have it: kinds of tasks, or targets.
        title: its name in a sentence and above a chart.
        heading: its name above a column.
        unit: of its values; empty for a share.
        upper_bound: the highest possible value; ``None`` without one.
        chance: the value of a guess, at which a chart begins; ``None`` where it depends on the data.
        higher_is_better: the direction.
    """

    tasks: frozenset[str]
    title: str
    heading: str
    unit: str = ""
    upper_bound: float | None = 1.0
    chance: float | None = None
    higher_is_better: bool = True


METRICS: Mapping[str, Metric] = {
    "auc": Metric(CLASSIFYING | {"labels"}, "AUC", "AUC", chance=0.5),
    "accuracy": Metric(CLASSIFYING | {"labels"}, "Accuracy", "ACC"),
    "f1_macro": Metric(CLASSIFYING | {"labels"}, "macro F1", "MF1"),
    "dice": Metric(frozenset({"segmentation"}), "Dice", "Dice"),
    "pixel_accuracy": Metric(frozenset({"segmentation"}), "pixel accuracy", "pixel ACC"),
    "psnr": Metric(frozenset({"super_resolution"}), "PSNR", "PSNR", unit="dB", upper_bound=None),
    "ssim": Metric(frozenset({"super_resolution"}), "SSIM", "SSIM"),
    "r2": Metric(frozenset({"number"}), "R²", "R²"),
    "rmse": Metric(frozenset({"number"}), "RMSE", "RMSE", unit=UNITS, upper_bound=None, higher_is_better=False),
    "mae": Metric(frozenset({"number"}), "mean absolute error", "MAE", UNITS, None, higher_is_better=False),
    "c_index": Metric(frozenset({"survival"}), "C-index", "C-index", chance=0.5),
    "auc_at_horizon": Metric(frozenset({"survival"}), "AUC at the horizon", "AUC(t)", chance=0.5),
    "integrated_brier": Metric(frozenset({"survival"}), "integrated Brier score", "IBS", higher_is_better=False),
}
TITLES: Mapping[str, str] = {
    "c_index_uno": "Uno's C-index",
    "observed_expected": "observed/expected events at the horizon",
    "calibration_slope": "calibration slope",
    "log_rank_p": "log-rank p of both halves by risk",
    "predicted_lower_risk": "predicted survival of the lower risk",
    "observed_lower_risk": "observed survival of the lower risk",
    "predicted_higher_risk": "predicted survival of the higher risk",
    "observed_higher_risk": "observed survival of the higher risk",
}
"""The words for further figures of an evaluation, which no report compares."""
NOT_AVERAGED = frozenset({"log_rank_p"})
"""Figures of which a mean over sites says nothing."""
SPLITS: Mapping[str, str] = {
    "validation": "own validation data",
    "test": "own test data",
    "global_test": "every site's test data",
}
"""The words for each split on which a site's model is measured."""
ROOM_MIN: Mapping[str, float] = {"": 0.01, "dB": 0.1, UNITS: 0.1}
"""By unit, the smallest room (from training alone to all data pooled) of which a report states a share."""
METRICS_OF: Mapping[str, tuple[str, ...]] = {
    kind: tuple(name for name, metric in METRICS.items() if kind in metric.tasks)
    for kind in dict.fromkeys(kind for metric in METRICS.values() for kind in sorted(metric.tasks))
}
"""By objective, the metrics that a report shows; the first is the main one."""


def metric_title(name: str) -> str:
    """Return a metric's name in words, also on the validation split, and for a metric without a record."""
    if name.startswith(VALIDATION):
        return f"validation {metric_title(name.removeprefix(VALIDATION))}"
    return METRICS[name].title if name in METRICS else TITLES.get(name, name.replace("_", " "))


def validation_loss(metrics: Mapping[str, float]) -> float:
    """Return the loss on the validation split; infinity if it has no value."""
    return metrics.get(f"{VALIDATION}loss", math.inf)


def validation_metric(metrics: Mapping[str, float]) -> str | None:
    """Return the name of the main metric on the validation split; ``None`` if it has no value."""
    names = (VALIDATION + task_metrics[0] for task_metrics in METRICS_OF.values())
    return next((name for name in names if name in metrics), None)
