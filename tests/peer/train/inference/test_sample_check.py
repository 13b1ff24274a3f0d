"""The samples that a site would leave out, by its own settings: what `data validate --site` adds to the survey."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest

from fakes.hospital import MakeSetting
from peer.core.worker_protocol import WorkerSetting
from peer.train.data.label_maps import describe_lost_classes
from peer.train.inference.sample_check import check_samples
from peer.train.settings import TrainingSettings


def answer(setting: WorkerSetting) -> dict[str, Any]:
    return check_samples(TrainingSettings.of(setting))


def test_every_sample_that_cannot_be_read_is_named_although_training_would_go_on(
    make_setting: MakeSetting, signals: Path
) -> None:
    assert answer(make_setting()) == {"left_out": {}, "lost_classes": {}, "refusal": None}
    (signals / "training3.npz").write_bytes(b"nothing")
    np.savez(signals / "test0.npz", image=np.full((2, 24), np.nan, np.float32))
    checked = answer(make_setting())
    assert checked["left_out"].keys() == {"training3.npz", "test0.npz"}
    assert checked["refusal"] is None


def test_what_training_could_not_begin_with_has_its_reason_and_the_samples_theirs(
    make_setting: MakeSetting, signals: Path
) -> None:
    for index in range(0, 10, 2):
        (signals / f"training{index}.npz").write_bytes(b"nothing")
    checked = answer(make_setting())
    assert len(checked["left_out"]) == 5
    assert "has one class only" in checked["refusal"]


@pytest.fixture
def volumes(tmp_path: Path) -> Path:
    """Two volumes in different directions, with a lesion of one voxel."""
    for name, codes in (("a", "RAS"), ("b", "LPS")):
        for part, dtype in (("image", np.float32), ("mask", np.uint8)):
            values = np.random.default_rng(0).random((8, 8, 8)) if part == "image" else np.zeros((8, 8, 8))
            values[3, 3, 3] = 1
            image = nibabel.Nifti1Image(values.astype(dtype), np.eye(4))
            turn = nibabel.orientations.ornt_transform(*map(nibabel.orientations.axcodes2ornt, ("RAS", codes)))
            nibabel.save(image.as_reoriented(turn), tmp_path / f"{name}-{part}.nii.gz")
    entries = [{"image": f"{name}-image.nii.gz", "label": f"{name}-mask.nii.gz", "subject": name} for name in "ab"]
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries[:1], "test": entries[1:]}))
    return tmp_path


def setting(folder: Path, data: Mapping[str, Any], classes: int = 2) -> WorkerSetting:
    kind = {"kind": "segmentation", "spatial_dims": 3, "in_channels": 1, "classes": classes}
    federation = {"name": "t", "rounds": 1, "task": kind, "method": {"name": "local"}, "site": [{"name": "alpha"}]}
    site = {"data": {"input_size": [8, 8, 8], **data}, "model": {"name": "unet"}}
    return WorkerSetting("alpha", "ab" * 32, federation, site, str(folder), str(folder))


def test_the_site_s_settings_decide(volumes: Path) -> None:
    assert "run in different directions" in answer(setting(volumes, {}))["refusal"]
    whole = answer(setting(volumes, {"orientation": "RAS"}))
    assert whole == {"left_out": {}, "lost_classes": {}, "refusal": None}
    small = answer(setting(volumes, {"orientation": "RAS", "input_size": [2, 2, 2]}))
    assert small["left_out"].keys() == {"a-image.nii.gz", "b-image.nii.gz"}
    assert "nothing" in small["refusal"] or "foreground" in small["refusal"]


def test_a_lesion_that_is_lost_within_an_organ_is_counted(volumes: Path) -> None:
    """The label map keeps foreground, so that the sample trains: the lesion as organ."""
    path = volumes / "a-mask.nii.gz"
    mask = nibabel.load(path)
    organ = np.where(mask.get_fdata() == 1, 2, 1).astype(np.uint8)
    organ[0] = 0
    nibabel.save(nibabel.Nifti1Image(organ, mask.affine), path)
    checked = answer(setting(volumes, {"orientation": "RAS", "input_size": [2, 2, 2]}, classes=3))
    assert checked["lost_classes"] == {"a-image.nii.gz": [2]}
    assert "a-image.nii.gz" not in checked["left_out"]
    assert describe_lost_classes(checked["lost_classes"]) == (
        "at [data] input_size nothing is left of class 2 in 1: a-image.nii.gz; these places train as another class"
    )
