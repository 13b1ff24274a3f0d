"""The rows of a table: their values by the columns that all sites have agreed on, and what does not fit."""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peer.core.columns import TableColumn
from peer.core.targets import Target
from peer.documents.commands import ColumnSurvey
from peer.train.data.file_names import named

MISFIT_SHARE_MAX = 0.05
"""The share of a column's values from which those that do not fit are a problem: the column may have another unit, or
other levels, at this site."""
TELLING_ROWS_MIN = 20
"""Rows from which a column that tells every class by itself is named; fewer may do so by chance."""


class TableRows:
    """Parses rows, and keeps the values that do not fit, and columns that nobody has agreed on."""

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        self.columns = columns
        self._misfits: dict[str, list[str]] = {}
        self._present: Counter[str] = Counter()
        self._rows = 0
        self._unknown: dict[str, None] = {}

    def parse(self, name: str, cells: Mapping[str, Any]) -> tuple[float, ...]:
        """Return the values of a row, NaN where one is missing or does not fit."""
        self._rows += 1
        self._unknown |= dict.fromkeys(cells.keys() - {column.name for column in self.columns})
        return tuple(self._value(name, column, cells.get(column.name)) for column in self.columns)

    def _value(self, name: str, column: TableColumn, cell: Any) -> float:
        try:
            value = column.parse(cell)
        except ValueError as error:
            self._present[column.name] += 1
            self._misfits.setdefault(column.name, []).append(f"{name}: {error}")
            return math.nan
        self._present[column.name] += not math.isnan(value)
        return value

    def misfits(self) -> list[str]:
        """Say of each value that does not fit why."""
        return [f"column {column.name}: {misfit}" for column, misfits in self._with_misfits() for misfit in misfits]

    def problems(self) -> list[str]:
        """Return a remedy for each column with too many values that do not fit."""
        return [
            f"column {column.name}: {len(misfits)} of {self._present[column.name]} values do not fit "
            f"({named(misfits)}); convert them to {self._expected(column)}, or empty the cells without a value"
            for column, misfits in self._with_misfits()
            if len(misfits) > MISFIT_SHARE_MAX * self._present[column.name]
        ]

    def notes(self) -> Iterator[str]:
        """Say which values do not fit and count as missing, which columns are empty, and which are not used."""
        for column, misfits in self._with_misfits():
            if len(misfits) <= MISFIT_SHARE_MAX * self._present[column.name]:
                yield f"column {column.name}: {len(misfits)} values do not fit and count as missing ({named(misfits)})"
        empty = [column.name for column in self.columns if self._rows and not self._present[column.name]]
        if empty:
            yield f"columns without any value here: {named(empty)}"
        if self._unknown:
            yield f"columns that the federation does not have are not used: {named(sorted(self._unknown))}"

    def _with_misfits(self) -> Iterator[tuple[TableColumn, list[str]]]:
        for column in self.columns:
            if column.name in self._misfits:
                yield column, self._misfits[column.name]

    @staticmethod
    def _expected(column: TableColumn) -> str:
        if column.kind == "category":
            return f"the levels {', '.join(column.levels)}"
        if column.range is None:
            return "yes or no"
        return f"numbers from {column.range[0]:g} to {column.range[1]:g}{column.unit and f' {column.unit}'}"


def survey_columns(columns: Sequence[TableColumn], rows: Sequence[Sequence[float]]) -> list[ColumnSurvey]:
    """Describe the values of each column."""
    return [_survey(column, [row[index] for row in rows]) for index, column in enumerate(columns)]


def _survey(column: TableColumn, values: Sequence[float]) -> ColumnSurvey:
    present = sorted(value for value in values if not math.isnan(value))
    numbers = present if column.kind == "number" else []
    names = column.levels or (("no", "yes") if column.kind == "flag" else ())
    return {
        "name": column.name,
        "kind": column.kind,
        "unit": column.unit,
        "values": len(present),
        "missing": len(values) - len(present),
        "lowest": numbers[0] if numbers else None,
        "median": statistics.median(numbers) if numbers else None,
        "highest": numbers[-1] if numbers else None,
        "levels": {name: present.count(index) for index, name in enumerate(names)},
    }


def column_warnings(
    columns: Sequence[TableColumn], rows: Sequence[tuple[Sequence[float], Any]], target: Target
) -> Iterator[str]:
    """Warn of each column that is constant, or that predicts the target of every row by itself.

    Args:
        rows: values and label of the training rows.
    """
    answers = [(column.name, column.kind == "number") for column in target.table] or [("class", False)]
    labels = [target.row(label) or (label,) for _, label in rows]
    for index, column in enumerate(columns):
        values = [row[index] for row, _ in rows]
        known = [number for number, value in enumerate(values) if not math.isnan(value)]
        distinct = {values[number] for number in known}
        if len(distinct) == 1 and len(known) > 1:
            value = column.show(values[known[0]])
            yield f"column {column.name} is constant: {value!r} in all {len(known)} rows that have it"
            continue
        for place, (answer, is_number) in enumerate(answers):
            pairs = [(values[number], labels[number][place]) for number in known]
            pairs = [pair for pair in pairs if not (isinstance(pair[1], float) and math.isnan(pair[1]))]
            if len(pairs) >= TELLING_ROWS_MIN and (_rises_alike(pairs) if is_number else _tells_label(pairs)):
                yield (
                    f"column {column.name} tells the {answer} of all {len(pairs)} rows with a value by itself: is it "
                    "known before the outcome is?"
                )


def _tells_label(known: Sequence[tuple[float, object]]) -> bool:
    """Return whether each class has an interval of the column's values that no other class enters."""
    classes = [label for _, label in sorted(known, key=lambda pair: (pair[0], str(pair[1])))]
    values = dict(known)
    is_function = all(values[value] == label for value, label in known)
    changes = sum(one != other for one, other in itertools.pairwise(classes))
    return is_function and changes == len(set(classes)) - 1 > 0


def _rises_alike(known: Sequence[tuple[float, float]]) -> bool:
    """Return whether a number rises, or falls, with every step of the column's values."""
    distinct = sorted(set(known))
    steps = [(one[0] < two[0], two[1] - one[1]) for one, two in itertools.pairwise(distinct)]
    rises, falls = (all(apart and sign * step > 0 for apart, step in steps) for sign in (1, -1))
    return bool(steps) and (rises or falls)
