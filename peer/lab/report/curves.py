"""Values by round, and the figure of learning curves."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from peer.lab.report import plotting
from peer.lab.report.measurements import Setting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import unit_of

Curve = dict[int, float]
"""A value by round."""
POINTS_MIN = 2
"""Least number of points of a curve."""


def by_site(runs: Iterable[RunResult], metric: str) -> dict[str, Curve]:
    """Return the metric of each site by round, mean over the runs; rounds without a value are left out."""
    values_by_site: dict[str, dict[int, list[float]]] = {}
    for run in runs:
        for site, facts in run.sites.items():
            for record in facts["rounds"]:
                value = record["metrics"].get(metric)
                if value is not None:
                    values_by_site.setdefault(site, {}).setdefault(int(record["round"]), []).append(float(value))
    return {
        site: {round: statistics.fmean(values) for round, values in sorted(rounds.items())}
        for site, rounds in sorted(values_by_site.items())
    }


def mean_over_sites(curves: Mapping[str, Curve]) -> Curve:
    """Average over the sites, for the rounds in which at least half of them have a value."""
    rounds = sorted({round for curve in curves.values() for round in curve})
    values = {round: [curve[round] for curve in curves.values() if round in curve] for round in rounds}
    return {
        round: statistics.fmean(round_values)
        for round, round_values in values.items()
        if 2 * len(round_values) >= len(curves)
    }


def draw(axes: Any, curve: Curve, style: Style, *, marked: bool = False, **line: Any) -> None:
    """Draw a curve in a method's colour.

    Args:
        marked: add about eight markers, which distinguish lines without colour.
    """
    marks = marker_options(style, len(curve)) if marked else {}
    axes.plot(list(curve), list(curve.values()), **{"color": style.colour, **marks, **line})


def marker_options(style: Style, points: int) -> dict[str, Any]:
    return {"marker": style.marker, "markersize": 5, "markevery": max(1, points // 8)}


def learning(results: Results, setting: Setting, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot Local Test over rounds: all methods in one panel, then a panel a method with its sites.

    None if the runs evaluated only their last round.
    """
    curves = {label: by_site(results.select(setting, label), results.metric) for label in results.labels(setting)}
    means = {label: mean_over_sites(site_curves) for label, site_curves in curves.items()}
    if all(len(mean) < POINTS_MIN for mean in means.values()):
        return None
    means = {label: mean for label, mean in means.items() if mean}
    late = [label for label, mean in means.items() if len(mean) < POINTS_MIN]
    columns = min(4, len(means))
    rows = -(-len(means) // columns)
    figure, all_axes = _overview_and_grid(rows, columns)
    overview = all_axes[0]
    for label, mean in means.items():
        draw(overview, mean, styles[label], marked=True, linewidth=1.8, label=label)
    overview.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    overview.set_title("all methods, mean over sites")
    for axes, label in zip(all_axes[1:], means, strict=False):
        for other, mean in means.items():
            if other != label:
                draw(axes, mean, styles[label], color=plotting.RULE, linewidth=0.9, zorder=1)
        single: dict[str, Any] = {"marker": "_", "markersize": 6} if label in late else {}
        for curve in curves[label].values():
            draw(axes, curve, styles[label], linewidth=0.7, alpha=0.6, zorder=2, **single)
        draw(axes, means[label], styles[label], marked=label in late, linewidth=2.2, zorder=3)
        axes.set_title(label)
    for axes in all_axes[1 + len(means) :]:
        axes.set_visible(False)
    for axes in all_axes:
        set_integer_ticks(axes)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel(f"Local Test {unit_of(results.metric).axis}", fontsize=9)
    return plotting.render(
        figure,
        name=name,
        title="Learning curves",
        caption="Thick: mean over sites; thin: the sites; grey: the other methods. Mean over "
        f"{_count(len(results.select(setting, next(iter(means)))), 'run')}."
        + (
            f" A single marker: {', '.join(late)}, evaluated after the last round only; a model that moves from site "
            "to site is not at home before."
            if late
            else ""
        ),
    )


def _overview_and_grid(rows: int, columns: int) -> tuple[Any, list[Any]]:
    """Make a figure with a wide panel above a grid of small ones, which share its axes."""
    figure = plotting.blank_figure(8.0, 2.6 + 1.55 * rows)
    grid = figure.add_gridspec(1 + rows, columns, height_ratios=[1.7] + [1.0] * rows)
    overview = figure.add_subplot(grid[0, :])
    small = [
        figure.add_subplot(grid[1 + row, column], sharex=overview, sharey=overview)
        for row in range(rows)
        for column in range(columns)
    ]
    for index, axes in enumerate(small):
        axes.tick_params(labelleft=index % columns == 0)
    return figure, [overview, *small]


def set_integer_ticks(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
