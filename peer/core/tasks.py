"""Properties of the kinds of tasks: which kinds classify, and which stages are minor."""

from __future__ import annotations

from collections.abc import Sequence

CLASSIFYING = frozenset({"classification", "time_series", "tabular"})
"""Kinds of tasks whose labels are one class a sample."""
MINOR = frozenset({"distill", "decide", "head", "calibrate", "prototypes", "digest", "predict"})
"""Stages that train no whole local model: they have a quarter of the steps."""


def names_or_numbers(names: Sequence[str], count: int) -> list[str]:
    """Return the names of classes, or ``class_0`` and so on where they have none."""
    return list(names) or [f"class_{number}" for number in range(count)]
