"""What joining late, and losing a member, cost each method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.research.report.comparison import Comparison, cell, summarise_method, test_row
from peer.research.report.results import Results
from peer.research.report.table import Cell, Column, Table, TableRow
from peer.research.result_files import CENTRALISED, UNDISTURBED


def epochs_of(links: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Who joins and leaves when under these links; empty where nobody does."""
    return list(links.get("epochs") or ())


def tables(results: Results, setting: tuple[str, str], comparison: Comparison, *, name: str) -> list[Table]:
    """The Local Test of the sites that stayed, and of those that joined late, beside the federation
    of which all were members from the first round on; none without such runs.
    """
    with_runs = {run.links for run in results.runs if run.setting == setting}
    keys = [key for key, links in results.links.items() if key in with_runs and epochs_of(links)]
    if not keys:
        return []
    better, digits = "higher" if comparison.unit.higher else "lower", comparison.unit.digits
    sites = set(results.sites(setting))
    compared: list[tuple[str, set[str]]] = []
    columns: list[Column] = []
    for key in keys:
        changes = epochs_of(results.links[key])
        joined = {site for change in changes for site in change["add"]}
        gone = {site for change in changes for site in (*change["leave"], *change["expel"])}
        for who, members in (("stayed", sites - joined - gone), ("joined late", joined - gone)):
            if members:
                compared.append((key, members))
                group = f"{key}: Local Test of who {who} ({', '.join(sorted(members))})"
                columns += [Column("always all", group, digits, better), Column(key, group, digits, better)]
    rows = []
    for label in comparison.methods:
        if results.method_of(label) == CENTRALISED:
            continue
        cells: list[Cell] = []
        for key, members in compared:
            for links in (UNDISTURBED, key):
                values = summarise_method(
                    results, setting, label, comparison.metric, links=links, without=sites - members
                )
                mean = None if values is None else test_row(values, "local").mean
                units = 0 if values is None else len(values.units)
                cells.append(Cell() if mean is None else cell(mean, comparison.unit, units))
        rows.append(TableRow(label, tuple(cells)))
    notes = (
        f"{comparison.unit.axis}, mean over the named sites, over {results.repeats}. Left: all sites were members in "
        "every round; right: they came and went.",
        *(f"{key}: {'; '.join(map(_in_words, epochs_of(results.links[key])))}." for key in keys),
    )
    return [Table(name, "Members that come and go", "method", tuple(columns), tuple(rows), notes).with_ranks()]


def _in_words(change: Mapping[str, Any]) -> str:
    names = {"add": "joined", "leave": "left", "expel": "was expelled"}
    done = [f"{', '.join(change[key])} {verb}" for key, verb in names.items() if change[key]]
    return f"from round {change['from_round']} on, {' and '.join(done)}"
