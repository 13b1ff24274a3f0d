"""The room beside every mean, and its own table."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from peer.research.report import room
from peer.research.report.comparison import Comparison, compare
from peer.research.report.results import Results, read

SETTING = ("sites", "heterogeneous")
THREE = {"Centralised": "centralised", "Local": "local", "FedSKD": "fedskd"}
SHARES = ("Local Test: share of room, %", "Global Test: share of room, %")


def with_values(folder: Path, value: Callable[[str, int, str], float], metric: str = "auc") -> Path:
    """Set the metric by method, seed and model's site, on all sites' data."""
    for path in folder.glob("runs/*/result.json"):
        document = json.loads(path.read_text())
        for model, row in document["matrix"].items():
            for cell in row.values():
                cell[metric] = value(document["method"], document["seed"], model)
        path.write_text(json.dumps(document))
    return folder


def compared(folder: Path, metric: str = "auc") -> tuple[Results, Comparison]:
    results = read(folder)
    return results, compare(results, SETTING, metric, None, name="t")


def texts_by_label(table: Any) -> Mapping[str, dict[str, str]]:
    heads = [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns]
    return {
        row.label: {
            head: cell.format(column.digits) for head, cell, column in zip(heads, row.cells, table.columns, strict=True)
        }
        for row in table.rows
    }


VALUES = {"Local": 0.70, "Centralised": 0.90, "FedSKD": 0.80}
NOISE = {"Local": 0.0, "Centralised": 0.01, "FedSKD": 0.02}


def test_every_mean_has_its_share_of_the_room(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2), sites=("a", "b"))
    with_values(folder, lambda method, seed, site: VALUES[method] + seed * NOISE[method])
    results, comparison = compared(folder)
    texts = texts_by_label(comparison.table)
    assert [texts["FedSKD"][share] for share in SHARES] == ["57", "57"], "0.12 of 0.21"
    assert [texts["Local"][share] for share in SHARES] == ["–", "–"]
    assert [texts["Centralised"][share] for share in SHARES] == ["–", "–"]
    table = room.table(results, comparison, name="room")
    assert table is not None
    rows = texts_by_label(table)
    assert list(rows) == ["room (Centralised)", "FedSKD"]
    assert rows["room (Centralised)"]["Local Test: gain, points"] == "21.0"
    assert rows["room (Centralised)"]["Local Test: 95 % interval"] == "+18.5 to +23.5"
    assert rows["FedSKD"]["Local Test: gain, points"] == "12.0"
    assert rows["FedSKD"]["Local Test: share, %"] == "57"
    assert rows["FedSKD"]["Local Test: 95 % interval of share"] == "+38 to +72"
    assert "over seeds" in table.notes[0]


def test_a_room_below_a_point_has_no_shares(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2), sites=("a", "b"))
    values = {"Local": 0.900, "Centralised": 0.905, "FedSKD": 0.904}
    with_values(folder, lambda method, seed, site: values[method])
    results, comparison = compared(folder)
    assert [texts_by_label(comparison.table)["FedSKD"][share] for share in SHARES] == ["no room", "no room"]
    table = room.table(results, comparison, name="room")
    assert table is not None
    assert texts_by_label(table)["FedSKD"]["Local Test: gain, points"] == "0.4"
    assert room.document(comparison)["local"]["methods"]["FedSKD"]["share"] is None
    assert room.document(comparison)["local"]["has_room"] is False


def test_without_the_pooled_bound_there_is_no_column_of_it(make) -> None:
    results, comparison = compared(make(methods={"Local": "local", "FedSKD": "fedskd"}))
    assert not any("room" in column.name for column in comparison.table.columns)
    assert room.table(results, comparison, name="room") is None


def test_decibels_are_no_points(make) -> None:
    folder = make(kind="super_resolution", methods=THREE, seeds=(0, 1), sites=("a", "b"))
    psnr = {"Local": 25.0, "Centralised": 27.0, "FedSKD": 26.5}
    with_values(folder, lambda method, seed, site: psnr[method] + 0.01 * seed * NOISE[method], "psnr")
    results, comparison = compared(folder, "psnr")
    table = room.table(results, comparison, name="room")
    assert table is not None
    row = texts_by_label(table)["FedSKD"]
    assert row["Local Test: gain, dB"] == "1.50"
    assert row["Local Test: share, %"] == "75"


def test_one_run_is_tested_over_its_sites_and_says_so(make) -> None:
    folder = make(methods=THREE, seeds=(0,), sites=("a", "b", "c"))
    with_values(folder, lambda method, seed, site: VALUES[method] + 0.01 * "abc".index(site) * NOISE[method])
    results, comparison = compared(folder)
    table = room.table(results, comparison, name="room")
    assert table is not None
    assert "over the sites of the one run, which are not independent" in table.notes[0]
    assert room.document(comparison)["global"]["room"]["pairs"] == 3


def test_scripts_get_shares_in_the_metrics_own_unit(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2), sites=("a", "b"))
    with_values(folder, lambda method, seed, site: VALUES[method] + seed * NOISE[method])
    document = room.document(compared(folder)[1])["local"]
    assert document["room"]["mean"] == pytest.approx(0.21)
    assert document["methods"]["FedSKD"]["gain"]["mean"] == pytest.approx(0.12)
    assert document["methods"]["FedSKD"]["share"]["value"] == pytest.approx(0.12 / 0.21)
    assert list(document["methods"]) == ["FedSKD"]
