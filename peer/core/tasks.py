"""The kinds of tasks: their metrics, which of them classify, and which stages are minor."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, tuple[str, ...]] = {
    "classification": ("auc", "accuracy", "f1_macro"),
    "time_series": ("auc", "accuracy", "f1_macro"),
    "segmentation": ("dice", "pixel_accuracy"),
    "super_resolution": ("psnr", "ssim"),
}
"""The metrics that a report shows of each kind of task; the first is the main one."""
ROOM_MIN, ROOM_DB_MIN = 0.01, 0.1
"""The smallest room, from training alone to all data pooled, of which a share is told: a point, or 0.1 dB."""
VALIDATION = "validation_"
"""Begins the name of a metric on the site's validation split; others are of its test split."""
CLASSIFYING = frozenset({"classification", "time_series"})
"""Kinds of tasks whose labels are one class a sample."""
ROWS_COLUMNS, COLUMNS_ROWS = "rows_columns", "columns_rows"
"""The order of a picture's axes: height before width; and that of release 0.2.0."""
MINOR = frozenset({"distill", "decide", "head", "calibrate", "prototypes", "digest", "predict"})
"""Stages that train no whole local model: they have a quarter of the steps."""


def validation_metric(metrics: Mapping[str, float]) -> str | None:
    """The name of the main metric on the validation split; ``None`` where it has no value."""
    names = (VALIDATION + task_metrics[0] for task_metrics in METRICS.values())
    return next((name for name in names if name in metrics), None)
