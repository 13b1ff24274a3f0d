import json
from pathlib import Path

import pytest

from fakes.datasets import prepare, refuses, write_picture, write_table
from peer.lab.datasets import isic

IMAGES = [
    # image, target, centre, fold, lesion
    ("ISIC_0053453", 0, 0, "train", "BCN_0001"),
    ("ISIC_0053454", 1, 0, "train", "BCN_0002"),
    ("ISIC_0053455", 1, 0, "test", "BCN_0002"),
    ("ISIC_0053456", 7, 0, "test", "BCN_0003"),
    ("ISIC_0024306", 1, 1, "train", "HAM_0000550"),
    ("ISIC_0024307", 4, 1, "train", "HAM_0003577"),
    ("ISIC_0013927_downsampled", 4, 4, "train", "MSK4_0000001"),
    ("ISIC_0013928_downsampled", 1, 4, "train", "MSK4_0000002"),
    ("ISIC_0013929_downsampled", 1, 4, "test", "MSK4_0000003"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    base = tmp_path / "in"
    rows = [
        {"image": image, "MEL": float(target == 0), "UNK": 0.0, "target": target, "center": centre, "fold": fold,
         "fold2": f"{fold}_{centre}"}
        for image, target, centre, fold, _ in IMAGES
    ]  # fmt: skip
    write_table(base / "train_test_split", rows)
    known = [
        {"image": image, "age_approx": "55.0" if index else "", "anatom_site_general": "anterior torso",
         "lesion_id": lesion, "sex": "female"}
        for index, (image, *_, lesion) in enumerate(IMAGES)
    ]  # fmt: skip
    write_table(base / "ISIC_2019_Training_Metadata.csv", known)
    for image, *_ in IMAGES:
        write_picture(base / "ISIC_2019_Training_Input_preprocessed" / f"{image}.jpg")
    return base


def test_the_published_split_is_kept_and_its_leak_counted(tmp_path: Path, source: Path) -> None:
    summary, training, test = prepare(isic, tmp_path, source=source)
    assert (len(training), len(test)) == (6, 3)
    assert training[1] == {
        "image": str(source / "ISIC_2019_Training_Input_preprocessed" / "ISIC_0053454.jpg"), "label": 1,
        "subject": "ISIC_0053454", "site": "bcn", "lesion": "BCN_0002", "sex": "female", "age": 55,
        "location": "anterior torso",
    }  # fmt: skip
    assert "age" not in training[0]
    assert [entry["site"] for entry in training] == ["bcn", "bcn", *["ham-vidir-molemax"] * 2, "msk", "msk"]
    assert [entry["label"] for entry in test] == [1, 7, 1]
    bcn = json.loads((tmp_path / "out" / "bcn" / "datalist.json").read_text())
    assert (bcn["numTraining"], bcn["numTest"]) == (2, 2)
    assert "1 lesions are in training and in test; --lesions-apart keeps them apart" in summary["warnings"]
    assert "bcn, training: 9930 expected, 2 found" in summary["warnings"]
    assert any(w.startswith("ham-rosendahl, test: 452 expected, none found;") for w in summary["warnings"])


def test_lesions_apart(tmp_path: Path, source: Path) -> None:
    write_table(
        source / "ISIC_2019_Training_Metadata.csv",
        [{"image": image, "lesion_id": lesion.replace("MSK4_0000003", "BCN_0002")} for image, *_, lesion in IMAGES],
    )
    summary = isic.prepare(tmp_path / "out", source=source, lesions_apart=True)
    training = json.loads((tmp_path / "out" / "pool.json").read_text())["training"]
    assert summary["dropped"] == {"the lesion is in a test set": 1}
    assert [entry["subject"] for entry in training if entry["site"] == "bcn"] == ["BCN_0001"]
    assert not any("lesions" in warning for warning in summary["warnings"])


def test_without_metadata_lesions_are_not_known(tmp_path: Path, source: Path) -> None:
    (source / "ISIC_2019_Training_Metadata.csv").unlink()
    (source / "train_test_split").rename(source / "train_test_split.csv")
    (source / "ISIC_2019_Training_Input_preprocessed").rename(source / "ISIC_2019_Training_Input")
    summary, training, _ = prepare(isic, tmp_path, source=source)
    assert training[0].keys() == {"image", "label", "subject", "site"}
    assert "ISIC_2019_Training_Metadata.csv is not there: lesion, sex and age are not known" in summary["warnings"]
    refuses(isic, source, r"holds no ISIC_2019_Training_Metadata\.csv, which names the lesions", lesions_apart=True)


def test_what_is_missing_or_unknown_is_named(tmp_path: Path, source: Path) -> None:
    images = source / "ISIC_2019_Training_Input_preprocessed"
    (images / "ISIC_0053454.jpg").unlink()
    summary = isic.prepare(tmp_path / "a", source=source)
    assert "1 listed files are not there: ISIC_0053454.jpg" in summary["warnings"]
    path = source / "train_test_split"
    whole = path.read_text()
    for wrong in ('"1","9","train"', '"x","1","train"', '"1","1","valid"'):
        path.write_text(whole.replace('"1","1","train"', wrong))
        refuses(isic, source, "train_test_split: ISIC_0024306 has target")
    path.unlink()
    refuses(isic, source, r"no train_test_split and no train_test_split\.csv; give --source the folder")
