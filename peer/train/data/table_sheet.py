"""The distributions of a table's columns, by split and by class or event, for the contact sheet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from peer.core.columns import TableColumn
from peer.core.targets import Target, stratum
from peer.documents.data import SheetColumn, SheetDistribution
from peer.train.data.datalist import Sample

BINS = 20


def describe_columns(
    columns: Sequence[TableColumn], splits: Mapping[str, Sequence[Sample]], target: Target
) -> list[SheetColumn]:
    """Describe each column and each target in every split and group.

    The groups are the classes, or the persons with and without an event; with another target there is one.
    """
    targets = target.table if target.kind != "survival" else target.table[:1]  # the groups say who had the event
    described = [*((column, False) for column in columns), *((column, True) for column in targets)]
    grouped = [
        (split, group, rows) for split, samples in splits.items() for group, rows in _by_group(samples, target).items()
    ]
    highest = max(target.times, default=0.0)
    return [
        _describe(column, [(split, group, rows[:, place]) for split, group, rows in grouped], highest, target=is_target)
        for place, (column, is_target) in enumerate(described)
    ]


def _describe(
    column: TableColumn,
    values: Sequence[tuple[str, int | None, NDArray[np.float64]]],
    highest: float,
    *,
    target: bool,
) -> SheetColumn:
    """Describe a column by its values in each split and group; ``highest`` is where a number without a range ends."""
    ends = column.range or ((0.0, highest) if column.kind == "number" else None)
    return {
        "name": column.name,
        "kind": column.kind,
        "unit": column.unit,
        "is_target": target,
        "levels": list(column.levels) or (["no", "yes"] if column.kind == "flag" else []),
        "lowest": None if ends is None else ends[0],
        "highest": None if ends is None else ends[1],
        "distributions": [_distribution(split, group, part, ends, len(column.levels)) for split, group, part in values],
    }


def _by_group(samples: Sequence[Sample], target: Target) -> dict[int | None, NDArray[np.float64]]:
    """Return the values of a split's rows, those of the target last, by group."""
    groups: dict[int | None, list[tuple[float, ...]]] = {}
    for sample in samples:
        groups.setdefault(stratum(sample.label), []).append((*sample.row, *target.row(sample.label)))
    return {
        group: np.array(rows, dtype=np.float64) for group, rows in sorted(groups.items(), key=lambda item: str(item[0]))
    }


def _distribution(
    split: str, group: int | None, values: NDArray[np.float64], ends: tuple[float, float] | None, levels: int
) -> SheetDistribution:
    present = values[~np.isnan(values)]
    if ends is not None:
        counts, _ = np.histogram(present.clip(*ends), bins=BINS, range=ends)
    else:
        counts = np.bincount(present.astype(np.int64), minlength=levels or 2)
    return {
        "split": split,
        "group": group,
        "rows": len(values),
        "missing": len(values) - len(present),
        "shares": [float(f"{count / len(values):.4g}") for count in counts],
    }
