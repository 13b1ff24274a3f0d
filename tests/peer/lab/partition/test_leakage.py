"""Leaks: by subject and by the content of images, named with both places."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.errors import DataError
from peer.lab.partition.leakage import leaks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in "abcdef":
        (tmp_path / f"{name}.png").write_bytes(name.encode() * 100)
    return tmp_path


def entry(image: Any, subject: str | None = None) -> dict[str, Any]:
    return {"image": image, "label": 0} | ({} if subject is None else {"subject": subject})


def test_nothing_leaks(root: Path) -> None:
    sites = {
        "asia": {"training": [entry("a.png", "p1"), entry("b.png", "p1")], "test": [entry("c.png", "p2")]},
        "europe": {"training": [entry("d.png")], "test": [entry(["e.png", "f.png"], "p3")]},
    }
    assert leaks(sites, root) == []


def test_a_subject_in_training_and_test_is_named_with_its_site(root: Path) -> None:
    sites = {"asia": {"training": [entry("a.png", "p1")], "test": [entry("b.png", "p1"), entry("c.png", "p2")]}}
    assert leaks(sites, root) == ["subjects in training of asia and test of asia: p1"]


def test_a_subject_at_two_sites_is_named_with_both(root: Path) -> None:
    sites = {
        "asia": {"training": [entry("a.png", "p1"), entry("b.png", "p2")], "test": []},
        "europe": {"training": [entry("c.png", "p2")], "test": [entry("d.png", "p1")]},
    }
    assert leaks(sites, root) == [
        "subjects in training of asia and training of europe: p2",
        "subjects in training of asia and test of europe: p1",
    ]


def test_a_copy_under_another_name_is_found(root: Path) -> None:
    (root / "copy.png").write_bytes((root / "a.png").read_bytes())
    sites = {
        "asia": {"training": [entry("a.png")], "test": [entry("b.png")]},
        "europe": {"training": [entry("c.png")], "test": [entry(["d.png", "copy.png"])]},
    }
    (line,) = leaks(sites, root)
    assert line.startswith("images with the same content in training of asia and test of europe: ")
    assert str(root / "a.png") in line
    assert str(root / "copy.png") in line


def test_a_copy_in_another_container_is_found_by_its_values(root: Path) -> None:
    np.save(root / "a.npy", np.eye(4))
    np.savez(root / "b.npz", np.eye(4, dtype=np.uint8)[None])
    sites = {"asia": {"training": [entry("a.npy")], "test": []}, "europe": {"training": [], "test": [entry("b.npz")]}}
    assert leaks(sites, root, values=True) == [
        f"images with the same content in training of asia and test of europe: {root / 'a.npy'} = {root / 'b.npz'}"
    ]
    assert leaks(sites, root) == []


def test_one_file_named_twice_is_found(root: Path) -> None:
    sites = {"asia": {"training": [entry("a.png")], "test": [entry("a.png")]}}
    assert leaks(sites, root) == [
        f"images with the same content in training of asia and test of asia: {root / 'a.png'}"
    ]


def test_what_stands_twice_in_one_split_is_no_leak(root: Path) -> None:
    assert leaks({"asia": {"training": [entry("a.png", "p1"), entry("a.png", "p1")]}}, root) == []


def test_sites_that_share_samples_still_may_not_train_on_what_another_tests(root: Path) -> None:
    same = {"training": [entry("a.png", "p1")], "test": [entry("b.png", "p2")]}
    assert leaks({"hr": same, "x2": same}, root, across_sites=False) == []
    assert len(leaks({"hr": same, "x2": same}, root)) == 4
    other = {"training": [entry("b.png", "p2")], "test": [entry("a.png", "p1")]}
    assert leaks({"hr": same, "x2": other}, root, across_sites=False)[:2] == [
        "subjects in training of hr and test of x2: p1",
        "subjects in test of hr and training of x2: p2",
    ]


def test_many_are_one_line(root: Path) -> None:
    subjects = [f"p{number}" for number in range(9)]
    sites = {"asia": {split: [entry(image, name) for name in subjects] for split, image in
                      (("training", "a.png"), ("test", "b.png"))}}  # fmt: skip
    assert leaks(sites, root) == ["subjects in training of asia and test of asia: p0, p1, p2, p3, p4 and 4 more"]


def test_another_key_can_say_whose_an_entry_is(root: Path) -> None:
    sites = {"asia": {"training": [entry("a.png") | {"slide": 3}], "test": [entry("b.png") | {"slide": 3}]}}
    assert leaks(sites, root) == []
    assert leaks(sites, root, by="slide") == ["slides in training of asia and test of asia: 3"]


def test_a_missing_image_is_named(root: Path) -> None:
    with pytest.raises(DataError, match=r"image .*nowhere\.png cannot be read: No such file"):
        leaks({"asia": {"training": [entry("nowhere.png")]}}, root)
