"""The papers' figures: complete, consistent but for what is written down, and beside the right experiment."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

import peer.lab.report
from peer.lab.report.published import Published, choose_comparison, normalise_name, printed_cell, reference_tables
from peer.lab.report.table import Cell

DOCUMENT: Any = json.loads(Path(peer.lab.report.__file__).with_name("published.json").read_text("utf-8"))
TABLES = [Published(table) for table in DOCUMENT["tables"]]
ASD = {"paper": "FedSKD", "table": "II", "dataset": "FedASD", "setting": "heterogeneous"}
DISAGREE = {
    ("III", "FedSkin alpha=1", "FedCross", "auc"),
    ("2", "BreaKHis label-skew", "MH-pFLID", "accuracy"),
    ("2", "Fed-IXI (3D brain)", "FedAvg", "dice"),
    ("2", "Fed-IXI (3D brain)", "FedProx", "dice"),
}
"""Rows whose clients do not average to the printed mean; each has a remark."""


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"{table.source} {table.dataset} {table.setting}")
def test_every_table_is_whole(table: Published) -> None:
    rows, columns = table.document["rows"], table.document["columns"]
    assert rows
    assert all(len(row) == 1 + len(columns) for row in rows)
    assert len({row[0] for row in rows}) == len(rows) or table.kind == "footprint"
    assert table.paper in DOCUMENT["papers"]
    assert len(table.table("t").rows) == len(rows)


def test_printed_means_are_those_of_the_clients_but_for_the_known_ones() -> None:
    wrong = set()
    for table in TABLES:
        if table.kind != "comparison":
            continue
        for metric in {metric for _, _, metric in table.document["columns"] if metric}:
            # Every printed number is rounded, so that the mean may be off by the last digit.
            deviation_max = 0.0151 if table.unit == "percent" or metric == "psnr" else 1.51e-4
            for label in table.labels:
                cells = [table.cell(label, "local", site, metric).value for site in table.sites(metric)]
                mean = table.cell(label, "local", "Mean", metric).value
                values = [value for value in cells if value is not None]
                if values and mean is not None and abs(statistics.fmean(values) - mean) > deviation_max:
                    wrong.add((str(table.document["table"]), table.dataset, label, metric))
    assert wrong == DISAGREE


def test_what_does_not_agree_is_said_where_the_table_is_shown() -> None:
    for number, dataset, _, _ in DISAGREE:
        tables = [t for t in TABLES if str(t.document["table"]) == number and t.dataset == dataset]
        assert any(table.remarks() for table in tables)
    for remark in DOCUMENT["remarks"]:
        assert any(remark["text"] in table.remarks() for table in TABLES), remark["text"]


def test_the_named_table_and_what_else_the_paper_shows_of_the_data() -> None:
    tables = reference_tables(ASD)
    assert [(table.source, table.setting) for table in tables] == [
        ("FedSKD, table II", "heterogeneous"),
        ("FedSKD, table VII", "heterogeneous"),
    ]
    assert reference_tables(None) == []


def test_without_a_setting_the_networks_decide() -> None:
    tables = reference_tables({key: value for key, value in ASD.items() if key != "setting"})
    comparison = choose_comparison(tables, ("sites", "homogeneous"), "auc")
    assert comparison.setting == "homogeneous"
    assert choose_comparison(tables, ("sites", "others"), "auc") is None
    assert choose_comparison(tables, ("sites", "homogeneous"), "dice") is None


def test_the_partition_decides_between_variants_of_the_data() -> None:
    tables = reference_tables({"paper": "FedSKD", "table": "III", "dataset": "FedSkin", "setting": "heterogeneous"})
    comparison = choose_comparison(tables, ("alpha-0.5", "heterogeneous"), "auc")
    assert comparison.dataset == "FedSkin alpha=0.5"


def test_an_ablation_is_found_by_its_number_without_letter() -> None:
    (ablation,) = [
        t for t in reference_tables({"paper": "FedSKD", "table": "IV", "dataset": "FedASD"}) if t.kind == "comparison"
    ]
    assert ablation.labels == ["B", "V", "R", "B+V", "B+R", "B+V+R"]
    assert ablation.sites("auc") == []
    assert ablation.cell("B+V+R", "local", "Mean", "auc") == Cell(76.66, 2.7)


def test_names_that_differ_in_print_are_one() -> None:
    assert normalise_name("Only Local Training") == normalise_name("local")
    assert normalise_name("Centralized") == normalise_name("Central") == normalise_name("centralised")
    assert normalise_name("West-US") == normalise_name("WestUS")
    assert normalise_name("MH-pFLID") == normalise_name("mh_pflid")
    assert normalise_name("FedCross") != normalise_name("FedSKD")


def test_a_cell_is_a_number_a_pair_words_or_nothing() -> None:
    assert printed_cell([70.27, 5.4]) == Cell(70.27, 5.4)
    assert printed_cell(0.5) == Cell(0.5)
    assert printed_cell("0.01-0.07") == Cell(text="0.01-0.07")
    assert printed_cell(None) == Cell()
