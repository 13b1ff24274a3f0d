"""Line figures: learning curves, FedDAL's consensus, and the effect of link loss."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import unit_of

Curve = dict[int, float]
"""A value by round."""
POINTS_MIN = 2
"""A curve has at least so many points."""


def by_site(runs: Iterable[RunResult], metric: str) -> dict[str, Curve]:
    """The metric of each site by round, mean over the runs; rounds without a value are left out."""
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
    """The mean over the sites, for the rounds in which at least half of them have a value."""
    rounds = sorted({round for curve in curves.values() for round in curve})
    values = {round: [curve[round] for curve in curves.values() if round in curve] for round in rounds}
    return {
        round: statistics.fmean(round_values)
        for round, round_values in values.items()
        if 2 * len(round_values) >= len(curves)
    }


def learning(
    results: Results, setting: tuple[str, str], styles: Mapping[str, Style], *, name: str
) -> ReportFigure | None:
    """Local Test over rounds: all methods in one panel, then a panel a method with its sites.

    None where the runs evaluated only their last round.
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
        overview.plot(
            *_points(mean),
            color=styles[label].colour,
            linewidth=1.8,
            label=label,
            **_marker_options(mean, styles[label]),
        )
    overview.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    overview.set_title("all methods, mean over sites")
    for axes, label in zip(all_axes[1:], means, strict=False):
        for other, mean in means.items():
            if other != label:
                axes.plot(*_points(mean), color=plotting.RULE, linewidth=0.9, zorder=1)
        single = {"marker": "_", "markersize": 6} if label in late else {}
        for curve in curves[label].values():
            axes.plot(*_points(curve), color=styles[label].colour, linewidth=0.7, alpha=0.6, zorder=2, **single)
        marker = _marker_options(means[label], styles[label]) if label in late else {}
        axes.plot(*_points(means[label]), color=styles[label].colour, linewidth=2.2, zorder=3, **marker)
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
    """A figure with a wide panel above a grid of small ones, which share its axes."""
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


def consensus(
    results: Results, setting: tuple[str, str], styles: Mapping[str, Style], *, name: str
) -> ReportFigure | None:
    """FedDAL's consensus weight and its test metric with ProxyFL's; None without FedDAL runs."""
    labels = [label for label in results.labels(setting) if results.method_of(label) in ("feddal", "proxyfl")]
    weights = {label: site_curves for label in labels if (site_curves := _consensus(results.select(setting, label)))}
    if not weights:
        return None
    metric = "accuracy" if results.metric == "auc" else results.metric
    tests = {label: mean_over_sites(by_site(results.select(setting, label), metric)) for label in labels}
    tests = {label: curve for label, curve in tests.items() if len(curve) >= POINTS_MIN}
    figure, ((left, *right),) = plotting.new_figure(7.6 if tests else 4.4, 2.7, columns=2 if tests else 1)
    for label, curves in weights.items():
        for curve in curves.values():
            left.plot(*_points(curve), color=styles[label].colour, linewidth=0.7, alpha=0.6)
        left.plot(*_points(mean_over_sites(curves)), color=styles[label].colour, linewidth=2.2, label=label)
    left.set_ylabel("consensus λ, mean over samples")
    left.set_title("agreement of private model and proxy")
    for axes in right:
        for label, curve in tests.items():
            axes.plot(
                *_points(curve),
                color=styles[label].colour,
                linewidth=1.8,
                label=label,
                **_marker_options(curve, styles[label]),
            )
        axes.set_ylabel(f"Local Test {unit_of(metric).axis}")
        axes.set_title("mean over sites")
        axes.legend(loc="lower right")
    for axes in (left, *right):
        set_integer_ticks(axes)
        axes.set_xlabel("round")
    return plotting.render(
        figure,
        name=name,
        title="Consensus λ, and FedDAL against ProxyFL",
        caption="Thick: mean over sites; thin: the sites. As figure 5 of FedDAL.",
    )


def _consensus(runs: Sequence[RunResult]) -> dict[str, Curve]:
    """λ by site and round; the name of the metric begins with the stage that reports it."""
    names = {
        metric
        for run in runs
        for facts in run.sites.values()
        for record in facts["rounds"][:1]
        for metric in record["metrics"]
        if metric.endswith("_consensus")
    }
    return by_site(runs, min(names)) if names else {}


def disconnection(
    values: Mapping[str, Mapping[float, tuple[float, float]]], styles: Mapping[str, Style], *, axis: str, name: str
) -> ReportFigure | None:
    """The Local Test over the probability of link loss; None where no method has several
    probabilities.

    Args:
        values: by label, mean and standard deviation by the probability that a directed link is
            down in a round.
    """
    values = {label: by_loss for label, by_loss in values.items() if len(by_loss) >= POINTS_MIN}
    if not values:
        return None
    figure, ((axes,),) = plotting.new_figure(6.4, 3.0)
    for label, by_loss in values.items():
        losses = sorted(by_loss)
        means, deviations = zip(*(by_loss[loss] for loss in losses), strict=True)
        axes.errorbar(
            [100 * loss for loss in losses], means, deviations, color=styles[label].colour, capsize=2,
            elinewidth=0.7, linewidth=1.6, label=label, **_marker_options({}, styles[label]),
        )  # fmt: skip
    axes.set_xlabel("directed links down in a round, %")
    axes.set_ylabel(f"Local Test {axis}, mean over sites")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return plotting.render(
        figure,
        name=name,
        title="Link loss",
        caption="Bars: one standard deviation. Each directed link is down with this probability in each round.",
    )


def _points(curve: Curve) -> tuple[list[int], list[float]]:
    return list(curve), list(curve.values())


def _marker_options(curve: Curve, style: Style) -> dict[str, Any]:
    """About eight markers on a line, which tell lines apart without colour."""
    return {"marker": style.marker, "markersize": 5, "markevery": max(1, len(curve) // 8)}


def set_integer_ticks(axes: Any) -> None:
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
