"""Fairness: the gap between two groups, and the gain of each subgroup over a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import OwnPredictions, Results, RunResult
from peer.lab.report.table import Column, Table, lay_out, number_cells
from peer.lab.statistics import fairness

NOT_GROUPING = frozenset({"image", "label", "subject", "fold", "split", "row"})
"""Keys of a sample that identify it or its use, and define no subgroups."""
GROUPS_MAX = 30
BASELINES = ("fedcross", "local")
"""FedSKD's figure 5 compares with FedCross; without FedCross runs, gains are over local training."""


def grouping_keys(runs: Sequence[RunResult]) -> dict[str, list[str]]:
    """Return the keys that divide the samples into 2 to ``GROUPS_MAX`` groups, with their values."""
    values_by_key: dict[str, set[str]] = {}
    for sample in (sample for run in runs for samples in run.samples.values() for sample in samples):
        for key, value in sample.items():
            if key not in NOT_GROUPING and isinstance(value, str | int | bool):
                values_by_key.setdefault(key, set()).add(str(value))
    return {key: sorted(values) for key, values in sorted(values_by_key.items()) if 1 < len(values) <= GROUPS_MAX}


def gaps(comparison: Comparison, *, name: str) -> Iterator[Table]:
    """Yield a table for each key with two values: the groups' AUC in the Local Test, and the gap."""
    results, unit = comparison.results, comparison.unit
    runs_by_label = {label: results.select(comparison.setting, label) for label in comparison.labels}
    keys = grouping_keys([run for runs in runs_by_label.values() for run in runs])
    for key in (key for key, values in keys.items() if len(values) == 2):
        gap_by_label = {}
        for label, runs in runs_by_label.items():
            areas = [_areas(run, key) for run in runs]
            if len({group for fold in areas for groups_of_site in fold.values() for group in groups_of_site}) == 2:
                gap_by_label[label] = fairness.fairness(areas)
        if not gap_by_label:
            continue
        groups = list(next(iter(gap_by_label.values())).groups)
        numbers = pd.DataFrame(
            {label: [*gap.groups.values(), gap.mean, gap.delta] for label, gap in gap_by_label.items()},
            index=[*groups, "mean", "Δ"],
            dtype=float,
        )
        columns = [
            (Column(heading, key, unit.digits, "lower" if heading == "Δ" else "higher"), number_cells(values))
            for heading, values in (numbers * unit.factor).iterrows()
        ]
        note = (
            f"Local Test. Of each group the mean AUC over sites and {results.repeats}; Δ: the difference of the "
            "two means, without its sign (FedSKD, eq. 16). A group without an AUC at a site is left out there."
        )
        title = f"Fairness by {key}, {unit.axis}"
        yield lay_out(f"{name}-{key}", title, columns, list(numbers), ranked=comparison.ranked, notes=(note,))


def _areas(run: RunResult, key: str) -> dict[str, dict[str, float | None]]:
    return {
        own.site: fairness.subgroup_areas(own.probabilities, own.labels, [sample.get(key) for sample in own.samples])
        for own in run.own_predictions()
        if own.samples
    }


def baseline(results: Results, setting: tuple[str, str]) -> str | None:
    """Return the label of the method that gains are relative to; None if no such method ran."""
    ran = results.labels(setting)
    return next((label for method in BASELINES for label in ran if results.method_of(label) == method), None)


def gains(results: Results, setting: tuple[str, str]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Compute the gain over the baseline in percentage points, by key, label and subgroup.

    The key ``class`` stands for the classes of a task with more than two.
    """
    base = baseline(results, setting)
    if base is None:
        return {}
    others = [label for label in results.labels(setting) if label != base and results.method_of(label) != CENTRALISED]
    baselines = {(run.fold, run.seed): run for run in results.select(setting, base)}
    gains_by_key: dict[str, dict[str, dict[str, float | None]]] = {}
    for label in others:
        runs = [run for run in results.select(setting, label) if (run.fold, run.seed) in baselines]
        pairs = [pair for run in runs for pair in _common_predictions(run, baselines[run.fold, run.seed])]
        if not pairs:
            continue
        ours, theirs = (np.concatenate([own.probabilities for own in side]) for side in zip(*pairs, strict=True))
        truth = np.concatenate([own.labels for own, _ in pairs])
        if ours.shape[1] > 2:
            by_class = fairness.class_gains(ours, theirs, truth)
            gains_by_key.setdefault("class", {})[label] = {
                f"class {number}": gain.points for number, gain in by_class.items()
            }
        samples = [sample for own, _ in pairs for sample in own.samples or [{}] * len(own.labels)]
        for key in grouping_keys(runs):
            by_value = fairness.gains(ours, theirs, truth, [sample.get(key) for sample in samples])
            if any(gain.points is not None for gain in by_value.values()):
                gains_by_key.setdefault(key, {})[label] = {
                    f"{value} (n = {gain.samples})": gain.points for value, gain in by_value.items()
                }
    return gains_by_key


def _common_predictions(run: RunResult, other: RunResult) -> Iterator[tuple[OwnPredictions, OwnPredictions]]:
    """Pair the predictions of two runs at the sites whose test labels are equal in both."""
    others = {theirs.site: theirs for theirs in other.own_predictions()}
    for own in run.own_predictions():
        if own.site in others and np.array_equal(own.labels, others[own.site].labels):
            yield own, others[own.site]


def gains_figure(
    values: Mapping[str, Mapping[str, float | None]], styles: Mapping[str, Style], *, baseline: str, key: str, name: str
) -> ReportFigure | None:
    """Plot the AUC of each subgroup minus the baseline's, in one panel a method; None without values.

    Args:
        values: by label and subgroup, the gain in percentage points; ``None`` where an AUC is
            undefined.
    """
    groups = list(dict.fromkeys(group for values_by_group in values.values() for group in values_by_group))
    if not values or not groups:
        return None
    height = 0.8 + 0.24 * len(groups)
    figure, (all_axes,) = plotting.new_figure(
        max(3.4, 1.4 + 1.75 * len(values)), height, columns=len(values), sharex=True, sharey=True
    )
    for axes, (label, values_by_group) in zip(all_axes, values.items(), strict=True):
        heights = [values_by_group.get(group) for group in groups]
        axes.barh(
            range(len(groups)), [value or 0.0 for value in heights], color=styles[label].colour, height=0.7, linewidth=0
        )
        for row, value in enumerate(heights):
            if value is None:
                axes.annotate("undefined", (0, row), (2, 0), textcoords="offset points", va="center", fontsize=7)
        axes.axvline(0, color=plotting.INK, linewidth=0.8)
        axes.set_title(label)
        axes.grid(visible=False, axis="y")
    plotting.set_name_ticks(all_axes[0].yaxis, groups)
    all_axes[0].invert_yaxis()
    figure.supxlabel(f"AUC, percentage points above {baseline}", fontsize=9)
    return plotting.render(
        figure,
        name=name,
        title=f"AUC gain over {baseline} by {key}",
        caption="Predictions of all sites' own models on their own test data, together, as in figure 5 of FedSKD.",
    )


def gains_table(gained: Mapping[str, Mapping[str, float | None]], *, key: str, against: str, name: str) -> Table:
    by_group = pd.DataFrame(gained, dtype=float)
    groups = dict.fromkeys(group for values_by_group in gained.values() for group in values_by_group)
    note = (
        f"AUC in percentage points above {against}, of the predictions of all sites' own models on their own test data "
        "taken together, over all runs (FedSKD, figure 5)."
    )
    columns = [(Column(label, digits=2), number_cells(by_group[label])) for label in gained]
    return lay_out(name, f"AUC gain over {against} by {key}", columns, groups, notes=(note,), head=key)
