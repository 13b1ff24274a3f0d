"""The variables that a federation counts: the columns of its table, and what it would predict."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from peer.core.columns import TableColumn
from peer.core.targets import Target, TimeToEvent
from peer.core.tasks import names_or_numbers
from peer.methods.method import Record

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Role = Literal["column", "target"]


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable, and the cells in which its values are counted.

    Attributes:
        role: ``column`` of the table, or ``target`` that would be predicted.
        kind: ``number``, ``category``, ``flag``, or ``time`` in the intervals of a survival table.
        cells: the names of the cells: levels; no and yes; or ranges of numbers and times.
        place: of the value in a record's values.
        range: the lowest and the highest value of a number.
        ends: of the intervals of times.
        within: the variable, by its index, and the cell whose samples alone have a value of this one.
    """

    role: Role
    name: str
    kind: str
    cells: tuple[str, ...]
    place: int
    unit: str = ""
    range: tuple[float, float] | None = None
    ends: tuple[float, ...] = ()
    within: tuple[int, int] | None = None

    def locate(self, values: Floats) -> Integers:
        """Return the cell of each value ``(n,)``, -1 where it is missing."""
        known = ~np.isnan(values)
        cells = np.full(len(values), -1, dtype=np.int64)
        at: NDArray[Any] = values[known]
        if self.kind == "time":
            at = np.searchsorted(np.array(self.ends), at, side="left")
        elif self.range is not None:
            low, high = self.range
            at = np.floor((at - low) / (high - low) * len(self.cells))
        cells[known] = np.minimum(at, len(self.cells) - 1).astype(np.int64)
        return cells

    def scale(self, values: Floats) -> Floats:
        """Return numbers of the agreed range as -1 to 1."""
        low, high = self.range or (-1.0, 1.0)
        return (2 * values - low - high) / (high - low)


def list_variables(
    columns: Sequence[TableColumn], target: Target, class_names: Sequence[str], classes: int, bins: int
) -> tuple[Variable, ...]:
    """Return the columns, then the parts of the target, in the order of a record's values."""
    described: list[tuple[Role, TableColumn]] = [("column", column) for column in columns]
    if target.kind == "class":
        levels = tuple(names_or_numbers(class_names, classes))
        return (*_of_columns(described, bins), Variable("target", "class", "category", levels, len(columns)))
    if target.kind != "survival":
        return tuple(_of_columns([*described, *(("target", column) for column in target.table)], bins))
    variables = list(_of_columns(described, bins))
    event = len(variables)
    starts = (0.0, *target.times[:-1])
    intervals = tuple(f"{start:g} to {end:g}" for start, end in zip(starts, target.times, strict=True))
    variables.append(Variable("target", "event", "flag", ("no", "yes"), event + 1))
    for name, happened in (("time of event", 1), ("time of censoring", 0)):
        within = (event, happened)
        variables.append(
            Variable(
                "target", name, "time", intervals, event, unit=target.unit, ends=tuple(target.times), within=within
            )
        )
    return tuple(variables)


def _of_columns(described: Sequence[tuple[Role, TableColumn]], bins: int) -> Iterator[Variable]:
    for place, (role, column) in enumerate(described):
        if column.kind != "number":
            levels = column.levels or ("no", "yes")
            yield Variable(role, column.name, column.kind, levels, place)
            continue
        edges = np.linspace(*(column.range or (0.0, 1.0)), bins + 1)
        cells = tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(edges))
        yield Variable(role, column.name, "number", cells, place, unit=column.unit, range=column.range)


def values_of(record: Record, target: Target) -> list[float]:
    """Return a record's values: its row, then its label; NaN where one is missing."""
    label = record.label
    if label is None:
        return [*record.row, math.nan]
    if isinstance(label, TimeToEvent):  # an event after the last interval is not seen
        end = target.times[-1]
        return [*record.row, min(label.time, end), float(label.event and label.time <= end)]
    return [*record.row, *(target.row(label) or (float(label),))]  # type: ignore[arg-type]  # a class
