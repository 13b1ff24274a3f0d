"""Tables of a report: cells, columns and rows, and the units and digits of metrics."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from peer.core.metrics import METRICS, ROOM_MIN
from peer.lab.statistics.further_metrics import find_further_metric, further_metric_names

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Unit:
    """The name and unit of a metric in tables and figures.

    Attributes:
        factor: from the measured to the shown value.
        higher: whether higher values are better.
    """

    name: str
    suffix: str = ""
    digits: int = 3
    factor: float = 1.0
    higher: bool = True

    @property
    def axis(self) -> str:
        """Name and unit, as the label of an axis."""
        return f"{self.name}, {self.suffix}" if self.suffix else self.name

    @property
    def point(self) -> tuple[float, str, int]:
        """The unit of differences: its factor from measured values, its name, and its digits."""
        return (1.0, self.suffix, 2) if self.suffix in ROOM_MIN and self.suffix else (100.0, "points", 1)

    @property
    def room_min(self) -> float:
        """The smallest room whose share is shown, in measured values: a point, or 0.1 dB."""
        return ROOM_MIN.get(self.suffix, ROOM_MIN[""])

    @property
    def room_words(self) -> str:
        return "one point (0.01)" if self.point[0] > 1 else f"{self.room_min} {self.suffix}"


def unit_of(metric: str, published: str | None = None) -> Unit:
    """Return the unit of a metric; shares take the published ``percent`` or ``fraction``."""
    if (known := METRICS.get(metric)) is not None:
        unit = Unit(known.heading, known.unit, digits=2 if known.unit else 3, higher=known.higher_is_better)
    elif metric in further_metric_names():
        further = find_further_metric(metric)
        digits = 2 if further.unit else 3
        unit = Unit(further.heading, further.unit, digits=digits, higher=further.higher_is_better)
    else:
        unit = Unit(metric)
    if published is None or unit.suffix:
        return unit
    if published == "percent":
        return Unit(unit.name, "%", digits=2, factor=100.0)
    return Unit(unit.name, digits=4)


EMPTY = "–"
BEST, SECOND = 1, 2


@dataclass(frozen=True)
class Cell:
    """One value in the column's unit.

    Attributes:
        value: the mean, or the single number; ``None`` if there is none.
        text: shown instead of a number.
        mark: a sign after the value, which a note explains.
        rank: 1 is the best of the column, 2 the second, 0 neither.
    """

    value: float | None = None
    std: float | None = None
    text: str | None = None
    mark: str = ""
    rank: int = 0

    def format(self, digits: int) -> str:
        if self.text is not None:
            return self.text + self.mark
        if self.value is None:
            return EMPTY
        number = f"{self.value:,.{digits}f}"
        return number + (f" ± {self.std:.{digits}f}" if self.std is not None else "") + self.mark


@dataclass(frozen=True)
class Column:
    """The heading and format of a column.

    Attributes:
        better: ``higher`` or ``lower`` if the best values are marked.
    """

    name: str
    group: str = ""
    digits: int = 3
    better: str = ""


@dataclass(frozen=True)
class TableRow:
    """A row: published ones are styled differently, only ranked ones compete for the best."""

    label: str
    cells: tuple[Cell, ...]
    published: bool = False
    ranked: bool = True


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        notes: below it: the meaning of the values, what they are averaged over, and the signs.
    """

    name: str
    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    def with_ranks(self) -> Table:
        """Return a copy with the ranks of each column's best and second value; equal values rank alike."""
        rows = list(self.rows)
        for index, column in enumerate(self.columns):
            if not column.better:
                continue
            numbers = {
                row_number: round(value, column.digits)
                for row_number, row in enumerate(rows)
                if row.ranked and not row.published and (value := row.cells[index].value) is not None
            }
            order = sorted(set(numbers.values()), reverse=column.better == "higher")
            for row_number, number in numbers.items():
                if number in order[:2] and len(order) > 1:
                    cells = list(rows[row_number].cells)
                    cells[index] = replace(cells[index], rank=1 + order.index(number))
                    rows[row_number] = replace(rows[row_number], cells=tuple(cells))
        return replace(self, rows=tuple(rows))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The groups of neighbouring columns, with their numbers of columns."""
        group_widths: list[tuple[str, int]] = []
        for column in self.columns:
            if group_widths and group_widths[-1][0] == column.group:
                group_widths[-1] = (column.group, group_widths[-1][1] + 1)
            else:
                group_widths.append((column.group, 1))
        return group_widths

    def csv(self) -> str:
        """Return the table as CSV: numbers with all digits, deviations in separate columns."""
        has_std = [any(row.cells[index].std is not None for row in self.rows) for index in range(len(self.columns))]
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        heads: list[str] = [self.head, "origin"]
        for column, column_has_std in zip(self.columns, has_std, strict=True):
            name = f"{column.group}: {column.name}" if column.group else column.name
            heads += [name, f"{name} std"] if column_has_std else [name]
        writer.writerow(heads)
        for row in self.rows:
            line: list[object] = [row.label, "published" if row.published else "here"]
            for cell, column_has_std in zip(row.cells, has_std, strict=True):
                line += (
                    [_csv_value(cell.value, cell.text), _csv_value(cell.std, None)]
                    if column_has_std
                    else [_csv_value(cell.value, cell.text)]
                )
            writer.writerow(line)
        return text.getvalue()


def lay_out(
    name: str,
    title: str,
    columns: Sequence[tuple[Column, Mapping[str, Cell]]],
    labels: Iterable[str],
    *,
    headings: Mapping[str, str] = MappingProxyType({}),
    ranked: Container[str] = (),
    notes: Iterable[str] = (),
    head: str = "method",
) -> Table:
    """Build a table from its columns, with one row per label, and rank its best values.

    Args:
        columns: each with its cells by label; a missing cell is empty.
        labels: of the rows, in order.
        headings: of rows that show another text than their label.
        ranked: the labels of the rows that compete for the best value.
    """
    rows = [
        TableRow(
            headings.get(label, label), tuple(cells.get(label, Cell()) for _, cells in columns), ranked=label in ranked
        )
        for label in labels
    ]
    return Table(name, title, head, tuple(column for column, _ in columns), tuple(rows), tuple(notes)).with_ranks()


def number_cells(values: pd.Series) -> dict[str, Cell]:
    """Make a cell of each number by its label; none of NaN."""
    return {str(label): Cell(float(value)) for label, value in values.dropna().items()}


def text_cells(values: Sequence[object]) -> tuple[Cell, ...]:
    """Make a cell of each value's text."""
    return tuple(Cell(text=EMPTY if value is None else str(value)) for value in values)


def _csv_value(value: float | None, text: str | None) -> object:
    if text is not None:
        return "" if text == EMPTY else text
    return "" if value is None else repr(float(value)).removesuffix(".0")
