"""What lost links and removed sites cost: dFLMoE's table 6, for every method."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from peer.research.report import comparison
from peer.research.report.comparison import Comparison, MethodInSetting
from peer.research.report.results import Results
from peer.research.report.table import Cell, Column, Table, TableRow
from peer.research.result_files import CENTRALISED, UNDISTURBED


def tables(results: Results, setting: tuple[str, str], found: Comparison, *, name: str) -> list[Table]:
    """One of lost links and one of removed sites, as far as there are runs."""
    ran = {run.links for run in results.runs if run.setting == setting}
    lossy = [key for key, links in results.links.items() if key in ran and not links["removed"]]
    reduced = [key for key, links in results.links.items() if key in ran and links["removed"]]
    made = []
    if len(lossy) > 1:
        made.append(_lossy(results, setting, found, lossy, name=f"{name}-links"))
    if reduced:
        made.append(_reduced(results, setting, found, reduced, name=f"{name}-sites"))
    return made


def by_loss(
    results: Results, setting: tuple[str, str], found: Comparison
) -> dict[str, dict[float, tuple[float, float]]]:
    """Of each method mean and deviation of the mean Local Test, by the probability of loss; in the unit shown."""
    made: dict[str, dict[float, tuple[float, float]]] = {}
    for label in found.lines:
        for key, links in results.links.items():
            line = None if links["removed"] else comparison.line(results, setting, label, found.metric, links=key)
            if line is not None and line.local.mean.mean is not None:
                factor = found.unit.factor
                made.setdefault(label, {})[float(links["loss"])] = (
                    line.local.mean.mean * factor,
                    (line.local.mean.std or 0.0) * factor,
                )
    return made


def _lossy(results: Results, setting: tuple[str, str], found: Comparison, keys: list[str], *, name: str) -> Table:
    columns, rows = [], []
    for test in ("Local Test", "Global Test"):
        for key in keys:
            share = float(results.links[key]["loss"])
            better = "higher" if found.unit.higher else "lower"
            columns.append(
                Column("none" if share == 0 else f"{share:.0%}", f"{test}, links lost", found.unit.digits, better)
            )
    for label in found.lines:
        lines = [comparison.line(results, setting, label, found.metric, links=key) for key in keys]
        cells = [_cell(line, test, found) for test in ("local", "global") for line in lines]
        rows.append(TableRow(label, tuple(cells), ranked=results.method_of(label) != CENTRALISED))
    notes = (
        f"{found.unit.axis}, mean over sites, over {results.repeats}. Each directed link is down in each round with "
        "this probability. Methods that send nothing lose nothing and have no further runs.",
        *_untrained(results, setting, found, keys),
    )
    return Table(name, "Lost links", "method", tuple(columns), tuple(rows), notes).ranked()


def _untrained(results: Results, setting: tuple[str, str], found: Comparison, keys: list[str]) -> Iterator[str]:
    """Where links cost steps too: a model that travels and does not arrive is trained by nobody in that round."""
    for label in found.lines:
        means = [
            fmean(int(facts["steps"]) for run in runs for facts in run.sites.values())
            for key in keys
            if (runs := results.select(setting, label, key))
        ]
        if len(set(means)) > 1:
            seen = ", ".join(f"{mean:,.0f}" for mean in means)
            yield f"{label}: what does not arrive is not trained; its models saw {seen} optimiser steps, left to right."


def _reduced(results: Results, setting: tuple[str, str], found: Comparison, keys: list[str], *, name: str) -> Table:
    """Each federation without some sites beside the whole one, both on the remaining sites."""
    better, digits = "higher" if found.unit.higher else "lower", found.unit.digits
    columns, rows = [], []
    for key in keys:
        group = f"Local Test, without {', '.join(results.links[key]['removed'])}"
        columns += [Column("all took part", group, digits, better), Column("removed", group, digits, better)]
    for label in found.lines:
        cells = []
        for key in keys:
            gone = results.links[key]["removed"]
            for links in (UNDISTURBED, key):
                line = comparison.line(results, setting, label, found.metric, links=links, without=gone)
                cells.append(_cell(line, "local", found))
        rows.append(TableRow(label, tuple(cells), ranked=results.method_of(label) != CENTRALISED))
    notes = (
        f"{found.unit.axis}, mean over the remaining sites, over {results.repeats}. Left: the federation of all sites, "
        "evaluated on the remaining ones only; right: the removed sites never took part.",
    )
    return Table(name, "Removed sites", "method", tuple(columns), tuple(rows), notes).ranked()


def _cell(line: MethodInSetting | None, test: str, found: Comparison) -> Cell:
    return Cell() if line is None else comparison.cell(comparison.row(line, test).mean, found.unit, len(line.units))
