"""Carcinoma of the oropharynx: the patients and deaths of each institution."""

from pathlib import Path

import pytest

from fakes.hospital_pools import missing_values, read_pool
from peer.lab.datasets import tonsil

pytestmark = pytest.mark.data


def test_every_institution_has_its_patients_and_deaths(tmp_path: Path) -> None:
    summary = tonsil.prepare(tmp_path)
    parts = [part["training"] for part in summary["sites"].values()]
    assert [(part["subjects"], part["events"]) for part in parts] == [
        (22, 14), (47, 39), (41, 27), (26, 16), (30, 23), (29, 23),
    ]  # fmt: skip
    assert [count["what"] for count in summary["counts"] if count["found"] != count["expected"]] == []


def test_every_value_fits_and_unexplained_codes_are_missing(tmp_path: Path) -> None:
    tonsil.prepare(tmp_path)
    entries = read_pool(tmp_path, tonsil.TABLE)
    assert missing_values(entries) == {"differentiation": 1, "condition": 2}
    assert entries[0]["row"] == {
        "treatment": "radiation", "sex": "female", "age": 51.0, "differentiation": "well", "condition": 1.0,
        "tumour_site": "tonsillar fossa", "t_stage": 3.0, "n_stage": 1.0,
    }  # fmt: skip
    assert entries[0]["label"] == {"time": 631.0, "event": True}
    times = [entry["label"]["time"] for entry in entries]
    assert (min(times), max(times)) == (11.0, 1823.0)
