"""PBC3: the patients and events of each hospital, and the meaning of a line."""

from pathlib import Path

import pytest

from fakes.debian import debian_root
from fakes.hospital_pools import missing_values, read_pool
from peer.errors import DataError
from peer.lab.datasets import pbc3

HEADER = "ptno;unit;tment;sex;age;stage;gibleed;crea;alb;bili;alkph;asptr;weight;days;status\n"


@pytest.fixture(scope="module")
def source() -> Path:
    root = debian_root(pbc3.DATA)
    if root is None:
        pytest.skip("there is no r-cran-pec: .ci/run says how to get its data")
    return root


def test_every_hospital_has_its_patients_and_events(tmp_path: Path, source: Path) -> None:
    summary = pbc3.prepare(tmp_path, source=source)
    parts = {site: part["training"] for site, part in summary["sites"].items()}
    assert {site: (part["subjects"], part["events"]) for site, part in parts.items()} == {
        "hvidovre": (23, 4), "london": (150, 47), "copenhagen": (46, 9), "barcelona": (79, 22), "munich": (23, 5),
        "lyon": (28, 3),
    }  # fmt: skip
    assert (summary["target"], summary["unit"]) == ("survival", "days")
    assert [count["what"] for count in summary["counts"] if count["found"] != count["expected"]] == []


def test_every_value_fits_and_every_time_is_positive(tmp_path: Path, source: Path) -> None:
    pbc3.prepare(tmp_path, source=source)
    entries = read_pool(tmp_path, pbc3.TABLE)
    assert missing_values(entries) == {
        "histological_stage": 58, "creatinine": 7, "albumin": 6, "aspartate_transaminase": 3, "weight": 10,
    }  # fmt: skip
    times = [entry["label"]["time"] for entry in entries]
    assert (min(times), max(times)) == (1.0, 2146.0)


@pytest.mark.parametrize(("status", "event"), [("0", False), ("1", True), ("2", True)])
def test_transplantation_and_death_are_events(tmp_path: Path, status: str, event: bool) -> None:
    (tmp_path / "Pbc3.csv").write_text(f"{HEADER}7;5;1;0;50;NA;0;80;40;20.5;700;80;60;400;{status}\n")
    pbc3.prepare(tmp_path / "out", source=tmp_path)
    entry = (tmp_path / "out" / "pool.json").read_text()
    assert f'"event": {str(event).lower()}' in entry
    assert '"time": 400.0' in entry
    assert '"site": "munich"' in entry
    assert '"treatment": "cyclosporin A"' in entry
    assert '"sex": "female"' in entry
    assert '"histological_stage": null' in entry


def test_another_status_is_refused(tmp_path: Path) -> None:
    (tmp_path / "Pbc3.csv").write_text(f"{HEADER}7;5;1;0;50;2;0;80;40;20.5;700;80;60;400;3\n")
    with pytest.raises(DataError, match=r"Pbc3.csv, ptno 7: status is '3'"):
        pbc3.prepare(tmp_path / "out", source=tmp_path)
