"""The facts of a contact sheet: which samples, as the trainer prepares and augments them, and what the data lacks."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fakes.hospital import LENGTH, MakeSetting
from fakes.json_documents import change_documents
from peer.core.worker_protocol import WorkerSetting
from peer.documents.data import ContactSheet
from peer.train.errors import UnusableDataError
from peer.train.inference.contact_sheet import make_sheet
from peer.train.settings import TrainingSettings

OFF = {"flip": 0.0, "rotate_degrees": 0.0, "translate_share": 0.0, "scale_share": 0.0}


def sheet_of(setting: WorkerSetting, samples: int = 2) -> tuple[ContactSheet, list[dict[str, Any]]]:
    return make_sheet(TrainingSettings.of(setting), samples=samples)


def test_signals_are_shown_as_curves_beside_an_augmented_version(make_setting: MakeSetting) -> None:
    sheet, pictures = sheet_of(make_setting())
    assert [(sample["split"], sample["label"]) for sample in sheet["samples"]] == [
        (split, label) for split in ("training", "test") for label in (0, 0, 1, 1)
    ]
    counts = {"classes": {"0": 5, "1": 5}, "class_subjects": {"0": 5, "1": 5}}
    assert sheet["splits"]["training"] == {"samples": 10, "subjects": 10, "unnamed": 0, **counts}
    training, *_, test = pictures
    assert [len(channel) for channel in training["curves"]] == [LENGTH, LENGTH]
    assert training["augmented_curves"] != training["curves"]
    assert test["augmented_curves"] is None
    assert sheet["gaps"] == []
    assert sum(sheet["histograms"]["training"]["shares"]) == pytest.approx(1, abs=0.01)


def test_samples_held_out_for_validation_are_a_split_of_their_own(make_setting: MakeSetting) -> None:
    sheet, pictures = sheet_of(make_setting(data={"validation_share": 0.4, "augmentation": OFF}))
    samples = {name: split["samples"] for name, split in sheet["splits"].items()}
    assert samples == {"training": 6, "validation": 4, "test": 6}
    assert not any(shown["augmented_curves"] for shown in pictures)


def test_the_same_seed_shows_the_same_samples_and_each_subject_once(make_setting: MakeSetting, signals: Path) -> None:
    for document in change_documents(signals, "datalist.json"):
        for index, entry in enumerate(document["training"]):
            entry["subject"] = f"p{index // 4}-{entry['label']}"
    sheet, _ = sheet_of(make_setting(), samples=3)
    assert sheet_of(make_setting(), samples=3)[0] == sheet
    subjects = [sample["subject"] for sample in sheet["samples"] if sample["split"] == "training"]
    assert len(subjects) == len(set(subjects)) == 6


def test_gaps_are_named(make_setting: MakeSetting, signals: Path) -> None:
    for document in change_documents(signals, "datalist.json"):
        document["test"] = [{"image": entry["image"], "label": 0} for entry in document["test"]]
    (signals / "training0.npz").write_bytes(b"damaged")
    sheet, _ = sheet_of(make_setting(), samples=9)
    assert sheet["gaps"][:2] == [
        "test has no sample of class 1",
        "6 samples of test have no subject: a patient may be in two splits unseen",
    ]
    assert sheet["gaps"][2].startswith("training0.npz cannot be read: ")
    assert [sample["image"] for sample in sheet["samples"] if sample["problem"]] == ["training0.npz"]


def test_a_datalist_without_a_readable_sample_is_refused(make_setting: MakeSetting) -> None:
    with pytest.raises(UnusableDataError, match=r"no sample can be shown: has 2 channels, \[task\] in_channels is 3"):
        sheet_of(make_setting(task={"in_channels": 3}))


COLUMNS = [
    {"name": "age", "kind": "number", "range": [20.0, 90.0]},
    {"name": "sex", "kind": "category", "levels": ["female", "male"]},
]


def table_setting(make_setting: MakeSetting, signals: Path, label: Any, **task: Any) -> WorkerSetting:
    """A site whose table has eight rows for training and four for the test."""
    entries = [
        {"image": f"row {age}", "label": label(age), "row": {"age": age, "sex": "male"}} for age in range(30, 42)
    ]
    (signals / "datalist.json").write_text(json.dumps({"training": entries[:8], "test": entries[8:]}))
    return make_setting(
        method={"name": "local"},
        task={"kind": "tabular", "spatial_dims": 1, "in_channels": 5, "column": COLUMNS, **task},
        data={"input_size": [], "validation_share": 0.25},
        model={"name": "linear", "parameters": {}},
    )


def test_a_table_is_shown_by_its_columns_in_the_trainers_splits(make_setting: MakeSetting, signals: Path) -> None:
    setting = table_setting(make_setting, signals, lambda age: age % 2, classes=2, class_names=["well", "ill"])
    sheet, pictures = sheet_of(setting)
    assert (sheet["samples"], pictures, sheet["classes"]) == ([], [], {"0": "well", "1": "ill"})
    assert {name: split["samples"] for name, split in sheet["splits"].items()} == {
        "training": 6, "validation": 2, "test": 4,
    }  # fmt: skip
    age, sex = sheet["columns"]
    assert [(part["split"], part["group"]) for part in age["distributions"]][::5] == [("training", 0), ("test", 1)]
    assert all(part["shares"] == [0.0, 1.0] for part in sex["distributions"])
    assert sheet["preparation"] == {"channels": 5, "classes": 2, "columns": 2}


def test_a_table_of_persons_says_where_nobody_had_the_event(make_setting: MakeSetting, signals: Path) -> None:
    def label(age: int) -> dict[str, Any]:
        return {"time": age - 29.5, "event": age < 38}

    sheet, _ = sheet_of(table_setting(make_setting, signals, label, target="survival", times=[6, 12], classes=2))
    assert "test has nobody with the event" in sheet["gaps"]
    assert not any("class" in gap for gap in sheet["gaps"])
    assert sheet["splits"]["test"]["classes"] == {"0": 4}
    assert [column["name"] for column in sheet["columns"]] == ["age", "sex", "time"]


@pytest.fixture
def brains(tmp_path: Path) -> Path:
    """Volumes with a marked corner and a label; the second lies in other directions."""
    folder = tmp_path / "brains"
    folder.mkdir()
    values, labels = np.random.default_rng(0).random((6, 8, 10)).astype(np.float32), np.zeros((6, 8, 10), np.uint8)
    values[0, 0, 0], labels[1:3, 2:5, 6] = 9, 1
    for name, codes in (("a", "RAS"), ("b", "PIR")):
        for part, array in (("image", values), ("mask", labels)):
            image = nibabel.Nifti1Image(array, np.eye(4))
            start, end = nibabel.orientations.axcodes2ornt("RAS"), nibabel.orientations.axcodes2ornt(codes)
            image = image.as_reoriented(nibabel.orientations.ornt_transform(start, end))
            nibabel.save(nibabel.Nifti1Image(np.asarray(image.dataobj), image.affine), folder / f"{name}-{part}.nii.gz")
    entries = [{"image": f"{name}-image.nii.gz", "label": f"{name}-mask.nii.gz", "subject": name} for name in "ab"]
    document = {"labels": {"0": "background", "1": "lesion"}, "training": entries[:1], "test": entries[1:]}
    (folder / "datalist.json").write_text(json.dumps(document))
    return folder


def volumes(folder: Path, data: Mapping[str, Any]) -> WorkerSetting:
    kind = {"kind": "segmentation", "spatial_dims": 3, "in_channels": 1, "classes": 3}
    roster = [{"name": "alpha"}]
    federation = {"name": "test", "rounds": 1, "task": kind, "method": {"name": "local"}, "site": roster}
    site = {"data": {"input_size": [6, 8, 10], **data}, "model": {"name": "unet"}}
    return WorkerSetting("alpha", "ab" * 32, federation, site, str(folder), str(folder))


def test_volumes_have_planes_with_letters_and_labels(brains: Path) -> None:
    sheet, pictures = sheet_of(volumes(brains, {"augmentation": OFF}))
    assert [sample["orientation"] for sample in sheet["samples"]] == ["RAS", "PIR"]
    views = [{view["plane"]: view for view in sample["views"]} for sample in sheet["samples"]]
    assert views[0]["axial"]["index"] == 6
    assert views[0]["axial"]["edges"] == {"left": "L", "right": "R", "top": "A", "bottom": "P"}
    assert views[1]["axial"]["edges"] == {"left": "L", "right": "R", "top": "A", "bottom": "P"}
    assert sheet["samples"][0]["labels"] == {"0": 0.988, "1": 0.0125}
    assert sheet["classes"]["1"] == "lesion"
    assert sheet["gaps"] == ["no label map that is shown has the label 2 at this size"]
    assert [len(shown["image"]) for shown in pictures] == [3, 3]


def test_turned_volumes_look_alike_and_have_the_turned_letters(brains: Path) -> None:
    sheet, pictures = sheet_of(volumes(brains, {"orientation": "RAS", "augmentation": OFF}))
    assert [sample["orientation"] for sample in sheet["samples"]] == ["RAS", "RAS"]
    assert pictures[0]["image"] == pictures[1]["image"]
