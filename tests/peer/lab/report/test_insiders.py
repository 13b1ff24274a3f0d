"""The table of what one insider costs."""

from __future__ import annotations

from statistics import mean

import pytest

from fakes.report_folders import SETTING, compared, link
from peer.lab.report import lost_links
from peer.lab.report.comparison import summarise_method
from peer.lab.report.insiders import tables

TWO = {"FedAvg": "fedavg", "FedSKD": "fedskd"}
LINKS = (link("all"), link("gone", removed=["asia"]), link("flipped", insider="asia", act="signs"))


def test_every_act_is_a_row_beside_the_federation_with_and_without_the_insider(make) -> None:
    results, comparison = compared(make(methods=TWO, links=LINKS))
    shown, _ = tables(results, SETTING, comparison, name="i")
    assert [row.label for row in shown.rows] == ["honest", "absent", "flipped (signs)"]
    assert [column.name for column in shown.columns] == list(TWO)
    others = summarise_method(results, SETTING, "FedSKD", "auc", links="flipped", without=["asia"])
    assert shown.rows[2].cells[1].value == pytest.approx(others.local.mean.mean)
    assert "asia is the insider" in shown.notes[0]
    lost = [each.name for each in lost_links.tables(results, SETTING, comparison, name="d")]
    assert lost == ["d-sites"], "an insider is no lost link"


def test_an_experiment_without_an_insider_has_no_such_table(make) -> None:
    without, comparison = compared(make(methods=TWO, links=LINKS[:2]))
    assert list(tables(without, SETTING, comparison, name="i")) == []


def test_the_loss_is_that_to_the_run_without_the_insider_with_the_worst_seed(make) -> None:
    results, comparison = compared(make(methods=TWO, links=LINKS))
    _, losses = tables(results, SETTING, comparison, name="i")
    assert [row.label for row in losses.rows] == ["flipped (signs)"]
    flipped, gone = (
        summarise_method(results, SETTING, "FedSKD", "auc", links=links, without=["asia"])
        for links in ("flipped", "gone")
    )
    differences = [gone.means("local")[seed] - flipped.means("local")[seed] for seed in gone.units]
    assert losses.rows[0].cells[1].text == f"{mean(differences):.3f} ({max(differences):.3f})"
    assert len(differences) > 1
    assert "where it never took part" in losses.notes[0]
