"""Texts of ``federation.toml`` that several tests found their federations with."""

from __future__ import annotations

DRAFT = """
name = "{name}"
rounds = 3
{top}
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "fedskd"
{method}
[schedule]
kind = "derangement"
[pace]
{pace}
"""


def draft(name: str, *, top: str = "", method: str = "", pace: str = "") -> str:
    """A ``federation.toml`` without its sites; the keywords are lines of its tables."""
    return DRAFT.format(name=name, top=top, method=method, pace=pace)
