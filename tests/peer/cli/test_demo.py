"""The progress and the tables of `demo`; the end-to-end tests run a demonstration."""

from pathlib import Path
from typing import Any

import pytest

from fakes.cli import drawn, refused
from fakes.demonstration import demonstration
from peer.cli.demo import _render, _render_progress
from peer.lab.demo.run import DemoProgress


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


def test_the_tables_have_all_methods_their_means_the_floors_and_the_room() -> None:
    text = drawn(_render(demonstration()))
    local, shared = text.partition("AUC, Local Test")[2].split("AUC, Global Test")
    rows = {line.split()[0]: line.split() for line in local.splitlines() if line.strip()}
    assert rows["local"] == ["local", "0.650", "0.600", "0.700"]
    assert rows["fedvisit"] == ["fedvisit", "0.750", "50%", "0.700", "0.800"]
    assert rows["pooled"] == ["pooled", "bound", "0.850", "0.800", "0.900"]
    assert rows["floor:"] == ["floor:", "volume", "0.900", "0.900", "0.900"]
    assert ["fedvisit", "0.650", "50%", "0.700", "0.600"] in [line.split() for line in shared.splitlines()]
    assert "40 of 30 subjects" in text
    assert "3.0 MiB" in text
    words = " ".join(text.split())
    assert "3 rounds of 20 steps" in words
    assert "on average 10.0 of the 20.0 points that pooling all data gives" in words
    assert "schedule scaled" in text
    assert "Curves and visits: out/picture.html" in text
    assert "mhfl-peer --home out/fedvisit/sites rounds --site asia" in text


def test_the_tables_over_splits_have_intervals() -> None:
    text = drawn(_render(demonstration(over_splits=True)))
    rows = [line.split() for line in text.partition("AUC, Local Test: mean of")[2].splitlines()]
    assert ["fedvisit", "0.700", "(0.650", "to", "0.750)", "-"] in rows
    assert ["minus", "local", "+0.100", "(+0.080", "to", "+0.120)", "-"] in rows
    assert ["pooled", "bound", "0.800", "(0.750", "to", "0.850)", "-"] in rows
    assert "Joining by fedvisit gave, in points of AUC and as means of 3 splits" in " ".join(text.split())


def test_what_cannot_be_compared_is_a_dash() -> None:
    result = demonstration(pooled=None)
    for site in result["methods"]["local"]["sites"].values():
        site["global_test"] = None  # type: ignore[index]
    text = drawn(_render(result))
    assert ["local", "-", "-", "-"] in [line.split() for line in text.partition("Global Test")[2].splitlines()]
    assert "Pooled bound" not in text


def test_a_parameter_that_no_method_has_is_refused() -> None:
    reason = refused("UsageError", "demo", "--method", "fedskd", "--set", "gama=10")
    assert "no parameter 'gama' of fedskd (did you mean 'gamma'?)" in reason


@pytest.mark.parametrize("method", ["fedavg", "fedskd", "mh_pflid"])
def test_a_method_that_a_study_cannot_show_is_refused(method: str) -> None:
    reason = refused("UsageError", "demo", "--study", "dermoscopy", "--method", method)
    assert f"{method} does not fit sites that enlarge by different factors" in reason


@pytest.mark.parametrize("study", ["tissue", "dermoscopy", "eeg-blink"])
def test_a_study_with_one_split_has_no_others(study: str) -> None:
    method = "dflmoe" if study == "dermoscopy" else "fedvisit"
    reason = refused("UsageError", "demo", "--study", study, "--method", method, "--splits", "2")
    assert f"--splits 2: {study} has one split, that of its data" in reason


@pytest.mark.data
def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.txt").write_text("years of work")
    assert "not empty" in refused("StateError", "demo", "--out", tmp_path, "--json")
    assert [path.name for path in tmp_path.rglob("*")] == ["data", "thesis.txt"]
