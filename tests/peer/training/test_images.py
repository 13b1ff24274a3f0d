"""Images of every kind of file, at the requested size and scale."""

from pathlib import Path

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

from peer.training.errors import UnusableConfigurationError, UnusableDataError
from peer.training.images import READERS, Preparation, load_image, load_regions

VOLUME = np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6)


def nifti(path: Path, array: np.ndarray) -> Path:
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    return path


def dicom(path: Path, pixels: np.ndarray) -> Path:
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    file.SOPClassUID, file.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    file.Rows, file.Columns = pixels.shape
    file.SamplesPerPixel, file.PhotometricInterpretation = 1, "MONOCHROME2"
    file.BitsAllocated, file.BitsStored, file.HighBit, file.PixelRepresentation = 16, 16, 15, 0
    file.PixelSpacing, file.ImagePositionPatient = [1, 1], [0, 0, 0]
    file.ImageOrientationPatient, file.SliceThickness = [1, 0, 0, 0, 1, 0], 1
    file.PixelData = pixels.astype(np.uint16).tobytes()
    file.save_as(path)
    return path


def test_nifti_volumes_with_and_without_channels(tmp_path: Path) -> None:
    plain = load_image(nifti(tmp_path / "a.nii.gz", VOLUME), spatial_dims=3)
    assert torch.equal(plain, torch.from_numpy(VOLUME)[None])
    stacked = np.stack([VOLUME, -VOLUME], axis=3)
    assert torch.equal(load_image(nifti(tmp_path / "b.nii", stacked), spatial_dims=3), torch.cat([plain, -plain]))


def test_png_in_grey_and_in_colour(tmp_path: Path) -> None:
    pixels = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    Image.fromarray(pixels).save(tmp_path / "colour.PNG")
    Image.fromarray(pixels[..., 0]).save(tmp_path / "grey.png")
    colour = load_image(tmp_path / "colour.PNG", spatial_dims=2)
    assert torch.equal(colour, torch.from_numpy(pixels).permute(2, 1, 0).float())
    assert torch.equal(load_image(tmp_path / "grey.png", spatial_dims=2), colour[:1])


def test_dicom(tmp_path: Path) -> None:
    pixels = np.arange(12).reshape(3, 4)
    image = load_image(dicom(tmp_path / "slice.dcm", pixels), spatial_dims=2)
    assert image.shape[0] == 1
    assert sorted(image.flatten().tolist()) == list(range(12))


def test_arrays_by_key_or_the_first(tmp_path: Path) -> None:
    wave = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "keyed.npz", other=wave * 0, image=wave)
    np.savez(tmp_path / "first.npz", wave=wave)
    np.save(tmp_path / "bare.npy", wave[0])
    assert load_image(tmp_path / "keyed.npz", spatial_dims=1).tolist() == wave.tolist()
    assert load_image(tmp_path / "first.npz", spatial_dims=1).tolist() == wave.tolist()
    assert load_image(tmp_path / "bare.npy", spatial_dims=1).tolist() == [wave[0].tolist()]


def test_an_array_by_another_key(tmp_path: Path) -> None:
    np.savez(tmp_path / "both.npz", image=np.zeros(2), label=np.ones(2))
    assert load_image(tmp_path / "both.npz", spatial_dims=1, key="label").tolist() == [[1, 1]]
    assert load_image(tmp_path / "both.npz", spatial_dims=1, key="other").tolist() == [[0, 0]]


def test_only_bytes_of_pictures_are_brought_to_the_unit_range(tmp_path: Path) -> None:
    pixels = np.array([[0, 255]], dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "bytes.bmp")
    Image.fromarray(pixels.astype(np.uint16) * 100).save(tmp_path / "words.png")
    np.save(tmp_path / "bytes.npy", pixels)
    brightest = {path.name: load_image(path, spatial_dims=2, unit=True).max().item() for path in tmp_path.iterdir()}
    assert brightest == {"bytes.bmp": 1, "words.png": 25500, "bytes.npy": 255}
    assert load_image(tmp_path / "bytes.bmp", spatial_dims=2).max() == 255


def test_objects_in_an_array_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="allow_pickle"):
        load_image(tmp_path / "evil.npy", spatial_dims=1)


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    volume = nifti(tmp_path / "a.nii.gz", VOLUME)
    with pytest.raises(ValueError, match=r"has the shape \(1, 4, 5, 6\), not \(channels, 2 spatial dimensions\)"):
        load_image(volume, spatial_dims=2)
    with pytest.raises(ValueError, match=r"has the ending '.txt', none of .npz, .npy, .nii"):
        load_image(tmp_path / "a.txt", spatial_dims=2)
    with pytest.raises(ValueError, match=r"has 1 channels, \[task\] in_channels is 4"):
        Preparation(4, (4, 5, 6))([volume])
    with pytest.raises(ValueError, match="NaN"):
        Preparation(1, (4, 5, 6))([nifti(tmp_path / "n.nii", np.full((4, 5, 6), np.nan, dtype=np.float32))])


def test_preparation_stacks_files_resizes_and_leaves_values(tmp_path: Path) -> None:
    paths = [nifti(tmp_path / "a.nii", VOLUME), nifti(tmp_path / "b.nii", VOLUME * 2)]
    same = Preparation(2, (4, 5, 6))(paths)
    assert torch.equal(same, torch.from_numpy(np.stack([VOLUME, VOLUME * 2])))
    constant = Preparation(1, (2, 3, 9))([nifti(tmp_path / "c.nii", np.full((4, 5, 6), 3.0, dtype=np.float32))])
    assert constant.shape == (1, 2, 3, 9)
    assert torch.allclose(constant, torch.tensor(3.0))
    assert type(constant) is torch.Tensor


def test_shrinking_averages_instead_of_picking(tmp_path: Path) -> None:
    stripes = np.tile(np.array([0.0, 1.0], dtype=np.float32), 32)
    np.save(tmp_path / "stripes.npy", stripes)
    small = Preparation(1, (8,))([tmp_path / "stripes.npy"])
    assert small.shape == (1, 8)
    assert small.tolist() == [[0.5] * 8]


def test_growing_interpolates(tmp_path: Path) -> None:
    np.save(tmp_path / "ramp.npy", np.array([0.0, 1.0], dtype=np.float32))
    assert Preparation(1, (4,))([tmp_path / "ramp.npy"]).tolist() == [[0.0, 0.25, 0.75, 1.0]]


def test_normalising_is_by_channel(tmp_path: Path) -> None:
    wave = np.array([[1.0, 2.0, 3.0], [10.0, 20.0, 60.0]])
    np.save(tmp_path / "w.npy", wave)
    scored = Preparation(2, (3,), "zscore")([tmp_path / "w.npy"])
    assert torch.allclose(scored.mean(1), torch.zeros(2), atol=1e-6)
    assert torch.allclose(scored.std(1, correction=0), torch.ones(2), atol=1e-6)
    unit = Preparation(2, (3,), "unit")([tmp_path / "w.npy"])
    assert unit[1].tolist() == pytest.approx([0, 0.2, 1])


def test_regions_of_a_label_map(tmp_path: Path) -> None:
    labels = np.zeros((4, 4), dtype=np.int16)
    labels[:2, :2], labels[2:, 2:] = 3, 7
    masks = load_regions(nifti(tmp_path / "atlas.nii.gz", labels), input_size=(4, 4))
    assert masks.shape == (2, 4, 4)
    assert torch.equal(masks[0], torch.from_numpy(labels == 3).float())
    soft = load_regions(tmp_path / "atlas.nii.gz", input_size=(3, 3))
    assert torch.allclose(soft[0, 1, 1], torch.tensor(0.25))


def test_regions_of_an_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "soft.npz", masks=np.array([[0.5, 0.5, 0.0, 1.0]]))
    assert load_regions(tmp_path / "soft.npz", input_size=(2,)).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"other": np.ones((1, 4))}, "cannot be read"),
        ({"masks": np.ones(4)}, r"gives \(4,\), not \(regions, 1 dimensions\)"),
        ({"masks": -np.ones((1, 4))}, "negative or non-finite"),
    ],
)
def test_regions_that_are_none(tmp_path: Path, arrays: dict[str, np.ndarray], reason: str) -> None:
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(UnusableDataError, match=reason):
        load_regions(tmp_path / "r.npz", input_size=(4,))


def test_regions_that_are_missing_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnusableDataError, match=r"regions .*gone.nii.gz cannot be read"):
        load_regions(tmp_path / "gone.nii.gz", input_size=(4,))


def test_a_reader_that_is_not_installed_is_no_fault_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*arguments: object, **options: object) -> None:
        raise ImportError("required package `PIL` is not installed") from ModuleNotFoundError("No PIL", name="PIL")

    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    monkeypatch.setitem(READERS, ".png", missing)
    for use in (load_image, load_regions):
        options = {"spatial_dims": 2} if use is load_image else {"input_size": (4, 4)}
        with pytest.raises(
            UnusableConfigurationError, match=r"reading a\.png needs .* PIL: No PIL; run `pip install pillow`"
        ):
            use(tmp_path / "a.png", **options)  # type: ignore[operator]
