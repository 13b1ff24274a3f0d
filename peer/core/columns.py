"""The columns of a table that all sites have agreed on: what a cell means, and what the network gets of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

MISSING = frozenset({"", ".", "-", "?", "n/a", "na", "nan", "none", "null", "missing", "unknown"})
"""Cells without a value, unless a level of the column has this name."""
FLAGS = {
    **dict.fromkeys(("1", "true", "t", "yes", "y"), 1.0),
    **dict.fromkeys(("0", "false", "f", "no", "n"), 0.0),
}
NUMBER = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)(e[+-]?\d+)?", re.IGNORECASE)
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+", re.ASCII)
"""A number such as 1,250, which has two readings."""
DATE = re.compile(r"\d{1,4}[-./]\d{1,2}[-./]\d{1,4}([ T].*)?")


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column of the federation's table.

    ``peer.train.column_channels`` computes the channels that the network gets: one for a number or a flag, one for
    each level of a category, and a last one for missing values.

    Attributes:
        kind: ``number``, ``category`` or ``flag``.
        range: the lowest and the highest value of a number.
        levels: the names of a category's values.
        unit: of a number, as people read it.
        missing: further cells without a value, such as the 0 or -9 that some programs write.
    """

    name: str
    kind: str
    range: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    unit: str = ""
    missing: tuple[str, ...] = ()

    def __hash__(self) -> int:
        return hash(self.name)  # for each row of a table, its columns are looked up

    @property
    def channels(self) -> int:
        """How many channels of the network's input the column has, that of missing values included."""
        return count_channels([self.levels])

    def parse(self, cell: object) -> float:
        """Return a cell's number, 0 or 1 for a flag, or the position of its level; NaN if it is missing.

        Raises:
            ValueError: the cell has a value that does not fit; the message says why.
        """
        if cell is None or (isinstance(cell, float) and math.isnan(cell)):
            return math.nan
        text = ("1" if cell else "0") if isinstance(cell, bool) else str(cell).strip()
        if _position(text, self.missing) is not None:
            return math.nan
        if (level := _position(text, self.levels)) is not None:
            return float(level)
        if text.casefold() in MISSING:
            return math.nan
        if self.kind == "category":
            raise ValueError(f"{text!r} is none of the levels {', '.join(self.levels)}")
        if self.kind == "flag":
            return self._flag(text)
        number, (low, high) = parse_number(text), self.range or (-math.inf, math.inf)
        if not low <= number <= high:
            raise ValueError(f"{text} is outside {low:g} to {high:g}{self.unit and f' {self.unit}'}")
        return number

    def show(self, value: float) -> float | bool | str | None:
        """Return a value that ``parse`` returned as a datalist has it; None if it is missing."""
        if math.isnan(value):
            return None
        if self.kind == "category":
            return self.levels[int(value)]
        return bool(value) if self.kind == "flag" else value

    def _flag(self, text: str) -> float:
        word = text.casefold().removesuffix(".0")
        if word not in FLAGS:
            raise ValueError(f"{text!r} is neither yes nor no")
        return FLAGS[word]


def count_channels(levels: Iterable[Sequence[str] | None]) -> int:
    """Return the channels of the network's input of columns with these levels; a number or a flag has none."""
    return sum((len(names) if names else 1) + 1 for names in levels)


def parse_number(text: str) -> float:
    """Return the number in a cell, also one with a decimal comma; raise ``ValueError`` if it is none, or ambiguous."""
    if GROUPED.fullmatch(text):
        raise ValueError(f"{text!r} has a comma that may group thousands or part decimals: write it without")
    if NUMBER.fullmatch(text) is None or not math.isfinite(number := float(text.replace(",", "."))):
        raise ValueError(f"{text!r} is {'a date' if DATE.fullmatch(text) else 'no number'}")
    return number


def _position(text: str, names: tuple[str, ...]) -> int | None:
    """Return which of the names a cell has, also if a program took a name for a number and writes 3 as 3.0."""
    words, numbers = _positions(names)
    position = words.get(text.casefold())
    return numbers.get(_number(text)) if position is None and numbers else position


@lru_cache
def _positions(names: tuple[str, ...]) -> tuple[dict[str, int], dict[float | None, int]]:
    """Return the position of each name, and of those that are numbers: a table has few lists of names, and many cells.

    Of two names alike, the first counts.
    """
    last_first = [(name.strip().casefold(), index) for index, name in enumerate(names)][::-1]
    numbers: dict[float | None, int] = {
        number: index for name, index in last_first if (number := _number(name)) is not None
    }
    return dict(last_first), numbers


def _number(text: str) -> float | None:
    try:
        return parse_number(text)
    except ValueError:
        return None
