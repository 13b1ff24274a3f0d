"""Whom the models serve: the gap between two groups, and what each subgroup gains over a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from peer.research.report.results import Results, RunResult
from peer.research.report.table import Cell, Column, Table, TableRow, Unit
from peer.research.result_files import CENTRALISED
from peer.research.statistics import fairness

NO_GROUPS = frozenset({"image", "label", "subject", "fold", "split"})
"""Keys of a sample that say what it is or what it is for, rather than to which group it belongs."""
GROUPS_MAX = 30
BASELINES = ("fedcross", "local")
"""FedSKD's figure 5 is against FedCross; without it, against training alone."""


def keys(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """The keys of the samples that divide them into groups, with their values."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for samples in run.samples.values():
            for sample in samples:
                for key, value in sample.items():
                    if key not in NO_GROUPS and isinstance(value, str | int | bool):
                        found.setdefault(key, set()).add(str(value))
    return {key: sorted(values) for key, values in sorted(found.items()) if 1 < len(values) <= GROUPS_MAX}


def gaps(results: Results, setting: tuple[str, str], shown: Unit, *, name: str) -> list[Table]:
    """For each key with two values the AUC of both groups in the Local Test, and the gap."""
    made = []
    every = {label: results.select(setting, label) for label in results.ran(setting)}
    binary = [key for key, values in keys([run for runs in every.values() for run in runs]).items() if len(values) == 2]
    for key in binary:
        rows, groups = [], []
        for label, runs in every.items():
            areas = [_areas(run, key) for run in runs]
            if len({group for fold in areas for found in fold.values() for group in found}) != 2:
                continue
            found = fairness.fairness(areas)
            groups = list(found.groups)
            numbers = (*(spread.mean for spread in found.groups.values()), found.mean, found.delta)
            rows.append(
                TableRow(
                    label,
                    tuple(Cell(None if value is None else value * shown.factor) for value in numbers),
                    ranked=results.method_of(label) != CENTRALISED,
                )
            )
        if rows:
            columns = [Column(group, key, shown.digits, "higher") for group in groups]
            columns += [Column("mean", key, shown.digits, "higher"), Column("Δ", key, shown.digits, "lower")]
            note = (
                f"Local Test. Of each group the mean AUC over sites and {results.repeats}; Δ: the difference of the "
                "two means, without its sign (FedSKD, eq. 16). A group without an AUC at a site is left out there."
            )
            title = f"Fairness by {key}, {shown.axis}"
            made.append(Table(f"{name}-{key}", title, "method", tuple(columns), tuple(rows), (note,)).ranked())
    return made


def _areas(run: RunResult, key: str) -> dict[str, dict[str, float | None]]:
    found = {}
    for site in run.sites:
        pair, samples = run.classified(site, site), run.samples.get(site, ())
        if pair is not None and len(samples) == len(pair[1]):
            found[site] = fairness.subgroup_areas(*pair, [sample.get(key) for sample in samples])
    return found


def baseline(results: Results, setting: tuple[str, str]) -> str | None:
    """Against whom gains are counted."""
    ran = results.ran(setting)
    return next((label for method in BASELINES for label in ran if results.method_of(label) == method), None)


def gains(results: Results, setting: tuple[str, str]) -> dict[str, dict[str, dict[str, float | None]]]:
    """By key (``class`` for tasks with more than two), label and subgroup the gain over the baseline, in points."""
    base = baseline(results, setting)
    if base is None:
        return {}
    others = [label for label in results.ran(setting) if label != base and results.method_of(label) != CENTRALISED]
    theirs = {(run.fold, run.seed): run for run in results.select(setting, base)}
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for label in others:
        runs = results.select(setting, label)
        pairs = [(run, theirs[run.fold, run.seed]) for run in runs if (run.fold, run.seed) in theirs]
        pooled = _pooled(pairs)
        if pooled is None:
            continue
        ours, standard, labels, samples = pooled
        if ours.shape[1] > 2:
            by_class = fairness.class_gains(ours, standard, labels)
            found.setdefault("class", {})[label] = {f"class {k}": _points(gain) for k, gain in by_class.items()}
        for key in keys([run for run, _ in pairs]):
            values = [sample.get(key) for sample in samples]
            by_value = fairness.gains(ours, standard, labels, values)
            if any(gain.gain is not None for gain in by_value.values()):
                found.setdefault(key, {})[label] = {
                    f"{value} (n = {gain.samples})": _points(gain) for value, gain in by_value.items()
                }
    return found


def table(gained: Mapping[str, Mapping[str, float | None]], *, key: str, against: str, name: str) -> Table:
    groups = dict.fromkeys(group for found in gained.values() for group in found)
    rows = [TableRow(group, tuple(Cell(found.get(group)) for found in gained.values())) for group in groups]
    note = (
        f"AUC in percentage points above {against}, of the predictions of all sites' own models on their own test data "
        "taken together, over all runs (FedSKD, figure 5)."
    )
    columns = tuple(Column(label, digits=2) for label in gained)
    return Table(name, f"AUC gain over {against} by {key}", key, columns, tuple(rows), (note,))


Pooled = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int64], list[Mapping[str, object]]]
"""The method's and the baseline's probabilities, labels and samples."""


def _pooled(pairs: Sequence[tuple[RunResult, RunResult]]) -> Pooled | None:
    """All sites' own test predictions over all runs that both have."""
    ours, theirs, labels = [], [], []
    samples: list[Mapping[str, object]] = []
    for run, other in pairs:
        for site in sorted(run.sites.keys() & other.sites.keys()):
            one, two = run.classified(site, site), other.classified(site, site)
            if one is None or two is None or not np.array_equal(one[1], two[1]):
                continue
            ours.append(one[0])
            theirs.append(two[0])
            labels.append(one[1])
            of_site = run.samples.get(site, ())
            samples += of_site if len(of_site) == len(one[1]) else [{} for _ in one[1]]
    if not labels:
        return None
    return np.concatenate(ours), np.concatenate(theirs), np.concatenate(labels), samples


def _points(gain: fairness.Gain) -> float | None:
    return None if gain.gain is None else 100 * gain.gain
