"""Leave one site out: by hand, from the matrices of the runs."""

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, compared, link
from peer.lab.report import left_out_sites, lost_links

LINKS = (link("all"), *(link(f"leave-out-{site}", removed=[site], left_out=site) for site in ("a", "b", "c")))


def test_the_other_sites_models_at_the_site_that_did_not_take_part(make) -> None:
    folder = make(methods={"Local": "local", "FedSKD": "fedskd"}, seeds=(0, 1), sites=("a", "b", "c"), links=LINKS)
    for document in change_documents(folder, "runs/*/result.json"):
        left_out = document["links"].removeprefix("leave-out-")
        for model, row in document["matrix"].items():
            if document["links"] != "all":
                row[left_out] = {"auc": {"a": 0.6, "b": 0.7, "c": 0.8}[model] + 0.1 * document["seed"]}
            else:
                row |= {site: {"auc": 0.5 if site == model else 0.4} for site in "abc"}
    for path in folder.glob("runs/*leave-out*Local*"):  # `simulate` does not repeat these
        (path / "result.json").unlink()
    results, comparison = compared(folder)
    table = left_out_sites.table(results, SETTING, comparison, name="t")
    rows = {row.label: [cell.value for cell in row.cells] for row in table.rows}
    assert [column.name for column in table.columns] == ["a", "b", "c", "Mean"]
    assert rows["FedSKD"] == pytest.approx([0.80, 0.75, 0.70, 0.75])
    assert rows["Local"] == pytest.approx([0.4] * 4), "the models of the undisturbed runs"
    assert rows["Local, trained at the site itself"] == pytest.approx([0.5] * 4)
    assert lost_links.tables(results, SETTING, comparison, name="t") == []


def test_without_such_runs_there_is_no_table(make) -> None:
    results, comparison = compared(make(methods={"Local": "local"}, sites=("a", "b")))
    assert left_out_sites.table(results, SETTING, comparison, name="t") is None
