from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fakes.datasets import prepare, refuses, write_picture
from peer.lab.datasets import pneumonia

FILES = [
    "train/NORMAL/IM-0115-0001.jpeg",
    "train/NORMAL/NORMAL2-IM-1427-0001.jpeg",
    "train/PNEUMONIA/person12_bacteria_46.jpeg",
    "train/PNEUMONIA/person12_bacteria_47.jpeg",
    "val/PNEUMONIA/person1946_bacteria_4874.jpeg",
    "test/PNEUMONIA/VIRUS-7422-0001.jpeg",
    "test/PNEUMONIA/person12_virus_6.jpeg",
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in" / "chest_xray"
    for file in FILES:
        write_picture(base / file, "RGB" if "_47" in file else "L")
        debris = tmp_path / "in" / "__MACOSX" / "chest_xray" / file
        debris.parent.mkdir(parents=True, exist_ok=True)
        debris.with_name(f"._{debris.name}").touch()
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(pneumonia, tmp_path, source=tmp_path / "in")
    assert not test
    assert training[2] == {
        "image": str(source / FILES[2]), "label": 1, "subject": "person12", "site": "guangzhou",
        "pathogen": "bacteria", "published_split": "train",
    }  # fmt: skip
    assert [entry["label"] for entry in training] == [0, 0, 1, 1, 1, 1, 1]
    assert [entry["subject"] for entry in training] == [
        "IM-0115", "NORMAL2-IM-1427", "person12", "person12", "person1946", "VIRUS-7422", "person12",
    ]  # fmt: skip
    assert [entry.get("pathogen") for entry in training] == [None, None, *["bacteria"] * 3, "virus", "virus"]
    assert "samples: 5856 expected, 7 found" in summary["warnings"]
    # The picture in colour is copied in grey.
    assert training[3]["image"] == "images/train-person12_bacteria_47.png"
    with Image.open(tmp_path / "out" / training[3]["image"]) as copy, Image.open(source / FILES[3]) as image:
        np.testing.assert_array_equal(np.asarray(copy), np.asarray(image.convert("L")))
    assert len(list((tmp_path / "out" / "images").iterdir())) == 1


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    write_picture(source / "train" / "NORMAL" / "copy.jpeg", "L")
    assert pneumonia.prepare(tmp_path / "a", source=source)["dropped"] == {"a name of another form": 1}
    refuses(pneumonia, source / "val", "val holds no train/PNEUMONIA; give --source the folder with")
