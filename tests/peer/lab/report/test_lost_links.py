"""Lost links and removed sites."""

import pytest

from fakes.json_documents import change_documents
from fakes.report_folders import SETTING, TWO, compared, link
from peer.lab.report.comparison import summarise_method
from peer.lab.report.lost_links import by_loss, tables

LINKS = (link("all"), link("half", loss=0.5), link("gone", removed=["asia"]))


def test_lost_links_by_share_and_removed_sites_beside_the_whole_federation(make) -> None:
    results, comparison = compared(make(methods=TWO, links=LINKS))
    links, sites = tables(results, SETTING, comparison, name="d")
    assert [column.name for column in links.columns] == ["none", "50%", "none", "50%"]
    assert [column.group for column in sites.columns] == ["Local Test, without asia"] * 2
    whole = summarise_method(results, SETTING, "FedSKD", "auc", without=["asia"])
    (row,) = [row for row in sites.rows if row.label == "FedSKD"]
    assert row.cells[0].value == pytest.approx(whole.local.mean.mean)
    assert row.cells[0].value != pytest.approx(comparison.methods["FedSKD"].local.mean.mean)
    assert set(by_loss(results, SETTING, comparison)["FedSKD"]) == {0.0, 0.5}


def test_an_undisturbed_experiment_has_none(make) -> None:
    results, comparison = compared(make(methods=TWO))
    assert tables(results, SETTING, comparison, name="d") == []


def test_lost_links_that_cost_steps_are_named(make) -> None:
    folder = make(methods=TWO, links=LINKS)
    for result in change_documents(folder, "runs/*.half.FedSKD.*/result.json"):
        for facts in result["sites"].values():
            facts["steps"] = 7
    results, comparison = compared(folder)
    links, _ = tables(results, SETTING, comparison, name="d")
    (note,) = [note for note in links.notes if "steps" in note]
    assert note.startswith("FedSKD: a model that does not arrive is not trained in that round")
    assert ", 7 optimiser steps" in note
