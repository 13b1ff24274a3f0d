"""The progress and the tables of `demo`; the end-to-end tests run a demonstration."""

from pathlib import Path
from typing import Any

import pytest

from fakes.cli import drawn, refused
from peer.cli.demo import _render, _render_progress
from peer.demo.run import DemoProgress

SITES = ("africa", "asia")


def status(**changes: Any) -> dict[str, Any]:
    return {"committed": 3, "rounds": 15, "phase": "train", "training": {}, "waiting_for": [], **changes}


def test_progress_shows_every_site_its_loss_and_whom_it_waits_for() -> None:
    sites = {
        "asia": status(training={"loss": {"total": 0.61234}}),
        "africa": status(phase="exchange", waiting_for=[{"site": "asia"}]),
    }
    text = drawn(_render_progress(DemoProgress("fedskd: four daemons on loopback", sites)))
    first, africa, asia = text.splitlines()
    assert first.strip() == "fedskd: four daemons on loopback"
    assert africa.startswith("africa  3/15")
    assert africa.strip().endswith("waiting for asia")
    assert asia.startswith("asia  3/15")
    assert asia.strip().endswith("train  loss 0.612")


def document() -> dict[str, Any]:
    part = {"patients": 30, "nodules": 40, "malignant_share": 0.25}

    def method(auc: float) -> dict[str, Any]:
        site = {"model": "resnet10", "sent_bytes": 3 << 20}
        sites = {
            name: {**site, "local_test": auc + position / 10, "global_test": auc - position / 10}
            for position, name in enumerate(SITES)
        }
        return {"sites": sites, "home": "out/fedskd/sites", "digest": "ab" * 32}

    return {
        "folder": "out",
        "study": "nodules",
        "title": "Nodules.",
        "metric": "auc",
        "differs": "schedule scaled",
        "size": {"rounds": 15, "steps": 20, "seed": 0},
        "data": {
            "constructed": "site names",
            "sites": {name: {"training": part, "test": part} for name in SITES},
            "floors": {"volume": dict.fromkeys(SITES, 0.9)},
        },
        "methods": {"local": method(0.6), "fedskd": method(0.7)},
        "seconds": 99.6,
    }


def test_the_tables_have_all_methods_their_means_and_the_floors() -> None:
    text = drawn(_render(document()))
    local, shared = text.partition("AUC, Local Test")[2].split("AUC, Global Test")
    rows = {line.split()[0]: line.split() for line in local.splitlines() if line.strip()}
    assert rows["local"] == ["local", "0.650", "0.600", "0.700"]
    assert rows["fedskd"] == ["fedskd", "0.750", "0.700", "0.800"]
    assert rows["floor:"] == ["floor:", "volume", "0.900", "0.900", "0.900"]
    assert ["fedskd", "0.650", "0.700", "0.600"] in [line.split() for line in shared.splitlines()]
    assert "40 nodules of 30 patients, 25% malignant" in text
    assert "3.0 MiB" in text
    assert "15 rounds of 20 steps" in " ".join(text.split())
    assert "schedule scaled" in text
    assert "mhfl-peer --home out/fedskd/sites rounds --site asia" in text


def test_what_cannot_be_compared_is_a_dash() -> None:
    result = document()
    for site in result["methods"]["local"]["sites"].values():
        site["global_test"] = None
    last = drawn(_render(result)).partition("Global Test")[2]
    assert ["local", "-", "-", "-"] in [line.split() for line in last.splitlines()]


@pytest.mark.parametrize("method", ["fedavg", "fedskd", "mh_pflid"])
def test_a_method_that_a_study_cannot_show_is_refused(method: str) -> None:
    reason = refused("UsageError", "demo", "--study", "dermoscopy", "--method", method)
    assert f"{method} does not fit sites that enlarge by different factors" in reason


@pytest.mark.data
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    assert "not empty" in refused("StateError", "demo", "--out", tmp_path, "--json")
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "thesis.txt"]
