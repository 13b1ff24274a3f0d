"""What a benchmark says, and how a module of this folder takes part.

A module ``NAME.py`` beside ``run.py`` that is listed in ``run.MODULES`` has ``measure(*, quick: bool) -> list[Row]``.
``quick`` asks for sizes and repetitions that take seconds. ``run.py`` imports the module by its bare name, with this
folder and the root on the path, and calls it once: importing it must measure nothing. Peak memory is that of a process
of its own, started by the module. For example::

    from row import Row, at_least, below

    def measure(*, quick: bool) -> list[Row]:
        megabytes = 60 if quick else 1024
        return [
            at_least("transfer / bare stream", ratio(megabytes), "", 0.6),
            below("receiver's peak memory", peak(megabytes), "MB", 120),
            Row("bare stream", speed(megabytes), "MB/s"),
        ]
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table; a figure without a target is there for comparison."""

    what: str
    figure: float
    unit: str
    target: str = ""
    met: bool | None = None


def below(what: str, figure: float, unit: str, limit: float) -> Row:
    """A figure that must stay below the limit."""
    return Row(what, figure, unit, f"< {limit:g}", figure < limit)


def at_least(what: str, figure: float, unit: str, limit: float) -> Row:
    """A figure that must reach the limit."""
    return Row(what, figure, unit, f"≥ {limit:g}", figure >= limit)
