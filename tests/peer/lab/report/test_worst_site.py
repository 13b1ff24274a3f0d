"""The worst site and the gap, beside the means."""

from fakes.report_folders import SETTING, compared
from peer.lab.report import worst_site


def test_the_worst_of_each_seed_and_what_has_no_gap(make) -> None:
    methods = {"Centralised": "centralised", "Local": "local", "FedAvg": "fedavg"}
    results, comparison = compared(make(methods=methods, seeds=(0, 1), sites=("a", "b", "c")))
    table = worst_site.table(comparison, name="t")
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
    _, comparison = compared(make(methods={"Local": "local"}, sites=("a",)))
    assert worst_site.table(comparison, name="t") is None
