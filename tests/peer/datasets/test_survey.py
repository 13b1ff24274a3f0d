import json
from pathlib import Path

import nibabel
import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from peer.datasets.survey import stored_shape, survey


def write_nifti(path: Path, shape: tuple[int, ...], value: float = 0.0) -> None:
    nibabel.save(nibabel.Nifti1Image(np.full(shape, value, dtype=np.float32), np.eye(4)), path)


def write_dicom(path: Path, rows: int, columns: int) -> None:
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = pydicom.uid.CTImageStorage
    meta.MediaStorageSOPInstanceUID = generate_uid()
    slice_ = FileDataset(path, {}, file_meta=meta, preamble=b"\0" * 128)
    slice_.Rows, slice_.Columns = rows, columns
    slice_.BitsAllocated, slice_.BitsStored, slice_.HighBit = 16, 16, 15
    slice_.PixelRepresentation, slice_.SamplesPerPixel, slice_.PhotometricInterpretation = 0, 1, "MONOCHROME2"
    slice_.PixelData = np.zeros((rows, columns), dtype=np.uint16).tobytes()
    slice_.save_as(path, enforce_file_format=True)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_nifti(tmp_path / "volume.nii.gz", (3, 4, 5))
    write_nifti(tmp_path / "volume.nii", (3, 4, 5, 2))
    Image.new("RGB", (7, 6)).save(tmp_path / "colour.png")
    Image.new("L", (7, 6)).save(tmp_path / "grey.jpg")
    np.save(tmp_path / "signal.npy", np.zeros((2, 9)))
    np.savez(tmp_path / "signal.npz", other=np.zeros(1), image=np.zeros((2, 8)))
    write_dicom(tmp_path / "slice.dcm", 5, 6)
    (tmp_path / "series").mkdir()
    for index in range(3):
        write_dicom(tmp_path / "series" / f"{index}", 5, 6)
    return tmp_path


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("volume.nii.gz", (3, 4, 5)),
        ("volume.nii", (3, 4, 5, 2)),
        ("colour.png", (6, 7, 3)),
        ("grey.jpg", (6, 7)),
        ("signal.npy", (2, 9)),
        ("signal.npz", (2, 8)),
        ("slice.dcm", (5, 6)),
        ("series", (5, 6, 3)),
    ],
)
def test_stored_shape_of_every_format(images: Path, name: str, shape: tuple[int, ...], whole: bool) -> None:
    assert stored_shape(images / name, whole=whole) == shape


def test_a_truncated_file_has_a_shape_but_cannot_be_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "cut.nii.gz"
    random = np.random.default_rng(0).normal(size=(20, 20, 20)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(random, np.eye(4)), path)
    path.write_bytes(path.read_bytes()[:9000])
    assert stored_shape(path) == (20, 20, 20)
    with pytest.raises(ValueError, match="ended before the end-of-stream"):
        stored_shape(path, whole=True)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_found_when_they_are_read(tmp_path: Path, value: float) -> None:
    write_nifti(tmp_path / "bad.nii", (2, 2, 2), value)
    assert stored_shape(tmp_path / "bad.nii") == (2, 2, 2)
    with pytest.raises(ValueError, match="NaN or an infinity"):
        stored_shape(tmp_path / "bad.nii", whole=True)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("volume.nii.gz", "not a gzip file"),
        ("volume.nii", "cannot work out file type"),
        ("picture.png", "cannot identify image"),
        ("signal.npz", "pickled"),
        ("slice.dcm", "missing DICOM"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match=f"(?i){reason}"):
        stored_shape(tmp_path / name)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        stored_shape(tmp_path / "objects.npy")


def test_an_unknown_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").touch()
    with pytest.raises(ValueError, match=r"'\.xyz', none of \.nii"):
        stored_shape(tmp_path / "a.xyz")


def test_an_empty_folder_is_no_series(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder is empty"):
        stored_shape(tmp_path)


def test_survey_counts_samples_subjects_classes_and_shapes(images: Path) -> None:
    path = images / "datalist.json"
    training = [
        {"image": "volume.nii.gz", "label": 1, "subject": "a"},
        {"image": ["colour.png", "grey.jpg"], "label": 0, "subject": "a"},
        {"image": "signal.npy", "label": 0},
    ]
    path.write_text(json.dumps({"training": training, "test": [{"image": "volume.nii", "label": 1}, "signal.npz"]}))
    assert survey(path, whole=True) == {
        "datalist": str(path),
        "splits": {
            "training": {
                "samples": 3,
                "subjects": 1,
                "unnamed": 1,
                "classes": {"0": 2, "1": 1},
                "shapes": {"3x4x5": 1, "6x7x3": 1, "6x7": 1, "2x9": 1},
            },
            "test": {"samples": 1, "subjects": 0, "unnamed": 1, "classes": {"1": 1}, "shapes": {"3x4x5x2": 1}},
        },
        "unlabelled": 1,
        "problems": [],
    }


def test_survey_names_missing_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    path = tmp_path / "datalist.json"
    entries = [{"image": "absent.png", "label": 0}, {"image": "broken.png", "label": 1}]
    path.write_text(json.dumps({"training": entries}))
    missing, unreadable = survey(path)["problems"]
    assert "absent.png" in missing
    assert "broken.png" in unreadable
    assert "cannot be read" in unreadable


def test_survey_of_another_root(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    np.save(tmp_path / "images" / "a.npy", np.zeros(3))
    path = tmp_path / "datalist.json"
    path.write_text(json.dumps({"training": [{"image": "a.npy", "label": label} for label in (0, 1)]}))
    assert survey(path, root=tmp_path / "images")["splits"]["training"]["shapes"] == {"3": 2}
