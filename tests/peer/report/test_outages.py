"""Lost links and removed sites."""

from __future__ import annotations

import pytest

from peer.report.comparison import compare
from peer.report.outages import by_loss, tables
from peer.report.results import read
from peer.report.values import line

SETTING = ("sites", "heterogeneous")
TWO = {"Local": "local", "FedSKD": "fedskd"}
LINKS = (
    {"name": "all", "loss": 0.0, "removed": []},
    {"name": "half", "loss": 0.5, "removed": []},
    {"name": "gone", "loss": 0.0, "removed": ["asia"]},
)


def test_lost_links_by_share_and_removed_sites_beside_the_whole_federation(make) -> None:
    results = read(make(methods=TWO, links=LINKS))
    found = compare(results, SETTING, "auc", None, name="t")
    links, sites = tables(results, SETTING, found, name="d")
    assert [column.name for column in links.columns] == ["none", "50%", "none", "50%"]
    assert [column.group for column in sites.columns] == ["Local Test, without asia"] * 2
    whole = line(results, SETTING, "FedSKD", "auc", without=["asia"])
    assert whole is not None
    (row,) = [row for row in sites.rows if row.label == "FedSKD"]
    assert row.cells[0].value == pytest.approx(whole.local.mean.mean)
    assert row.cells[0].value != pytest.approx(found.lines["FedSKD"].local.mean.mean)
    assert set(by_loss(results, SETTING, found)["FedSKD"]) == {0.0, 0.5}


def test_an_undisturbed_experiment_has_none(make) -> None:
    results = read(make(methods=TWO))
    assert tables(results, SETTING, compare(results, SETTING, "auc", None, name="t"), name="d") == []
