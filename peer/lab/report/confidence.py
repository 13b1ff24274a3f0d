"""Paired tests of a comparison over folds, and intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from peer.classification import resampled_area
from peer.core.tasks import CLASSIFYING
from peer.lab.report.comparison import Comparison
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import EMPTY, Cell, Column, Table, lay_out, number_cells, unit_of
from peer.lab.statistics.bootstrap import Counts, Interval, interval

SEED = 0


def paired_table(comparison: Comparison, *, name: str) -> Table | None:
    """Compare each method with the best of each test; None for a single fold or seed."""
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
    """Tabulate intervals of every method's mean Local Test; None without stored predictions."""
    results, unit = comparison.results, comparison.unit
    runs = {label: results.select(comparison.setting, label) for label in comparison.labels}
    estimates = {label: local_interval(results, runs[label], resamples=resamples) for label in comparison.labels}
    known = {label: asdict(each) for label, each in estimates.items() if each is not None and each.value is not None}
    if not known:
        return None
    numbers = pd.DataFrame(known).T.astype(float)
    numbers[["value", "low", "high"]] *= unit.factor
    digits = unit_of(results.metric).digits if unit.factor == 1 else unit.digits
    columns = {
        "value": Column("Mean", "Local Test", digits),
        "low": Column("2.5 %", "Local Test", digits),
        "high": Column("97.5 %", "Local Test", digits),
        "subjects": Column("subjects", digits=0),
        "undefined": Column("undefined resamples", digits=0),
    }
    notes = (
        f"{resamples:,} resamples of subjects, not of images, the same in all runs; percentiles. The interval is that "
        "of other test subjects for these very models: training is not repeated. A resample without a class is "
        "scored without it, which moves the interval where classes are rare.",
    )
    cells = [(column, number_cells(numbers[key])) for key, column in columns.items()]
    return lay_out(name, f"Bootstrap over subjects, {unit.axis}", cells, known, notes=notes)


def local_interval(results: Results, runs: Sequence[RunResult], *, resamples: int) -> Interval | None:
    """Compute the interval of the mean over runs and sites; None without stored predictions."""
    sites_by_run = [list(_sites_of(run, results)) for run in runs]
    subjects = [subject for sites in sites_by_run for site in sites for subject in site.subjects]
    if not subjects:
        return None

    def statistic(counts: Counts) -> NDArray[np.float64]:
        by_run, begin = [], 0
        for sites in sites_by_run:
            values = []
            for site in sites:
                end = begin + len(site.subjects)
                values.append(site.resampled(counts[:, begin:end]))
                begin = end
            if values:
                by_run.append(_average(values))
        return _average(by_run)

    return interval(statistic, subjects, seed=SEED, resamples=resamples)


@dataclass(frozen=True)
class _SiteValues:
    """The subjects of a site's test samples, and the mean score or AUC of their resamples."""

    subjects: Sequence[str]
    resampled: Callable[[Counts], NDArray[np.float64]]


def _sites_of(run: RunResult, results: Results) -> Iterator[_SiteValues]:
    """Yield the sites of a run that have test samples, by name."""
    if results.kind in CLASSIFYING:
        for own in run.own_predictions():
            if len(own.labels):
                subjects = _subjects(run, own.site, len(own.labels))
                yield _SiteValues(subjects, partial(_areas, own.probabilities, own.labels))
        return
    for site, scores in sorted(run.scores.items()):
        if scores:
            values = np.array([score.get(results.metric, np.nan) for score in scores], dtype=np.float64)
            yield _SiteValues(_subjects(run, site, len(values)), partial(_mean, values))


def _subjects(run: RunResult, site: str, count: int) -> list[str]:
    """Return the subject of each sample, equal at all sites and in all seeds; by default the image."""
    samples = run.samples.get(site, ())
    if len(samples) != count:
        return [f"{site}/{run.id}/{index}" for index in range(count)]
    names = [(sample.get("subject"), sample.get("image")) for sample in samples]
    return [f"image {image}" if subject is None else f"subject {subject}" for subject, image in names]


def p_cell(p: float | None) -> Cell:
    """Make a cell of p; values that would be shown as 0 are shown as an upper bound."""
    return Cell(text="< 0.0001") if p is not None and p < 1e-4 else Cell(p)


def _mean(values: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
    """Compute the mean score of each resample; samples without a score are left out."""
    known = np.isfinite(values)
    total = counts[:, known].sum(axis=1)
    sums = counts[:, known] @ values[known]
    means: NDArray[np.float64] = np.divide(sums, total, out=np.full(len(counts), np.nan), where=total > 0)
    return means


def _areas(values: NDArray[np.float64], labels: NDArray[np.int64], counts: Counts) -> NDArray[np.float64]:
    """Compute the AUC of each resample; for several classes the mean of each against the rest."""
    classes = range(values.shape[1]) if values.shape[1] > 2 else (1,)
    return _average([resampled_area(values[:, k], labels == k, counts) for k in classes])


def _average(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Compute the elementwise mean of the parts, without undefined values; NaN where all are undefined."""
    stacked = np.stack(parts)
    known = np.isfinite(stacked)
    means: NDArray[np.float64] = np.divide(
        np.where(known, stacked, 0.0).sum(axis=0),
        known.sum(axis=0),
        out=np.full(stacked.shape[1], np.nan),
        where=known.any(axis=0),
    )
    return means
