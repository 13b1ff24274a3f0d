"""Files and arrays through a model in this process: what comes of each task, and what stays of the process."""

from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from fakes.hospital import MakeSetting
from peer.core import commands
from peer.train.device import make_reproducible
from peer.train.inference.notebook import load_model, load_trainer, predict_inputs, preserve_torch_settings
from peer.train.trainer import INITIAL, Trainer


# --- tasks -----------------------------------------------------------------------------------------------------------
def test_a_label_map_is_on_the_images_own_grid(volumes: Any, tmp_path: Path) -> None:
    image = np.zeros((6, 8, 10), dtype=np.float32)
    image[..., 5:] = 1
    scans = tmp_path / "scans"
    scans.mkdir()
    nibabel.save(nibabel.Nifti1Image(image, np.eye(4)), scans / "ct.nii.gz")
    records = predict_inputs(volumes, [scans, image, image[None], torch.from_numpy(image)])
    assert [record["file"] for record in records] == [str(scans / "ct.nii.gz"), "1", "2", "3"]
    for record in records:
        assert record.keys() == {"file", "problem", "labels"}
        assert (record["labels"].shape, record["labels"].dtype) == (image.shape, np.uint8)
        assert np.array_equal(record["labels"], image)


def test_a_larger_image_keeps_its_precision(pictures: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "in.png")
    values = pixels.transpose(2, 0, 1) / np.float64(255)
    by_path, by_array = predict_inputs(pictures, [str(tmp_path / "in.png"), values])
    expected = values.repeat(2, axis=1).repeat(2, axis=2).astype(np.float32)
    assert np.allclose(by_path["image"], expected, atol=1e-7)
    assert np.allclose(by_array["image"], expected, atol=1e-7)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (np.zeros((4, 4)), "has the shape (4, 4), not (3 channels, 2 spatial dimensions)"),
        (np.zeros((3, 0, 4)), "has the shape (3, 0, 4), not (3 channels, 2 spatial dimensions)"),
        (np.full((3, 4, 4), np.inf), "holds a NaN or an infinity"),
        (np.full((3, 4, 4), 255), "holds values from 255 to 255; super-resolution takes those in [0, 1]"),
    ],
)
def test_an_array_that_is_no_image_is_named(pictures: Any, values: np.ndarray, problem: str) -> None:
    assert predict_inputs(pictures, [values]) == [{"file": "0", "problem": problem}]


def test_what_a_folder_or_a_datalist_lacks_is_named(pictures: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "list.json").write_text('{"test": [{"image": "gone.png"}]}')
    empty, missing = predict_inputs(pictures, [tmp_path / "empty", tmp_path / "list.json"])
    assert empty["problem"] == "holds no image"
    assert missing == {"file": "gone.png", "problem": f"{tmp_path / 'gone.png'} does not exist"}


# --- networks --------------------------------------------------------------------------------------------------------
def test_a_model_and_a_trainer_outlive_the_folder_that_they_were_loaded_through(make_setting: MakeSetting) -> None:
    setting = make_setting()
    with preserve_torch_settings():
        Trainer(setting).perform(commands.Initialise(1, 1))
    image = torch.linspace(-1, 1, 48).reshape(2, 24)
    model, trainer = load_model(setting, INITIAL, ()), load_trainer(setting, INITIAL, ())
    with torch.no_grad():
        assert torch.equal(model(image[None]), trainer.predict(image[None]))
    (record,) = predict_inputs(trainer, [image])
    assert record["class_0"] + record["class_1"] == pytest.approx(1, abs=1e-5)


def process_settings() -> dict[str, Any]:
    """What of this process changes numbers."""
    return {
        "threads": torch.get_num_threads(),
        "strict": torch.are_deterministic_algorithms_enabled(),
        "filled": torch.utils.deterministic.fill_uninitialized_memory,
        "benchmark": torch.backends.cudnn.benchmark,
        "tf32": torch.backends.cudnn.allow_tf32,
        "random": torch.random.get_rng_state().tolist(),
    }


def disturb(threads: int) -> None:
    """Fail after everything was set as a worker has it."""
    with preserve_torch_settings():
        make_reproducible(torch.device("cpu"), threads=threads)
        torch.manual_seed(torch.initial_seed() + 1)
        raise ValueError("in the middle")


def test_what_a_trainer_sets_is_given_back() -> None:
    with preserve_torch_settings():
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
        torch.use_deterministic_algorithms(False)
        before = process_settings()
        with pytest.raises(ValueError, match="in the middle"):
            disturb(before["threads"] + 1)
        assert process_settings() == before
