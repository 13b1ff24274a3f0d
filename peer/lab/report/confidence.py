"""Paired tests of a comparison over folds, and intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peer.classification import resampled_area
from peer.core.tasks import CLASSIFYING
from peer.lab.report.comparison import Comparison
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import EMPTY, Cell, Column, Table, lay_out, unit_of
from peer.lab.statistics.bootstrap import Counts, Interval, interval

SEED = 0


def paired_table(comparison: Comparison, *, name: str) -> Table | None:
    """A table of each method against the best of each test; None for a single fold or seed."""
    unit, columns = comparison.unit, []
    for test in TESTS:
        order = comparison.best(test)
        if len(order) < 2:
            return None
        group = f"{test.title()} Test, against {order[0]}"
        differences = {order[0]: Cell(text="best")}
        spans, chances = {}, {}
        for label in comparison.labels:
            result = comparison.paired(label, order[0], test)
            if label == order[0]:
                continue
            if result.difference is None or result.low is None or result.high is None:
                differences[label] = Cell(text=EMPTY)
                continue
            low, high = (f"{end * unit.factor:+.{unit.digits}f}" for end in (result.low, result.high))
            differences[label], spans[label] = Cell(result.difference * unit.factor), Cell(text=f"{low} to {high}")
            chances[label] = p_cell(result.p)
        columns += [
            (Column("difference", group, unit.digits), differences),
            (Column("95 % interval", group), spans),
            (Column("p", group, 4), chances),
        ]
    if not any(cell.value is not None for _, cells in columns for cell in cells.values()):
        return None
    units_name = "folds" if comparison.results.experiment["folds"] else "seeds"
    notes = (
        f"Student's paired t-test, two-sided, over {units_name}, of the column Mean; not corrected for the number of "
        f"comparisons. {units_name.title()} share samples, so that p is smaller than it would be with new data.",
    )
    return lay_out(name, f"Paired differences, {unit.axis}", columns, comparison.labels, notes=notes)


def bootstrap_table(comparison: Comparison, *, resamples: int, name: str) -> Table | None:
    """A table of intervals of every method's mean Local Test; None without stored predictions."""
    results, factor = comparison.results, comparison.unit.factor
    intervals = {
        label: estimate
        for label in comparison.labels
        if (estimate := local_interval(results, results.select(comparison.setting, label), resamples=resamples))
        and estimate.value is not None
    }
    if not intervals:
        return None
    digits = unit_of(results.metric).digits if factor == 1 else comparison.unit.digits
    columns = [
        (
            Column(heading, "Local Test", digits),
            {
                label: Cell(value * factor)
                for label, estimate in intervals.items()
                if (value := getattr(estimate, key)) is not None
            },
        )
        for heading, key in (("Mean", "value"), ("2.5 %", "low"), ("97.5 %", "high"))
    ]
    columns += [
        (
            Column(heading, digits=0),
            {label: Cell(float(getattr(estimate, key))) for label, estimate in intervals.items()},
        )
        for heading, key in (("subjects", "subjects"), ("undefined resamples", "undefined"))
    ]
    notes = (
        f"{resamples:,} resamples of subjects, not of images, the same in all runs; percentiles. The interval is that "
        "of other test subjects for these very models: training is not repeated. A resample without a class is "
        "scored without it, which moves the interval where classes are rare.",
    )
    return lay_out(name, f"Bootstrap over subjects, {comparison.unit.axis}", columns, intervals.keys(), notes=notes)


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
