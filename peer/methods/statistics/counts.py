r"""Tables of counts and sums, in whole numbers, and what a site withholds of them before they leave.

A number's value is scaled to [-1, 1] over the agreed range, and rounded to multiples of :math:`2^{-24}`, as is its
square, before it is added: so the sums of any division of the samples among sites have the same bits.

Small counts are withheld by local suppression: the values of single people, not cells alone, are left out, so that no
total that is sent gives a small count back. With a threshold of :math:`m` people, of each variable

1. fewer than :math:`m` people without a value become :math:`m`, and of fewer than :math:`m` with one nobody is counted;
2. cells with fewer than :math:`m` people are emptied, and the number of people in no cell becomes a multiple of
   :math:`m`;

in both by leaving out people of the largest cell, whom a digest of their name chooses. A site with fewer than
:math:`m` people sends zeros alone.

Source: ours; local suppression is a term of statistical disclosure control (Willenborg and de Waal 2001).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from peer.methods.method import Record
from peer.methods.statistics.variables import Floats, Integers, Variable

Flags = NDArray[np.bool_]

UNIT = 1 << 24
"""One, in the fixed-point sums: the precision of float32."""
COUNT_MAX = 1 << 29
"""Samples of a site: its sums are below 2^53, and those of a thousand sites below 2^63."""
HEAD = 1
"""Places of a table before those of its variables: the number of people."""
KNOWN, WITHHELD, SUM, SQUARES, CELLS = range(5)
"""Places of a variable: its samples with a value; 1 if people were left out of those; the sums; its first cell."""


@dataclass(frozen=True)
class VariableCounts:
    """What is counted of one variable: whole numbers, unless noise was added.

    Attributes:
        known: samples with a value.
        withheld: 1 if a site left out values because too few people have one, or too few have none; summed over sites.
        sum: of the scaled values, in units.
        squares: of the scaled values, in units.
        cells: samples in each cell, ``(cells,)``.
        small: for each cell, 1 if it was emptied because it had too few people; summed over sites.
    """

    known: float
    withheld: int
    sum: float
    squares: float
    cells: Floats | Integers
    small: Integers


def width(variable: Variable) -> int:
    """Return how many places a variable has in a table."""
    return CELLS + 2 * len(variable.cells)


def table_size(variables: Sequence[Variable]) -> int:
    """Return the length of a table."""
    return HEAD + sum(map(width, variables))


def split_table(table: Sequence[int] | Integers, variables: Sequence[Variable]) -> list[VariableCounts]:
    """Return the counts of each variable in a table."""
    values, first, counts = np.asarray(table, dtype=np.int64), HEAD, []
    for variable in variables:
        part, first = values[first : first + width(variable)], first + width(variable)
        cells, small = np.split(part[CELLS:], 2)
        known, withheld, total, squares = part[:CELLS].tolist()
        counts.append(VariableCounts(known, withheld, total, squares, cells, small))
    return counts


def count_records(
    variables: Sequence[Variable], records: Sequence[Record], values: Floats, count_min: int
) -> tuple[int, Integers]:
    """Return the number of samples and the table of a site, without the counts of fewer people than ``count_min``.

    Args:
        values: of the records, ``(n, values)``, NaN where one is missing.
        count_min: 1 withholds nothing.

    Raises:
        ValueError: the sums of so many samples would not fit.
    """
    if len(records) > COUNT_MAX:
        raise ValueError(f"there are {len(records)} samples; a table takes {COUNT_MAX}")
    table = np.zeros(table_size(variables), dtype=np.int64)
    names = sorted({record.person for record in records}, key=lambda name: hashlib.sha256(name.encode()).digest())
    rank = {name: index for index, name in enumerate(names)}
    people = np.array([rank[record.person] for record in records], dtype=np.int64)
    if len(names) < max(1, count_min):
        return 0, table
    table[0] = len(names)
    shown: list[Integers] = []
    first = HEAD
    for variable in variables:
        part, cells = _count_variable(variable, values[:, variable.place], people, shown, count_min)
        table[first : first + len(part)] = part
        first += len(part)
        shown.append(cells)
    return len(records), table


def _count_variable(
    variable: Variable, values: Floats, people: Integers, shown: Sequence[Integers], count_min: int
) -> tuple[Integers, Integers]:
    """Return a variable's part of the table, and each sample's cell, -1 where none is shown."""
    located = variable.locate(values)
    if variable.within is None:
        known, withheld = withhold(np.minimum(located, 0), people, np.ones(len(people), dtype=bool), count_min)
    else:  # the cells of the other variable show who has a value
        index, cell = variable.within
        known, withheld = np.where(shown[index] == cell, 0, -1), []
    has_value = known == 0
    cells, small = withhold(np.where(has_value, located, -1), people, has_value, count_min, multiples=True)
    part = np.zeros(width(variable), dtype=np.int64)
    part[KNOWN], part[WITHHELD] = has_value.sum(), bool(withheld)
    if variable.kind == "number":
        scaled = variable.scale(values[has_value])
        part[SUM], part[SQUARES] = _rounded_sum(scaled), _rounded_sum(scaled**2)
    counts, flags = np.split(part[CELLS:], 2)
    counts[:] = np.bincount(cells[cells >= 0], minlength=len(counts))
    flags[small] = 1
    return part, cells


def withhold(
    cells: Integers, people: Integers, population: Flags, count_min: int, *, multiples: bool = False
) -> tuple[Integers, list[int]]:
    """Take samples out of their cells until no cell, and no number of people in none, is small.

    Args:
        cells: of each sample ``(n,)``, -1 for none.
        people: of each sample; the lowest are left out first.
        population: the samples whose number in all is sent.
        multiples: whether the number of people in no cell becomes a multiple of ``count_min``; otherwise it becomes
            ``count_min`` at least, or stays 0.

    Returns:
        The cells, and which of them have fewer people than before because they, or those in no cell, were too few.
    """
    members = {int(cell): sorted(set(people[cells == cell].tolist())) for cell in np.unique(cells[cells >= 0])}
    small = [cell for cell, persons in members.items() if len(persons) < count_min]
    cells = np.where(np.isin(cells, small), -1, cells)
    outside = set(people[population & (cells < 0)].tolist())
    lacking = -len(outside) % count_min if multiples or not outside else max(0, count_min - len(outside))
    left = {cell: persons for cell, persons in members.items() if cell not in small}
    for _ in range(lacking):
        largest = max(left, key=lambda cell: len(left[cell]), default=-1)
        chosen = next((person for person in left.get(largest, ()) if person not in outside), None)
        if chosen is None or len(left[largest]) <= count_min:
            return np.full_like(cells, -1), list(members)
        left[largest].remove(chosen)
        outside.add(chosen)
        cells[(cells == largest) & (people == chosen)] = -1
        if not multiples:
            small = [largest]
    return cells, small


def find_impossible(state: Mapping[str, Tensor], network: Any, sites: int = 1) -> str | None:
    """Return why no samples of so many sites have the counts of a table; ``None`` if some may have."""
    table, count = (next(state[name] for name in state if name.endswith(end)) for end in ("table", "count"))
    samples, values = int(count), table.cpu().numpy()
    if not 0 <= samples <= sites * COUNT_MAX:
        return f"it claims {samples} samples; a table has 0 to {sites * COUNT_MAX}"
    if not 0 <= values[0] <= samples:
        return f"it claims {values[0]} people in {samples} samples"
    for variable, counts in zip(network.network.variables, split_table(values, network.network.variables), strict=True):
        name = f"of {variable.role} {variable.name}"
        if not 0 <= counts.known <= samples:
            return f"{counts.known} values {name} are in {samples} samples"
        if not all(0 <= flag <= sites for flag in (counts.withheld, *counts.small)):
            return f"what it withholds {name} is not within 0 and {sites}"
        if counts.cells.min() < 0 or sum(map(int, counts.cells)) > counts.known:
            return f"the cells {name} hold more than its {counts.known} values, or fewer than none"
        if abs(counts.sum) > counts.known * UNIT or not 0 <= counts.squares <= counts.known * UNIT:
            return f"a sum {name} is above that of {counts.known} values from -1 to 1"
        if counts.sum**2 > counts.known * (counts.squares + 2 * counts.known) * UNIT:
            return f"the sum of squares {name} is too small for its sum"
    return None


def _rounded_sum(values: Floats) -> int:
    """Sum values in units, each rounded to the nearest."""
    return int(np.rint(values * UNIT).astype(np.int64).sum())
