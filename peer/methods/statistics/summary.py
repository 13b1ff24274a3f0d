"""What a table of counts says: means and deviations, shares, survival, and how far a site is from the others."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from peer.methods.statistics.counts import UNIT, VariableCounts, split_table
from peer.methods.statistics.variables import Floats, Integers, Variable

Table = tuple[int, Integers]
"""The number of samples, and the table."""


def summarise(variables: Sequence[Variable], own: Table, total: Table) -> dict[str, Any]:
    """Return the site's own figures beside those of all, as ``peer.documents`` describes them."""
    others = total[0] - own[0], total[1] - own[1]
    parts = [split_table(table, variables) for _, table in (own, total, others)]
    described = []
    for variable, mine, all_sites, rest in zip(variables, *parts, strict=True):
        described.append(
            {
                "role": variable.role,
                "name": variable.name,
                "kind": variable.kind,
                "unit": variable.unit,
                "range": list(variable.range) if variable.range else None,
                "cells": list(variable.cells),
                "own": _figures(variable, mine, own[0]),
                "all": _figures(variable, all_sites, total[0]),
                "difference": difference(variable, mine, rest),
            }
        )
    return {
        "own": {"samples": own[0], "people": int(own[1][0])},
        "all": {"samples": total[0], "people": int(total[1][0])},
        "variables": described,
        "survival": {
            side: survival_table(variables, counts) for side, counts in zip(("own", "all"), parts[:2], strict=True)
        },
    }


def _figures(variable: Variable, counts: VariableCounts, samples: int) -> dict[str, Any]:
    mean, deviation = moments(variable, counts)
    return {
        "known": counts.known,
        "missing": None if variable.within else samples - counts.known,
        "withheld": counts.withheld,
        "mean": mean,
        "deviation": deviation,
        "counts": counts.cells.tolist(),
        "small": counts.small.tolist(),
    }


def moments(variable: Variable, counts: VariableCounts) -> tuple[float | None, float | None]:
    """Return the mean and the standard deviation (by n - 1) of a number, in its unit; ``None`` where it has none."""
    if variable.kind != "number" or not counts.known or variable.range is None:
        return None, None
    low, high = variable.range
    half, n, scaled = (high - low) / 2, counts.known, counts.sum / UNIT
    centred = max(0.0, counts.squares / UNIT - scaled**2 / n)
    deviation = half * math.sqrt(centred / (n - 1)) if n > 1 else None
    return (low + high) / 2 + half * scaled / n, deviation


def difference(variable: Variable, one: VariableCounts, other: VariableCounts) -> float | None:
    """Return the standardised mean difference of two groups; ``None`` where one is empty or does not vary.

    Also ``None`` where the first one withholds a cell.

    A number's is the difference of the means, over the root of the mean variance. That of categories is the
    Mahalanobis distance of their shares, of which the difference of two proportions is the case of two levels.

    Source: Austin 2009 (numbers and proportions); Yang and Dalton 2012 (categories).
    """
    if variable.kind == "number":
        (mean, deviation), (other_mean, other_deviation) = moments(variable, one), moments(variable, other)
        if mean is None or other_mean is None or deviation is None or other_deviation is None:
            return None
        spread = math.sqrt((deviation**2 + other_deviation**2) / 2)
        return abs(mean - other_mean) / spread if spread else None
    if not one.cells.sum() or not other.cells.sum() or one.small.any():
        return None
    shares: list[Floats] = [counts.cells / counts.cells.sum() for counts in (one, other)]
    gap = (shares[0] - shares[1])[1:]
    covariance = sum(np.diag(share[1:]) - np.outer(share[1:], share[1:]) for share in shares) / 2
    distance = float(gap @ np.linalg.pinv(covariance) @ gap)
    return math.sqrt(max(0.0, distance)) if np.any(covariance) else None


def survival_table(variables: Sequence[Variable], counts: Sequence[VariableCounts]) -> list[dict[str, Any]] | None:
    """Return the Kaplan-Meier table by intervals; ``None`` without times.

    Persons censored in an interval count as at risk in it, as in the discrete hazards that networks learn. From the
    first withheld count on, nothing is known of survival.
    """
    places = [index for index, variable in enumerate(variables) if variable.kind == "time"]
    if not places:
        return None
    events, censored = (counts[place] for place in places)
    complete = not counts[places[0] - 1].small.any()
    at_risk, survival, rows = events.known + censored.known, 1.0, []
    for index, (name, end) in enumerate(zip(variables[places[0]].cells, variables[places[0]].ends, strict=True)):
        complete = complete and not events.small[index] and not censored.small[index]
        happened, lost = float(events.cells[index]), float(censored.cells[index])
        if at_risk > 0:
            survival *= min(1.0, max(0.0, 1 - happened / at_risk))  # noise may leave a share no person can give
        row: Mapping[str, Any] = {"interval": name, "end": end, "events": round(happened), "censored": round(lost)}
        known = complete and events.known + censored.known > 0
        rows.append({**row, "at_risk": round(at_risk) if known else None, "survival": survival if known else None})
        at_risk -= happened + lost
    return rows
