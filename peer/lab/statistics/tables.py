"""The arithmetic of the papers' tables: Local and Global Test of every site over folds, and the
column "Mean".

The result of one fold is a matrix: the metric of each site's model on each site's test split. The
Local Test is its diagonal. The Global Test of a site is the mean of its row; large and small test
splits count alike. Means leave out undefined values (None or not finite) and count them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

Matrix: TypeAlias = Mapping[str, Mapping[str, float | None]]
"""The metric by the model's site, then the split's. A shared model is in every site's row."""


@dataclass(frozen=True, slots=True)
class Average:
    """An unweighted mean of values or of means, None if there is none.

    ``count`` values are in it, also through inner means; ``undefined`` values are left out.
    """

    value: float | None
    count: int
    undefined: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation over the folds that have a value.

    ``folds`` has the value of each fold, or None; ``undefined`` counts the values left out of them.
    """

    mean: float | None
    std: float | None
    folds: tuple[float | None, ...]
    undefined: int


@dataclass(frozen=True, slots=True)
class ResultRow:
    """A method's row of a table: a cell for each site, and the column "Mean"."""

    cells: Mapping[str, Spread]
    mean: Spread


def defined(value: float | None) -> TypeGuard[float]:
    return value is not None and math.isfinite(value)


def average(values: Iterable[float | None]) -> Average:
    all_values = list(values)
    known = [value for value in all_values if defined(value)]
    return Average(statistics.fmean(known) if known else None, len(known), len(all_values) - len(known))


def combined(averages: Iterable[Average]) -> Average:
    """The mean of means, each with the same weight."""
    parts = list(averages)
    value = average(part.value for part in parts).value
    return Average(value, sum(part.count for part in parts), sum(part.undefined for part in parts))


def over_folds(averages: Sequence[Average], *, ddof: int = 0) -> Spread:
    """Mean and deviation over folds; the squares are divided by the number of folds minus ``ddof``.

    Without more folds than ``ddof`` there is no deviation.
    """
    known = [fold.value for fold in averages if fold.value is not None]
    mean = statistics.fmean(known) if known else None
    std = None
    if mean is not None and len(known) > ddof:
        std = math.sqrt(sum((value - mean) ** 2 for value in known) / (len(known) - ddof))
    return Spread(
        mean=mean,
        std=std,
        folds=tuple(fold.value for fold in averages),
        undefined=sum(fold.undefined for fold in averages),
    )


def local_test(folds: Sequence[Matrix], *, ddof: int = 0) -> ResultRow:
    """Every site's model on its own test split.

    "Mean" averages over the sites of each fold, then over the folds. ``ValueError`` where there is
    no fold, the folds' sites differ, or a model lacks its own split.
    """
    return _row(folds, {site: [average([fold[site][site]]) for fold in folds] for site in _sites(folds)}, ddof)


def global_test(folds: Sequence[Matrix], *, ddof: int = 0) -> ResultRow:
    """Every site's model on every site's test split, its own included.

    As :func:`local_test`. Where all sites share one model, all cells are the same as "Mean".
    """
    return _row(folds, {site: [average(fold[site].values()) for fold in folds] for site in _sites(folds)}, ddof)


def generalisation(folds: Sequence[Matrix]) -> dict[str, dict[str, Spread]]:
    """The Global Test before the mean over test splits: each cell of the matrix over the folds."""
    sites = _sites(folds)
    return {
        model: {split: over_folds([average([fold[model].get(split)]) for fold in folds]) for split in sites}
        for model in sites
    }


def worst_site(row: ResultRow, *, higher: bool = True, ddof: int = 0) -> Spread:
    """The worst site's value of each fold, which is not the same site in all of them."""
    pick = min if higher else max
    return over_folds([average([pick(values, default=None)]) for values in _values_by_fold(row)], ddof=ddof)


def site_gap(row: ResultRow, *, ddof: int = 0) -> Spread:
    """The best site's value minus the worst one's, of each fold."""
    gaps = [max(values) - min(values) if values else None for values in _values_by_fold(row)]
    return over_folds([average([gap]) for gap in gaps], ddof=ddof)


def _values_by_fold(row: ResultRow) -> list[list[float]]:
    """The defined values of the sites, of each fold."""
    columns = [spread.folds for spread in row.cells.values()]
    return [[value for value in values if defined(value)] for values in zip(*columns, strict=True)]


def _row(folds: Sequence[Matrix], cells: Mapping[str, Sequence[Average]], ddof: int) -> ResultRow:
    means = [combined(column[fold] for column in cells.values()) for fold in range(len(folds))]
    by_site = {site: over_folds(column, ddof=ddof) for site, column in cells.items()}
    return ResultRow(by_site, over_folds(means, ddof=ddof))


def _sites(folds: Sequence[Matrix]) -> list[str]:
    if not folds:
        raise ValueError("there is no fold")
    sites = list(folds[0])
    for number, fold in enumerate(folds):
        if fold.keys() != folds[0].keys():
            raise ValueError(f"fold {number} has the sites {sorted(fold)}, fold 0 has {sorted(sites)}")
        for site in sites:
            if site not in fold[site]:
                raise ValueError(f"fold {number}: the model of {site!r} was not tested on its own split")
    return sites
