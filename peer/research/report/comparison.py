"""From runs to rows: Local and Global Test of a method over folds, or over seeds where there are no folds."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from peer.research.report.published import MEAN, TESTS, Published, plain
from peer.research.report.results import Results, RunResult
from peer.research.report.table import NOTHING, Cell, Column, Table, TableRow, Unit, unit
from peer.research.result_files import CENTRALISED, UNDISTURBED
from peer.research.statistics import tables
from peer.research.statistics.significance import paired_t
from peer.research.statistics.tables import Matrix, ResultRow, average, generalisation, global_test, local_test


@dataclass(frozen=True)
class MethodInSetting:
    """A method in one setting.

    Attributes:
        units: the folds, or the seeds where there are no folds, that have a run; the spreads are in this order.
        local: its Local Test.
        overall: its Global Test; a site whose model cannot be tried on every site's data has none.
        matrix: every model on every site's test data, the mean over units.
        single_model: whether all sites have the same network in the end.
    """

    units: tuple[int, ...]
    local: ResultRow
    overall: ResultRow
    matrix: Mapping[str, Mapping[str, float | None]]
    single_model: bool

    def means(self, test: str) -> dict[int, float | None]:
        """The column "Mean" of ``local`` or ``global`` by fold or seed."""
        row = self.local if test == "local" else self.overall
        return dict(zip(self.units, row.mean.folds, strict=True))


def line(
    results: Results,
    setting: tuple[str, str],
    label: str,
    metric: str,
    *,
    links: str = UNDISTURBED,
    without: Collection[str] = (),
) -> MethodInSetting | None:
    """A method's values, of all sites but some; nothing where it has no run."""
    runs = results.select(setting, label, links)
    if not runs:
        return None
    by_unit: dict[int, list[RunResult]] = {}
    for run in runs:
        by_unit.setdefault(run.fold if results.experiment["folds"] else run.seed, []).append(run)
    sites = [site for site in sorted(runs[0].sites) if site not in without]
    if not sites:
        return None
    matrices = [_mean([_matrix(run, metric, sites) for run in found]) for found in by_unit.values()]
    tried = {model: all(run.matrix.get(model, {}).get(split) for run in runs for split in sites) for model in sites}
    whole = [
        {model: (row if tried[model] else dict.fromkeys(row)) for model, row in matrix.items()} for matrix in matrices
    ]
    return MethodInSetting(
        units=tuple(by_unit),
        local=local_test(matrices),
        overall=global_test(whole),
        matrix={
            model: {split: spread.mean for split, spread in row.items()}
            for model, row in generalisation(matrices).items()
        },
        single_model=all(run.single_model for run in runs),
    )


def _matrix(run: RunResult, metric: str, sites: Sequence[str]) -> Matrix:
    return {model: {split: run.matrix.get(model, {}).get(split, {}).get(metric) for split in sites} for model in sites}


def _mean(matrices: Sequence[Matrix]) -> Matrix:
    if len(matrices) == 1:
        return matrices[0]
    return {
        model: {split: average(matrix[model][split] for matrix in matrices).value for split in row}
        for model, row in matrices[0].items()
    }


SIGNIFICANT = ((0.02, "**"), (0.05, "*"))
"""FedSKD marks p < 0.05 in its table II and p < 0.02 in its table III."""
Setting = tuple[str, str]


@dataclass(frozen=True)
class Comparison:
    """All methods of one setting by one metric.

    Attributes:
        table: as it is shown.
        lines: the methods that ran, by label.
        metric: which.
        unit: of the metric.
        ranked: the labels that compete; the pooled bound does not.
    """

    table: Table
    lines: Mapping[str, MethodInSetting]
    metric: str
    unit: Unit
    ranked: tuple[str, ...]

    def best(self, test: str) -> list[str]:
        """The competing labels from the best mean of a test to the worst."""
        found = {label: row(self.lines[label], test).mean.mean for label in self.ranked}
        known = {label: value for label, value in found.items() if value is not None}
        return sorted(known, key=lambda label: known[label], reverse=self.unit.higher)


def compare(
    results: Results,
    setting: Setting,
    metric: str,
    published: Published | None,
    *,
    printed: str | None = None,
    name: str,
) -> Comparison:
    """The table of one setting and metric.

    Args:
        results: the runs.
        setting: partition and set of networks.
        metric: which.
        published: whose rows stand beside.
        printed: in which unit that paper has shares, ``percent`` or ``fraction``.
        name: stem of the table's files.
    """
    shown = unit(metric, printed)
    lines = {label: found for label in results.methods if (found := line(results, setting, label, metric)) is not None}
    ranked = tuple(label for label in lines if results.method_of(label) != CENTRALISED)
    sites = results.sites(setting)
    columns = [
        Column(site, f"{test.title()} Test", shown.digits, "higher" if shown.higher else "lower")
        for test in TESTS
        for site in (*sites, MEAN)
    ]
    columns.append(Column("steps"))
    empty = Comparison(Table(name, "", "method", (), ()), lines, metric, shown, ranked)
    marks = dict(_marks(empty))
    rows = list(_rows(results, setting, empty, sites, published, metric, marks))
    table = Table(
        name, shown.axis, "method", tuple(columns), tuple(rows), tuple(_notes(results, setting, empty, published))
    )
    return replace(empty, table=table.ranked())


def _rows(
    results: Results,
    setting: Setting,
    found: Comparison,
    sites: Sequence[str],
    published: Published | None,
    metric: str,
    marks: Mapping[tuple[str, str], str],
) -> Iterator[TableRow]:
    """Each method, its published figures below it, and last the rows that were not run."""
    waiting = {plain(label): label for label in published.labels} if published else {}
    for label in results.methods:
        printed = waiting.pop(_partner(results, label, waiting), None)
        if label in found.lines:
            line = found.lines[label]
            both = [_cells(line, test, sites, found.unit, marks.get((label, test), "")) for test in TESTS]
            yield TableRow(
                label,
                (*itertools.chain(*both), Cell(text=_steps(results, setting, label))),
                ranked=label in found.ranked,
            )
        else:
            yield TableRow(f"{label} (no run)", tuple(Cell() for _ in range(2 * len(sites) + 3)), ranked=False)
        if published and printed:
            yield _printed(f"{label} (published)", published, printed, sites, metric)
    for printed in waiting.values():
        assert published is not None
        yield _printed(f"{printed} (published, not run here)", published, printed, sites, metric)
    known = {plain(label) for label in (*results.methods, *(published.labels if published else ()))}
    for absent in results.experiment.get("not_run") or ():
        if plain(absent["method"]) not in known:
            yield TableRow(
                f"{absent['method']} (not run here)", tuple(Cell() for _ in range(2 * len(sites) + 3)), ranked=False
            )


def _partner(results: Results, label: str, waiting: Mapping[str, str]) -> str:
    """By which name a row is known in print: its own, or its method's where no other row is of that method."""
    method = results.method_of(label)
    same = [other for other in results.methods if results.method_of(other) == method]
    return plain(label) if plain(label) in waiting or len(same) > 1 else plain(method)


def _cells(line: MethodInSetting, test: str, sites: Sequence[str], shown: Unit, mark: str) -> Iterator[Cell]:
    found = row(line, test)
    for site in sites:
        hidden = site not in found.cells or (test == "global" and line.single_model)
        yield Cell() if hidden else cell(found.cells[site], shown, len(line.units))
    yield replace(cell(found.mean, shown, len(line.units)), mark=mark)


def numbers(found: Iterable[float | None], shown: Unit) -> tuple[Cell, ...]:
    """Cells of measured values, in the unit that is shown."""
    return tuple(Cell(None if value is None else value * shown.factor) for value in found)


def cell(spread: tables.Spread, shown: Unit, units: int) -> Cell:
    """A mean as it is shown; with its deviation where it is over more than one fold or seed."""
    if spread.mean is None:
        return Cell()
    std = spread.std * shown.factor if spread.std is not None and units > 1 else None
    return Cell(spread.mean * shown.factor, std)


def _printed(label: str, published: Published, row: str, sites: Sequence[str], metric: str) -> TableRow:
    names = matched(published, sites, metric) or {}
    cells = [
        published.cell(row, test, names.get(site, MEAN), metric) if site == MEAN or site in names else Cell()
        for test in TESTS
        for site in (*sites, MEAN)
    ]
    return TableRow(label, (*cells, Cell(text=NOTHING)), published=True, ranked=False)


def matched(published: Published, sites: Sequence[str], metric: str) -> dict[str, str] | None:
    """Which of our sites is which printed column; nothing unless every printed one is known."""
    columns = published.sites(metric)
    names = {plain(name): name for name in columns} | {
        plain(site): name for site, name in published.known_sites.items()
    }
    found = {site: names[plain(site)] for site in sites if plain(site) in names}
    return found if set(found.values()) == set(columns) else None


def row(line: MethodInSetting, test: str) -> tables.ResultRow:
    """The ``local`` or ``global`` test of a method."""
    return line.local if test == "local" else line.overall


def _steps(results: Results, setting: Setting, label: str) -> str:
    """Optimiser steps that an evaluated model has seen; a range where sites differ."""
    steps = [int(facts["steps"]) for run in results.select(setting, label) for facts in run.sites.values()]
    low, high = min(steps), max(steps)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _marks(found: Comparison) -> Iterator[tuple[tuple[str, str], str]]:
    """The sign of the best mean of each test, where it differs from the second."""
    for test in TESTS:
        order = found.best(test)
        if len(order) < 2:
            continue
        p = differ(found.lines[order[0]], found.lines[order[1]], test)[1]
        sign = next((sign for limit, sign in SIGNIFICANT if p is not None and p < limit), "")
        if sign:
            yield (order[0], test), sign


def differ(
    line: MethodInSetting, other: MethodInSetting, test: str
) -> tuple[tuple[float, float, float] | None, float | None, int]:
    """Of the folds that both have: the mean difference with its 95 % interval, p of the paired t-test, and pairs."""
    ours, theirs = line.means(test), other.means(test)
    common = [number for number in ours if number in theirs]
    tested = paired_t([ours[number] for number in common], [theirs[number] for number in common])
    if tested.difference is None or tested.low is None or tested.high is None:
        return None, None, tested.pairs
    return (tested.difference, tested.low, tested.high), tested.p, tested.pairs


def _notes(results: Results, setting: Setting, found: Comparison, published: Published | None) -> Iterator[str]:
    several = any(len(line.units) > 1 for line in found.lines.values())
    over = f"Mean ± standard deviation (ddof 0) over {results.repeats}" if several else "One run"
    inside = " inside each of them first" if several else ""
    bound = "; the pooled bound does not compete" if len(found.ranked) < len(found.lines) else ""
    yield (
        f"{over}; the column Mean averages over the sites{inside}. Local Test: a site's model on its own test data; "
        f"Global Test: on every site's, each counting alike. Bold: best, underlined: second of what ran here{bound}."
    )
    if several:
        yield (
            "* p < 0.05, ** p < 0.02: paired t-test, two-sided, over "
            f"{'folds' if results.experiment['folds'] else 'seeds'}, of the best Mean against the second; "
            "not corrected for the number of comparisons."
        )
    at_home = [label for label in found.lines if results.experiment["methods"].get(label, {}).get("kept_home")]
    if at_home:
        yield f"Global Test is simulated for {', '.join(at_home)}: between real sites these models stay at home."
    yield from _gaps(results, setting, found)
    if published:
        yield f"Published rows: {published.source}, {published.dataset}, {published.setting}; as printed, other code."
        if matched(published, results.sites(setting), found.metric) is None:
            yield "The paper's sites have other names than ours: only its Mean stands here, all of it further below."
    for absent in results.experiment.get("not_run") or ():
        yield f"{absent['method']} was not run here: {absent['reason']}."


def _gaps(results: Results, setting: Setting, found: Comparison) -> Iterator[str]:
    """What of the table rests on fewer runs or values than the rest."""
    counts = {label: len(results.select(setting, label)) for label in found.lines}
    most = max(counts.values(), default=0)
    both = results.experiment["folds"] and len(results.experiment["seeds"]) > 1
    what = "runs" if both else "folds" if results.experiment["folds"] else "seeds"
    for label, line in found.lines.items():
        if counts[label] < most:
            yield f"{label}: {counts[label]} of {most} {what}."
        for test in TESTS:
            undefined = row(line, test).mean.undefined
            if undefined and row(line, test).mean.mean is not None:
                yield f"{label}: {undefined} undefined values of the {test.title()} Test are left out of its means."
    shared = [label for label, line in found.lines.items() if line.single_model]
    if shared:
        yield f"One model for all sites, so that Global Test has one value: {', '.join(shared)}."


def summary(found: Comparison) -> dict[str, dict[str, float | None]]:
    """Of each method the means of both tests in the metric's own unit, for scripts."""
    return {label: {test: row(line, test).mean.mean for test in TESTS} for label, line in found.lines.items()}


def spread_of_steps(results: Results, setting: Setting) -> str | None:
    """A sentence where the methods did unequal work; nothing where they did the same."""
    steps = {
        label: fmean(float(facts["steps"]) for run in results.select(setting, label) for facts in run.sites.values())
        for label in results.ran(setting)
        if results.method_of(label) != CENTRALISED
    }
    if len(set(steps.values())) < 2:
        return None
    return "The evaluated models have not seen the same number of optimiser steps: " + ", ".join(
        f"{label} {count:,.0f}" for label, count in steps.items()
    )
