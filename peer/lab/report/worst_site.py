"""What the mean over sites hides: the worst site, and the gap between the best and the worst."""

from __future__ import annotations

from peer.lab.report.comparison import Comparison, cell, test_row
from peer.lab.report.published import TESTS
from peer.lab.report.results import Results
from peer.lab.report.table import Cell, Column, Table, TableRow
from peer.lab.statistics.tables import site_gap, worst_site


def table(results: Results, comparison: Comparison, *, name: str) -> Table | None:
    """The worst site's value and the gap between sites, of both tests; None for a single site."""
    sites = {site for values in comparison.methods.values() for site in values.local.cells}
    if len(sites) < 2:
        return None
    unit = comparison.unit
    better = ("higher", "lower") if unit.higher else ("lower", "lower")
    columns = [
        Column(heading, f"{test.title()} Test", unit.digits, side)
        for test in TESTS
        for heading, side in zip(("worst site", "gap"), better, strict=True)
    ]
    rows = []
    for label, values in comparison.methods.items():
        cells: list[Cell] = []
        for test in TESTS:
            row = test_row(values, test)
            spreads = (worst_site(row, higher=unit.higher, ddof=results.ddof), site_gap(row, ddof=results.ddof))
            has_one_value = test == "global" and values.single_model
            cells += (Cell() if has_one_value else cell(spread, unit, len(values.units)) for spread in spreads)
        rows.append(TableRow(label, tuple(cells), ranked=label in comparison.ranked))
    notes = (
        "Of each fold or seed the site with the worst value, which is not always the same one, and the best site's "
        f"value minus it. Mean over {results.repeats}.",
    )
    return Table(
        name, f"Worst site and gap between sites, {unit.axis}", "method", tuple(columns), tuple(rows), notes
    ).with_ranks()
