"""Leave one site out: how well the models of the others do at a hospital that did not take part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peer.lab.report.comparison import Comparison, cell, test_row
from peer.lab.report.results import Results, RunResult
from peer.lab.report.table import Cell, Column, Table, TableRow
from peer.lab.statistics.tables import Average, average, combined, over_folds

Setting = tuple[str, str]
LOCAL = "local"
TRAINED_THERE = "trained at the site itself"
"""The row of the left-out site's own model, with which the others' are compared."""


def table(results: Results, setting: Setting, comparison: Comparison, *, name: str) -> Table | None:
    """By method and left-out site, the mean of the other sites' models on its test samples; None
    without such runs.
    """
    links_by_site = {
        str(links["left_out"]): key
        for key, links in sorted(results.links.items())
        if links.get("left_out") and any((run.setting, run.links) == (setting, key) for run in results.runs)
    }
    if not links_by_site:
        return None
    unit, sites = comparison.unit, list(links_by_site)
    rows = []
    for label in comparison.methods:
        by_site = {
            site: _by_unit(results, _runs(results, setting, label, key), site, comparison.metric)
            for site, key in links_by_site.items()
        }
        rows.append(TableRow(label, tuple(_cells(results, comparison, by_site)), ranked=label in comparison.ranked))
    if comparison.local is not None:
        own = comparison.methods[comparison.local]
        spreads = [own.local.cells.get(site) for site in sites]
        cells = [Cell() if spread is None else cell(spread, unit, len(own.units)) for spread in spreads]
        mean = Cell() if set(sites) != set(own.local.cells) else cell(test_row(own, "local").mean, unit, len(own.units))
        rows.append(TableRow(f"{comparison.local}, {TRAINED_THERE}", (*cells, mean), ranked=False))
    better = "higher" if unit.higher else "lower"
    columns = tuple(Column(site, "left out", unit.digits, better) for site in (*sites, "Mean"))
    notes = (
        f"Over {results.repeats}: the mean over the models of the sites that took part, on the test samples of the "
        "one that did not. Each federation without one site is trained anew.",
    )
    return Table(name, f"Leave one site out, {unit.axis}", "method", columns, tuple(rows), notes).with_ranks()


def _runs(results: Results, setting: Setting, label: str, links: str) -> list[RunResult]:
    """The runs without the site. A site that trains alone has the same model in the undisturbed one."""
    alone = results.method_of(label) == LOCAL
    return results.select(setting, label) if alone else results.select(setting, label, links)


def _by_unit(results: Results, runs: Sequence[RunResult], left_out: str, metric: str) -> dict[int, Average]:
    """By fold or seed, the mean over the other sites' models on the test samples of the left-out one."""
    by_unit: dict[int, list[Average]] = {}
    for run in runs:
        values = (row.get(left_out, {}).get(metric) for model, row in run.matrix.items() if model != left_out)
        by_unit.setdefault(run.fold if results.experiment["folds"] else run.seed, []).append(average(values))
    return {unit: combined(averages) for unit, averages in by_unit.items()}


def _cells(results: Results, comparison: Comparison, by_site: Mapping[str, Mapping[int, Average]]) -> list[Cell]:
    """A cell a left-out site, and the mean over them of the folds or seeds that all of them have."""
    common = sorted(set.intersection(*(set(values) for values in by_site.values())))
    means = [combined(values[unit] for values in by_site.values()) for unit in common]
    columns = [*(list(values.values()) for values in by_site.values()), means]
    return [cell(over_folds(column, ddof=results.ddof), comparison.unit, len(column)) for column in columns]
