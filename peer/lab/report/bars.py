"""Figures of amounts: samples by class, bytes sent, gains of subgroups, errors of bases."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import Results

NUMBERED_CLASSES_MAX = 12
"""More bubbles in a row leave no room for numbers."""


def distribution(results: Results, partition: str) -> ReportFigure | None:
    """The samples of each site by class; None where no run shows the partition."""
    run = results.representative_run(partition)
    if run is None:
        return None
    sites = sorted(run.sites)
    counts = {site: _class_counts(run.sites[site]) for site in sites}
    classes = sorted({name for class_counts in counts.values() for name in class_counts}, key=_class_sort_key)
    has_bubbles = len(classes) > 1
    height = 1.2 + 0.38 * len(sites)
    figure, ((bars, *rest),) = plotting.new_figure(7.6 if has_bubbles else 5.2, height, columns=2 if has_bubbles else 1)
    colours = {name: plotting.CLASS_COLOURS[index % len(plotting.CLASS_COLOURS)] for index, name in enumerate(classes)}
    _draw_stacked_bars(bars, sites, counts, colours)
    for axes in rest:
        _draw_bubbles(axes, sites, classes, counts, colours)
    run_name = f"fold {run.fold}, seed {run.seed}" if results.experiment["folds"] else f"seed {run.seed}"
    return plotting.render(
        figure,
        name=f"distribution-{partition}",
        title=f"Samples by site{' and class' if has_bubbles else ''}: {partition}",
        caption=f"Samples of training and test together, of {run_name}."
        + (" The area of a disc is the number of samples." if has_bubbles else ""),
    )


def _class_counts(site: Mapping[str, Any]) -> dict[str, int]:
    """Samples by class over all splits; without classes, training and test samples together."""
    counts: dict[str, int] = {}
    for split, classes in site.get("classes", {}).items():
        if split in ("training", "test", "validation"):
            for name, count in classes.items():
                counts[name] = counts.get(name, 0) + int(count)
    samples = site["samples"]
    return counts or {"samples": sum(int(samples.get(split, 0)) for split in ("training", "test"))}


def _class_sort_key(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1 << 30, name)


def _draw_stacked_bars(
    axes: Any, sites: Sequence[str], counts: Mapping[str, Mapping[str, int]], colours: Mapping[str, str]
) -> None:
    left = [0] * len(sites)
    for name, colour in colours.items():
        widths = [counts[site].get(name, 0) for site in sites]
        axes.barh(
            range(len(sites)), widths, left=left, color=colour, height=0.72, label=_class_label(name), linewidth=0
        )
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    for row, total in enumerate(left):
        axes.annotate(f"{total:,}", (total, row), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.margins(x=0.14)
    plotting.set_name_ticks(axes.yaxis, sites)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("samples")


def _draw_bubbles(
    axes: Any,
    sites: Sequence[str],
    classes: Sequence[str],
    counts: Mapping[str, Mapping[str, int]],
    colours: Mapping[str, str],
) -> None:
    largest_count = max(count for class_counts in counts.values() for count in class_counts.values())
    numbered = len(classes) <= NUMBERED_CLASSES_MAX
    for row, site in enumerate(sites):
        for column, name in enumerate(classes):
            count = counts[site].get(name, 0)
            axes.scatter(column, row, s=340 * count / largest_count, color=colours[name], linewidth=0)
            if numbered:
                axes.annotate(str(count), (column, row), ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.7, len(classes) - 0.3)
    axes.set_ylim(len(sites) - 0.4, -0.6)
    step = 1 if numbered else 5
    axes.set_xticks(range(0, len(classes), step), classes[::step])
    plotting.set_name_ticks(axes.yaxis, ["" for _ in sites])
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_xlabel("class")


def _class_label(name: str) -> str:
    return f"class {name}" if name.isdigit() else name


def traffic(sent: Mapping[str, Sequence[float]], styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """The bytes that each site sent, by method; None where no method sent any.

    Args:
        sent: by label, the bytes that each site sent in the whole run, mean over runs; labels
            without bytes are not drawn.
    """
    sent_by_label = {label: values for label, values in sent.items() if sum(values) > 0}
    if not sent_by_label:
        return None
    figure, ((axes,),) = plotting.new_figure(6.4, 0.9 + 0.36 * len(sent_by_label))
    for row, (label, values) in enumerate(sent_by_label.items()):
        mean = statistics.fmean(values) / 2**20
        axes.plot([value / 2**20 for value in values], [row] * len(values), "|", color=plotting.INK, markersize=9)
        axes.plot(mean, row, styles[label].marker, color=styles[label].colour, markersize=8)
        axes.annotate(f"{mean:,.3g} MiB", (mean, row), (0, 7), textcoords="offset points", ha="center", fontsize=7.5)
    plotting.set_log_axis(axes, [value / 2**20 for values in sent_by_label.values() for value in values if value > 0])
    axes.set_ylim(len(sent_by_label) - 0.5, -0.7)
    plotting.set_name_ticks(axes.yaxis, list(sent_by_label))
    axes.set_xlabel("sent by a site in the whole run, MiB (logarithmic)")
    without_bytes = [label for label in sent if label not in sent_by_label]
    return plotting.render(
        figure,
        name=name,
        title="Bytes exchanged",
        caption="Marker: mean over sites; strokes: the sites. Model bytes as they are put on the wire."
        + (f" Nothing is sent by {', '.join(without_bytes)}." if without_bytes else ""),
    )


def gains(
    values: Mapping[str, Mapping[str, float | None]], styles: Mapping[str, Style], *, baseline: str, key: str, name: str
) -> ReportFigure | None:
    """The AUC of each subgroup minus the baseline's, in one panel a method.

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


def bases(values: Mapping[str, Mapping[str, float]], styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """The distance of the messenger's input bases from orthogonality, by site.

    Args:
        values: by label and site, ``||B B^T - I||_F`` of the row-normalised basis; 0 is orthogonal.
    """
    if not values:
        return None
    sites = sorted({site for values_by_site in values.values() for site in values_by_site})
    figure, ((axes,),) = plotting.new_figure(5.4, 1.0 + 0.34 * len(sites))
    for label, values_by_site in values.items():
        rows = [row for row, site in enumerate(sites) if site in values_by_site]
        heights = [values_by_site[sites[row]] for row in rows]
        axes.plot(heights, rows, styles[label].marker, color=styles[label].colour, markersize=7, label=label)
        for row, value in zip(rows, heights, strict=True):
            axes.annotate(f"{value:.2f}", (value, row), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_xlim(0, 1.2 * max(value for values_by_site in values.values() for value in values_by_site.values()))
    axes.set_ylim(len(sites) - 0.5, -0.5)
    plotting.set_name_ticks(axes.yaxis, sites)
    axes.set_xlabel("‖BBᵀ − I‖ (Frobenius), 0 is orthogonal")
    if len(values) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return plotting.render(
        figure,
        name=name,
        title="Orthogonality of the messenger's basis",
        caption="Rows of the first layer of the messenger's head, each of length one, after the last round.",
    )
