"""Calibration of classifiers: expected calibration error, Brier score, reliability diagrams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from peer.classification import Labels, Probabilities
from peer.core.tasks import CLASSIFYING
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison, cell, summarise_method, test_row
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell, Column, Table, TableRow, Unit
from peer.lab.statistics.calibration import BINS, brier_score, expected_calibration_error, reliability

Score = Callable[[Probabilities, Labels], float | None]
SCORES: Mapping[str, Score] = {"ECE": expected_calibration_error, "Brier": brier_score}
COLUMNS_MAX = 4


def table(results: Results, comparison: Comparison, setting: tuple[str, str], *, name: str) -> Table | None:
    """Both scores of every method in both tests; None without stored predictions."""
    if results.kind not in CLASSIFYING:
        return None
    rows = []
    for label in comparison.methods:
        cells: list[Cell] = []
        for test in TESTS:
            for score, measure in SCORES.items():
                values = summarise_method(results, setting, label, score, measure=_on_predictions(measure))
                assert values is not None, f"{label} has runs"
                cells.append(cell(test_row(values, test).mean, Unit(score), len(values.units)))
        rows.append(TableRow(label, tuple(cells), ranked=label in comparison.ranked))
    if all(cell.value is None for row in rows for cell in row.cells):
        return None
    columns = tuple(Column(score, f"{test.title()} Test", 3, "lower") for test in TESTS for score in SCORES)
    notes = (
        f"Lower is better; mean over sites, over {results.repeats}. ECE: expected calibration error of the predicted "
        f"class, {BINS} bins of equal width; of few test samples it is above zero for any network. Brier: mean squared "
        "distance of all classes' probabilities from the truth, from 0 to 2 (for two classes twice the score of one).",
    )
    return Table(name, "Calibration", "method", columns, tuple(rows), notes).with_ranks()


def _on_predictions(score: Score) -> Callable[[RunResult, str, str], float | None]:
    def measure(run: RunResult, model: str, split: str) -> float | None:
        pair = run.predictions(model, split)
        return None if pair is None else score(*pair)

    return measure


def diagram(
    results: Results,
    labels: Sequence[str],
    setting: tuple[str, str],
    styles: Mapping[str, Style],
    *,
    name: str,
) -> ReportFigure | None:
    """A reliability diagram a method, of the Local Test of all sites and runs together; None
    without stored predictions.
    """
    pairs_by_label = {label: _pooled_predictions(results.select(setting, label)) for label in labels}
    pooled = {label: pair for label, pair in pairs_by_label.items() if pair is not None}
    if not pooled:
        return None
    columns = min(COLUMNS_MAX, len(pooled))
    rows = -(-len(pooled) // columns)
    figure, grid = plotting.new_figure(
        0.6 + 1.9 * columns, 0.5 + 2.0 * rows, rows=rows, columns=columns, sharex=True, sharey=True
    )
    all_axes = [axes for line in grid for axes in line]
    for axes, (label, pair) in zip(all_axes, pooled.items(), strict=False):
        curve = reliability(*pair)
        known = curve.counts > 0
        axes.plot([0, 1], [0, 1], color=plotting.INK, linewidth=0.7, linestyle=":", zorder=1)
        axes.vlines(
            curve.confidence[known], curve.confidence[known], curve.accuracy[known],
            color=styles[label].colour, linewidth=0.8, alpha=0.6,
        )  # fmt: skip
        axes.plot(curve.confidence[known], curve.accuracy[known], color=styles[label].colour, linewidth=1.4)
        sizes = 4 + 90 * curve.counts[known] / curve.counts.sum()
        axes.scatter(curve.confidence[known], curve.accuracy[known], s=sizes, color=styles[label].colour, linewidth=0)
        axes.set_title(label, fontsize=8.5)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(0, 1.02)
        axes.set_box_aspect(1)
    for axes in all_axes[len(pooled) :]:
        axes.set_visible(False)
    figure.supxlabel("probability of the predicted class", fontsize=9)
    figure.supylabel("share of right predictions", fontsize=9)
    return plotting.render(
        figure,
        name=name,
        title="Reliability",
        caption="Local Test, all sites and runs together. On the dotted line a network is right as often as its "
        "probabilities say; below it, it is too sure of itself. The area of a disc is the number of samples.",
    )


def _pooled_predictions(runs: Sequence[RunResult]) -> tuple[Probabilities, Labels] | None:
    pairs = [pair for run in runs for site in sorted(run.sites) if (pair := run.predictions(site, site)) is not None]
    if not pairs:
        return None
    probabilities, labels = zip(*pairs, strict=True)
    return np.concatenate(probabilities), np.concatenate(labels)
