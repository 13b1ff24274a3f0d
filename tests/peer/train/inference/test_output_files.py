"""Results in the formats, on the grids and with the geometry of the images that they belong to."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from fakes import phantoms
from peer.train.images import load_image
from peer.train.inference.output_files import label_map, output_path, write

OBLIQUE = np.array([[-1.5, 0.2, 0, 90], [0.3, 2.0, 0.1, -126], [0, -0.1, 3.0, -72], [0, 0, 0, 1.0]])


def nifti(path: Path, shape: tuple[int, ...]) -> Path:
    image = nibabel.Nifti1Image(np.zeros(shape, dtype=np.int16), OBLIQUE)
    image.set_qform(OBLIQUE, code=1)
    image.header.set_xyzt_units("mm")
    image.header.set_slope_inter(0.5, -3)
    image.header["cal_max"] = 400
    nibabel.save(image, path)
    return path


def dicom(path: Path, shape: tuple[int, int], *, number: int = 0) -> Path:
    """A synthetic slice of ``(rows, columns)``, 4 mm from the next."""
    place = {"PixelSpacing": [2, 3], "ImagePositionPatient": [10, 20, 4 * number], "SliceThickness": 4}
    pixels, directions = np.zeros(shape, dtype=np.uint16), [1, 0, 0, 0, 1, 0]
    file = phantoms.dataset(path, pixels, InstanceNumber=number, ImageOrientationPatient=directions, **place)
    file.save_as(path)
    return path


@pytest.mark.parametrize(
    ("path", "output"),
    [
        ("a/b.nii.gz", "a/b.nii.gz"),
        ("B.NII", "B.NII"),
        ("x.jpeg", "x.png"),
        ("x.PNG", "x.png"),
        ("x.npz", "x.npy"),
        ("slice.dcm", "slice.nii.gz"),
        ("study.7", "study.7.nii.gz"),
    ],
)
def test_the_result_lies_at_the_images_place(path: str, output: str) -> None:
    assert output_path(Path(path)) == Path(output)


def test_a_png_holds_one_or_three_channels() -> None:
    assert [output_path(Path("x.png"), channels=count).suffix for count in (1, 2, 3, 4)] == [
        ".png", ".npy", ".png", ".npy",
    ]  # fmt: skip


def test_probabilities_are_interpolated_before_the_class_is_chosen() -> None:
    shares = torch.tensor([[0.6, 0.0], [0.0, 0.6], [0.4, 0.4]])
    assert label_map(shares, (2,)).tolist() == [0, 1]
    assert label_map(shares, (3,)).tolist() == [0, 2, 1]
    assert label_map(torch.full((3, 2), 1 / 3), (4,)).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("grid", [(9, 4, 7), (5, 6, 4), (3, 2, 2)])
def test_a_class_at_a_time_is_the_same_as_all_at_once(grid: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    shares = torch.randn(5, 5, 6, 4).softmax(dim=0)
    whole = F.interpolate(shares[None], size=grid, mode="trilinear", align_corners=False)[0]
    labels_on_grid = label_map(shares, grid)
    assert labels_on_grid.dtype == np.uint8
    assert np.array_equal(labels_on_grid, whole.argmax(dim=0).numpy())


def test_many_classes_need_two_bytes() -> None:
    labels_on_grid = label_map(torch.eye(300)[:, [299, 7]], (2,))
    assert (labels_on_grid.dtype, labels_on_grid.tolist()) == (np.int16, [299, 7])


@pytest.mark.parametrize("name", ["ct.nii", "ct.nii.gz"])
@pytest.mark.parametrize("shape", [(4, 5, 6), (4, 5, 6, 2)])
def test_a_label_map_has_the_volumes_geometry(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    reference = nifti(tmp_path / name, shape)
    labels = np.arange(120, dtype=np.uint8).reshape(4, 5, 6)
    write(tmp_path / "out" / name, labels[None], reference=reference, grid=(4, 5, 6))
    before, after = nibabel.load(reference), nibabel.load(tmp_path / "out" / name)
    assert after.get_data_dtype() == np.uint8
    assert np.array_equal(np.asanyarray(after.dataobj), labels)
    assert np.array_equal(after.affine, before.affine)
    for key in ("sform_code", "qform_code", "xyzt_units"):
        assert after.header[key] == before.header[key], key
    assert np.array_equal(after.header.get_qform(), before.header.get_qform())
    assert after.header.get_zooms() == before.header.get_zooms()[:3]
    assert after.header["cal_max"] == 0


def test_a_nifti_2_file_stays_one(tmp_path: Path) -> None:
    nibabel.save(nibabel.Nifti2Image(np.zeros((3, 2)), np.eye(4)), tmp_path / "in.nii")
    write(tmp_path / "out.nii", np.ones((1, 2, 3), dtype=np.uint8), reference=tmp_path / "in.nii", grid=(2, 3))
    assert type(nibabel.load(tmp_path / "out.nii")) is nibabel.Nifti2Image


def test_a_larger_volume_has_smaller_voxels_and_the_same_corners(tmp_path: Path) -> None:
    reference = nifti(tmp_path / "in.nii.gz", (4, 5, 6))
    values = np.random.default_rng(0).random((1, 8, 10, 12), dtype=np.float32)
    write(tmp_path / "out.nii.gz", values, reference=reference, grid=(4, 5, 6))
    before, after = nibabel.load(reference), nibabel.load(tmp_path / "out.nii.gz")
    assert np.array_equal(after.get_fdata(dtype=np.float32), values[0])
    assert after.header.get_zooms() == pytest.approx([zoom / 2 for zoom in before.header.get_zooms()])
    for corner in ((0, 0, 0), (4, 0, 6), (4, 5, 6)):
        old = before.affine @ [*(side - 0.5 for side in corner), 1]
        new = after.affine @ [*(2 * side - 0.5 for side in corner), 1]
        assert new == pytest.approx(old, abs=1e-4)


def test_channels_stand_last_in_a_volume_and_first_in_an_array(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    reference = nifti(tmp_path / "in.nii", (4, 3))
    write(tmp_path / "out.nii", values, reference=reference, grid=(3, 4))
    volume = nibabel.load(tmp_path / "out.nii")
    assert volume.shape == (4, 3, 1, 2)
    assert np.array_equal(volume.get_fdata()[:, :, 0, 1].T, values[1])
    write(tmp_path / "out.npy", values, reference=reference, grid=(3, 4))
    assert np.array_equal(np.load(tmp_path / "out.npy"), values)


@pytest.mark.parametrize("name", ["in.png", "in.jpg", "in.npy", "in.nii.gz", "in.dcm"])
def test_a_label_map_lies_on_its_image(tmp_path: Path, name: str) -> None:
    """Read as the image is read, it has the image's axes."""
    reference = tmp_path / name
    if name.endswith(".npy"):
        np.save(reference, np.zeros((3, 5, 7), dtype=np.float32))
    elif name.endswith(".nii.gz"):
        nifti(reference, (7, 5))
    elif name.endswith(".dcm"):
        dicom(reference, (5, 7))
    else:
        Image.fromarray(np.zeros((5, 7, 3), dtype=np.uint8)).save(reference)
    space = tuple(load_image(reference, spatial_dims=2).shape[1:])
    assert space == (5, 7)
    labels = np.arange(35, dtype=np.uint8).reshape(space)
    path = output_path(tmp_path / "out" / name)
    write(path, labels[None], reference=reference, grid=space)
    assert np.array_equal(load_image(path, spatial_dims=2)[0].numpy(), labels)


def test_a_picture_of_labels_beyond_a_byte(tmp_path: Path) -> None:
    labels = np.array([[[0, 299]]], dtype=np.int16)
    write(tmp_path / "out.png", labels, reference=tmp_path / "in.png", grid=(1, 2))
    assert np.asarray(Image.open(tmp_path / "out.png")).tolist() == [[0, 299]]


def test_a_larger_picture_is_rounded_to_bytes(tmp_path: Path) -> None:
    values = np.array([[[-0.1, 0.5], [1.0, 1.2]]] * 3, dtype=np.float32)
    values[1] = 0
    write(tmp_path / "out.png", values, reference=tmp_path / "in.bmp", grid=(1, 1))
    pixels = np.asarray(Image.open(tmp_path / "out.png"))
    assert pixels[..., 0].tolist() == [[0, 128], [255, 255]]
    assert pixels[..., 1].max() == 0


def test_a_label_map_of_a_dicom_series_has_its_place_in_the_patient(tmp_path: Path) -> None:
    series = tmp_path / "series"
    series.mkdir()
    for index in range(3):
        dicom(series / f"{index}.dcm", (7, 5), number=index)
    space = tuple(load_image(series, spatial_dims=3).shape[1:])
    assert space == (5, 7, 3)
    write(output_path(tmp_path / "out" / "series"), np.ones((1, *space), dtype=np.uint8), reference=series, grid=space)
    volume = nibabel.load(tmp_path / "out" / "series.nii.gz")
    assert volume.shape == space
    # DICOM's axes point left and to the back, NIfTI's right and to the front; a row is 3 mm along x, 2 mm along y.
    assert volume.affine.tolist() == [[-3, 0, 0, -10], [0, -2, 0, -20], [0, 0, 4, 0], [0, 0, 0, 1]]
    assert volume.header.get_zooms() == (3, 2, 4)
