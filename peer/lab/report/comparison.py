"""Compare the methods of a setting: Local and Global Test over folds or, without, seeds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pandas as pd

from peer.core.metrics import METRICS
from peer.lab.experiments.result_files import CENTRALISED, SHARE_OF_ROOM, UNDISTURBED
from peer.lab.report.measurements import UNDEFINED_CLASSES, Measurements, Scores, Setting, mean_cells
from peer.lab.report.published import MEAN, TESTS, Published, normalise_name
from peer.lab.report.results import Results
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow, Unit, lay_out, unit_of
from peer.lab.statistics.further_metrics import find_further_metric
from peer.lab.statistics.means import mean
from peer.lab.statistics.room import RoomShare, share_of_room
from peer.lab.statistics.significance import PairedT, paired_t

SIGNIFICANT = ((0.02, "**"), (0.05, "*"))
"""FedSKD marks p < 0.05 in its table II and p < 0.02 in its table III."""
UNDEFINED_ROW = "classes without an AUC"
"""Label of the row that counts them."""
NO_ROOM = "no room"
"""Text in place of a share if the room is too small to have shares."""
NO_TABLE = Table("", "", "method", (), ())


@dataclass(frozen=True)
class Comparison:
    """All methods of one setting by one metric.

    Attributes:
        table: the main table; the other tables of a report are made from the comparison.
    """

    measured: Measurements
    setting: Setting
    metric: str
    unit: Unit
    table: Table = NO_TABLE

    @property
    def results(self) -> Results:
        return self.measured.results

    @cached_property
    def labels(self) -> list[str]:
        """The methods that have runs, by label."""
        return self.results.labels(self.setting)

    @cached_property
    def ranked(self) -> list[str]:
        """The labels that compete for the best value; the pooled bound does not."""
        return [label for label in self.labels if self.results.method_of(label) != CENTRALISED]

    @cached_property
    def local(self) -> str | None:
        """The label of training alone, if it has runs."""
        return self._bound("local")

    @cached_property
    def pooled(self) -> str | None:
        """The label of the pooled bound, if it has runs."""
        return self._bound(CENTRALISED)

    @cached_property
    def single_models(self) -> list[str]:
        """The methods whose sites end every run with the same network."""
        runs = {label: self.results.select(self.setting, label) for label in self.labels}
        return [label for label in self.labels if all(run.single_model for run in runs[label])]

    @property
    def has_bounds(self) -> bool:
        """Whether training alone and the pooled bound both have runs, so that there is a room of a task's metric."""
        return self.local is not None and self.pooled is not None and self.metric in METRICS and self.unit.higher

    @cached_property
    def scores(self) -> Scores:
        """The values of the undisturbed federation at all sites."""
        return self.scores_with(UNDISTURBED)

    def scores_with(self, links: str, *, without: Collection[str] = ()) -> Scores:
        """Select the values under other links, or without some sites."""
        return self.measured.scores(self.setting, self.metric, links, without=without)

    def cells(self, values: pd.Series) -> dict[str, Cell]:
        """Average over folds or seeds by label, with the deviation, in the table's unit."""
        return mean_cells(values, factor=self.unit.factor, ddof=self.results.ddof)

    def column(self, name: str, group: str) -> Column:
        """Make a column for the metric's values, whose best are marked."""
        return Column(name, group, self.unit.digits, "higher" if self.unit.higher else "lower")

    def final_mean(self, label: str, test: str) -> float | None:
        """Average over sites, then over folds or seeds, in the metric's own unit."""
        return mean(self.scores.means[test].xs(label))

    def best(self, test: str) -> list[str]:
        """Sort the competing labels from the best mean of a test to the worst."""
        means = {label: self.final_mean(label, test) for label in self.ranked}
        defined_means = {label: value for label, value in means.items() if value is not None}
        return sorted(defined_means, key=lambda label: defined_means[label], reverse=self.unit.higher)

    def paired(self, label: str, other: str, test: str) -> PairedT:
        """Test the difference between two methods on their common folds or seeds."""
        means = self.scores.means[test]
        pairs = pd.concat([means.xs(label), means.xs(other)], axis=1, join="inner")
        return paired_t(*(pairs.iloc[:, index].tolist() for index in (0, 1)))

    def share(self, label: str, test: str) -> RoomShare:
        """Compute a method's share of the room between training alone and the pooled bound."""
        assert self.local is not None
        assert self.pooled is not None
        return share_of_room(*(self.scores.by_site(test, name) for name in (label, self.local, self.pooled)))

    def share_cells(self, test: str) -> dict[str, Cell]:
        """Show the shares of the room in per cent by label, or that there is no room."""
        shares = {label: self.share(label, test) for label in self.labels if label not in (self.local, self.pooled)}
        return {
            label: share_cell(share, self.unit) for label, share in shares.items() if share.room.difference is not None
        }

    def _bound(self, method: str) -> str | None:
        """Find the label of a method: the one of its name, or else the first."""
        labels = [label for label in self.labels if self.results.method_of(label) == method]
        return min(labels, key=lambda label: normalise_name(label) != normalise_name(method), default=None)


def share_cell(share: RoomShare, unit: Unit) -> Cell:
    if not share.has_room(unit.room_min):
        return Cell(text=NO_ROOM)
    return Cell(None if share.share.value is None else 100 * share.share.value)


def compare(
    measured: Measurements,
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
    comparison = Comparison(measured, setting, metric, unit_of(metric, published_unit))
    columns = [*_columns(comparison)]
    measured_rows = lay_out(name, "", columns, comparison.labels, ranked=comparison.ranked).rows
    rows = tuple(
        _rows(comparison, {row.label: row for row in measured_rows}, [column for column, _ in columns], published)
    )
    notes = tuple(_notes(comparison, rows, published))
    table = Table(name, comparison.unit.axis, "method", tuple(column for column, _ in columns), rows, notes)
    return replace(comparison, table=table)


def _columns(comparison: Comparison) -> Iterator[tuple[Column, Mapping[str, Cell]]]:
    """Yield for both tests the mean, the share of the room, and the sites; then the steps."""
    sites = comparison.results.sites(comparison.setting)
    for test in TESTS:
        group, values = f"{test.title()} Test", comparison.scores.by_test[test]
        hidden = comparison.single_models if test == "global" else ()
        cells = comparison.cells(comparison.scores.means[test])
        yield comparison.column(MEAN, group), cells | _marked(comparison, test, cells)
        if comparison.has_bounds:
            yield Column(SHARE_OF_ROOM, group, 0), comparison.share_cells(test)
        for site in sites:
            cells = comparison.cells(values[site]) if site in values else {}
            yield comparison.column(site, group), {label: cells[label] for label in cells if label not in hidden}
    steps = comparison.measured.facts_of(comparison.setting).groupby("label")["steps"].agg(["min", "max"])
    ranges = {label: f"{low:,}" if low == high else f"{low:,}–{high:,}" for label, low, high in steps.itertuples()}
    yield Column("steps"), {label: Cell(text=text) for label, text in ranges.items()}


def _marked(comparison: Comparison, test: str, cells: Mapping[str, Cell]) -> dict[str, Cell]:
    """Mark the best mean if it differs significantly from the second."""
    order = comparison.best(test)
    p = comparison.paired(order[0], order[1], test).p if len(order) > 1 else None
    sign = next((sign for limit, sign in SIGNIFICANT if p is not None and p < limit), "")
    return {order[0]: replace(cells[order[0]], mark=sign)} if sign else {}


def _rows(
    comparison: Comparison,
    measured_rows: Mapping[str, TableRow],
    columns: Sequence[Column],
    published: Published | None,
) -> Iterator[TableRow]:
    """Yield a row for each method, its published row below it, and last the methods without runs.

    A row that the experiment has for other networks alone is left out.
    """
    results, setting, metric = comparison.results, comparison.setting, comparison.metric
    sites = results.sites(setting)
    empty_cells = tuple(Cell() for _ in columns)
    unmatched = {normalise_name(label): label for label in published.labels} if published else {}
    for label in results.methods:
        published_label = unmatched.pop(_published_name(results, label, unmatched), None)
        if label in measured_rows:
            yield measured_rows[label]
        elif results.is_meant_for(setting, label):
            reason = results.reason_without_runs(setting, label) or "no run"
            yield TableRow(f"{label} ({reason})", empty_cells, ranked=False)
        if published and published_label:
            yield _published_row(f"{label} (published)", published, published_label, sites, metric, columns)
    for published_label in unmatched.values():
        assert published is not None
        name = f"{published_label} (published, not run here)"
        yield _published_row(name, published, published_label, sites, metric, columns)
    undefined = _undefined_classes(comparison) if metric == "auc" else {}
    if any(undefined.values()):
        local = (*(Cell(text=undefined[site] or "0") for site in sites), *empty_cells[len(sites) :])
        yield TableRow(UNDEFINED_ROW, local, ranked=False)
    known = {normalise_name(label) for label in (*results.methods, *(published.labels if published else ()))}
    for absent in results.experiment.get("not_run") or ():
        if normalise_name(absent["method"]) not in known:
            yield TableRow(f"{absent['method']} (not run here)", empty_cells, ranked=False)


def _undefined_classes(comparison: Comparison) -> dict[str, str]:
    """Count by site the classes whose AUC is undefined, over all runs; empty text for none."""
    frame, (partition, models) = comparison.measured.frame, comparison.setting
    chosen = (frame["partition"] == partition) & (frame["models"] == models) & (frame["metric"] == UNDEFINED_CLASSES)
    own = frame[chosen & (frame["model"] == frame["split"])].fillna({"value": 0})
    counts = own.groupby("model")["value"].agg(["min", "max"]).astype(int)
    of = f" of {comparison.results.experiment['task']['classes']}"
    return {
        site: "" if not high else (f"{low}–{high}" if low < high else f"{high}") + of
        for site, low, high in counts.itertuples()
    }


def _published_name(results: Results, label: str, unmatched: Mapping[str, str]) -> str:
    """Return the name of a row in the paper: its label, or its method's if no other row has it."""
    method = results.method_of(label)
    same = [other for other in results.methods if results.method_of(other) == method]
    return normalise_name(label) if normalise_name(label) in unmatched or len(same) > 1 else normalise_name(method)


def _published_row(
    label: str,
    published: Published,
    published_label: str,
    sites: Sequence[str],
    metric: str,
    columns: Sequence[Column],
) -> TableRow:
    names = match_sites(published, sites, metric) or {}
    tests = {f"{test.title()} Test": test for test in TESTS}
    cells = [
        published.cell(published_label, tests[column.group], names.get(column.name, MEAN), metric)
        if column.name == MEAN or column.name in names
        else Cell()
        for column in columns[:-1]
    ]
    return TableRow(label, (*cells, Cell(text=EMPTY)), published=True, ranked=False)


def match_sites(published: Published, sites: Sequence[str], metric: str) -> dict[str, str] | None:
    """Match our sites to published columns; None unless every published column has a site."""
    columns = published.sites(metric)
    names = {normalise_name(name): name for name in columns} | {
        normalise_name(site): name for site, name in published.known_sites.items()
    }
    column_of_site = {site: names[normalise_name(site)] for site in sites if normalise_name(site) in names}
    return column_of_site if set(column_of_site.values()) == set(columns) else None


def _notes(comparison: Comparison, rows: Sequence[TableRow], published: Published | None) -> Iterator[str]:
    results = comparison.results
    has_several_repeats = any(comparison.scores.means["local"].groupby(level="label").size() > 1)
    over = (
        f"Mean ± standard deviation (ddof {results.ddof}) over {results.repeats}" if has_several_repeats else "One run"
    )
    inside = " inside each of them first" if has_several_repeats else ""
    bound = "; the pooled bound does not compete" if len(comparison.ranked) < len(comparison.labels) else ""
    yield (
        f"{over}; the column Mean averages over the sites{inside}. Local Test: a site's model on its own test data; "
        f"Global Test: on every site's, each counting alike. Bold: best, underlined: second of what ran here{bound}."
    )
    if has_several_repeats:
        yield (
            "* p < 0.05, ** p < 0.02: paired t-test, two-sided, over "
            f"{'folds' if results.experiment['folds'] else 'seeds'}, of the best Mean against the second; "
            "not corrected for the number of comparisons."
        )
    simulated_only = [
        label for label in comparison.labels if results.experiment["methods"].get(label, {}).get("kept_home")
    ]
    if simulated_only:
        yield f"Global Test is simulated for {', '.join(simulated_only)}: between real sites these models stay at home."
    if any(row.label == UNDEFINED_ROW for row in rows):
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
    yield from _gap_notes(comparison)
    if comparison.metric in (results.experiment.get("further_metrics") or ()):
        yield from _further_notes(comparison)
    if published:
        yield f"Published rows: {published.source}, {published.dataset}, {published.setting}; as printed, other code."
        if match_sites(published, results.sites(comparison.setting), comparison.metric) is None:
            yield "The paper's sites have other names than ours: only its Mean stands here, all of it further below."
    for absent in results.experiment.get("not_run") or ():
        yield f"{absent['method']} was not run here: {absent['reason']}."


def _gap_notes(comparison: Comparison) -> Iterator[str]:
    """Yield notes on means over fewer runs or values than the others."""
    results, scores = comparison.results, comparison.scores
    counts = {label: len(results.select(comparison.setting, label)) for label in comparison.labels}
    most = max(counts.values(), default=0)
    both = results.experiment["folds"] and len(results.experiment["seeds"]) > 1
    units_name = "runs" if both else "folds" if results.experiment["folds"] else "seeds"
    undefined = {test: scores.undefined(test) for test in TESTS}
    for label in comparison.labels:
        if counts[label] < most:
            yield f"{label}: {counts[label]} of {most} {units_name}."
        for test in TESTS:
            count = undefined[test][label]
            if count and comparison.final_mean(label, test) is not None:
                yield f"{label}: {count} undefined values of the {test.title()} Test are left out of its means."
    if comparison.single_models:
        yield f"One model for all sites, so that Global Test has one value: {', '.join(comparison.single_models)}."


def _further_notes(comparison: Comparison) -> Iterator[str]:
    """Yield the metric's own remark, and how many test samples have no value."""
    if remark := find_further_metric(comparison.metric).remark:
        yield remark
    cells = [
        cell
        for run in comparison.results.runs
        if (run.setting, run.links) == (comparison.setting, UNDISTURBED)
        for cell in (run.matrix[site].get(site, {}) for site in run.sites)
    ]
    undefined = sum(int(cell.get(f"{comparison.metric}_undefined") or 0) for cell in cells)
    if undefined:
        total = sum(int(cell.get("samples") or 0) for cell in cells)
        yield f"Of {total} values of the sites' own test samples {undefined} are undefined; means leave them out."


def verdict(comparison: Comparison) -> str | None:
    """Say which method has the best mean, beside both bounds, and at which site it is worst; None without runs."""
    test = next((test for test in reversed(TESTS) if comparison.best(test)), None)
    if test is None:
        return None

    def shown(value: float | None) -> str:
        return "no value" if value is None else f"{value * comparison.unit.factor:.{comparison.unit.digits}f}"

    best = comparison.best(test)[0]
    bounds = {"training alone": comparison.local, "the pooled bound": comparison.pooled}
    beside = [
        f"{name} {shown(comparison.final_mean(label, test))}"
        for name, label in bounds.items()
        if label not in (None, best)
    ]
    sites = comparison.scores.by_test[test].xs(best).mean().dropna().sort_values(ascending=comparison.unit.higher)
    worst = f"its worst site is {sites.index[0]} with {shown(sites.iloc[0])}" if len(sites) > 1 else ""
    about = f"{best} has the best mean of the {test.title()} Test, {comparison.unit.axis}"
    return "; ".join(filter(None, [f"{about}: {shown(comparison.final_mean(best, test))}", *beside, worst])) + "."


def summary(comparison: Comparison) -> dict[str, dict[str, float | None]]:
    """Return each method's means of both tests, in the metric's own unit, for scripts."""
    return {label: {test: comparison.final_mean(label, test) for test in TESTS} for label in comparison.labels}


def spread_of_steps(measured: Measurements, setting: Setting) -> str | None:
    """Describe unequal work of the methods in a sentence; None if all took equally many steps."""
    means = measured.facts_of(setting).groupby("label")["steps"].mean().to_dict()
    labels = [label for label in measured.results.labels(setting) if measured.results.method_of(label) != CENTRALISED]
    if len({means[label] for label in labels}) < 2:
        return None
    return "The evaluated models have not seen the same number of optimiser steps: " + ", ".join(
        f"{label} {means[label]:,.0f}" for label in labels
    )
