from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_picture
from peer.lab.datasets import oct2017

FILES = [
    "train/CNV/CNV-1016042-1.jpeg",
    "train/CNV/CNV-1016042-2.jpeg",
    "train/DME/DME-119840-1.jpeg",
    "train/DRUSEN/DRUSEN-1246453-1.jpeg",
    "train/NORMAL/NORMAL-1073137-1.jpeg",
    "val/NORMAL/NORMAL-1073137-2.jpeg",
    "test/CNV/CNV-1016042-3.jpeg",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in" / "OCT2017 " / "OCT2017"
    for file in FILES:
        write_picture(base / file, "L")
    (base / "train" / "CNV" / ".DS_Store").touch()
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(oct2017, tmp_path, source=tmp_path / "in")
    assert not test
    assert training[0] == {
        "image": str(source / FILES[0]), "label": 0, "subject": "1016042", "site": "oct2017",
        "published_split": "train",
    }  # fmt: skip
    assert [entry["image"] for entry in training] == [str(source / file) for file in FILES]
    assert [entry["label"] for entry in training] == [0, 0, 1, 2, 3, 3, 0]
    assert [entry["published_split"] for entry in training[4:]] == ["train", "val", "test"]
    assert summary["sites"]["oct2017"]["training"]["subjects"] == 4
    assert "published split test: 968 expected, 1 found" in summary["warnings"]


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    write_picture(source / "train" / "CNV" / "copy.jpeg", "L")
    assert oct2017.prepare(tmp_path / "a", source=source)["dropped"] == {"a name of another form": 1}
    refuses(oct2017, source / "test", "test holds no train/CNV; give --source the folder with")
    refuses(oct2017, tmp_path / "absent", "absent is no folder")
