"""Folders of classes, with and without splits."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.datasets import write_picture
from fakes.image_files import dicom
from peer.documents.data import DatalistImported
from peer.errors import DataError, PeerError, UsageError

Import = Callable[..., DatalistImported]


@pytest.fixture
def pictures_by_class(tmp_path: Path) -> Path:
    """Four pictures of each of two classes, two a patient; one in a folder below, and a note beside them."""
    folder = tmp_path / "pictures"
    for number, name in enumerate(("benign", "malignant")):
        for index in range(4):
            values = np.full((4, 5, 3), 40 * number + index, dtype=np.uint8)
            write_picture(
                folder / name / ("more" if index == 3 else ".") / f"P{number}{index // 2}_{index}.png", values=values
            )
    (folder / "benign" / "readme.txt").touch()
    return folder


def entries(folder: Path) -> dict[str, list[dict[str, Any]]]:
    document = json.loads((folder / "datalist.json").read_text())
    return {split: document[split] for split in ("training", "test")}


def test_the_folders_are_the_classes(pictures_by_class: Path, tmp_path: Path, import_source: Import) -> None:
    for name in (".P00_9.png", "._P00_0.png"):
        (pictures_by_class / "benign" / name).write_bytes(b"")
    answer = import_source(pictures_by_class, classes=("malignant", "benign"), test_share=0.0)
    assert (answer["layout"], answer["classes"]) == ("folders", {"0": "malignant", "1": "benign"})
    listed = {entry["image"]: entry["label"] for entry in entries(tmp_path)["training"]}
    assert len(listed) == 8
    assert listed["pictures/benign/P00_0.png"] == 1
    assert listed["pictures/malignant/more/P11_3.png"] == 0
    assert [row["examples"] for row in answer["left_out"]] == [["benign/.P00_9.png"], ["benign/readme.txt"]]
    assert answer["notes"][0].startswith("8 samples have no subject")
    assert "--subject-pattern" in answer["notes"][0]


@pytest.mark.parametrize("pattern", ["^P[0-9]+", r"(?:^|/)(P\d+)_"])
def test_subjects_are_read_from_the_names(
    pictures_by_class: Path, tmp_path: Path, import_source: Import, pattern: str
) -> None:
    if pattern.startswith("^"):
        for path in pictures_by_class.glob("*/more/*"):
            path.rename(path.parents[1] / path.name)
    answer = import_source(pictures_by_class, classes=("benign", "malignant"), subject_pattern=pattern, test_share=0.5)
    assert {split: part["subjects"] for split, part in answer["splits"].items()} == {"training": 2, "test": 2}
    subjects = [{entry["subject"] for entry in split} for split in entries(tmp_path).values()]
    assert subjects[0] | subjects[1] == {"P00", "P01", "P10", "P11"}
    assert not any("subject" in note for note in answer["notes"])


def test_folders_of_splits_are_kept_and_others_are_named(
    pictures_by_class: Path, tmp_path: Path, import_source: Import
) -> None:
    root = tmp_path / "set"
    for split in ("Train", "validation", "test", "docs"):
        for name in ("benign", "malignant"):
            values = np.full((4, 5, 3), 10 * len(split) + len(name), dtype=np.uint8)
            write_picture(root / split / name / "a.png", values=values)
    write_picture(root / "test" / "stray.png")
    answer = import_source(root, classes=("benign", "malignant"))
    assert answer["drawn"] is None
    assert [len(split) for split in entries(tmp_path).values()] == [4, 2]
    assert {row["reason"]: row["examples"] for row in answer["left_out"]} == {
        "a folder beside those of splits": ["docs"],
        "not in the folder of a class": ["test/stray.png"],
    }


def test_a_folder_of_dicom_slices_is_one_sample(tmp_path: Path, import_source: Import) -> None:
    pixels = np.arange(30, dtype=np.uint16).reshape(5, 6)
    for number, name in enumerate(("0", "1")):
        (tmp_path / "scans" / name / "series").mkdir(parents=True)
        dicom(tmp_path / "scans" / name / "image.dcm", pixels + number)
        for index in (1, 2):
            dicom(tmp_path / "scans" / name / "series" / f"{index}.dcm", pixels + 10 * number + index, number=index)
    answer = import_source(tmp_path / "scans", layout="folders", test_share=0.0)
    assert answer["shapes"] == {"5x6": 2, "6x5x2": 2}


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, DataError, r"labels are no class numbers: benign \(4\), malignant \(4\); .* --classes 'benign,malignant'"),
        ({"task": "segmentation"}, UsageError, "a folder is a class; write a table"),
        ({"subject_pattern": "P0"}, UsageError, "--subject-pattern P0: there is no such text in P10_0.png"),
    ],
)
def test_what_is_unclear_is_refused_with_what_to_type(
    pictures_by_class: Path, import_source: Import, options: Any, error: type[PeerError], message: str
) -> None:
    with pytest.raises(error, match=message):
        import_source(pictures_by_class, **options)


def test_masks_are_no_class_and_an_empty_class_is_none(tmp_path: Path, import_source: Import) -> None:
    for name in ("images", "masks"):
        write_picture(tmp_path / "set" / name / "a.png")
    with pytest.raises(UsageError, match="a folder of label maps, which is no class; write a table"):
        import_source(tmp_path / "set")
    (tmp_path / "empty" / "benign").mkdir(parents=True)
    with pytest.raises(UsageError, match="has no image in the folder of a class; name the folder"):
        import_source(tmp_path / "empty", layout="folders")
