"""Survival in the report: Kaplan-Meier curves of persons by predicted risk, beside their predictions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from peer.lab.report import plotting
from peer.lab.report.comparison import Comparison
from peer.lab.report.measurements import Measurements, matrix_value, mean_cells
from peer.lab.report.plotting import ReportFigure, Style
from peer.lab.report.results import RunResult
from peer.lab.report.table import Column, Table, lay_out
from peer.survival import censor_at, interpolate_survival, kaplan_meier, log_rank, risk_groups

HALVES = ("higher risk", "lower risk")
CALIBRATION = (
    ("observed_expected", "O/E", "Local Test"),
    ("calibration_slope", "slope", "Local Test"),
    *((f"{what}_{half}_risk", what, f"survival, {half} risk") for half in ("higher", "lower")
      for what in ("predicted", "observed")),
)  # fmt: skip
"""Metrics of the calibration table, with heading and group of their columns."""
P_MIN = 0.001
"""The smallest p-value that is written out."""


@dataclass(frozen=True, slots=True)
class Half:
    """The test persons of all sites whose model gives them a risk above its median, or not above it.

    ``curves`` are the predicted survival at the agreed times, ``(n, times)``.
    """

    times: NDArray[np.float64]
    events: NDArray[np.bool_]
    curves: NDArray[np.float64]


def figure(comparison: Comparison, styles: Mapping[str, Style], *, name: str) -> ReportFigure | None:
    """Plot for each method the survival of both halves; ``None`` if no time to an event is predicted."""
    results = comparison.results
    if results.kind != "survival":
        return None
    task = results.experiment["task"]
    ends, horizon = np.array(task["times"], dtype=np.float64), float(task.get("horizon") or task["times"][-1])
    runs = {label: results.select(comparison.setting, label) for label in comparison.labels}
    halves = {label: both for label in runs if (both := split_by_risk(runs[label], ends, horizon)) is not None}
    if not halves:
        return None
    drawing, panels = plotting.new_panels(len(halves))
    for axes, (label, both) in zip(panels, halves.items(), strict=True):
        for half, words, line in zip(both, HALVES, ("-", "--"), strict=True):
            estimate = kaplan_meier(*censor_at(half.times, half.events, float(ends[-1])))
            moments = np.concatenate([[0.0], estimate.times])
            survived = np.concatenate([[1.0], estimate.survival])
            axes.step(
                moments, survived, where="post", color=styles[label].colour, linestyle=line, linewidth=1.2, label=words
            )
            axes.scatter(ends, half.curves.mean(axis=0), s=9, color=styles[label].colour, linewidth=0, alpha=0.7)
        axes.axvline(horizon, color=plotting.INK, linewidth=0.7, linestyle=":")
        axes.set_title(f"{label}{_log_rank_words(runs[label], ends, horizon)}", fontsize=8.5)
        axes.set_ylim(0, 1.02)
        axes.set_xlim(0, float(ends[-1]))
    panels[0].legend(fontsize=7, loc="upper right", frameon=False)
    drawing.supxlabel(f"time{', ' + task['unit'] if task.get('unit') else ''}", fontsize=9)
    drawing.supylabel("share without the event", fontsize=9)
    return plotting.render(
        drawing,
        name=name,
        title="Survival by predicted risk",
        caption="Local Test, all sites and runs together; repeated runs test the same persons again. Each site's model "
        "divides its own test persons at the median of the risk that it predicts until the horizon, the dotted line. "
        "Lines: Kaplan-Meier; discs: the mean of the predicted survival at the agreed times. p: log-rank test of both "
        "halves, the median of the runs' p-values, as every run tests a person once.",
    )


def _log_rank_words(runs: Sequence[RunResult], ends: NDArray[np.float64], horizon: float) -> str:
    """Return the median over runs of the log-rank p-value of both halves, in words; empty where no run has one."""
    values = [log_rank_p(both, ends) for run in runs if (both := split_by_risk([run], ends, horizon)) is not None]
    known = [value for value in values if value is not None]
    if not known:
        return ""
    middle = float(np.median(known))
    return ", p < 0.001" if middle < P_MIN else f", p = {middle:.3f}"


def log_rank_p(halves: tuple[Half, Half], ends: NDArray[np.float64]) -> float | None:
    """Test whether both halves have the same survival until the last of the agreed times."""
    times, events = (np.concatenate([getattr(half, name) for half in halves]) for name in ("times", "events"))
    second = np.arange(len(times)) >= len(halves[0].times)
    return log_rank(*censor_at(times, events, float(ends[-1])), second)


def calibration_table(comparison: Comparison, *, name: str) -> Table | None:
    """Tabulate each method's calibration of predicted against observed survival; ``None`` without such figures."""
    results = comparison.results
    if results.kind != "survival":
        return None
    measured = Measurements(results, [metric for metric, _, _ in CALIBRATION], matrix_value)
    columns = [
        (
            Column(heading, group, 3),
            mean_cells(measured.scores(comparison.setting, metric).means["local"], factor=1.0, ddof=results.ddof),
        )
        for metric, heading, group in CALIBRATION
    ]
    if not any(cells for _, cells in columns):
        return None
    notes = (
        f"At the horizon, on each site's own test persons; mean over sites, over {results.repeats}. O/E: observed over "
        "expected probability of an event, 1 where a model is right on average. Slope: coefficient of log(-log S) of "
        "the predicted survival S in a Cox model, 1 is best, below 1 predictions are too extreme. Then the predicted "
        "and the observed (Kaplan-Meier) survival of each site's halves by predicted risk.",
    )
    return lay_out(name, "Calibration of survival", columns, comparison.labels, ranked=comparison.ranked, notes=notes)


def split_by_risk(runs: Sequence[RunResult], ends: NDArray[np.float64], horizon: float) -> tuple[Half, Half] | None:
    """Divide the test persons of each site at the median of their predicted risk; ``None`` without predictions."""
    parts: list[list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = [[], []]
    for run in runs:
        arrays = run.arrays("predictions")
        for site in sorted(run.sites):
            if f"p/{site}/{site}" not in arrays or f"t/{site}" not in arrays:
                continue
            curves, people = arrays[f"p/{site}/{site}"].astype(np.float64), arrays[f"t/{site}"]
            higher = risk_groups(interpolate_survival(curves, ends, horizon), len(HALVES)) > 0
            for part, chosen in zip(parts, (higher, ~higher), strict=True):
                part.append((curves[chosen], people[chosen]))
    if not all(sum(len(people) for _, people in part) for part in parts):
        return None
    higher_half, lower_half = (
        Half(
            np.concatenate([people[:, 0] for _, people in part]),
            np.concatenate([people[:, 1] for _, people in part]) > 0,
            np.concatenate([curves for curves, _ in part]),
        )
        for part in parts
    )
    return higher_half, lower_half
