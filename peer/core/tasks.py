"""Properties of the kinds of tasks: which kinds classify, and which stages are minor."""

from __future__ import annotations

CLASSIFYING = frozenset({"classification", "time_series"})
"""Kinds of tasks whose labels are one class a sample."""
MINOR = frozenset({"distill", "decide", "head", "calibrate", "prototypes", "digest", "predict"})
"""Stages that train no whole local model: they have a quarter of the steps."""
