"""The worst site, and the gap between the best and the worst: the mean over sites hides both."""

from __future__ import annotations

from peer.lab.report.comparison import Comparison
from peer.lab.report.published import TESTS
from peer.lab.report.table import Column, Table, lay_out


def table(comparison: Comparison, *, name: str) -> Table | None:
    """Tabulate the worst site's value and the gap between sites, of both tests; None for a single site."""
    unit, columns = comparison.unit, []
    if comparison.scores.by_test["local"].shape[1] < 2:
        return None
    for test in TESTS:
        group, values = f"{test.title()} Test", comparison.scores.by_test[test]
        if test == "global":
            values = values.drop(index=comparison.single_models, level="label")
        best, worst = (values.max(axis=1), values.min(axis=1))
        gap = Column("gap", group, unit.digits, "lower")
        columns += [
            (comparison.column("worst site", group), comparison.cells(worst if unit.higher else best)),
            (gap, comparison.cells(best - worst)),
        ]
    notes = (
        "Of each fold or seed the site with the worst value, which is not always the same one, and the best site's "
        f"value minus it. Mean over {comparison.results.repeats}.",
    )
    title = f"Worst site and gap between sites, {unit.axis}"
    return lay_out(name, title, columns, comparison.labels, ranked=comparison.ranked, notes=notes)
