from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_picture, write_table
from peer.lab.datasets import odir


def row(patient: int, eye: str, code: str, sex: str = "Female") -> dict[str, object]:
    return {
        "ID": patient, "Patient Age": 69, "Patient Sex": sex, "Left-Fundus": f"{patient}_left.jpg",
        "Right-Fundus": f"{patient}_right.jpg", "Left-Diagnostic Keywords": "cataract", "N": 0,
        "filepath": f"../input/ODIR-5K/Training Images/{patient}_{eye}.jpg", "labels": f"['{code}']",
        "target": "[0, 1]", "filename": f"{patient}_{eye}.jpg",
    }  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in"
    rows = [row(0, "right", "N"), row(0, "left", "C"), row(1, "left", "D", "Male"), row(2, "right", "O")]
    write_table(base / "full_df.csv", rows)
    for name in ("0_right", "0_left", "1_left", "2_right"):
        write_picture(base / "ODIR-5K" / "ODIR-5K" / "Training Images" / f"{name}.jpg")
        write_picture(base / "preprocessed_images" / f"{name}.jpg")
    return base


def test_prepare(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(odir, tmp_path, source=source)
    assert not test
    assert training[1] == {
        "image": str(source / "ODIR-5K" / "ODIR-5K" / "Training Images" / "0_left.jpg"), "label": 3, "subject": "0",
        "site": "odir", "eye": "left", "sex": "female", "age": 69,
    }  # fmt: skip
    assert [entry["label"] for entry in training] == [0, 3, 1, 7]
    assert [entry["subject"] for entry in training] == ["0", "0", "1", "2"]
    assert training[2]["sex"] == "male"
    assert "samples: 6392 expected, 4 found" in summary["warnings"]


def test_the_cut_pictures_will_do(tmp_path: Path, source: Path) -> None:
    (source / "ODIR-5K").rename(tmp_path / "elsewhere")
    _, training, _ = prepare(odir, tmp_path, source=source)
    assert training[0]["image"] == str(source / "preprocessed_images" / "0_right.jpg")


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    pictures = source / "ODIR-5K" / "ODIR-5K" / "Training Images"
    (pictures / "1_left.jpg").unlink()
    summary = odir.prepare(tmp_path / "a", source=source)
    assert "1 listed files are not there: 1_left.jpg" in summary["warnings"]
    table = source / "full_df.csv"
    table.write_text(table.read_text().replace("['D']", "['X']"))
    refuses(odir, source, r"full_df\.csv: 1_left\.jpg has the labels \"\['X'\]\", not one of")
    refuses(odir, pictures, r"holds no full_df\.csv; .*\(data\.xlsx has no label an eye\)")
    pictures.rename(tmp_path / "elsewhere")
    (source / "preprocessed_images").rename(tmp_path / "elsewhere2")
    refuses(odir, source, "holds no Training Images and no preprocessed_images")
