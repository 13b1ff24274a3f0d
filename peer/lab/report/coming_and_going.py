"""What joining late, and losing a member, cost each method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean, pstdev, stdev
from typing import Any

from peer.lab.experiments.result_files import CENTRALISED, UNDISTURBED
from peer.lab.report.comparison import Comparison, MethodSummary, cell, summarise_method, test_row
from peer.lab.report.results import Results
from peer.lab.report.table import EMPTY, Cell, Column, Table, TableRow

LOCAL = "local"


def epochs_of(links: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Who joins and leaves when under these links; empty where nobody does."""
    return list(links.get("epochs") or ())


def tables(results: Results, setting: tuple[str, str], comparison: Comparison, *, name: str) -> list[Table]:
    """For each such run, the Local Test of the sites that stayed, and of those that joined late, beside the
    federation of which all were members from the first round on, with the difference; none without such runs.
    """
    with_runs = {run.links for run in results.runs if run.setting == setting}
    keys = [key for key, links in results.links.items() if key in with_runs and epochs_of(links)]
    return [_table(results, setting, comparison, key, name=f"{name}-{key}") for key in keys]


def _table(results: Results, setting: tuple[str, str], comparison: Comparison, key: str, *, name: str) -> Table:
    """How every method did while members came and went in one way."""
    unit, changes = comparison.unit, epochs_of(results.links[key])
    better = "higher" if unit.higher else "lower"
    sites = set(results.sites(setting))
    joined = {site for change in changes for site in change["add"]}
    gone = {site for change in changes for site in (*change["leave"], *change["expel"])}
    groups = {"stayed": sites - joined - gone, "joined late": joined - gone}
    compared = {who: members for who, members in groups.items() if members}
    columns: list[Column] = []
    for who, members in compared.items():
        group = f"Local Test of who {who} ({', '.join(sorted(members))})"
        columns += [Column("always all", group, unit.digits, better), Column(key, group, unit.digits, better)]
        columns.append(Column(f"difference, {unit.point[1]}", group, unit.point[2]))
    rows = []
    for label in comparison.methods:
        if results.method_of(label) == CENTRALISED:
            continue
        cells: list[Cell] = []
        for members in compared.values():
            whole, changed = (
                summarise_method(results, setting, label, comparison.metric, links=links, without=sites - members)
                for links in (UNDISTURBED, key)
            )
            cells += [_mean(whole, comparison), _mean(changed, comparison)]
            cells.append(_difference(whole, changed, comparison, ddof=results.ddof))
        rows.append(TableRow(label, tuple(cells)))
    notes = (
        f"{key}: {'; '.join(map(_in_words, changes))}.",
        f"{unit.axis}, mean over the named sites, over {results.repeats}. always all: all sites were members in every "
        f"round; difference: {key} minus always all.",
        *_notes_on_dashes(results, comparison),
    )
    return Table(name, f"Members that come and go: {key}", "method", tuple(columns), tuple(rows), notes).with_ranks()


def _mean(values: MethodSummary | None, comparison: Comparison) -> Cell:
    return Cell() if values is None else cell(test_row(values, "local").mean, comparison.unit, len(values.units))


def _difference(
    whole: MethodSummary | None, changed: MethodSummary | None, comparison: Comparison, *, ddof: int
) -> Cell:
    """The mean difference over the folds or seeds that both have, with its deviation where there are several."""
    if whole is None or changed is None:
        return Cell()
    before, after = whole.means("local"), changed.means("local")
    pairs = [(before[unit], after[unit]) for unit in before if unit in after]
    factor = comparison.unit.point[0]
    values = [(second - first) * factor for first, second in pairs if first is not None and second is not None]
    if not values:
        return Cell()
    return Cell(fmean(values), (stdev if ddof else pstdev)(values) if len(values) > 1 else None)


def _notes_on_dashes(results: Results, comparison: Comparison) -> Iterator[str]:
    """Why a method that trains each site alone has figures of the whole federation only."""
    alone = [label for label in comparison.methods if results.method_of(label) == LOCAL]
    if alone:
        yield (
            f"{', '.join(alone)}: {EMPTY} where members come and go, since each site trains alone, and nothing changes "
            "for it."
        )


def _in_words(change: Mapping[str, Any]) -> str:
    names = {"add": "joined", "leave": "left", "expel": "was expelled"}
    done = [f"{', '.join(change[key])} {verb}" for key, verb in names.items() if change[key]]
    return f"from round {change['from_round']} on, {' and '.join(done)}"
