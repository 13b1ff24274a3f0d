"""The samples of each site by split and class: a figure and a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from peer.lab.report import plotting
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell, Column, Table, lay_out

NUMBERED_CLASSES_MAX = 12
"""Upper bound of bubbles in a row with numbers: more leave no room for them."""
SPLITS = ("training", "validation", "test")


def table(results: Results, partition: str, *, name: str) -> Table | None:
    """Tabulate each site's samples by split and class; None if no run shows the partition."""
    run = results.representative_run(partition)
    if run is None:
        return None
    sites = {site: run.sites[site] for site in sorted(run.sites)}
    splits = [split for split in SPLITS if any(facts["samples"].get(split) for facts in sites.values())]
    by_split = {
        split: {site: facts.get("classes", {}).get(split, {}) for site, facts in sites.items()} for split in splits
    }
    classes = {name for facts in sites.values() for counts in facts.get("classes", {}).values() for name in counts}
    columns = [
        (Column(split, "samples", 0), _cells({site: facts["samples"].get(split) for site, facts in sites.items()}))
        for split in splits
    ]
    columns += [
        (Column(name, f"class, {split}", 0), _cells({site: by_split[split][site].get(name) for site in sites}))
        for split in splits
        for name in sorted(classes, key=lambda name: (len(name), name))
    ]
    note = f"Of {_name_run(results, run)}."
    return lay_out(name, f"Samples: {partition}", columns, sites.keys(), notes=(note,), head="site")


def figure(results: Results, partition: str) -> ReportFigure | None:
    """Plot each site's samples by class; None if no run shows the partition."""
    run = results.representative_run(partition)
    if run is None:
        return None
    sites = sorted(run.sites)
    counts = {site: _class_counts(run.sites[site]) for site in sites}
    classes = sorted(set().union(*counts.values()), key=_class_sort_key)
    has_bubbles = len(classes) > 1
    height = 1.2 + 0.38 * len(sites)
    figure, ((bars, *rest),) = plotting.new_figure(7.6 if has_bubbles else 5.2, height, columns=2 if has_bubbles else 1)
    colours = {name: plotting.CLASS_COLOURS[index % len(plotting.CLASS_COLOURS)] for index, name in enumerate(classes)}
    _draw_stacked_bars(bars, sites, counts, colours)
    for axes in rest:
        _draw_bubbles(axes, sites, classes, counts, colours)
    return plotting.render(
        figure,
        name=f"distribution-{partition}",
        title=f"Samples by site{' and class' if has_bubbles else ''}: {partition}",
        caption=f"Samples of training and test together, of {_name_run(results, run)}."
        + (" The area of a disc is the number of samples." if has_bubbles else ""),
    )


def _cells(counts: Mapping[str, float | None]) -> dict[str, Cell]:
    return {site: Cell(float(count)) for site, count in counts.items() if count is not None}


def _name_run(results: Results, run: RunResult) -> str:
    return f"fold {run.fold}, seed {run.seed}" if results.experiment["folds"] else f"seed {run.seed}"


def _class_counts(site: Mapping[str, Any]) -> Mapping[str, int]:
    """Count samples by class over all splits; without classes, training and test samples together."""
    counts: Counter[str] = Counter()
    for split in SPLITS:
        counts.update(site.get("classes", {}).get(split, {}))
    return counts or {"samples": sum(int(site["samples"].get(split, 0)) for split in ("training", "test"))}


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
