"""Transplantation of bone marrow: the patients and events of each hospital."""

from pathlib import Path

import pytest

from fakes.hospital_pools import missing_values, read_pool
from peer.lab.datasets import bone_marrow

pytestmark = pytest.mark.data


def test_every_hospital_has_its_patients_and_events(tmp_path: Path) -> None:
    summary = bone_marrow.prepare(tmp_path)
    parts = {site: part["training"] for site, part in summary["sites"].items()}
    assert {site: (part["subjects"], part["events"]) for site, part in parts.items()} == {
        "ohio-state": (76, 50), "alfred": (17, 13), "st-vincents": (23, 13), "hahnemann": (21, 7),
    }  # fmt: skip
    assert [count["what"] for count in summary["counts"] if count["found"] != count["expected"]] == []
    entries = read_pool(tmp_path, bone_marrow.TABLE)
    assert missing_values(entries) == {}
    times = [entry["label"]["time"] for entry in entries]
    assert (min(times), max(times)) == (1.0, 2640.0)
    assert entries[0]["label"] == {"time": 2081.0, "event": False}
    assert entries[0]["row"]["donor_sex"] == "female"
