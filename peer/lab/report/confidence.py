"""Paired tests of a comparison over folds, and intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peer.classification import resampled_area
from peer.core.tasks import CLASSIFYING
from peer.lab.report.comparison import Comparison, paired_difference
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow, unit_of
from peer.lab.statistics.bootstrap import Counts, Interval, interval

SEED = 0


def paired_table(results: Results, comparison: Comparison, *, name: str) -> Table | None:
    """A table of each method against the best of each test; None for a single fold or seed."""
    rows: dict[str, list[Cell]] = {label: [] for label in comparison.methods}
    columns: list[Column] = []
    for test in TESTS:
        order = comparison.best(test)
        if len(order) < 2:
            return None
        group = f"{test.title()} Test, against {order[0]}"
        columns += [
            Column("difference", group, comparison.unit.digits),
            Column("95 % interval", group),
            Column("p", group, 4),
        ]
        for label in rows:
            span, p, _ = paired_difference(comparison.methods[label], comparison.methods[order[0]], test)
            if label == order[0] or span is None:
                rows[label] += [Cell(text="best" if label == order[0] else EMPTY), Cell(), Cell()]
                continue
            difference, low, high = (value * comparison.unit.factor for value in span)
            digits = comparison.unit.digits
            rows[label] += [
                Cell(difference), Cell(text=f"{low:+.{digits}f} to {high:+.{digits}f}"), p_cell(p)
            ]  # fmt: skip
    if not any(cell.value is not None for cells in rows.values() for cell in cells):
        return None
    units_name = "folds" if results.experiment["folds"] else "seeds"
    notes = (
        f"Student's paired t-test, two-sided, over {units_name}, of the column Mean; not corrected for the number of "
        f"comparisons. {units_name.title()} share samples, so that p is smaller than it would be with new data.",
    )
    table_rows = tuple(TableRow(label, tuple(cells)) for label, cells in rows.items())
    return Table(name, f"Paired differences, {comparison.unit.axis}", "method", tuple(columns), table_rows, notes)


def bootstrap_table(
    results: Results, comparison: Comparison, setting: tuple[str, str], *, resamples: int, name: str
) -> Table | None:
    """A table of intervals of every method's mean Local Test; None without stored predictions."""
    rows = []
    for label in comparison.methods:
        estimate = local_interval(results, results.select(setting, label), resamples=resamples)
        if estimate is None or estimate.value is None:
            continue
        factor = comparison.unit.factor
        span = [None if value is None else value * factor for value in (estimate.value, estimate.low, estimate.high)]
        rows.append(
            TableRow(
                label,
                (*(Cell(value) for value in span), Cell(float(estimate.subjects)), Cell(float(estimate.undefined))),
            )
        )
    if not rows:
        return None
    digits = unit_of(results.metric).digits if comparison.unit.factor == 1 else comparison.unit.digits
    columns = (
        Column("Mean", "Local Test", digits),
        Column("2.5 %", "Local Test", digits),
        Column("97.5 %", "Local Test", digits),
        Column("subjects", digits=0),
        Column("undefined resamples", digits=0),
    )
    notes = (
        f"{resamples:,} resamples of subjects, not of images, the same in all runs; percentiles. The interval is that "
        "of other test subjects for these very models: training is not repeated. A resample without a class is "
        "scored without it, which moves the interval where classes are rare.",
    )
    return Table(name, f"Bootstrap over subjects, {comparison.unit.axis}", "method", columns, tuple(rows), notes)


def local_interval(results: Results, runs: Sequence[RunResult], *, resamples: int) -> Interval | None:
    """The interval of the mean over runs and sites; None without stored predictions."""
    site_results = _collect_predictions(runs) if results.kind in CLASSIFYING else _collect_scores(runs, results.metric)
    if not site_results:
        return None
    subjects = [subject for _, _, _, subjects_of_site in site_results for subject in subjects_of_site]
    ends = np.cumsum([len(subjects_of_site) for _, _, _, subjects_of_site in site_results])

    def statistic(counts: Counts) -> NDArray[np.float64]:
        by_run: dict[int, list[NDArray[np.float64]]] = {}
        for (run, values, labels, _), own_counts in zip(site_results, np.split(counts, ends[:-1], axis=1), strict=True):
            by_run.setdefault(run, []).append(
                _mean(values, own_counts) if labels is None else _areas(values, labels, own_counts)
            )
        return _average([_average(sites) for sites in by_run.values()])

    return interval(statistic, subjects, seed=SEED, resamples=resamples)


SiteResults = list[tuple[int, NDArray[np.float64], NDArray[np.int64] | None, list[str]]]
"""By run and site: number of the run, probabilities or scores, labels, samples' subjects."""


def _collect_predictions(runs: Sequence[RunResult]) -> SiteResults:
    site_results: SiteResults = []
    for number, run in enumerate(runs):
        for site in sorted(run.sites):
            pair = run.predictions(site, site)
            if pair is not None and len(pair[1]):
                site_results.append((number, *pair, _subjects(run, site, len(pair[1]))))
    return site_results


def _collect_scores(runs: Sequence[RunResult], metric: str) -> SiteResults:
    site_results: SiteResults = []
    for number, run in enumerate(runs):
        for site, scores in sorted(run.scores.items()):
            values = np.array([score.get(metric, np.nan) for score in scores], dtype=np.float64)
            if len(values):
                site_results.append((number, values, None, _subjects(run, site, len(values))))
    return site_results


def _subjects(run: RunResult, site: str, count: int) -> list[str]:
    """The subject of each sample, equal at all sites and in all seeds; by default the image."""
    samples = run.samples.get(site, ())
    if len(samples) != count:
        return [f"{site}/{run.id}/{index}" for index in range(count)]
    names = [(sample.get("subject"), sample.get("image")) for sample in samples]
    return [f"image {image}" if subject is None else f"subject {subject}" for subject, image in names]


def p_cell(p: float | None) -> Cell:
    """A cell of p; values that would be shown as 0 are shown as a bound."""
    return Cell(text="< 0.0001") if p is not None and p < 1e-4 else Cell(p)


def _mean(values: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
    """The mean score of each resample; samples without a score are left out."""
    known = np.isfinite(values)
    total = counts[:, known].sum(axis=1)
    sums = counts[:, known] @ values[known]
    means: NDArray[np.float64] = np.divide(sums, total, out=np.full(len(counts), np.nan), where=total > 0)
    return means


def _areas(values: NDArray[np.float64], labels: NDArray[np.int64], counts: Counts) -> NDArray[np.float64]:
    """The AUC of each resample; for several classes the mean of each against the rest."""
    classes = range(values.shape[1]) if values.shape[1] > 2 else (1,)
    return _average([resampled_area(values[:, k], labels == k, counts) for k in classes])


def _average(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The elementwise mean of the parts, without undefined values; NaN where all are undefined."""
    stacked = np.stack(parts)
    known = np.isfinite(stacked)
    means: NDArray[np.float64] = np.divide(
        np.where(known, stacked, 0.0).sum(axis=0),
        known.sum(axis=0),
        out=np.full(stacked.shape[1], np.nan),
        where=known.any(axis=0),
    )
    return means
