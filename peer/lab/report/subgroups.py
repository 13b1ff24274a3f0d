"""Fairness tables: the gap between two groups, and the gain of each subgroup over a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell, Column, Table, TableRow, Unit
from peer.lab.statistics import fairness

NOT_GROUPING = frozenset({"image", "label", "subject", "fold", "split"})
"""Keys of a sample that identify it or its use, and define no subgroups."""
GROUPS_MAX = 30
BASELINES = ("fedcross", "local")
"""FedSKD's figure 5 compares to FedCross; without FedCross runs, gains are over local training."""


def grouping_keys(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """The keys that divide the samples into 2 to ``GROUPS_MAX`` groups, with their values."""
    values_by_key: dict[str, set[str]] = {}
    for run in runs:
        for samples in run.samples.values():
            for sample in samples:
                for key, value in sample.items():
                    if key not in NOT_GROUPING and isinstance(value, str | int | bool):
                        values_by_key.setdefault(key, set()).add(str(value))
    return {key: sorted(values) for key, values in sorted(values_by_key.items()) if 1 < len(values) <= GROUPS_MAX}


def gaps(results: Results, setting: tuple[str, str], unit: Unit, *, name: str) -> list[Table]:
    """A table for each key with two values: the groups' AUC in the Local Test, and the gap."""
    tables = []
    runs_by_label = {label: results.select(setting, label) for label in results.labels(setting)}
    binary_keys = [
        key
        for key, values in grouping_keys([run for runs in runs_by_label.values() for run in runs]).items()
        if len(values) == 2
    ]
    for key in binary_keys:
        rows, groups = [], []
        for label, runs in runs_by_label.items():
            areas = [_areas(run, key) for run in runs]
            if len({group for fold in areas for groups_of_site in fold.values() for group in groups_of_site}) != 2:
                continue
            result = fairness.fairness(areas)
            groups = list(result.groups)
            numbers = (*result.groups.values(), result.mean, result.delta)
            rows.append(
                TableRow(
                    label,
                    tuple(Cell(None if value is None else value * unit.factor) for value in numbers),
                    ranked=results.method_of(label) != CENTRALISED,
                )
            )
        if rows:
            columns = [Column(group, key, unit.digits, "higher") for group in groups]
            columns += [Column("mean", key, unit.digits, "higher"), Column("Δ", key, unit.digits, "lower")]
            note = (
                f"Local Test. Of each group the mean AUC over sites and {results.repeats}; Δ: the difference of the "
                "two means, without its sign (FedSKD, eq. 16). A group without an AUC at a site is left out there."
            )
            title = f"Fairness by {key}, {unit.axis}"
            tables.append(Table(f"{name}-{key}", title, "method", tuple(columns), tuple(rows), (note,)).with_ranks())
    return tables


def _areas(run: RunResult, key: str) -> dict[str, dict[str, float | None]]:
    areas = {}
    for site in run.sites:
        pair, samples = run.predictions(site, site), run.samples.get(site, ())
        if pair is not None and len(samples) == len(pair[1]):
            areas[site] = fairness.subgroup_areas(*pair, [sample.get(key) for sample in samples])
    return areas


def baseline(results: Results, setting: tuple[str, str]) -> str | None:
    """The label of the method that gains are relative to; None where no such method ran."""
    ran = results.labels(setting)
    return next((label for method in BASELINES for label in ran if results.method_of(label) == method), None)


def gains(results: Results, setting: tuple[str, str]) -> dict[str, dict[str, dict[str, float | None]]]:
    """The gain over the baseline in percentage points, by key, label and subgroup.

    The key ``class`` stands for the classes of a task with more than two.
    """
    base = baseline(results, setting)
    if base is None:
        return {}
    others = [label for label in results.labels(setting) if label != base and results.method_of(label) != CENTRALISED]
    theirs = {(run.fold, run.seed): run for run in results.select(setting, base)}
    gains_by_key: dict[str, dict[str, dict[str, float | None]]] = {}
    for label in others:
        runs = results.select(setting, label)
        pairs = [(run, theirs[run.fold, run.seed]) for run in runs if (run.fold, run.seed) in theirs]
        pooled = _pool_predictions(pairs)
        if pooled is None:
            continue
        ours, theirs_pooled, labels, samples = pooled
        if ours.shape[1] > 2:
            by_class = fairness.class_gains(ours, theirs_pooled, labels)
            gains_by_key.setdefault("class", {})[label] = {
                f"class {k}": _percentage_points(gain) for k, gain in by_class.items()
            }
        for key in grouping_keys([run for run, _ in pairs]):
            values = [sample.get(key) for sample in samples]
            by_value = fairness.gains(ours, theirs_pooled, labels, values)
            if any(gain.gain is not None for gain in by_value.values()):
                gains_by_key.setdefault(key, {})[label] = {
                    f"{value} (n = {gain.samples})": _percentage_points(gain) for value, gain in by_value.items()
                }
    return gains_by_key


def gains_table(gained: Mapping[str, Mapping[str, float | None]], *, key: str, against: str, name: str) -> Table:
    groups = dict.fromkeys(group for values_by_group in gained.values() for group in values_by_group)
    rows = [
        TableRow(group, tuple(Cell(values_by_group.get(group)) for values_by_group in gained.values()))
        for group in groups
    ]
    note = (
        f"AUC in percentage points above {against}, of the predictions of all sites' own models on their own test data "
        "taken together, over all runs (FedSKD, figure 5)."
    )
    columns = tuple(Column(label, digits=2) for label in gained)
    return Table(name, f"AUC gain over {against} by {key}", key, columns, tuple(rows), (note,))


PooledPredictions = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], list[Mapping[str, object]]]
"""The method's probabilities, the baseline's, labels and samples."""


def _pool_predictions(pairs: Sequence[tuple[RunResult, RunResult]]) -> PooledPredictions | None:
    """Pool the predictions of all sites on their own test data, over all pairs of runs."""
    ours, theirs, labels = [], [], []
    samples: list[Mapping[str, object]] = []
    for run, other in pairs:
        for site in sorted(run.sites.keys() & other.sites.keys()):
            own_pair, other_pair = run.predictions(site, site), other.predictions(site, site)
            if own_pair is None or other_pair is None or not np.array_equal(own_pair[1], other_pair[1]):
                continue
            ours.append(own_pair[0])
            theirs.append(other_pair[0])
            labels.append(own_pair[1])
            site_samples = run.samples.get(site, ())
            samples += site_samples if len(site_samples) == len(own_pair[1]) else [{} for _ in own_pair[1]]
    if not labels:
        return None
    return np.concatenate(ours), np.concatenate(theirs), np.concatenate(labels), samples


def _percentage_points(gain: fairness.Gain) -> float | None:
    return None if gain.gain is None else 100 * gain.gain
