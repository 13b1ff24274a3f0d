"""The table of what one insider costs."""

from __future__ import annotations

import pytest

from peer.research.report import lost_links
from peer.research.report.comparison import compare, summarise_method
from peer.research.report.insiders import table
from peer.research.report.results import read

SETTING = ("sites", "heterogeneous")
TWO = {"FedAvg": "fedavg", "FedSKD": "fedskd"}
LINKS = (
    {"name": "all", "loss": 0.0, "removed": []},
    {"name": "gone", "loss": 0.0, "removed": ["asia"]},
    {"name": "flipped", "loss": 0.0, "removed": [], "insider": "asia", "act": "signs"},
)


def test_every_act_is_a_row_beside_the_federation_with_and_without_the_insider(make) -> None:
    results = read(make(methods=TWO, links=LINKS))
    comparison = compare(results, SETTING, "auc", None, name="t")
    shown = table(results, SETTING, comparison, name="i")
    assert shown is not None
    assert [row.label for row in shown.rows] == ["honest", "absent", "flipped (signs)"]
    assert [column.name for column in shown.columns] == list(TWO)
    others = summarise_method(results, SETTING, "FedSKD", "auc", links="flipped", without=["asia"])
    assert others is not None
    assert shown.rows[2].cells[1].value == pytest.approx(others.local.mean.mean)
    assert "asia is the insider" in shown.notes[0]


def test_an_insider_is_no_lost_link(make) -> None:
    results = read(make(methods=TWO, links=LINKS))
    comparison = compare(results, SETTING, "auc", None, name="t")
    assert [each.name for each in lost_links.tables(results, SETTING, comparison, name="d")] == ["d-sites"]


def test_an_experiment_without_an_insider_has_no_such_table(make) -> None:
    without = read(make(methods=TWO, links=LINKS[:2]))
    assert table(without, SETTING, compare(without, SETTING, "auc", None, name="t"), name="i") is None
