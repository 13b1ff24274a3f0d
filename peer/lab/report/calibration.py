"""Calibration of classifiers: expected calibration error, Brier score, reliability diagrams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from peer.classification import Labels, Probabilities
from peer.core.tasks import CLASSIFYING
from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.measurements import Measurements, mean_cells
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.published import TESTS
from peer.lab.report.results import RunResult
from peer.lab.report.table import Column, Table, lay_out
from peer.lab.statistics.calibration import BINS, brier_score, expected_calibration_error, reliability

Score = Callable[[Probabilities, Labels], float | None]
SCORES: Mapping[str, Score] = {"ECE": expected_calibration_error, "Brier": brier_score}


def table(comparison: Comparison, *, name: str) -> Table | None:
    """Tabulate both scores of every method in both tests; None without stored predictions."""
    results = comparison.results
    if results.kind not in CLASSIFYING:
        return None
    measured = Measurements(results, SCORES, _scores_of_predictions)
    by_score = {score: measured.scores(comparison.setting, score) for score in SCORES}
    columns = [
        (
            Column(score, f"{test.title()} Test", 3, "lower"),
            mean_cells(by_score[score].means[test], factor=1.0, ddof=results.ddof),
        )
        for test in TESTS
        for score in SCORES
    ]
    if not any(cells for _, cells in columns):
        return None
    notes = (
        f"Lower is better; mean over sites, over {results.repeats}. ECE: expected calibration error of the predicted "
        f"class, {BINS} bins of equal width; of few test samples it is above zero for any network. Brier: mean squared "
        "distance of all classes' probabilities from the truth, from 0 to 2 (for two classes twice the score of one).",
    )
    return lay_out(name, "Calibration", columns, comparison.labels, ranked=comparison.ranked, notes=notes)


def _scores_of_predictions(run: RunResult, model: str, split: str) -> dict[str, float | None]:
    pair = run.predictions(model, split)
    return {} if pair is None else {name: score(*pair) for name, score in SCORES.items()}


def diagram(comparison: Comparison, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot a reliability diagram a method, of the Local Test of all sites and runs; None without stored predictions."""
    runs = {label: comparison.results.select(comparison.setting, label) for label in comparison.labels}
    pairs_by_label = {label: _pooled_predictions(runs[label]) for label in comparison.labels}
    pooled = {label: pair for label, pair in pairs_by_label.items() if pair is not None}
    if not pooled:
        return None
    figure, panels = plotting.new_panels(len(pooled))
    for axes, (label, pair) in zip(panels, pooled.items(), strict=True):
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
    own = [predictions for run in runs for predictions in run.own_predictions()]
    if not own:
        return None
    return np.concatenate([each.probabilities for each in own]), np.concatenate([each.labels for each in own])
