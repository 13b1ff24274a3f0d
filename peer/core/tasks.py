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
CLASSIFYING = frozenset({"classification", "time_series"})
"""Kinds of tasks whose labels are one class a sample."""
ROWS_COLUMNS, COLUMNS_ROWS = "rows_columns", "columns_rows"
"""The order of a picture's axes: height before width; and that of release 0.2.0."""
MINOR = frozenset({"distill", "decide", "head", "prototypes", "digest", "predict"})
"""Stages that train no whole local model: they have a quarter of the steps."""
