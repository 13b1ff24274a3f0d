r"""Sums over people, of a federation with noise: one person changes a table by a vector of length 1 at most.

A sample has a 1 at the table's head; of each variable a 1 for a missing value or for the cell of its value; and of a
number's value s, scaled to [-1, 1] over the agreed range, the pair :math:`(s, 1 - s^2)`, whose length is 1 at most. A
person has the mean of the own samples, divided by the length that such a vector has at most:

.. math:: \sqrt{1 + \text{variables} + \text{numbers}}

where the two times of survival count once, as nobody has both. So a count and a scaled sum get the same noise: of as
many people both also vary by chance about alike. Nothing is withheld, as noise hides small counts, too.

Source: ours. :math:`s^2 + (1 - s^2)^2 \le 1` for :math:`s^2 \le 1`; the pair (s, s²) may have length :math:`\sqrt2`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from peer.methods.method import NoiseOnSums, Record
from peer.methods.statistics.counts import COUNT_MAX, UNIT, VariableCounts
from peer.methods.statistics.variables import Floats, Integers, Variable

BEYOND = 1e9
"""More than the position of any level."""
PEOPLE = 0
"""Place of the number of people in a table."""


@dataclass(frozen=True)
class Places:
    """Where a table has a variable.

    Attributes:
        missing: the people without a value; ``None`` of a variable within another one.
        moments: the sum of a number's scaled values, and after it that of one less their squares.
        cells: the first cell.
    """

    missing: int | None
    moments: int | None
    cells: int


def list_places(variables: Sequence[Variable]) -> tuple[list[Places], int]:
    """Return the places of each variable, and the length of a table."""
    places, end = [], PEOPLE + 1
    for variable in variables:
        missing = None if variable.within else end
        end += missing is not None
        moments = end if variable.kind == "number" else None
        end += 0 if moments is None else 2
        places.append(Places(missing, moments, end))
        end += len(variable.cells)
    return places, end


def length_max(variables: Sequence[Variable]) -> float:
    """Return the largest length of a sample's vector, in people."""
    numbers = sum(variable.kind == "number" for variable in variables)
    apart = sum(variable.within is None for variable in variables)
    return math.sqrt(1 + apart + numbers + len({variable.within[0] for variable in variables if variable.within}))


def sum_people(variables: Sequence[Variable], records: Sequence[Record], values: Floats) -> Integers:
    """Return the table of a site, each person's part rounded to units of ``1 / UNIT``.

    Args:
        values: of the records, ``(n, values)``. One that is not finite counts as missing, and one beyond the agreed
            range as its end: an error would tell of a person.
    """
    places, size = list_places(variables)
    table = np.zeros(size, dtype=np.int64)
    rank: dict[str, int] = {}
    people = np.array([rank.setdefault(record.person, len(rank)) for record in records], dtype=np.int64)
    samples = np.bincount(people, minlength=len(rank))

    def add(place: int, column: Any) -> None:
        means = np.bincount(people, weights=column, minlength=len(rank)) / samples
        table[place] = int(np.rint(means * (UNIT / length_max(variables))).astype(np.int64).sum())

    if not records:
        return table
    values = np.where(np.isfinite(values), values, math.nan)
    add(PEOPLE, np.ones(len(records)))
    located: list[Integers] = []
    for variable, place in zip(variables, places, strict=True):
        column = values[:, variable.place].clip(*(variable.range or (-1.0, max(variable.ends, default=BEYOND))))
        cells = np.maximum(variable.locate(column), -1)
        if variable.within is not None:
            index, cell = variable.within
            cells = np.where(located[index] == cell, cells, -1)
        located.append(cells)
        if place.missing is not None:
            add(place.missing, cells < 0)
        if place.moments is not None:
            with np.errstate(over="ignore", invalid="ignore"):  # of a range almost as wide as that of float64
                scaled = np.nan_to_num(variable.scale(column), nan=0.0).clip(-1.0, 1.0)
            scaled = np.where(cells < 0, 1.0, scaled)
            add(place.moments, np.where(cells < 0, 0.0, scaled))
            add(place.moments + 1, np.where(cells < 0, 0.0, 1 - scaled**2))
        for cell in range(len(variable.cells)):
            add(place.cells + cell, cells == cell)
    return table


def deviation_of(noise_multiplier: float, size: int) -> float:
    """Return the standard deviation of a site's noise on each entry of a table of this length, in units.

    Rounding d entries moves a person's part by half the root of d units at most.
    """
    return noise_multiplier * (UNIT + math.sqrt(size) / 2)


def add_noise(table: Tensor, noise: NoiseOnSums) -> Tensor:
    """Return a table ``(cells,)`` with noise on every entry."""
    scale = deviation_of(noise.multiplier * noise.bound, len(table))
    (drawn,) = noise.draw([table], [torch.full((len(table),), scale, dtype=torch.float64)])
    return table + drawn.to(table.device)


def unit_in_people(variables: Sequence[Variable]) -> float:
    """Return how many people a table's unit is."""
    return length_max(variables) / UNIT


def counts_of(people: Floats, variables: Sequence[Variable]) -> list[VariableCounts]:
    """Return the counts of each variable in a table of people; with noise they may be below 0."""
    places, _ = list_places(variables)
    counts = []
    for variable, place in zip(variables, places, strict=True):
        if variable.within is not None:
            index, cell = variable.within
            known = people[places[index].cells + cell]
        else:
            known = people[PEOPLE] - people[place.missing or 0]
        moments = (0.0, known) if place.moments is None else people[place.moments : place.moments + 2]
        cells = people[place.cells : place.cells + len(variable.cells)]
        empty = np.zeros(len(cells), dtype=np.int64)
        counts.append(VariableCounts(known, 0, moments[0] * UNIT, (known - moments[1]) * UNIT, cells, empty))
    return counts


def find_impossible(state: Mapping[str, Tensor], network: Any, sites: int = 1) -> str | None:
    """Return why no people of so many sites have the sums of a table; ``None`` if some may, with noise."""
    table, count = (next(state[name] for name in state if name.endswith(end)) for end in ("table", "count"))
    if int(count) != sites:
        return f"it claims {int(count)} sites, and is of {sites}"
    most = max(abs(int(table.min())), abs(int(table.max())))
    return None if most <= sites * COUNT_MAX * UNIT else f"an entry has {most} units"
