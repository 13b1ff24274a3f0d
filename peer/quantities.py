"""Durations and sizes in human-readable form."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Format a duration in seconds, in minutes, or in hours and minutes."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min"


def size(count: float) -> str:
    """Format a number of bytes in binary units, such as ``12.3 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
