"""Members that come and go, beside a federation of which all were always members."""

import pytest

from peer.research.report import lost_links
from peer.research.report.coming_and_going import tables
from peer.research.report.comparison import compare, summarise_method
from peer.research.report.results import read

SETTING = ("sites", "heterogeneous")
TWO = {"Local": "local", "FedSKD": "fedskd"}
LATE = [{"from_round": 3, "add": ["asia"], "leave": [], "expel": []}]
LINKS = (
    {"name": "all", "loss": 0.0, "removed": []},
    {"name": "late", "loss": 0.0, "removed": [], "epochs": LATE},
)


def test_who_stayed_and_who_joined_late_each_beside_the_whole_federation(make) -> None:
    results = read(make(methods=TWO, links=LINKS))
    comparison = compare(results, SETTING, "auc", None, name="t")
    (table,) = tables(results, SETTING, comparison, name="d")
    assert [column.name for column in table.columns] == ["always all", "late"] * 2
    assert [column.group for column in table.columns][2] == "late: Local Test of who joined late (asia)"
    others = [site for site in results.sites(SETTING) if site != "asia"]
    asia = summarise_method(results, SETTING, "FedSKD", "auc", links="late", without=others)
    (row,) = [row for row in table.rows if row.label == "FedSKD"]
    assert row.cells[3].value == pytest.approx(asia.local.mean.mean)
    assert table.notes[1] == "late: from round 3 on, asia joined."


def test_they_are_no_lost_links(make) -> None:
    results = read(make(methods=TWO, links=LINKS))
    comparison = compare(results, SETTING, "auc", None, name="t")
    assert lost_links.tables(results, SETTING, comparison, name="d") == []


def test_an_undisturbed_experiment_has_none(make) -> None:
    results = read(make(methods=TWO))
    assert tables(results, SETTING, compare(results, SETTING, "auc", None, name="t"), name="d") == []
