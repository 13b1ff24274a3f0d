"""What one member that means harm costs the others, by its act and the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from statistics import fmean
from typing import Any

from peer.lab.experiments.result_files import UNDISTURBED
from peer.lab.report.comparison import Comparison, MethodSummary, cell, summarise_method, test_row
from peer.lab.report.results import Results
from peer.lab.report.table import Cell, Column, Table, TableRow


def insider_of(links: Mapping[str, Any]) -> str:
    """The site that plays an act under these links; empty where none does."""
    return str(links.get("insider") or "")


def tables(results: Results, setting: tuple[str, str], comparison: Comparison, *, name: str) -> Iterator[Table]:
    """The Local Test of the honest sites for each act and method, and its loss; none without such runs."""
    links_with_runs = {run.links for run in results.runs if run.setting == setting}
    acts = {key: links for key, links in results.links.items() if key in links_with_runs and insider_of(links)}
    if not acts:
        return
    insiders = {insider_of(links) for links in acts.values()}
    absent = [key for key in links_with_runs if set(results.links[key]["removed"]) == insiders]
    yield _values(results, setting, comparison, acts, absent, insiders, name=name)
    yield _losses(results, setting, comparison, acts, absent[0] if absent else UNDISTURBED, name=f"{name}-loss")


def _values(
    results: Results,
    setting: tuple[str, str],
    comparison: Comparison,
    acts: Mapping[str, Mapping[str, Any]],
    absent: Sequence[str],
    insiders: Set[str],
    *,
    name: str,
) -> Table:
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
    return Table(name, f"One insider: {unit.axis}", "insider", columns, tuple(rows), notes)


def _losses(
    results: Results,
    setting: tuple[str, str],
    comparison: Comparison,
    acts: Mapping[str, Mapping[str, Any]],
    reference: str,
    *,
    name: str,
) -> Table:
    """How much worse the honest sites are than without the insider: mean and worst over folds or seeds."""
    unit = comparison.unit
    rows = []
    for key, links in acts.items():
        cells = []
        for label in comparison.methods:
            values, usual = (
                summarise_method(results, setting, label, comparison.metric, links=each, without={insider_of(links)})
                for each in (key, reference)
            )
            losses = [] if values is None or usual is None else _differences(usual, values, higher=unit.higher)
            shown = (
                [f"{value * unit.factor:.{unit.digits}f}" for value in (fmean(losses), max(losses))] if losses else []
            )
            cells.append(Cell(text=f"{shown[0]} ({shown[1]})") if shown else Cell())
        rows.append(TableRow(f"{key} ({links['act']})", tuple(cells), ranked=False))
    columns = tuple(Column(label, "method", unit.digits) for label in comparison.methods)
    compared = "the run where it never took part" if reference != UNDISTURBED else "the run where it is honest"
    notes = (f"How much worse than in {compared}: mean, and in parentheses the worst, over {results.repeats}.",)
    return Table(name, f"What one insider costs: {unit.axis}", "insider", columns, tuple(rows), notes)


def _differences(usual: MethodSummary, values: MethodSummary, *, higher: bool) -> list[float]:
    """The loss of each fold or seed that both have."""
    before, after = usual.means("local"), values.means("local")
    pairs = [(before[unit], after[unit]) for unit in before if unit in after]
    return [
        (first - second) * (1 if higher else -1) for first, second in pairs if first is not None and second is not None
    ]
