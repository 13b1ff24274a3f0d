"""What figures are called, in which unit they are shown, and with how many digits."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Unit:
    """How a metric is shown.

    Attributes:
        name: of the metric.
        suffix: of the unit, if it has one.
        digits: behind the point.
        factor: from what is measured to what is shown.
        higher: whether more is better.
    """

    name: str
    suffix: str = ""
    digits: int = 3
    factor: float = 1.0
    higher: bool = True

    @property
    def axis(self) -> str:
        """Name and unit, as an axis has them."""
        return f"{self.name}, {self.suffix}" if self.suffix else self.name


UNITS: dict[str, Unit] = {
    "auc": Unit("AUC"),
    "accuracy": Unit("ACC"),
    "f1_macro": Unit("MF1"),
    "dice": Unit("Dice"),
    "pixel_accuracy": Unit("pixel ACC"),
    "psnr": Unit("PSNR", "dB", digits=2),
    "ssim": Unit("SSIM"),
}


def unit(metric: str, published: str | None = None) -> Unit:
    """How a metric is shown; beside published figures as those are, in per cent or with four digits."""
    found = UNITS.get(metric, Unit(metric))
    if published is None or found.suffix:
        return found
    if published == "percent":
        return Unit(found.name, "%", digits=2, factor=100.0)
    return Unit(found.name, digits=4)


NOTHING = "–"
BEST, SECOND = 1, 2


@dataclass(frozen=True)
class Cell:
    """One value as it is shown, in the column's unit.

    Attributes:
        value: the mean, or the one number; ``None`` where there is none.
        std: standard deviation over folds or seeds.
        text: instead of a number.
        mark: a sign behind it that a note explains.
        rank: 1 the best of its column, 2 the second, 0 neither.
    """

    value: float | None = None
    std: float | None = None
    text: str | None = None
    mark: str = ""
    rank: int = 0

    def shown(self, digits: int) -> str:
        if self.text is not None:
            return self.text + self.mark
        if self.value is None:
            return NOTHING
        number = f"{self.value:,.{digits}f}"
        return number + (f" ± {self.std:.{digits}f}" if self.std is not None else "") + self.mark


@dataclass(frozen=True)
class Column:
    """What stands in a column.

    Attributes:
        name: of the column.
        group: of neighbouring columns, above them.
        digits: behind the point.
        better: ``higher`` or ``lower`` where the best values are marked.
    """

    name: str
    group: str = ""
    digits: int = 3
    better: str = ""


@dataclass(frozen=True)
class TableRow:
    """A line: published figures are shown apart, and only ranked rows compete."""

    label: str
    cells: tuple[Cell, ...]
    published: bool = False
    ranked: bool = True


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: stem of its files.
        title: above it.
        head: what the first column holds.
        columns: the others.
        rows: top to bottom.
        notes: below it: what is shown, over what, and what the signs mean.
    """

    name: str
    title: str
    head: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()

    def ranked(self) -> Table:
        """The same with the best and the second value of every column marked, equal ones alike."""
        rows = list(self.rows)
        for place, column in enumerate(self.columns):
            if not column.better:
                continue
            values = {
                index: row.cells[place].shown(column.digits)
                for index, row in enumerate(rows)
                if row.ranked and not row.published and row.cells[place].value is not None
            }
            numbers = {index: round(rows[index].cells[place].value or 0.0, column.digits) for index in values}
            order = sorted(set(numbers.values()), reverse=column.better == "higher")
            for index, number in numbers.items():
                if number in order[:2] and len(order) > 1:
                    cells = list(rows[index].cells)
                    cells[place] = replace(cells[place], rank=1 + order.index(number))
                    rows[index] = replace(rows[index], cells=tuple(cells))
        return replace(self, rows=tuple(rows))

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Neighbouring columns of one group, and how many they are."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and found[-1][0] == column.group:
                found[-1] = (column.group, found[-1][1] + 1)
            else:
                found.append((column.group, 1))
        return found

    def csv(self) -> str:
        """The numbers with all their digits, deviations in columns of their own."""
        spread = [any(row.cells[place].std is not None for row in self.rows) for place in range(len(self.columns))]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads: list[str] = [self.head, "origin"]
        for column, wide in zip(self.columns, spread, strict=True):
            name = f"{column.group}: {column.name}" if column.group else column.name
            heads += [name, f"{name} std"] if wide else [name]
        writer.writerow(heads)
        for row in self.rows:
            line: list[object] = [row.label, "published" if row.published else "here"]
            for cell, wide in zip(row.cells, spread, strict=True):
                line += (
                    [_number(cell.value, cell.text), _number(cell.std, None)]
                    if wide
                    else [_number(cell.value, cell.text)]
                )
            writer.writerow(line)
        return out.getvalue()


def texts(values: Sequence[object]) -> tuple[Cell, ...]:
    """Cells of plain words."""
    return tuple(Cell(text=NOTHING if value is None else str(value)) for value in values)


def _number(value: float | None, text: str | None) -> object:
    if text is not None:
        return "" if text == NOTHING else text
    return "" if value is None else repr(float(value)).removesuffix(".0")
