"""What a table with noise says, and how far noise alone may have moved each figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from peer.methods.statistics.counts import VariableCounts
from peer.methods.statistics.person_sums import PEOPLE, counts_of, list_places
from peer.methods.statistics.summary import difference, moments, survival_table
from peer.methods.statistics.variables import Floats, Variable

KNOWN_ERRORS = 2.0
"""A mean, a difference and survival are lost in the noise of fewer people than so many standard errors of them."""

DECIMALS = 9
"""Of an exact mean: later ones are the rounding of units."""


def standard_error(
    figure: Callable[[Floats], float | None], people: Floats, places: Iterable[int], deviation: float
) -> float | None:
    """Return the standard error of a figure to first order, if these entries have independent noise.

    Each entry moves by a standard deviation in both directions, and the larger change counts: a distance is least where
    both groups are alike, and noise only increases it there. ``None`` if a figure is lost.
    """
    at, square = figure(people), 0.0
    for place in places:
        changes = []
        for sign in (1, -1):
            moved = people.copy()
            moved[place] += sign * deviation
            value = figure(moved)
            if at is None or value is None:
                return None
            changes.append(abs(value - at))
        square += max(changes) ** 2
    return None if at is None else math.sqrt(square)


def summarise_people(variables: Sequence[Variable], own: Floats, total: Floats, deviation: float) -> dict[str, Any]:
    """Return the site's own figures without noise beside those of all, as ``peer.documents`` describes them.

    Args:
        own, total: tables of people.
        deviation: the standard deviation of the noise in each entry of the total, in people.
    """
    summary = {"own": own, "all": total}
    described = []
    for index, variable in enumerate(variables):
        figures = _Figures(variables, index, own, total, deviation)
        described.append(
            {
                "role": variable.role,
                "name": variable.name,
                "kind": variable.kind,
                "unit": variable.unit,
                "range": list(variable.range) if variable.range else None,
                "cells": list(variable.cells),
                **{side: figures.describe(people) for side, people in summary.items()},
                **figures.difference(),
            }
        )
    return {
        "noise": {"count_error": deviation},
        **{side: {"samples": None, "people": round(people[PEOPLE])} for side, people in summary.items()},
        "variables": described,
        "survival": {side: _survival(variables, summary[side], deviation * (side == "all")) for side in summary},
    }


class _Figures:
    """The figures of one variable.

    Args:
        index: of the variable.
    """

    def __init__(self, variables: Sequence[Variable], index: int, own: Floats, total: Floats, deviation: float) -> None:
        self._variables, self._index, self._own, self._total = variables, index, own, total
        self._variable, self._deviation = variables[index], deviation
        places, _ = list_places(variables)
        place, within = places[index], self._variable.within
        known = [places[within[0]].cells + within[1]] if within else [PEOPLE, place.missing or 0]
        self._missing = place.missing
        self._moments = [*known, *([] if place.moments is None else (place.moments, place.moments + 1))]
        self._places = [*self._moments, *range(place.cells, place.cells + len(self._variable.cells))]
        self._known_error = deviation * math.sqrt(len(known))

    def describe(self, people: Floats) -> dict[str, Any]:
        """Return the figures of a group; those of all have errors."""
        counts = self._counts(people)
        mean, deviation = self._moments_of(people)
        figures: dict[str, Any] = {
            "known": round(counts.known),
            "missing": None if self._missing is None else round(people[self._missing]),
            "withheld": 0,
            "mean": mean,
            "deviation": deviation,
            "counts": np.rint(counts.cells).astype(np.int64).tolist(),
            "small": counts.small.tolist(),
        }
        if people is self._total:
            figures["known_error"] = self._known_error
            figures["mean_error"], figures["deviation_error"] = (
                standard_error(figure, people, self._moments, self._deviation)
                for figure in (lambda each: self._moments_of(each)[0], lambda each: self._moments_of(each)[1])
            )
        return figures

    def difference(self) -> dict[str, float | None]:
        """Return the difference of the site from the others, and its error."""

        def distance(people: Floats) -> float | None:
            others = self._counts(people - self._own)
            if others.known <= KNOWN_ERRORS * self._known_error:
                return None
            return difference(self._variable, self._counts(self._own), replace(others, cells=others.cells.clip(0)))

        error = standard_error(distance, self._total, self._places, self._deviation)
        return {"difference": None if error is None else distance(self._total), "difference_error": error}

    def _counts(self, people: Floats) -> VariableCounts:
        return counts_of(people, self._variables)[self._index]

    def _moments_of(self, people: Floats) -> tuple[float | None, float | None]:
        """Return mean and standard deviation; ``None`` where noise has hidden them."""
        counts = self._counts(people)
        if counts.known <= (KNOWN_ERRORS * self._known_error if people is not self._own else 0.0):
            return None, None
        mean, deviation = moments(self._variable, counts)
        if people is self._own and mean is not None:
            return round(mean, DECIMALS) + 0.0, deviation
        return mean, deviation or None


def _survival(variables: Sequence[Variable], people: Floats, deviation: float) -> list[dict[str, Any]] | None:
    """Return the Kaplan-Meier table; of all with errors, and without estimates once too few are at risk."""
    rows = survival_table(variables, counts_of(people, variables))
    if rows is None or not deviation:
        return rows
    index = next(index for index, variable in enumerate(variables) if variable.kind == "time")
    places, _ = list_places(variables)
    flag, first = places[index - 1].cells, places[index].cells
    entries = [flag, flag + 1, *range(first, first + 2 * len(rows))]
    known = True
    for number, row in enumerate(rows):

        def survival(moved: Floats, number: int = number) -> float | None:
            moved_rows = survival_table(variables, counts_of(moved, variables)) or rows
            value: float | None = moved_rows[number]["survival"]
            return value

        known = known and row["at_risk"] is not None and row["at_risk"] > KNOWN_ERRORS * deviation
        row["survival_error"] = standard_error(survival, people, entries, deviation) if known else None
        if row["survival_error"] is None:
            row["survival"] = None
    return rows
