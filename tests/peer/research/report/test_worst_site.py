"""The worst site and the gap, beside the means."""

from peer.research.report import worst_site
from peer.research.report.comparison import compare
from peer.research.report.results import read

SETTING = ("sites", "heterogeneous")


def test_the_worst_of_each_seed_and_what_has_no_gap(make) -> None:
    methods = {"Centralised": "centralised", "Local": "local", "FedAvg": "fedavg"}
    results = read(make(methods=methods, seeds=(0, 1), sites=("a", "b", "c")))
    comparison = compare(results, SETTING, "auc", None, name="t")
    table = worst_site.table(results, comparison, name="t")
    assert table is not None
    rows = {row.label: row for row in table.rows}
    runs = results.select(SETTING, "Local")
    worst = [min(run.matrix[site][site]["auc"] for site in "abc") for run in runs]
    best = [max(run.matrix[site][site]["auc"] for site in "abc") for run in runs]
    cells = rows["Local"].cells
    assert cells[0].value == sum(worst) / 2
    assert cells[1].value == (best[0] - worst[0] + best[1] - worst[1]) / 2
    assert [cell.value is None for cell in rows["FedAvg"].cells] == [False, False, True, True]
    assert not rows["Centralised"].ranked


def test_one_site_has_no_gap(make) -> None:
    results = read(make(methods={"Local": "local"}, sites=("a",)))
    comparison = compare(results, SETTING, "auc", None, name="t")
    assert worst_site.table(results, comparison, name="t") is None
