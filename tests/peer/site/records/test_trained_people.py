"""A site notices that people whom it was trained on have left its datalist."""

import contextlib
from pathlib import Path

import pytest

from fakes.trained_site import TrainedSite
from peer.site.records.folder_documents import status_when_down
from peer.site.records.journal import Journal
from peer.site.records.trained_people import datalist_change


@pytest.fixture
def site(tmp_path: Path) -> TrainedSite:
    return TrainedSite(tmp_path / "sites")


def change(site: TrainedSite) -> str:
    with contextlib.closing(Journal(site.home / "journal.db", read_only=True)) as journal:
        return datalist_change(journal, site.datalist)


def test_removed_people_are_counted_since_the_last_trained_round(site: TrainedSite) -> None:
    site.list("p1", "p2", "p3")
    assert change(site) == ""
    site.train(1, ["p1", "p2", "p3"])
    site.train(2, ["p1", "p2", "p3"])
    assert change(site) == ""
    site.list("p1", "p2", "p4")
    assert change(site) == "the datalist changed since round 2: 1 subject fewer"
    site.list("p4", test=["p2"])
    assert change(site) == "the datalist changed since round 2: 2 subjects fewer"
    assert status_when_down(site.folder)["datalist"] == change(site)
    site.train(3, ["p4"], test="p2")
    assert change(site) == ""


def test_where_nobody_can_tell_nothing_is_said(site: TrainedSite) -> None:
    site.list("p1")
    site.train(1, None)
    assert change(site) == ""
    site.train(2, ["p1", "p2"])
    site.datalist.unlink()
    assert change(site) == ""
    site.folder.site_toml.write_text("[data")
    assert status_when_down(site.folder)["datalist"] == ""
