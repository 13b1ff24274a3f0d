"""How sure the comparison is: paired tests over folds, and intervals from a bootstrap over subjects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from peer.classification import resampled_area
from peer.core.tasks import CLASSIFYING
from peer.research.report.comparison import Comparison, differ
from peer.research.report.published import TESTS
from peer.research.report.results import Results, RunResult
from peer.research.report.table import NOTHING, Cell, Column, Table, TableRow, unit
from peer.research.statistics.bootstrap import Counts, Interval, interval

SEED = 0


def paired(results: Results, found: Comparison, *, name: str) -> Table | None:
    """Every method against the best of each test; nothing where there is only one fold or seed."""
    rows: dict[str, list[Cell]] = {label: [] for label in found.lines}
    columns: list[Column] = []
    for test in TESTS:
        order = found.best(test)
        if len(order) < 2:
            return None
        group = f"{test.title()} Test, against {order[0]}"
        columns += [
            Column("difference", group, found.unit.digits),
            Column("95 % interval", group),
            Column("p", group, 4),
        ]
        for label in rows:
            span, p, _ = differ(found.lines[label], found.lines[order[0]], test)
            if label == order[0] or span is None:
                rows[label] += [Cell(text="best" if label == order[0] else NOTHING), Cell(), Cell()]
                continue
            difference, low, high = (value * found.unit.factor for value in span)
            digits = found.unit.digits
            rows[label] += [
                Cell(difference), Cell(text=f"{low:+.{digits}f} to {high:+.{digits}f}"), _chance(p)
            ]  # fmt: skip
    if not any(cell.value is not None for cells in rows.values() for cell in cells):
        return None
    what = "folds" if results.experiment["folds"] else "seeds"
    notes = (
        f"Student's paired t-test, two-sided, over {what}, of the column Mean; not corrected for the number of "
        f"comparisons. {what.title()} share samples, so that p is smaller than it would be with new data.",
    )
    made = tuple(TableRow(label, tuple(cells)) for label, cells in rows.items())
    return Table(name, f"Paired differences, {found.unit.axis}", "method", tuple(columns), made, notes)


def bootstrap(
    results: Results, found: Comparison, setting: tuple[str, str], *, resamples: int, name: str
) -> Table | None:
    """Intervals of every method's mean Local Test; nothing without stored predictions or scores."""
    rows = []
    for label in found.lines:
        sure = local_interval(results, results.select(setting, label), resamples=resamples)
        if sure is None or sure.value is None:
            continue
        factor = found.unit.factor
        span = [None if value is None else value * factor for value in (sure.value, sure.low, sure.high)]
        rows.append(
            TableRow(label, (*(Cell(value) for value in span), Cell(float(sure.subjects)), Cell(float(sure.undefined))))
        )
    if not rows:
        return None
    digits = unit(results.metric).digits if found.unit.factor == 1 else found.unit.digits
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
    return Table(name, f"Bootstrap over subjects, {found.unit.axis}", "method", columns, tuple(rows), notes)


def local_interval(results: Results, runs: Sequence[RunResult], *, resamples: int) -> Interval | None:
    """The interval of the mean over runs of the mean over sites; nothing where the runs kept no predictions."""
    scored = _classified(runs) if results.kind in CLASSIFYING else _scored(runs, results.metric)
    if not scored:
        return None
    subjects = [subject for _, _, _, found in scored for subject in found]
    ends = np.cumsum([len(found) for _, _, _, found in scored])

    def statistic(counts: Counts) -> NDArray[np.float64]:
        by_run: dict[int, list[NDArray[np.float64]]] = {}
        for (run, values, labels, _), own in zip(scored, np.split(counts, ends[:-1], axis=1), strict=True):
            by_run.setdefault(run, []).append(_mean(values, own) if labels is None else _areas(values, labels, own))
        return _average([_average(sites) for sites in by_run.values()])

    return interval(statistic, subjects, seed=SEED, resamples=resamples)


Scored = list[tuple[int, NDArray[np.float64], NDArray[np.int64] | None, list[str]]]
"""Of each run and site: number of the run, probabilities or scores, labels, and whose each sample is."""


def _classified(runs: Sequence[RunResult]) -> Scored:
    found: Scored = []
    for number, run in enumerate(runs):
        for site in sorted(run.sites):
            pair = run.classified(site, site)
            if pair is not None and len(pair[1]):
                found.append((number, *pair, _subjects(run, site, len(pair[1]))))
    return found


def _scored(runs: Sequence[RunResult], metric: str) -> Scored:
    found: Scored = []
    for number, run in enumerate(runs):
        for site, scores in sorted(run.scores.items()):
            values = np.array([score.get(metric, np.nan) for score in scores], dtype=np.float64)
            if len(values):
                found.append((number, values, None, _subjects(run, site, len(values))))
    return found


def _subjects(run: RunResult, site: str, count: int) -> list[str]:
    """Whose each sample is, at whatever site; without a subject an image is its own, the same in every seed."""
    samples = run.samples.get(site, ())
    if len(samples) != count:
        return [f"{site}/{run.id}/{index}" for index in range(count)]
    named = [(sample.get("subject"), sample.get("image")) for sample in samples]
    return [f"image {image}" if subject is None else f"subject {subject}" for subject, image in named]


def _chance(p: float | None) -> Cell:
    """p, but never as nought."""
    return Cell(text="< 0.0001") if p is not None and p < 1e-4 else Cell(p)


def _mean(values: NDArray[np.float64], counts: Counts) -> NDArray[np.float64]:
    """The mean score of each resample; a sample without one is left out."""
    known = np.isfinite(values)
    total = counts[:, known].sum(axis=1)
    found = counts[:, known] @ values[known]
    means: NDArray[np.float64] = np.divide(found, total, out=np.full(len(counts), np.nan), where=total > 0)
    return means


def _areas(values: NDArray[np.float64], labels: NDArray[np.int64], counts: Counts) -> NDArray[np.float64]:
    """The AUC of each resample, of more than two classes the mean of one against the rest."""
    classes = range(values.shape[1]) if values.shape[1] > 2 else (1,)
    return _average([resampled_area(values[:, k], labels == k, counts) for k in classes])


def _average(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """The mean of the parts that are defined, place by place; NaN where none is."""
    stacked = np.stack(parts)
    known = np.isfinite(stacked)
    means: NDArray[np.float64] = np.divide(
        np.where(known, stacked, 0.0).sum(axis=0),
        known.sum(axis=0),
        out=np.full(stacked.shape[1], np.nan),
        where=known.any(axis=0),
    )
    return means
