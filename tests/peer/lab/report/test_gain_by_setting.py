"""Gains by partition, networks and links, by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.report_folders import link, set_values, texts
from peer.lab.report import gain_by_setting
from peer.lab.report.comparison import compare
from peer.lab.report.gain_by_setting import Variation, variations
from peer.lab.report.measurements import Measurements
from peer.lab.report.results import read

THREE = {"Local": "local", "Centralised": "centralised", "FedSKD": "fedskd"}
SMALL = {"methods": THREE, "sites": ("a", "b"), "insight": False}


def varied(folder: Path, value: Callable[[dict[str, Any], str], float]) -> list[Variation]:
    """What varies, after the AUC was set by run and model's site, on all sites' data."""
    measured = Measurements(read(set_values(folder, lambda result, model, site: value(result, model))))
    settings = measured.results.settings
    return list(variations({setting: compare(measured, setting, "auc", None, name="t") for setting in settings}))


def by_partition(document: dict[str, Any], model: str) -> float:
    """Training alone differs by seed; the room is 20 points in ``few``, and half a point in ``many``."""
    room = {"few": 0.2, "many": 0.005}[document["partition"]]
    return (
        0.6 + 0.01 * document["seed"] + {"Local": 0.0, "Centralised": room, "FedSKD": 0.75 * room}[document["method"]]
    )


def test_partitions_stand_beside_each_other(make) -> None:
    (variation,) = varied(make(**SMALL, partitions=("few", "many")), by_partition)
    assert (variation.kind, variation.where) == ("partition", "")
    rows = texts(gain_by_setting.table(variation, name="t"))
    assert list(rows) == ["room (Centralised)", "FedSKD"]
    assert rows["room (Centralised)"]["Global Test, gain, points: few"] == "20.0"
    assert rows["FedSKD"]["Local Test, gain, points: few"] == "15.0"
    assert rows["FedSKD"]["Local Test, share, %: few"] == "75"
    assert rows["FedSKD"]["Local Test, share, %: many"] == "no room"
    gain = variation.points["few"]["local", "FedSKD"]
    assert gain.by_unit == pytest.approx([0.15, 0.15])


def test_sets_of_networks_stand_beside_each_other_for_each_partition(make) -> None:
    folder = make(**SMALL, partitions=("few", "many"), models=("alike", "different"))
    listed = [(each.kind, each.where, list(each.points)) for each in varied(folder, by_partition)]
    assert listed == [
        ("partition", "alike", ["few", "many"]),
        ("partition", "different", ["few", "many"]),
        ("networks", "few", ["alike", "different"]),
        ("networks", "many", ["alike", "different"]),
    ]


def test_links_are_compared_with_the_undisturbed_bounds_and_without_the_insider(make) -> None:
    links = (link("all"), link("half", loss=0.5), link("liar", insider="b", act="random"))

    def value(document: dict[str, Any], model: str) -> float:
        insider_shift = 0.3 if model == "b" and document["links"] == "liar" else 0.0
        fedskd = {"all": 0.1, "half": 0.05, "liar": -0.1}[document["links"]]
        return 0.6 + insider_shift + {"Local": 0.0, "Centralised": 0.2, "FedSKD": fedskd}[document["method"]]

    folder = make(**SMALL, links=links)
    for path in folder.glob("runs/*.half.*"):
        if ".FedSKD." not in path.name:  # as `simulate` leaves it: what sends nothing has no such run
            (path / "result.json").unlink()
    (variation,) = varied(folder, value)
    rows = texts(gain_by_setting.table(variation, name="t"))
    shown = [rows["FedSKD"][f"Local Test, gain, points: {name}"] for name in ("all", "half", "liar")]
    assert shown == ["10.0", "5.0", "-10.0"]
    assert rows["room (Centralised)"]["Local Test, gain, points: half"] == "20.0"


@pytest.mark.parametrize("methods", [["Local", "FedSKD"], ["Centralised", "FedSKD"]])
def test_without_both_bounds_there_is_nothing(make, methods: Sequence[str]) -> None:
    folder = make(**{**SMALL, "methods": {name: THREE[name] for name in methods}}, partitions=("few", "many"))
    assert varied(folder, by_partition) == []


def test_one_setting_varies_nothing(make) -> None:
    assert varied(make(**SMALL, partitions=("few",)), by_partition) == []


def test_a_share_is_drawn_where_the_mean_room_allows_it(make) -> None:
    def value(document: dict[str, Any], model: str) -> float:
        """The room is 20 points in `few`, 2 or 10 points by seed in `some`, and none in `none`."""
        room = {"few": 0.2, "some": [0.02, 0.1][document["seed"]], "none": 0.0}[document["partition"]]
        return 0.6 + {"Local": 0.0, "Centralised": room, "FedSKD": 0.5 * room}[document["method"]]

    (variation,) = varied(make(**SMALL, partitions=("few", "some", "none")), value)
    shares = gain_by_setting.drawn_shares(variation, "global", "FedSKD")
    assert shares == {0: (pytest.approx(50), True), 1: (pytest.approx(50), False)}
    assert gain_by_setting.drawn_shares(variation, "global", "Centralised") == {}
