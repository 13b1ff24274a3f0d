"""What one member that means harm costs the others, by its act and the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peer.research.report.comparison import Comparison, cell, summarise_method, test_row
from peer.research.report.results import Results
from peer.research.report.table import Cell, Column, Table, TableRow
from peer.research.result_files import UNDISTURBED


def insider_of(links: Mapping[str, Any]) -> str:
    """The site that plays an act under these links; empty where none does."""
    return str(links.get("insider") or "")


def table(results: Results, setting: tuple[str, str], comparison: Comparison, *, name: str) -> Table | None:
    """The Local Test of the honest sites for each act and method; ``None`` without such runs."""
    links_with_runs = {run.links for run in results.runs if run.setting == setting}
    acts = {key: links for key, links in results.links.items() if key in links_with_runs and insider_of(links)}
    if not acts:
        return None
    insiders = {insider_of(links) for links in acts.values()}
    absent = [key for key in links_with_runs if set(results.links[key]["removed"]) == insiders]
    unit = comparison.unit
    better = "higher" if unit.higher else "lower"
    rows = []
    for key in (UNDISTURBED, *absent, *acts):
        without = insiders if key in (UNDISTURBED, *absent) else {insider_of(acts[key])}
        cells = []
        for label in comparison.methods:
            values = summarise_method(results, setting, label, comparison.metric, links=key, without=without)
            cells.append(Cell() if values is None else cell(test_row(values, "local").mean, unit, len(values.units)))
        text = "honest" if key == UNDISTURBED else f"{key} ({acts[key]['act']})" if key in acts else "absent"
        rows.append(TableRow(text, tuple(cells), ranked=False))
    columns = tuple(Column(label, "method", unit.digits, better) for label in comparison.methods)
    notes = (
        f"{unit.axis}, mean over the other sites, over {results.repeats}. {', '.join(sorted(insiders))} is the "
        "insider. honest: it sends what it trained; absent: it never took part.",
    )
    return Table(name, "One insider", "insider", columns, tuple(rows), notes)
