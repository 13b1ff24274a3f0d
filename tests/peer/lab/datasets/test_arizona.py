"""Cardiac procedures in Arizona: the stays of each hospital, as numbers and as classes."""

from pathlib import Path

import pytest

from fakes.hospital_pools import missing_values, read_pool
from peer.errors import UsageError
from peer.lab.datasets import arizona
from peer.train.data.datalist import inspect_datalist

STAYS = (17, 152, 535, 179, 416, 141, 59, 211, 136, 95, 145, 457, 197, 376, 227, 111, 135)
LONG = (9, 94, 199, 99, 200, 78, 24, 122, 78, 66, 63, 138, 46, 151, 103, 68, 69)


@pytest.mark.data
def test_every_hospital_has_its_stays_in_days(tmp_path: Path) -> None:
    summary = arizona.prepare(tmp_path)
    assert tuple(part["training"]["samples"] for part in summary["sites"].values()) == STAYS
    assert summary["sites"]["hospital-10"]["training"]["median"] == 12.0
    assert [count["what"] for count in summary["counts"] if count["found"] != count["expected"]] == []
    entries = read_pool(tmp_path, arizona.TABLE)
    assert missing_values(entries) == {}
    low, high = summary["range"]
    assert all(low < entry["label"] < high for entry in entries)
    assert entries[0]["label"] == 67.0


@pytest.mark.data
def test_a_long_stay_has_more_than_eight_days(tmp_path: Path) -> None:
    summary = arizona.prepare(tmp_path, target="long")
    assert tuple(part["training"]["classes"]["long"] for part in summary["sites"].values()) == LONG
    columns = list(arizona.COLUMNS.values())
    listed = inspect_datalist(tmp_path / "pool.json", task="tabular", classes=2, columns=columns)
    assert (listed.problems, listed.notes, len(listed.training)) == ((), (), 3589)


def test_another_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="target is 'weeks', none of days, long"):
        arizona.prepare(tmp_path, target="weeks")
