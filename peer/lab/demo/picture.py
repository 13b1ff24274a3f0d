"""The demonstration's picture: one HTML page without external resources.

It shows what each site has alone, together and pooled over several splits, each site's learning
curves, and which models each site hosted in every round.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peer.documents.commands import DemoResult, DemoSplits
from peer.lab.demo import gains
from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report import plotting
from peer.lab.report.plotting import CLASS_COLOURS, INK, MARKERS, RULE, ReportFigure, Style
from peer.lab.report.table import unit_of
from peer.site.config.site_folder import write_atomically
from peer.web_page import render_page

PANEL_INCHES = (3.6, 2.2)
"""Width and height of a site's panel, which a screen of 400 pixels shows at full size."""
ROUND_INCHES = 0.21
"""Width of a round in the figure of visits."""
NAME_INCHES = 1.05
"""Width of a site's name in the figure of visits."""
METHOD_INCHES = 0.14
"""Height of a method's row in the figures over splits."""
VALUE_KEYS, GAIN_KEYS = ("mean", "low", "high"), ("gain", "gain_low", "gain_high")
MARKER_ROWS_INCHES = 0.19
"""Height of a visitor's marker."""


def write(document: DemoResult, path: Path) -> None:
    """Draw the page of a finished demonstration."""
    styles = plotting.assign_styles({label: label for label in document["methods"]})
    over_splits = document["splits"]
    with plotting.plot_style():
        comparisons = [] if over_splits is None else list(_comparisons(over_splits, document["metric"], styles))
        panels = [_learning(document, site, styles) for site in _sites(document)]
        visits = [
            _visits(document, label) for label in gains.joined(document["methods"]) if _rounds(document, label) > 1
        ]
    page = render_page(
        "demo.html.j2",
        title=f"mhfl-peer demo: {document['study']}",
        styles=["demo.css"],
        strict=False,
        document=document,
        comparisons=comparisons,
        methods=[
            {"name": "pooled bound", "line": "┅┅", "colour": styles[label].colour}
            if label == CENTRALISED
            else {"name": label, "line": "━━", "colour": styles[label].colour}
            for label in document["methods"]
        ],
        panels=panels,
        has_bound=CENTRALISED in document["methods"],
        visits=visits,
    )
    write_atomically(path, page.encode(), 0o644)


def _sites(document: DemoResult) -> list[str]:
    return sorted(document["methods"]["local"]["sites"])


def _comparisons(over_splits: DemoSplits, main: str, styles: Mapping[str, Style]) -> Iterator[ReportFigure]:
    """Draw the methods at each site: values on its own test data, and gains over training alone on both tests."""
    for metric in over_splits["metrics"]:
        unit = unit_of(metric)
        axis = unit.axis if unit.higher else f"{unit.axis}, lower is better"
        yield _forest(over_splits, metric, "local", VALUE_KEYS, styles, title=f"{unit.name}, own test data", axis=axis)
    for test, words in (("local", "own test data"), ("global", "test data of all sites")):
        title = f"{unit_of(main).name} minus that of training alone, {words}"
        yield _forest(over_splits, main, test, GAIN_KEYS, styles, title=title, axis=f"gain in {unit_of(main).axis}")


def _forest(
    over_splits: DemoSplits,
    metric: str,
    test: str,
    keys: tuple[str, str, str],
    styles: Mapping[str, Style],
    *,
    title: str,
    axis: str,
) -> ReportFigure:
    """Draw a mean and its interval for each method at each site: a row a method, beside its site's name."""
    is_gain = keys == GAIN_KEYS
    methods = {
        label: sites
        for label, sites in over_splits["metrics"][metric][test].items()
        if not (is_gain and label == "local")
    }
    sites = list(next(iter(methods.values())))
    row = len(methods) + 1
    figure, ((axes,),) = plotting.new_figure(PANEL_INCHES[0], 0.7 + METHOD_INCHES * row * len(sites))
    for position, (label, intervals) in enumerate(methods.items()):
        for index, site in enumerate(sites):
            mean, low, high = (intervals[site][key] for key in keys)  # type: ignore[literal-required]
            height, colour = index * row + position, styles[label].colour
            if low is not None:
                axes.plot([low, high], [height, height], color=colour, linewidth=1.4)
            if mean is not None:
                axes.scatter([mean], [height], s=20, color=colour, zorder=3)
    if is_gain:
        axes.axvline(0.0, color=INK, linewidth=0.7)
    for index in range(1, len(sites)):
        axes.axhline(index * row - 1, color=RULE, linewidth=0.6)
    axes.grid(visible=False, axis="y")
    axes.set_yticks([index * row + (row - 2) / 2 for index in range(len(sites))], sites)
    axes.set_ylim(row * len(sites) - 1, -1)
    axes.set_xlabel(axis)
    kind = "gain" if is_gain else "value"
    return plotting.render(figure, name=f"splits-{metric}-{test}-{kind}", title=title, caption="")


def _learning(document: DemoResult, site: str, styles: Mapping[str, Style]) -> ReportFigure:
    """Draw one site's Local Test over the rounds, alone and by each method; the pooled bound as a line."""
    unit = unit_of(document["metric"])
    figure, ((axes,),) = plotting.new_figure(*PANEL_INCHES)
    every_value = [value for method in document["methods"].values() for value in _values(method)]
    span = max(every_value) - min(every_value)
    for label, method in document["methods"].items():
        figures = method["sites"][site]
        if label == CENTRALISED:
            if figures["local_test"] is not None:
                axes.axhline(figures["local_test"], color=styles[label].colour, linewidth=1.6, linestyle="--")
            continue
        rounds = [int(round) for round in figures["curve"]]
        marker = "o" if len(rounds) == 1 else ""
        axes.plot(rounds, list(figures["curve"].values()), color=styles[label].colour, linewidth=2.0, marker=marker)
    axes.set_ylim(min(every_value) - 0.05 * span, max(every_value) + 0.05 * span)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=6)
    axes.set_xlabel("round")
    axes.set_ylabel(f"Local Test {unit.axis}")
    model = document["methods"]["local"]["sites"][site]["model"]
    return plotting.render(figure, name=f"learning-{site}", title=f"{site} ({model})", caption="")


def _rounds(document: DemoResult, label: str) -> int:
    """Return the number of rounds in which a method's sites received something."""
    return max(len(figures["received_from"]) for figures in document["methods"][label]["sites"].values())


def _values(method: Mapping[str, Any]) -> Iterator[float]:
    for figures in method["sites"].values():
        yield from figures["curve"].values()
        if figures["local_test"] is not None:
            yield figures["local_test"]


def _visits(document: DemoResult, label: str) -> ReportFigure:
    """Draw the sites whose models each site had in each round, a row a host, a column a round."""
    sites, hosts = _sites(document), document["methods"][label]["sites"]
    rounds, in_cell = document["size"]["rounds"], 1
    for figures in hosts.values():
        in_cell = max(in_cell, *(len(origins) for origins in figures["received_from"].values()), 1)
    row, width = in_cell + 0.6, max(2.6, 1.0 + ROUND_INCHES * rounds)
    names_in_row = max(1, min(len(sites), int(width / NAME_INCHES)))
    legend_rows = -(-len(sites) // names_in_row)
    height = 0.55 + 0.2 * legend_rows + MARKER_ROWS_INCHES * row * len(sites)
    figure, ((axes,),) = plotting.new_figure(width, height)
    points: dict[str, list[tuple[int, float]]] = {site: [] for site in sites}
    for index, host in enumerate(sites):
        for round, origins in hosts[host]["received_from"].items():
            for position, origin in enumerate(origins):
                points[origin].append((int(round), index * row + position + (in_cell - len(origins)) / 2))
        if index:
            axes.axhline(index * row - 0.8, color=RULE, linewidth=0.6)
    for index, site in enumerate(sites):
        axes.scatter(
            [x for x, _ in points[site]],
            [y for _, y in points[site]],
            s=62,
            marker=MARKERS[index % len(MARKERS)],
            color=CLASS_COLOURS[index % len(CLASS_COLOURS)],
            edgecolors=INK,
            linewidths=0.4,
            label=site,
        )
    axes.grid(visible=False)
    axes.set_yticks([index * row + (in_cell - 1) / 2 for index in range(len(sites))], sites)
    axes.set_ylim(len(sites) * row - 0.8, -0.8)
    axes.set_xlim(0.4, rounds + 0.6)
    axes.xaxis.get_major_locator().set_params(integer=True, nbins=8)
    axes.set_xlabel("round")
    figure.legend(loc="outside upper left", ncols=names_in_row, handletextpad=0.1, columnspacing=0.9)
    return plotting.render(
        figure,
        name=f"visits-{label}",
        title=f"{label}: whose models each site had in each round",
        caption="A row is a site, a marker the model (or part of one) of another site that trained there.",
    )
