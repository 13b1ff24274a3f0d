"""The effect of lost links and removed sites on every method, as in dFLMoE's table 6."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from peer.lab.experiments.result_files import CENTRALISED, UNDISTURBED
from peer.lab.report.coming_and_going import epochs_of
from peer.lab.report.comparison import Comparison, MethodSummary, cell, summarise_method, test_row
from peer.lab.report.insiders import insider_of
from peer.lab.report.results import Results
from peer.lab.report.table import Cell, Column, Table, TableRow


def tables(results: Results, setting: tuple[str, str], comparison: Comparison, *, name: str) -> list[Table]:
    """A table of lost links and one of removed sites, where there are such runs."""
    links_with_runs = {run.links for run in results.runs if run.setting == setting}
    lossy = [
        key
        for key, links in results.links.items()
        if key in links_with_runs and not links["removed"] and not insider_of(links) and not epochs_of(links)
    ]
    reduced = [
        key
        for key, links in results.links.items()
        if key in links_with_runs and links["removed"] and not links.get("left_out")
    ]
    disconnection_tables = []
    if len(lossy) > 1:
        disconnection_tables.append(_lost_links_table(results, setting, comparison, lossy, name=f"{name}-links"))
    if reduced:
        disconnection_tables.append(_removed_sites_table(results, setting, comparison, reduced, name=f"{name}-sites"))
    return disconnection_tables


def by_loss(
    results: Results, setting: tuple[str, str], comparison: Comparison
) -> dict[str, dict[float, tuple[float, float]]]:
    """Mean and deviation of the mean Local Test by probability of loss, in the unit shown."""
    points: dict[str, dict[float, tuple[float, float]]] = {}
    for label in comparison.methods:
        for key, links in results.links.items():
            if links["removed"] or insider_of(links) or epochs_of(links):
                continue
            values = summarise_method(results, setting, label, comparison.metric, links=key)
            if values is not None and values.local.mean.mean is not None:
                factor = comparison.unit.factor
                points.setdefault(label, {})[float(links["loss"])] = (
                    values.local.mean.mean * factor,
                    (values.local.mean.std or 0.0) * factor,
                )
    return points


def _lost_links_table(
    results: Results, setting: tuple[str, str], comparison: Comparison, keys: list[str], *, name: str
) -> Table:
    columns, rows = [], []
    for test in ("Local Test", "Global Test"):
        for key in keys:
            share = float(results.links[key]["loss"])
            better = "higher" if comparison.unit.higher else "lower"
            columns.append(
                Column("none" if share == 0 else f"{share:.0%}", f"{test}, links lost", comparison.unit.digits, better)
            )
    for label in comparison.methods:
        summaries = [summarise_method(results, setting, label, comparison.metric, links=key) for key in keys]
        cells = [_cell(values, test, comparison) for test in ("local", "global") for values in summaries]
        rows.append(TableRow(label, tuple(cells), ranked=results.method_of(label) != CENTRALISED))
    notes = (
        f"{comparison.unit.axis}, mean over sites, over {results.repeats}. Each directed link is down in each round "
        "with this probability. Methods that send nothing lose nothing and have no further runs.",
        *_untrained_notes(results, setting, comparison, keys),
    )
    return Table(name, "Lost links", "method", tuple(columns), tuple(rows), notes).with_ranks()


def _untrained_notes(
    results: Results, setting: tuple[str, str], comparison: Comparison, keys: list[str]
) -> Iterator[str]:
    """Notes on lost optimiser steps: no site trains a model that does not arrive."""
    for label in comparison.methods:
        means = [
            fmean(int(facts["steps"]) for run in runs for facts in run.sites.values())
            for key in keys
            if (runs := results.select(setting, label, key))
        ]
        if len(set(means)) > 1:
            steps = ", ".join(f"{mean:,.0f}" for mean in means)
            yield (
                f"{label}: a model that does not arrive is not trained in that round; "
                f"from left to right, the models were trained for {steps} optimiser steps."
            )


def _removed_sites_table(
    results: Results, setting: tuple[str, str], comparison: Comparison, keys: list[str], *, name: str
) -> Table:
    """Compare each federation without some sites to the whole one, on the remaining sites."""
    better, digits = "higher" if comparison.unit.higher else "lower", comparison.unit.digits
    columns, rows = [], []
    for key in keys:
        group = f"Local Test, without {', '.join(results.links[key]['removed'])}"
        columns += [Column("all took part", group, digits, better), Column("removed", group, digits, better)]
    for label in comparison.methods:
        cells = []
        for key in keys:
            removed = results.links[key]["removed"]
            for links in (UNDISTURBED, key):
                values = summarise_method(results, setting, label, comparison.metric, links=links, without=removed)
                cells.append(_cell(values, "local", comparison))
        rows.append(TableRow(label, tuple(cells), ranked=results.method_of(label) != CENTRALISED))
    notes = (
        f"{comparison.unit.axis}, mean over the remaining sites, over {results.repeats}. Left: the federation of all "
        "sites, evaluated on the remaining ones only; right: the removed sites never took part.",
    )
    return Table(name, "Removed sites", "method", tuple(columns), tuple(rows), notes).with_ranks()


def _cell(values: MethodSummary | None, test: str, comparison: Comparison) -> Cell:
    return Cell() if values is None else cell(test_row(values, test).mean, comparison.unit, len(values.units))
