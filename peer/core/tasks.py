"""What is particular to a kind of task."""

from __future__ import annotations

from collections.abc import Mapping

METRICS: Mapping[str, str] = {
    "classification": "auc",
    "time_series": "auc",
    "segmentation": "dice",
    "super_resolution": "psnr",
}
"""The metric by which models of each kind of task are compared."""
MINOR = frozenset({"distill", "decide"})
"""Stages that do not train the local model; equal work gives them fewer steps."""
