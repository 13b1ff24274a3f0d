"""Samples of every kind of task as image and target, in one, two and three dimensions; all of them synthetic."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

from peer.site.config.site_tables import DataConfig
from peer.train.data.datalist import Sample
from peer.train.errors import UnusableConfigurationError
from peer.train.images import Preparation
from peer.train.settings import DataSettings, TaskSettings
from peer.train.targets import ImageAndLabel, LabelMap, LargeImage, sample_reader

SIZES = [(6,), (4, 6), (4, 6, 2)]


def saved(path: Path, array: object) -> Path:
    np.save(path, np.asarray(array))
    return path


def label_map(classes: int = 3, *, size: tuple[int, ...], normalise: str = "none") -> LabelMap:
    return LabelMap(Preparation(1, size, normalise), classes)


@pytest.fixture
def pair(tmp_path: Path) -> Sample:
    """A plane of 2x3 with a label map of 2x3."""
    image = saved(tmp_path / "image.npy", np.arange(6.0).reshape(2, 3))
    return Sample("image.npy", (image,), saved(tmp_path / "label.npy", [[0, 1, 2], [2, 0, 1]]))


def data(folder: Path, **keys: Any) -> DataSettings:
    return DataSettings.of(DataConfig(input_size=(8,), **keys), folder)


# --- which reading --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("classification", ImageAndLabel(Preparation(2, (8,), "unit"))),
        ("time_series", ImageAndLabel(Preparation(2, (8,), "unit"))),
        ("segmentation", LabelMap(Preparation(2, (8,), "unit"), 3)),
    ],
)
def test_each_task_is_read_in_its_way(tmp_path: Path, kind: str, expected: object) -> None:
    assert sample_reader(TaskSettings(kind, 1, 2, 3), data(tmp_path, normalise="unit")) == expected


def test_super_resolution_needs_a_scale(tmp_path: Path) -> None:
    task = TaskSettings("super_resolution", 1, 2, 3)
    assert sample_reader(task, data(tmp_path, scale=4)) == LargeImage(2, 3, (8,), 4)
    with pytest.raises(
        UnusableConfigurationError, match=r"\[data\] scale is missing; super-resolution needs 2, 4 or 8"
    ):
        sample_reader(task, data(tmp_path))


def test_a_class_comes_from_the_datalist(tmp_path: Path) -> None:
    sample = Sample("a", (saved(tmp_path / "a.npy", [[1.0, 3.0]]),), 2)
    image, target = ImageAndLabel(Preparation(1, (2,), "unit"))(sample)
    assert image.tolist() == [[0, 1]]
    assert (target.dtype, target.shape, int(target)) == (torch.int64, (), 2)


# --- label maps -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
def test_a_label_map_at_its_own_size_is_what_it_was(tmp_path: Path, size: tuple[int, ...]) -> None:
    labels = np.arange(np.prod(size)).reshape(size) % 3
    sample = Sample("a", (saved(tmp_path / "a.npy", labels * 7.0),), saved(tmp_path / "b.npy", labels))
    image, target = label_map(size=size)(sample)
    assert torch.equal(image[0], torch.from_numpy(labels * 7.0).float())
    assert target.dtype == torch.uint8
    assert torch.equal(target, torch.from_numpy(labels).to(torch.uint8))


@pytest.mark.parametrize("size", SIZES)
def test_a_label_map_is_resized_to_the_nearest_label(tmp_path: Path, size: tuple[int, ...]) -> None:
    coarse = np.arange(np.prod(size)).reshape(size) % 3
    fine = coarse
    for axis in range(len(size)):
        fine = fine.repeat(3, axis)
    for stored, needed, expected in ((fine, size, coarse), (coarse, fine.shape, fine)):
        sample = Sample("a", (saved(tmp_path / "a.npy", stored * 1.0),), saved(tmp_path / "b.npy", stored))
        image, target = label_map(size=needed)(sample)
        assert image.shape == (1, *needed)
        assert torch.equal(target, torch.from_numpy(expected).to(torch.uint8))


def test_values_of_a_label_map_become_the_classes_that_the_datalist_gives(pair: Sample) -> None:
    saved(pair.label, np.array([[0, 255, 1], [128, 0, 0]], dtype=np.uint8))
    sample = replace(pair, label_values=((255, 1), (1, 2), (128, 300)))
    assert label_map(301, size=(2, 3))(sample)[1].tolist() == [[0, 1, 2], [300, 0, 0]]
    with pytest.raises(ValueError, match=r"the value 255; .* from 0 to 2, .* `data import --map 255=1`"):
        label_map(size=(2, 3))(replace(pair, label_values=((128, 1),)))


def test_only_the_image_is_normalised(pair: Sample) -> None:
    image, target = label_map(size=(2, 3), normalise="zscore")(pair)
    assert float(image.mean()) == pytest.approx(0, abs=1e-6)
    assert target.tolist() == [[0, 1, 2], [2, 0, 1]]


def test_many_classes_take_more_than_a_byte(pair: Sample) -> None:
    labels = np.array([[0, 255, 256], [299, 0, 1]])
    saved(pair.label, labels)
    target = label_map(300, size=(2, 3))(pair)[1]
    assert target.dtype == torch.int32
    assert target.tolist() == labels.tolist()


def test_label_maps_of_every_format(tmp_path: Path) -> None:
    labels = (np.arange(12).reshape(3, 4) % 3).astype(np.uint8)
    nibabel.save(nibabel.Nifti1Image(labels.T, np.eye(4)), tmp_path / "a.nii.gz")  # x runs along a row
    np.savez(tmp_path / "both.npz", image=labels * 1.0, label=labels)
    saved(tmp_path / "channel.npy", labels[None])
    Image.fromarray(labels).save(tmp_path / "grey.png")
    palette = Image.fromarray(labels)
    palette.putpalette([255, 0, 0, 0, 255, 0, 0, 0, 255])
    palette.save(tmp_path / "palette.png")  # its colours are for the eye: the labels are the numbers below
    image = tmp_path / "both.npz"
    for name in ("a.nii.gz", "both.npz", "channel.npy", "grey.png", "palette.png"):
        target = label_map(size=(3, 4))(Sample("a", (image,), tmp_path / name))[1]
        assert target.tolist() == labels.tolist(), name


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        ([[0, 1, 2], [2, 0, 3]], "its label map holds the value 3; labels are whole numbers from 0 to 2"),
        ([[0, 1, -1], [2, 0, 0]], "its label map holds the value -1"),
        ([[0, 0.5, 1], [0, 0, 0]], "its label map holds the value 0.5"),
        ([[0, np.nan, 1], [0, 0, 0]], "its label map label.npy holds a NaN or an infinity"),
        ([[0, 1], [1, 0]], r"has the shape \(2, 3\), its label map \(2, 2\)"),
        (np.zeros((2, 2, 3)), "its label map has 2 channels, not one"),
        ([0, 1], r"its label map label.npy has the shape \(1, 2\), not \(channels, 2 spatial dimensions\)"),
    ],
)
def test_a_label_map_that_does_not_fit_is_named(pair: Sample, labels: object, reason: str) -> None:
    saved(pair.label, labels)
    with pytest.raises(ValueError, match=reason):
        label_map(size=(2, 3))(pair)


def test_a_class_is_no_label_map(pair: Sample) -> None:
    with pytest.raises(ValueError, match="has the label 1, not a file"):
        label_map(size=(2, 3))(Sample("a", pair.images, 1))


# --- large images ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("scale", [2, 4])
def test_an_image_is_its_own_target(tmp_path: Path, size: tuple[int, ...], scale: int) -> None:
    large = np.random.default_rng(3).random((2, *(scale * length for length in size)))
    image, target = LargeImage(2, 2, size, scale)(Sample("a", (saved(tmp_path / "a.npy", large),), None))
    assert torch.equal(target, torch.from_numpy(large).float())
    cells = large.reshape(2, *(part for length in size for part in (length, scale)))
    expected = cells.mean(axis=tuple(range(2, 2 * len(size) + 1, 2)))
    assert image.shape == (2, *size)
    assert np.allclose(image.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_a_label_file_is_the_large_image(tmp_path: Path, size: tuple[int, ...]) -> None:
    draw = np.random.default_rng(4)
    small, large = draw.random(size), draw.random((3, *(2 * length for length in size)))
    sample = Sample("a", (saved(tmp_path / "a.npy", small),), saved(tmp_path / "b.npy", large))
    image, target = LargeImage(1, 3, size, 2)(sample)
    assert torch.equal(image[0], torch.from_numpy(small).float())
    assert torch.equal(target, torch.from_numpy(large).float())


def test_both_are_averaged_to_the_input_size(tmp_path: Path) -> None:
    small, large = np.arange(4.0) / 10, np.arange(8.0) / 10
    pair = Sample("a", (saved(tmp_path / "a.npy", small),), saved(tmp_path / "b.npy", large))
    image, target = LargeImage(1, 1, (2,), 2)(pair)
    assert image.tolist() == [pytest.approx([0.05, 0.25])]
    assert target.tolist() == [pytest.approx([0.05, 0.25, 0.45, 0.65])]
    alone = LargeImage(1, 1, (2,), 2)(Sample("a", (tmp_path / "b.npy",), None))
    assert alone[0].tolist() == [pytest.approx([0.15, 0.55])]
    assert torch.equal(alone[1], target)


def test_a_small_picture_and_a_large_array_are_a_pair(tmp_path: Path) -> None:
    small = np.arange(6, dtype=np.uint8).reshape(2, 3) * 50
    Image.fromarray(small).save(tmp_path / "small.png")
    large = saved(tmp_path / "large.npy", (small / 255).astype(np.float32).repeat(2, axis=0).repeat(2, axis=1))
    image, target = LargeImage(1, 1, (2, 3), 2)(Sample("a", (tmp_path / "small.png",), large))
    assert torch.equal(image.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2), target)


def test_pictures_of_bytes_are_brought_to_the_unit_range(tmp_path: Path) -> None:
    pixels = np.array([[0, 51], [102, 255]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    image, target = LargeImage(1, 1, (1, 1), 2)(Sample("a", (tmp_path / "a.png",), None))
    assert target[0].tolist() == [pytest.approx([0, 0.2]), pytest.approx([0.4, 1])]
    assert image.item() == pytest.approx(0.4)
    Image.fromarray(pixels > 100).save(tmp_path / "bits.png")
    bits = LargeImage(1, 1, (1, 1), 2)(Sample("bits", (tmp_path / "bits.png",), None))[1]
    assert bits[0].tolist() == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("small", "large", "reason"),
    [
        ([0.1, 0.2], [0.1] * 5, r"has the shape \(2,\), its label file \(5,\), which \[data\] scale = 2 makes \(4,\)"),
        (
            [0.1],
            [0.1] * 2,
            r"gives a target of \(2,\), smaller than scale \* input_size = \(4,\); lower \[data\] input_",
        ),
        ([0.1, 2], [0.1] * 4, r"holds values from 0.1 to 2; super-resolution takes those in \[0, 1\]"),
        ([0.1, 0.2], [-1, 0, 0, 0], "holds values from -1 to 0;"),
        ([0.1, np.nan], [0.1] * 4, "holds a NaN"),
        ([0.1, 0.2], [[0.1] * 4] * 2, r"has 2 channels, \[task\] classes is 1"),
        ([[0.1, 0.2]] * 2, [0.1] * 4, r"has 2 channels, \[task\] in_channels is 1"),
        ([0.1, 0.2], None, r"gives a target of \(2,\), smaller than scale"),
    ],
)
def test_what_gives_no_target_is_named(tmp_path: Path, small: object, large: object, reason: str) -> None:
    label = None if large is None else saved(tmp_path / "b.npy", large)
    with pytest.raises(ValueError, match=reason):
        LargeImage(1, 1, (2,), 2)(Sample("a", (saved(tmp_path / "a.npy", small),), label))


def test_without_a_label_file_the_channels_must_agree(tmp_path: Path) -> None:
    image = saved(tmp_path / "a.npy", np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"has no label file, and its 2 channels are not \[task\] classes = 1"):
        LargeImage(2, 1, (2,), 2)(Sample("a", (image,), None))
