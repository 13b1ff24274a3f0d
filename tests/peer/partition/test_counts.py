"""The table of who has how much of what has all its cells."""

from __future__ import annotations

from peer.partition.counts import Count, counts


def test_every_site_split_and_class_has_a_row() -> None:
    sites = {
        "europe": {
            "training": [
                {"image": "a.png", "label": 2, "subject": "p1"},
                {"image": "b.png", "label": 2, "subject": "p1"},
                {"image": "c.png", "label": 0, "subject": 2},
            ],
            "test": [],
        },
        "asia": {"training": [{"image": "d.png", "label": 2}]},
    }
    assert counts(sites) == [
        Count("europe", "training", 0, samples=1, subjects=1),
        Count("europe", "training", 2, samples=2, subjects=1),
        Count("europe", "test", 0, samples=0, subjects=0),
        Count("europe", "test", 2, samples=0, subjects=0),
        Count("asia", "training", 0, samples=0, subjects=0),
        Count("asia", "training", 2, samples=1, subjects=0),
    ]


def test_labels_that_are_files_are_no_class() -> None:
    sites = {"asia": {"test": [{"image": "d.png", "label": "m.png", "slide": "s"}, {"image": "e.png"}]}}
    assert counts(sites, by="slide") == [Count("asia", "test", None, samples=2, subjects=1)]


def test_nothing_has_no_rows() -> None:
    assert counts({"asia": {"training": []}}) == []
