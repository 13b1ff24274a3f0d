"""Handwritten digits: two parts that share no image."""

import json
from pathlib import Path

import pytest

from peer.data.adapters import digits
from peer.errors import DataError


def images(out: Path, part: str) -> set[str]:
    digits.prepare(out, part=part)
    return {entry["image"] for entry in json.loads((out / "pool.json").read_text())["training"]}


def test_what_is_chosen_on_one_part_is_reported_on_the_other(tmp_path: Path) -> None:
    tuning, reported = images(tmp_path / "tuning", "tuning"), images(tmp_path / "reported", "reported")
    assert not tuning & reported
    assert tuning | reported == images(tmp_path / "all", "all")
    assert len(tuning) == 599
    assert {path.name for path in (tmp_path / "tuning" / "images").iterdir()} == {Path(name).name for name in tuning}


def test_another_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'half' is none of all, reported, tuning"):
        digits.prepare(tmp_path / "out", part="half")
