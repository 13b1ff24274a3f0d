"""Compare the methods of a setting: Local and Global Test over folds or, without, seeds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from peer.lab.experiments.result_files import CENTRALISED, SHARE_OF_ROOM, UNDISTURBED
from peer.lab.report.published import MEAN, TESTS, Published, normalise_name
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow, Unit, unit_of
from peer.lab.statistics import tables
from peer.lab.statistics.room import RoomShare, share_of_room
from peer.lab.statistics.significance import paired_t
from peer.lab.statistics.tables import Matrix, ResultRow, average, generalisation, global_test, local_test

Measure = Callable[[RunResult, str, str], float | None]
"""A value of a run, by its model's site and the test split's site; None where it is undefined."""


@dataclass(frozen=True)
class MethodSummary:
    """A method's results in one setting.

    Attributes:
        units: the folds that have a run, or the seeds where there are no folds; the order of the
            spreads.
        overall: the Global Test; undefined for models that some site's test data do not fit.
        matrix: every model on every site's test data, the mean over units.
    """

    units: tuple[int, ...]
    local: ResultRow
    overall: ResultRow
    matrix: Mapping[str, Mapping[str, float | None]]
    single_model: bool

    def means(self, test: str) -> dict[int, float | None]:
        """The column "Mean" of ``local`` or ``global`` by fold or seed."""
        return dict(zip(self.units, test_row(self, test).mean.folds, strict=True))

    def by_site(self, test: str) -> dict[int, dict[str, float | None]]:
        """The values of ``local`` or ``global`` by fold or seed, then by site."""
        cells = test_row(self, test).cells
        return {
            unit: {site: spread.folds[index] for site, spread in cells.items()} for index, unit in enumerate(self.units)
        }


def summarise_method(
    results: Results,
    setting: tuple[str, str],
    label: str,
    metric: str,
    *,
    links: str = UNDISTURBED,
    without: Collection[str] = (),
    measure: Measure | None = None,
) -> MethodSummary | None:
    """A method's results without some sites; None where the method has no run.

    Args:
        metric: of the runs' results, where there is no ``measure``.
        measure: the value of a run, of a model's site and a test split's site.
    """
    value = measure or (lambda run, model, split: run.matrix.get(model, {}).get(split, {}).get(metric))
    runs = results.select(setting, label, links)
    if not runs:
        return None
    by_unit: dict[int, list[RunResult]] = {}
    for run in runs:
        by_unit.setdefault(run.fold if results.experiment["folds"] else run.seed, []).append(run)
    sites = [site for site in sorted(runs[0].sites) if site not in without]
    if not sites:
        return None
    matrices = [_mean([_matrix(run, value, sites) for run in unit_runs]) for unit_runs in by_unit.values()]
    is_complete = {
        model: all(run.matrix.get(model, {}).get(split) for run in runs for split in sites) for model in sites
    }
    complete_matrices = [
        {model: (row if is_complete[model] else dict.fromkeys(row)) for model, row in matrix.items()}
        for matrix in matrices
    ]
    return MethodSummary(
        units=tuple(by_unit),
        local=local_test(matrices, ddof=results.ddof),
        overall=global_test(complete_matrices, ddof=results.ddof),
        matrix={
            model: {split: spread.mean for split, spread in row.items()}
            for model, row in generalisation(matrices).items()
        },
        single_model=all(run.single_model for run in runs),
    )


def _matrix(run: RunResult, value: Measure, sites: Sequence[str]) -> Matrix:
    return {model: {split: value(run, model, split) for split in sites} for model in sites}


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
UNDEFINED_CLASSES = "classes without an AUC"
"""The row that counts them."""
NO_ROOM = "no room"
"""Stands for a share where the room is too small to have shares."""


@dataclass(frozen=True)
class Comparison:
    """All methods of one setting by one metric.

    Attributes:
        methods: the methods that have runs, by label.
        ranked: the labels that compete for the best value; the pooled bound does not.
        local: the label of training alone, where it has runs.
        pooled: the label of the pooled bound, where it has runs.
    """

    table: Table
    methods: Mapping[str, MethodSummary]
    metric: str
    unit: Unit
    ranked: tuple[str, ...]
    local: str | None = None
    pooled: str | None = None

    @property
    def has_bounds(self) -> bool:
        """Whether training alone and the pooled bound both have runs, so that there is a room."""
        return self.local is not None and self.pooled is not None

    def share(self, label: str, test: str) -> RoomShare:
        """A method's share of the room between training alone and the pooled bound."""
        assert self.local is not None
        assert self.pooled is not None
        values, local, pooled = (self.methods[name].by_site(test) for name in (label, self.local, self.pooled))
        return share_of_room(values, local, pooled)

    def best(self, test: str) -> list[str]:
        """The competing labels from the best mean of a test to the worst."""
        means = {label: test_row(self.methods[label], test).mean.mean for label in self.ranked}
        defined_means = {label: value for label, value in means.items() if value is not None}
        return sorted(defined_means, key=lambda label: defined_means[label], reverse=self.unit.higher)


def compare(
    results: Results,
    setting: Setting,
    metric: str,
    published: Published | None,
    *,
    published_unit: str | None = None,
    name: str,
) -> Comparison:
    """Compare the methods of one setting by one metric.

    Args:
        published: the paper's table, whose rows are added to ours.
        published_unit: the unit of shares in that paper, ``percent`` or ``fraction``.
    """
    unit = unit_of(metric, published_unit)
    methods = {
        label: values
        for label in results.methods
        if (values := summarise_method(results, setting, label, metric)) is not None
    }
    ranked = tuple(label for label in methods if results.method_of(label) != CENTRALISED)
    sites = results.sites(setting)
    local, pooled = (_bound(results, methods, method) for method in ("local", CENTRALISED))
    comparison = Comparison(Table(name, "", "method", (), ()), methods, metric, unit, ranked, local, pooled)
    columns = []
    for test in TESTS:
        better = "higher" if unit.higher else "lower"
        columns += [Column(site, f"{test.title()} Test", unit.digits, better) for site in (*sites, MEAN)]
        if comparison.has_bounds:
            columns.append(Column(SHARE_OF_ROOM, f"{test.title()} Test", 0))
    columns.append(Column("steps"))
    marks = dict(_significance_marks(comparison))
    rows = list(_rows(results, setting, comparison, sites, published, metric, marks))
    table = Table(name, unit.axis, "method", tuple(columns), tuple(rows)).with_ranks()
    comparison = replace(comparison, table=table)
    notes = tuple(_notes(results, setting, comparison, published))
    return replace(comparison, table=replace(table, notes=notes))


def _rows(
    results: Results,
    setting: Setting,
    comparison: Comparison,
    sites: Sequence[str],
    published: Published | None,
    metric: str,
    marks: Mapping[tuple[str, str], str],
) -> Iterator[TableRow]:
    """A row of each method, its published row below it, and last the methods without runs."""
    has_bounds = comparison.has_bounds
    empty_cells = tuple(Cell() for _ in range(len(TESTS) * (len(sites) + 1 + has_bounds) + 1))
    unmatched = {normalise_name(label): label for label in published.labels} if published else {}
    for label in results.methods:
        published_label = unmatched.pop(_published_name(results, label, unmatched), None)
        if label in comparison.methods:
            values = comparison.methods[label]
            cells_by_test = [
                (
                    *_cells(values, test, sites, comparison.unit, marks.get((label, test), "")),
                    *([share_cell(comparison, label, test)] if comparison.has_bounds else []),
                )
                for test in TESTS
            ]
            yield TableRow(
                label,
                (*itertools.chain(*cells_by_test), Cell(text=_steps(results, setting, label))),
                ranked=label in comparison.ranked,
            )
        else:
            reason = results.reason_without_runs(setting, label) or "no run"
            yield TableRow(f"{label} ({reason})", empty_cells, ranked=False)
        if published and published_label:
            yield _published_row(f"{label} (published)", published, published_label, sites, metric, has_bounds)
    for published_label in unmatched.values():
        assert published is not None
        name = f"{published_label} (published, not run here)"
        yield _published_row(name, published, published_label, sites, metric, has_bounds)
    undefined = _undefined_classes(results, setting, sites) if metric == "auc" else {}
    if any(undefined.values()):
        local = (*(Cell(text=undefined[site] or "0") for site in sites), *empty_cells[len(sites) : len(empty_cells)])
        yield TableRow(UNDEFINED_CLASSES, local, ranked=False)
    known = {normalise_name(label) for label in (*results.methods, *(published.labels if published else ()))}
    for absent in results.experiment.get("not_run") or ():
        if normalise_name(absent["method"]) not in known:
            yield TableRow(f"{absent['method']} (not run here)", empty_cells, ranked=False)


def _undefined_classes(results: Results, setting: Setting, sites: Sequence[str]) -> dict[str, str]:
    """By site, how many classes its test samples give no AUC, over folds and seeds; empty for none."""
    counts: dict[str, set[int]] = {site: set() for site in sites}
    for run in results.runs:
        if run.setting == setting:
            for site in run.sites:
                counts[site].add(int(run.matrix.get(site, {}).get(site, {}).get("auc_undefined") or 0))
    of = f" of {results.experiment['task']['classes']}"
    ranges = {site: (min(numbers), max(numbers)) for site, numbers in counts.items() if numbers}
    return {
        site: "" if not high else (f"{low}–{high}" if low < high else f"{high}") + of
        for site, (low, high) in ranges.items()
    }


def _published_name(results: Results, label: str, unmatched: Mapping[str, str]) -> str:
    """The name of a row in the paper: its label, or its method's if no other row has it."""
    method = results.method_of(label)
    same = [other for other in results.methods if results.method_of(other) == method]
    return normalise_name(label) if normalise_name(label) in unmatched or len(same) > 1 else normalise_name(method)


def _cells(values: MethodSummary, test: str, sites: Sequence[str], unit: Unit, mark: str) -> Iterator[Cell]:
    row = test_row(values, test)
    for site in sites:
        hidden = site not in row.cells or (test == "global" and values.single_model)
        yield Cell() if hidden else cell(row.cells[site], unit, len(values.units))
    yield replace(cell(row.mean, unit, len(values.units)), mark=mark)


def _bound(results: Results, methods: Mapping[str, MethodSummary], method: str) -> str | None:
    """The row of ``local`` or of the pooled bound: the one of that name, or the first of that method."""
    labels = [label for label in methods if results.method_of(label) == method]
    return min(labels, key=lambda label: normalise_name(label) != normalise_name(method), default=None)


def share_cell(comparison: Comparison, label: str, test: str) -> Cell:
    """A method's share of the room in per cent, or the words that there is no room."""
    if label in (comparison.local, comparison.pooled):
        return Cell()
    share = comparison.share(label, test)
    if share.room.difference is None:
        return Cell()
    if not share.has_room(comparison.unit.room_min):
        return Cell(text=NO_ROOM)
    return Cell(None if share.share.value is None else 100 * share.share.value)


def number_cells(values: Iterable[float | None], unit: Unit) -> tuple[Cell, ...]:
    """Cells of measured values, converted to the table's unit."""
    return tuple(Cell(None if value is None else value * unit.factor) for value in values)


def cell(spread: tables.Spread, unit: Unit, units: int) -> Cell:
    """The cell of a mean, with its deviation where there is more than one fold or seed."""
    if spread.mean is None:
        return Cell()
    std = spread.std * unit.factor if spread.std is not None and units > 1 else None
    return Cell(spread.mean * unit.factor, std)


def _published_row(
    label: str,
    published: Published,
    published_label: str,
    sites: Sequence[str],
    metric: str,
    has_bounds: bool,
) -> TableRow:
    names = match_sites(published, sites, metric) or {}
    cells = [
        published.cell(published_label, test, names.get(site, MEAN), metric)
        if site == MEAN or site in names
        else Cell()
        for test in TESTS
        for site in (*sites, MEAN, *([SHARE_OF_ROOM] if has_bounds else []))
    ]
    return TableRow(label, (*cells, Cell(text=EMPTY)), published=True, ranked=False)


def match_sites(published: Published, sites: Sequence[str], metric: str) -> dict[str, str] | None:
    """The published column of each of our sites; None unless every published column has a site."""
    columns = published.sites(metric)
    names = {normalise_name(name): name for name in columns} | {
        normalise_name(site): name for site, name in published.known_sites.items()
    }
    column_of_site = {site: names[normalise_name(site)] for site in sites if normalise_name(site) in names}
    return column_of_site if set(column_of_site.values()) == set(columns) else None


def test_row(values: MethodSummary, test: str) -> tables.ResultRow:
    """The row of a method's ``local`` or ``global`` test."""
    return values.local if test == "local" else values.overall


def _steps(results: Results, setting: Setting, label: str) -> str:
    """Optimiser steps of the evaluated models; a range where sites differ."""
    steps = [int(facts["steps"]) for run in results.select(setting, label) for facts in run.sites.values()]
    low, high = min(steps), max(steps)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _significance_marks(comparison: Comparison) -> Iterator[tuple[tuple[str, str], str]]:
    """The sign of each test's best mean where it differs significantly from the second."""
    for test in TESTS:
        order = comparison.best(test)
        if len(order) < 2:
            continue
        p = paired_difference(comparison.methods[order[0]], comparison.methods[order[1]], test)[1]
        sign = next((sign for limit, sign in SIGNIFICANT if p is not None and p < limit), "")
        if sign:
            yield (order[0], test), sign


def paired_difference(
    values: MethodSummary, other: MethodSummary, test: str
) -> tuple[tuple[float, float, float] | None, float | None, int]:
    """Compare two methods on their common folds or seeds.

    Returns:
        The mean difference with the ends of its 95 % interval, the p of the paired t-test, and the
        number of pairs.
    """
    ours, theirs = values.means(test), other.means(test)
    common = [number for number in ours if number in theirs]
    test_result = paired_t([ours[number] for number in common], [theirs[number] for number in common])
    if test_result.difference is None or test_result.low is None or test_result.high is None:
        return None, None, test_result.pairs
    return (test_result.difference, test_result.low, test_result.high), test_result.p, test_result.pairs


def _notes(results: Results, setting: Setting, comparison: Comparison, published: Published | None) -> Iterator[str]:
    has_several_units = any(len(values.units) > 1 for values in comparison.methods.values())
    over = f"Mean ± standard deviation (ddof {results.ddof}) over {results.repeats}" if has_several_units else "One run"
    inside = " inside each of them first" if has_several_units else ""
    bound = "; the pooled bound does not compete" if len(comparison.ranked) < len(comparison.methods) else ""
    yield (
        f"{over}; the column Mean averages over the sites{inside}. Local Test: a site's model on its own test data; "
        f"Global Test: on every site's, each counting alike. Bold: best, underlined: second of what ran here{bound}."
    )
    if has_several_units:
        yield (
            "* p < 0.05, ** p < 0.02: paired t-test, two-sided, over "
            f"{'folds' if results.experiment['folds'] else 'seeds'}, of the best Mean against the second; "
            "not corrected for the number of comparisons."
        )
    simulated_only = [
        label for label in comparison.methods if results.experiment["methods"].get(label, {}).get("kept_home")
    ]
    if simulated_only:
        yield f"Global Test is simulated for {', '.join(simulated_only)}: between real sites these models stay at home."
    if any(row.label == UNDEFINED_CLASSES for row in comparison.table.rows):
        yield (
            "Classes without an AUC: a site's test samples have none of them, or nothing else. A mean leaves them out, "
            "so that each site, fold and seed has the mean of other classes."
        )
    if comparison.has_bounds:
        yield (
            f"Room: what {comparison.pooled} gains over {comparison.local}; share: a method's gain over "
            f"{comparison.local}, divided by the room. No room: it is less than {comparison.unit.room_words}, or its "
            "95 % interval is not above zero."
        )
    yield from _gap_notes(results, setting, comparison)
    if published:
        yield f"Published rows: {published.source}, {published.dataset}, {published.setting}; as printed, other code."
        if match_sites(published, results.sites(setting), comparison.metric) is None:
            yield "The paper's sites have other names than ours: only its Mean stands here, all of it further below."
    for absent in results.experiment.get("not_run") or ():
        yield f"{absent['method']} was not run here: {absent['reason']}."


def _gap_notes(results: Results, setting: Setting, comparison: Comparison) -> Iterator[str]:
    """Notes on means over fewer runs or values than the others."""
    counts = {label: len(results.select(setting, label)) for label in comparison.methods}
    most = max(counts.values(), default=0)
    both = results.experiment["folds"] and len(results.experiment["seeds"]) > 1
    units_name = "runs" if both else "folds" if results.experiment["folds"] else "seeds"
    for label, values in comparison.methods.items():
        if counts[label] < most:
            yield f"{label}: {counts[label]} of {most} {units_name}."
        for test in TESTS:
            undefined = test_row(values, test).mean.undefined
            if undefined and test_row(values, test).mean.mean is not None:
                yield f"{label}: {undefined} undefined values of the {test.title()} Test are left out of its means."
    shared = [label for label, values in comparison.methods.items() if values.single_model]
    if shared:
        yield f"One model for all sites, so that Global Test has one value: {', '.join(shared)}."


def summary(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    """Each method's means of both tests, in the metric's own unit, for scripts."""
    return {
        label: {test: test_row(values, test).mean.mean for test in TESTS}
        for label, values in comparison.methods.items()
    }


def spread_of_steps(results: Results, setting: Setting) -> str | None:
    """A sentence about unequal work of the methods; None where all took equally many steps."""
    steps = {
        label: fmean(float(facts["steps"]) for run in results.select(setting, label) for facts in run.sites.values())
        for label in results.labels(setting)
        if results.method_of(label) != CENTRALISED
    }
    if len(set(steps.values())) < 2:
        return None
    return "The evaluated models have not seen the same number of optimiser steps: " + ", ".join(
        f"{label} {count:,.0f}" for label, count in steps.items()
    )
