"""The row of a benchmark's table, and the form of a benchmark.

A benchmark is a module ``NAME.py`` beside ``run.py``, listed in ``run.MODULES``, with
``measure(*, quick: bool) -> Iterable[Row]``. With ``quick``, it uses sizes and repetitions that take
seconds. ``run.py`` imports the module by its bare name, with this folder and the root on the path,
and calls ``measure`` once: the import must measure nothing. To measure peak memory, the module
starts a process for it. For example::

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

from pathlib import Path
from typing import NamedTuple

KIB_A_MB = 1e6 / 1024


class Row(NamedTuple):
    """One line of the table; a figure without a target is for comparison."""

    label: str
    figure: float
    unit: str
    target: str = ""
    met: bool | None = None


def below(label: str, figure: float, unit: str, limit: float) -> Row:
    """A figure that must stay below the limit."""
    return Row(label, figure, unit, f"< {limit:g}", figure < limit)


def at_least(label: str, figure: float, unit: str, limit: float) -> Row:
    """A figure that must reach the limit."""
    return Row(label, figure, unit, f"≥ {limit:g}", figure >= limit)


def peak_kib(pid: int | str = "self") -> int:
    """The peak memory of a running process: VmHWM."""
    return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0])
