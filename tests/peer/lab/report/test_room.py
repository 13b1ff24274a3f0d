"""The room beside every mean, and its own table."""

import pytest

from fakes.report_folders import compared, set_values, texts
from peer.lab.report import room

THREE = {"Centralised": "centralised", "Local": "local", "FedSKD": "fedskd"}
SHARES = ("Local Test: share of room, %", "Global Test: share of room, %")


VALUES = {"Local": 0.70, "Centralised": 0.90, "FedSKD": 0.80}
NOISE = {"Local": 0.0, "Centralised": 0.01, "FedSKD": 0.02}


def test_every_mean_has_its_share_of_the_room(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2), sites=("a", "b"))
    set_values(folder, lambda run, *_: VALUES[run["method"]] + run["seed"] * NOISE[run["method"]])
    _, comparison = compared(folder)
    shown = texts(comparison.table)
    assert [shown["FedSKD"][share] for share in SHARES] == ["57", "57"], "0.12 of 0.21"
    assert [shown["Local"][share] for share in SHARES] == ["–", "–"]
    assert [shown["Centralised"][share] for share in SHARES] == ["–", "–"]
    table = room.table(comparison, name="room")
    rows = texts(table)
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
    set_values(folder, lambda run, *_: values[run["method"]])
    _, comparison = compared(folder)
    assert [texts(comparison.table)["FedSKD"][share] for share in SHARES] == ["no room", "no room"]
    table = room.table(comparison, name="room")
    assert texts(table)["FedSKD"]["Local Test: gain, points"] == "0.4"
    assert room.document(comparison)["local"]["methods"]["FedSKD"]["share"] is None
    assert room.document(comparison)["local"]["has_room"] is False


def test_without_the_pooled_bound_there_is_no_column_of_it(make) -> None:
    _, comparison = compared(make(methods={"Local": "local", "FedSKD": "fedskd"}))
    assert not any("room" in column.name for column in comparison.table.columns)
    assert room.table(comparison, name="room") is None


def test_decibels_are_no_points(make) -> None:
    folder = make(kind="super_resolution", methods=THREE, seeds=(0, 1), sites=("a", "b"))
    psnr = {"Local": 25.0, "Centralised": 27.0, "FedSKD": 26.5}
    set_values(folder, lambda run, *_: psnr[run["method"]] + 0.01 * run["seed"] * NOISE[run["method"]], "psnr")
    _, comparison = compared(folder, "psnr")
    table = room.table(comparison, name="room")
    row = texts(table)["FedSKD"]
    assert row["Local Test: gain, dB"] == "1.50"
    assert row["Local Test: share, %"] == "75"


def test_one_run_is_tested_over_its_sites_and_says_so(make) -> None:
    folder = make(methods=THREE, seeds=(0,), sites=("a", "b", "c"))
    set_values(folder, lambda run, model, _: VALUES[run["method"]] + 0.01 * "abc".index(model) * NOISE[run["method"]])
    _, comparison = compared(folder)
    table = room.table(comparison, name="room")
    assert "over the sites of the one run, which are not independent" in table.notes[0]
    assert room.document(comparison)["global"]["room"]["pairs"] == 3


def test_scripts_get_shares_in_the_metrics_own_unit(make) -> None:
    folder = make(methods=THREE, seeds=(0, 1, 2), sites=("a", "b"))
    set_values(folder, lambda run, *_: VALUES[run["method"]] + run["seed"] * NOISE[run["method"]])
    document = room.document(compared(folder)[1])["local"]
    assert document["room"]["mean"] == pytest.approx(0.21)
    assert document["methods"]["FedSKD"]["gain"]["mean"] == pytest.approx(0.12)
    assert document["methods"]["FedSKD"]["share"]["value"] == pytest.approx(0.12 / 0.21)
    assert list(document["methods"]) == ["FedSKD"]
