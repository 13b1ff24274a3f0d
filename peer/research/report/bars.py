"""Pictures of amounts: who has how much of which class, what was sent, what subgroups gain, what bases are like."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from peer.research.report import plotting
from peer.research.report.plotting import ReportFigure, Style
from peer.research.report.results import Results

NUMBERED_CLASSES_MAX = 12
"""More bubbles in a row have no room for their numbers."""


def distribution(results: Results, partition: str) -> ReportFigure | None:
    """How many samples of which class each site of a partition has; nothing where no run shows it."""
    run = results.undivided(partition)
    if run is None:
        return None
    sites = sorted(run.sites)
    counts = {site: _classes(run.sites[site]) for site in sites}
    classes = sorted({name for found in counts.values() for name in found}, key=_order)
    bubbles = len(classes) > 1
    height = 1.2 + 0.38 * len(sites)
    made, ((bars, *rest),) = plotting.figure(7.6 if bubbles else 5.2, height, columns=2 if bubbles else 1)
    colours = {name: plotting.CLASS_COLOURS[index % len(plotting.CLASS_COLOURS)] for index, name in enumerate(classes)}
    _stacked(bars, sites, counts, colours)
    for axes in rest:
        _bubbles(axes, sites, classes, counts, colours)
    which = f"fold {run.fold}, seed {run.seed}" if results.experiment["folds"] else f"seed {run.seed}"
    return plotting.finished(
        made,
        name=f"distribution-{partition}",
        title=f"Who has how {'much of which class' if bubbles else 'many samples'}: {partition}",
        caption=f"Samples of training and test together, of {which}."
        + (" The area of a disc is the number of samples." if bubbles else ""),
    )


def _classes(site: Mapping[str, Any]) -> dict[str, int]:
    """Samples by class over training and test; of a task without classes all samples together."""
    found: dict[str, int] = {}
    for split, classes in site.get("classes", {}).items():
        if split in ("training", "test", "validation"):
            for name, count in classes.items():
                found[name] = found.get(name, 0) + int(count)
    samples = site["samples"]
    return found or {"samples": sum(int(samples.get(split, 0)) for split in ("training", "test"))}


def _order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdigit() else (1 << 30, name)


def _stacked(
    axes: Any, sites: Sequence[str], counts: Mapping[str, Mapping[str, int]], colours: Mapping[str, str]
) -> None:
    left = [0] * len(sites)
    for name, colour in colours.items():
        widths = [counts[site].get(name, 0) for site in sites]
        axes.barh(range(len(sites)), widths, left=left, color=colour, height=0.72, label=_named(name), linewidth=0)
        left = [begin + width for begin, width in zip(left, widths, strict=True)]
    for place, total in enumerate(left):
        axes.annotate(f"{total:,}", (total, place), (3, 0), textcoords="offset points", va="center", fontsize=8)
    axes.margins(x=0.14)
    plotting.names(axes.yaxis, sites)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("samples")


def _bubbles(
    axes: Any,
    sites: Sequence[str],
    classes: Sequence[str],
    counts: Mapping[str, Mapping[str, int]],
    colours: Mapping[str, str],
) -> None:
    largest = max(count for found in counts.values() for count in found.values())
    numbered = len(classes) <= NUMBERED_CLASSES_MAX
    for row, site in enumerate(sites):
        for column, name in enumerate(classes):
            count = counts[site].get(name, 0)
            axes.scatter(column, row, s=340 * count / largest, color=colours[name], linewidth=0)
            if numbered:
                axes.annotate(str(count), (column, row), ha="center", va="center", fontsize=7)
    axes.set_xlim(-0.7, len(classes) - 0.3)
    axes.set_ylim(len(sites) - 0.4, -0.6)
    step = 1 if numbered else 5
    axes.set_xticks(range(0, len(classes), step), classes[::step])
    plotting.names(axes.yaxis, ["" for _ in sites])
    axes.grid(visible=False)
    axes.tick_params(length=0)
    axes.set_xlabel("class")


def _named(name: str) -> str:
    return f"class {name}" if name.isdigit() else name


def traffic(sent: Mapping[str, Sequence[float]], styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """What a site sent, by method.

    Args:
        sent: of each label the bytes that each site sent in the whole run, the mean over runs; a label that sent
            nothing is not drawn.
        styles: of the labels.
        name: of the picture.
    """
    shown = {label: values for label, values in sent.items() if sum(values) > 0}
    if not shown:
        return None
    made, ((axes,),) = plotting.figure(6.4, 0.9 + 0.36 * len(shown))
    for place, (label, values) in enumerate(shown.items()):
        mean = statistics.fmean(values) / 2**20
        axes.plot([value / 2**20 for value in values], [place] * len(values), "|", color=plotting.INK, markersize=9)
        axes.plot(mean, place, styles[label].marker, color=styles[label].colour, markersize=8)
        axes.annotate(f"{mean:,.3g} MiB", (mean, place), (0, 7), textcoords="offset points", ha="center", fontsize=7.5)
    plotting.logarithmic(axes, [value / 2**20 for values in shown.values() for value in values if value > 0])
    axes.set_ylim(len(shown) - 0.5, -0.7)
    plotting.names(axes.yaxis, list(shown))
    axes.set_xlabel("sent by a site in the whole run, MiB (logarithmic)")
    silent = [label for label in sent if label not in shown]
    return plotting.finished(
        made,
        name=name,
        title="Bytes exchanged",
        caption="Marker: mean over sites; strokes: the sites. Model bytes as they are put on the wire."
        + (f" Nothing is sent by {', '.join(silent)}." if silent else ""),
    )


def gains(
    values: Mapping[str, Mapping[str, float | None]], styles: Mapping[str, Style], *, baseline: str, key: str, name: str
) -> ReportFigure | None:
    """By how much the AUC of each subgroup differs from the baseline's, one field a method.

    Args:
        values: of each label the gain of each subgroup, in percentage points; ``None`` where either AUC is undefined.
        styles: of the labels.
        baseline: whose AUC is taken off.
        key: what divides the samples into subgroups.
        name: of the picture.
    """
    groups = list(dict.fromkeys(group for found in values.values() for group in found))
    if not values or not groups:
        return None
    height = 0.8 + 0.24 * len(groups)
    made, (row,) = plotting.figure(
        max(3.4, 1.4 + 1.75 * len(values)), height, columns=len(values), sharex=True, sharey=True
    )
    for axes, (label, found) in zip(row, values.items(), strict=True):
        heights = [found.get(group) for group in groups]
        axes.barh(
            range(len(groups)), [value or 0.0 for value in heights], color=styles[label].colour, height=0.7, linewidth=0
        )
        for place, value in enumerate(heights):
            if value is None:
                axes.annotate("undefined", (0, place), (2, 0), textcoords="offset points", va="center", fontsize=7)
        axes.axvline(0, color=plotting.INK, linewidth=0.8)
        axes.set_title(label)
        axes.grid(visible=False, axis="y")
    plotting.names(row[0].yaxis, groups)
    row[0].invert_yaxis()
    made.supxlabel(f"AUC, percentage points above {baseline}", fontsize=9)
    return plotting.finished(
        made,
        name=name,
        title=f"AUC gain over {baseline} by {key}",
        caption="Predictions of all sites' own models on their own test data, together, as in figure 5 of FedSKD.",
    )


def bases(values: Mapping[str, Mapping[str, float]], styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """How far the messenger's input bases are from orthogonal, by site.

    Args:
        values: of each label ``||B B^T - I||_F`` of the row-normalised basis, by site; 0 is orthogonal.
        styles: of the labels.
        name: of the picture.
    """
    if not values:
        return None
    sites = sorted({site for found in values.values() for site in found})
    made, ((axes,),) = plotting.figure(5.4, 1.0 + 0.34 * len(sites))
    for label, found in values.items():
        places = [place for place, site in enumerate(sites) if site in found]
        heights = [found[sites[place]] for place in places]
        axes.plot(heights, places, styles[label].marker, color=styles[label].colour, markersize=7, label=label)
        for place, value in zip(places, heights, strict=True):
            axes.annotate(f"{value:.2f}", (value, place), (6, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_xlim(0, 1.2 * max(value for found in values.values() for value in found.values()))
    axes.set_ylim(len(sites) - 0.5, -0.5)
    plotting.names(axes.yaxis, sites)
    axes.set_xlabel("‖BBᵀ − I‖ (Frobenius), 0 is orthogonal")
    if len(values) > 1:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return plotting.finished(
        made,
        name=name,
        title="Orthogonality of the messenger's basis",
        caption="Rows of the first layer of the messenger's head, each of length one, after the last round.",
    )
