from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_picture, write_table
from peer.lab.datasets import derm7pt

CASES = [
    # diagnosis, file in the meta-data, file on disk, sex
    ("basal cell carcinoma", "NEL/NEL025.JPG", "NEL/Nel025.jpg", "female"),
    ("reed or spitz nevus", "NHL/Nhl0.jpg", "NHL/Nhl0.jpg", "male"),
    ("melanoma (0.76 to 1.5 mm)", "NHL/Nhl1.jpg", "NHL/Nhl1.jpg", "female"),
    ("melanosis", "NHL/Nhl2.jpg", "NHL/Nhl2.jpg", ""),
    ("seborrheic keratosis", "NHL/Nhl3.jpg", "NHL/Nhl3.jpg", "male"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in" / "release_v0"
    rows = [
        {
            "case_num": number, "diagnosis": diagnosis, "seven_point_score": 1, "location": "back", "sex": sex,
            "clinic": "", "derm": listed, "case_id": "", "notes": "large, flat",
        }
        for number, (diagnosis, listed, _, sex) in enumerate(CASES, start=1)
    ]  # fmt: skip
    write_table(base / "meta" / "meta.csv", rows)
    for side, indexes in (("train", (0, 3)), ("valid", (1,)), ("test", (4, 2))):
        write_table(base / "meta" / f"{side}_indexes.csv", [{"indexes": index} for index in indexes])
    for _, _, stored, _ in CASES:
        write_picture(base / "images" / stored)
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(derm7pt, tmp_path, source=tmp_path / "in")
    assert not test
    assert training[0] == {
        "image": str(source / "images" / "NEL" / "Nel025.jpg"), "label": 0, "subject": "case-1", "site": "derm7pt",
        "lesion": "BCC", "diagnosis": "basal cell carcinoma", "sex": "female", "location": "back",
        "published_split": "train",
    }  # fmt: skip
    assert [entry["lesion"] for entry in training] == ["BCC", "NEV", "MEL", "MISC", "SK"]
    assert [entry["label"] for entry in training] == [0, 1, 2, 3, 4]
    assert [entry["published_split"] for entry in training] == ["train", "valid", "test", "train", "test"]
    assert "sex" not in training[3]
    assert "samples: 1011 expected, 5 found" in summary["warnings"]
    assert "published split test: 395 expected, 2 found" in summary["warnings"]


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    refuses(derm7pt, source / "images", r"images holds no meta/meta\.csv; give --source the folder with meta/meta\.csv")
    (source / "images" / "NHL" / "Nhl2.jpg").unlink()
    summary = derm7pt.prepare(tmp_path / "a", source=source)
    assert "1 listed files are not there: NHL/Nhl2.jpg" in summary["warnings"]
    assert summary["sites"]["derm7pt"]["training"]["samples"] == 4
    meta = source / "meta" / "meta.csv"
    meta.write_text(meta.read_text().replace("melanosis", "freckle"))
    refuses(derm7pt, source, r"meta\.csv: case 4 has the unknown diagnosis 'freckle'")
    (source / "meta" / "test_indexes.csv").write_text("indexes\nlast\n")
    refuses(derm7pt, source, r"test_indexes\.csv has the index 'last'")
    (source / "meta" / "test_indexes.csv").unlink()
    refuses(derm7pt, source, r"test_indexes\.csv cannot be read")
