"""Properties of the kinds of tasks: which kinds classify, and which stages are minor."""

from __future__ import annotations

from collections.abc import Sequence

KINDS = ("classification", "segmentation", "time_series", "super_resolution", "tabular")
CLASSIFYING = frozenset({"classification", "time_series", "tabular"})
"""Kinds of tasks whose labels are one class a sample, unless they have another target."""
ANSWERS = frozenset({"labels", "survival"})
"""Objectives of several answers that are yes or no: labels, or the event in each interval."""
UNCLASSED = frozenset({"super_resolution", "number", "survival"})
"""Objectives without classes that could have weights."""
VECTORS = CLASSIFYING | ANSWERS | {"number"}
"""Objectives whose prediction is a vector a sample, and neither a map nor an image."""
MINOR = frozenset({"distill", "decide", "head", "calibrate", "prototypes", "digest", "predict", "fuse", "refine"})
"""Stages that train no whole local model: they have a quarter of the steps."""


def objective_of(kind: str, target: str) -> str:
    """Return what decides losses and metrics: a task's kind, or its target where that is no class."""
    return kind if target == "class" else target


def names_or_numbers(names: Sequence[str], count: int) -> list[str]:
    """Return the names of classes, or ``class_0`` and so on where they have none."""
    return list(names) or [f"class_{number}" for number in range(count)]
