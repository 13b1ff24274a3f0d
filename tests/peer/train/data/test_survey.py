import json
import shutil
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from PIL import Image
from pydicom import Dataset
from pydicom.datadict import dictionary_VR

from fakes import phantoms
from peer.train.data.copies import copy_problems
from peer.train.data.datalist import inspect_datalist
from peer.train.data.image_files import open_image, read_values
from peer.train.data.survey import survey


def write_nifti(path: Path, shape: tuple[int, ...], value: float | None = None) -> None:
    values = np.arange(np.prod(shape)) % 2 if value is None else np.full(np.prod(shape), value)
    nibabel.save(nibabel.Nifti1Image(values.reshape(shape).astype(np.float32), np.eye(4)), path)


def write_dicom(path: Path, *, number: int = 1) -> None:
    phantoms.dataset(path, np.eye(5, 6, dtype=np.uint16), InstanceNumber=number).save_as(path)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    write_nifti(tmp_path / "volume.nii.gz", (3, 4, 5))
    write_nifti(tmp_path / "volume.nii", (3, 4, 5, 2))
    write_nifti(tmp_path / "plane.nii", (6, 5))
    Image.linear_gradient("L").resize((7, 6)).convert("RGB").save(tmp_path / "colour.png")
    Image.linear_gradient("L").resize((7, 6)).save(tmp_path / "grey.jpg")
    np.save(tmp_path / "signal.npy", np.eye(2, 9))
    np.savez(tmp_path / "signal.npz", other=np.zeros(1), image=np.eye(2, 8))
    write_dicom(tmp_path / "slice.dcm")
    (tmp_path / "series").mkdir()
    for index in range(3):
        write_dicom(tmp_path / "series" / f"{index}", number=index + 1)
    return tmp_path


def survey_entries(folder: Path, *entries: dict[str, Any], **options: Any) -> dict[str, Any]:
    path = folder / "datalist.json"
    path.write_text(json.dumps({"training": entries}))
    return survey(path, **options)


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
        ("plane.nii", (5, 6)),
        ("series", (6, 5, 3)),
    ],
)
def test_stored_shape_of_every_format(images: Path, name: str, shape: tuple[int, ...]) -> None:
    image = open_image(images / name)
    assert image.shape == shape
    expected = shape if image.channels is None else (image.channels, *image.space)
    assert read_values(images / name, image).shape == expected


def test_a_truncated_file_has_a_shape_but_cannot_be_read_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "cut.nii.gz"
    random = np.random.default_rng(0).normal(size=(20, 20, 20)).astype(np.float32)
    nibabel.save(nibabel.Nifti1Image(random, np.eye(4)), path)
    path.write_bytes(path.read_bytes()[:9000])
    assert open_image(path).shape == (20, 20, 20)
    with pytest.raises(ValueError, match="ended before the end-of-stream"):
        read_values(path, open_image(path))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite_are_found_when_they_are_read(tmp_path: Path, value: float) -> None:
    write_nifti(tmp_path / "bad.nii", (2, 2, 2), value)
    assert open_image(tmp_path / "bad.nii").shape == (2, 2, 2)
    with pytest.raises(ValueError, match="NaN or an infinity"):
        read_values(tmp_path / "bad.nii", open_image(tmp_path / "bad.nii"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("volume.nii.gz", "not a gzipped file"),
        ("volume.nii", "cannot work out file type"),
        ("picture.png", "is no picture that pillow reads"),
        ("signal.npz", "no array of numbers in numpy's format"),
        ("signal.npy", "no array of numbers in numpy's format"),
        ("slice.dcm", "missing DICOM"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / name).write_bytes(b"something else")
    with pytest.raises(ValueError, match=f"(?i){reason}"):
        open_image(tmp_path / name)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="pickle"):
        open_image(tmp_path / "objects.npy")


def test_an_unknown_ending_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").touch()
    with pytest.raises(ValueError, match=r"'\.xyz', none of \.npz"):
        open_image(tmp_path / "a.xyz")


def test_an_empty_folder_is_no_series(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="folder is empty"):
        open_image(tmp_path)


def test_survey_counts_samples_subjects_classes_and_shapes(images: Path) -> None:
    path = images / "datalist.json"
    other = np.arange(1, 61, dtype=np.float32).reshape(3, 4, 5)
    nibabel.save(nibabel.Nifti1Image(other, np.eye(4)), images / "copy.nii")
    nibabel.save(
        nibabel.Nifti1Image(np.arange(120, dtype=np.float32).reshape(3, 4, 5, 2), np.eye(4)), images / "two.nii"
    )
    training = [
        {"image": "volume.nii.gz", "label": 1, "subject": "a"},
        {"image": ["copy.nii", "volume.nii"], "label": 0, "subject": "a"},
        {"image": "series", "label": 0},
    ]
    path.write_text(json.dumps({"training": training, "test": [{"image": "two.nii", "label": 1}, "signal.npz"]}))
    assert survey(path, whole=True) == {
        "datalist": str(path),
        "splits": {
            "training": {
                "samples": 3, "subjects": 1, "unnamed": 1, "classes": {"0": 2, "1": 1},
                "shapes": {"3x4x5": 2, "3x4x5x2": 1, "6x5x3": 1}, "orientations": {"RAS": 3},
                "spacings": {"1x1x1": 3}, "labels": 0, "label_shapes": {},
            },
            "test": {
                "samples": 1, "subjects": 0, "unnamed": 1, "classes": {"1": 1}, "shapes": {"3x4x5x2": 1},
                "orientations": {"RAS": 1}, "spacings": {"1x1x1": 1}, "labels": 0, "label_shapes": {},
            },
        },
        "class_names": {},
        "columns": [],
        "unlabelled": 1,
        "unused_keys": {},
        "problems": [
            "images are of another kind than most, which have 3 dimensions and 1 channel: "
            f"{images / 'copy.nii'} (3 dimensions and 3 channels), {images / 'two.nii'} (3 dimensions and 2 "
            "channels); convert them or take them out of the datalist"
        ],
        "warnings": [
            f"{images / 'series'} says no position and orientation of its slices in the patient; training refuses them "
            "where [data] orientation turns volumes",
            f"values are of several types: float32 (4 files), but {images / 'series'} uint16; with other ranges, set "
            "[data] intensity or normalise",
        ],
    }  # fmt: skip


def test_survey_names_missing_and_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    entries = [{"image": "absent.png", "label": 0}, {"image": "broken.png", "label": 1}]
    missing, unreadable = survey_entries(tmp_path, *entries)["problems"]
    assert "absent.png" in missing
    assert "broken.png" in unreadable
    assert "cannot be read" in unreadable


def test_survey_of_another_root(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    np.save(tmp_path / "images" / "a.npy", np.zeros(3))
    entries = [{"image": "a.npy", "label": label} for label in (0, 1)]
    document = survey_entries(tmp_path, *entries, root=tmp_path / "images")
    assert document["splits"]["training"]["shapes"] == {"3": 2}


# --- label files ----------------------------------------------------------------------------------------------------
def write_label(path: Path, labels: object) -> None:
    array = np.asarray(labels)
    if path.suffix == ".png":
        Image.fromarray(array.astype(np.uint8)).save(path)
    elif path.suffix == ".npy":
        np.save(path, array)
    else:
        nibabel.save(nibabel.Nifti1Image(array.astype(np.float32), np.eye(4)), path)


@pytest.mark.parametrize("whole", [False, True])
def test_survey_of_label_maps(images: Path, whole: bool) -> None:
    write_label(images / "a.nii", np.eye(3)[:, :, None] * [0, 2])
    write_nifti(images / "b.nii", (3, 3, 2), 0)
    entries = [{"image": "a.nii", "label": "a.nii"}, {"image": "a.nii", "label": "b.nii"}]
    document = survey_entries(images, *entries, task="segmentation", classes=3, whole=whole)
    assert document["problems"] == []
    assert document["splits"]["training"]["labels"] == 2
    assert document["splits"]["training"]["classes"] == {"0": 2, "2": 1}
    assert document["splits"]["training"]["label_shapes"] == {"3x3x2": 2}


@pytest.mark.parametrize(
    ("image", "label", "shape", "fits"),
    [
        ("colour.png", "l.png", (6, 7), True),
        ("colour.png", "l.png", (7, 6), False),
        ("colour.png", "l.png", (6, 7, 3), False),
        ("colour.png", "l.nii", (7, 6), True),
        ("colour.png", "l.npy", (6, 7), True),
        ("colour.png", "l.npy", (7, 6), False),
        ("series", "l.nii", (6, 5, 3), True),
        ("series", "l.nii", (5, 6, 3), False),
        ("grey.jpg", "l.nii.gz", (6, 7), False),
        ("slice.dcm", "l.nii", (6, 5), True),
        ("volume.nii", "l.nii", (3, 4, 5), True),
        ("volume.nii", "l.npy", (1, 3, 4, 5), True),
        ("volume.nii.gz", "l.nii", (3, 4, 6), False),
        ("volume.nii.gz", "l.nii", (3, 4, 5, 1), True),
        ("volume.nii.gz", "l.nii", (3, 4, 5, 2), False),
        ("signal.npy", "l.npy", (9,), True),
        ("signal.npz", "l.npy", (9,), False),
    ],
)
def test_a_label_map_lies_on_its_images_grid(
    images: Path, image: str, label: str, shape: tuple[int, ...], fits: bool
) -> None:
    write_label(images / label, np.zeros(shape))
    document = survey_entries(images, {"image": image, "label": label}, task="segmentation")
    read = shape[::-1] if ".nii" in label and len(shape) == 2 else shape
    stored = "x".join(map(str, read))
    problem = f"label files are not on the grid of their images: {images / label} ({stored}); make them anew"
    assert document["problems"] == ([] if fits else [problem])


@pytest.mark.parametrize(
    ("values", "nan", "problem"),
    [
        ([1, 2, np.nan], None, 'take them out of the datalist, or set [data] nan = "background"'),
        ([1, 2, np.nan], "background", None),
        ([1, 1, np.nan], "background", "images are constant: "),
        ([np.nan] * 3, "background", "(holds NaN alone); "),
    ],
)
def test_a_nan_is_a_fault_unless_it_is_background(
    images: Path, values: list[float], nan: str | None, problem: str | None
) -> None:
    np.save(images / "image.npy", np.array(values))
    entry = {"image": "image.npy", "label": 0}
    problems = survey_entries(images, entry, whole=True, nan=nan)["problems"]
    texts = [text for text in problems if "one class only" not in text]
    assert len(texts) == (problem is not None)
    assert problem is None or problem in texts[0]


@pytest.mark.parametrize(
    ("labels", "classes", "problem"),
    [
        (
            [0, 2],
            2,
            "label maps hold other values than 0 to 1: {} (2); map them with `data import --map 2=1` or",
        ),
        ([0, -1], None, "label maps hold other values than 0, 1, ...: {} (-1); map them or correct [task] classes"),
        ([0, 0.5], None, "label maps hold other values than 0, 1, ...: {} (0.5); map them or correct [task] classes"),
        ([0, np.nan], 2, "files cannot be read: {} (holds a NaN or an infinity); replace them or take them out of the"),
        ([0, 1e39], 2, "files cannot be read: {} (holds a value beyond float32, in which networks compute: divide all"),
        ([0, 255], None, None),
    ],
)
def test_values_that_are_no_labels_are_named(
    images: Path, labels: list[float], classes: int | None, problem: str | None
) -> None:
    np.save(images / "image.npy", np.zeros((2, 2)))
    write_label(images / "label.npy", labels)
    document = survey_entries(
        images, {"image": "image.npy", "label": "label.npy"}, task="segmentation", classes=classes
    )
    if problem is None:
        assert document["problems"] == []
        assert document["splits"]["training"]["classes"] == {"0": 1, "255": 1}
    else:
        (text,) = document["problems"]
        assert text.startswith(problem.format(images / "label.npy"))
        assert document["splits"]["training"]["classes"] == {}


def test_the_label_of_an_archive_is_its_label_array(images: Path) -> None:
    np.savez(images / "both.npz", image=np.array([0.5, 0, 0, 0]), label=np.array([0, 1, 1, 3]))
    document = survey_entries(images, {"image": "both.npz", "label": "both.npz"}, task="segmentation", whole=True)
    assert document["problems"] == []
    assert document["splits"]["training"]["classes"] == {"0": 1, "1": 1, "3": 1}


def test_survey_of_large_images(images: Path) -> None:
    np.save(images / "small.npy", np.eye(3, 4))
    for name, size in (("twice", (6, 8)), ("eight", (3, 24, 32)), ("thrice", (9, 12)), ("skewed", (6, 12))):
        np.save(images / f"{name}.npy", np.ones(size))
    entries = [{"image": "small.npy", "label": f"{name}.npy"} for name in ("twice", "eight", "thrice", "skewed")]
    document = survey_entries(images, *entries, {"image": "small.npy"}, task="super_resolution", whole=True)
    misfits = f"{images / 'thrice.npy'} (9x12), {images / 'skewed.npy'} (6x12)"
    assert document["problems"] == [
        f"label files are not 2, 4 or 8 times the size of their images: {misfits}; make them anew"
    ]
    assert (document["splits"]["training"]["labels"], document["splits"]["training"]["classes"]) == (4, {})


def test_values_beyond_the_unit_range_are_named_when_they_are_read(images: Path) -> None:
    np.save(images / "dark.npy", np.array([[0.0, -0.5]]))
    write_label(images / "bytes.png", [[0, 255]])
    np.save(images / "bright.npy", np.array([[0, 255]], dtype=np.uint8))
    entries = [{"image": name} for name in ("dark.npy", "bytes.png", "bright.npy")]
    assert survey_entries(images, *entries, task="super_resolution")["problems"] == []
    files = f"{images / 'dark.npy'} (-0.5 to 0), {images / 'bright.npy'} (0 to 255)"
    assert survey_entries(images, *entries, task="super_resolution", whole=True)["problems"] == [
        f"values are not from 0 to 1: {files}; scale them"
    ]


def test_labels_that_cannot_be_read_are_named(images: Path) -> None:
    (images / "broken.png").write_bytes(b"no picture")
    (problem,) = survey_entries(images, {"image": "grey.jpg", "label": "broken.png"}, task="segmentation")["problems"]
    assert problem.startswith(f"files cannot be read: {images / 'broken.png'} (is no picture that pillow reads")


def test_copies_in_both_splits_or_with_two_labels_are_problems(tmp_path: Path) -> None:
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.eye(2, 9) + number)
    for number in (0, 1):
        shutil.copy(tmp_path / f"{number}.npy", tmp_path / f"copy-{number}.npy")
    training = [{"image": f"{number}.npy", "label": number % 2} for number in range(4)]
    training.append({"image": "copy-1.npy", "label": 0})
    path = tmp_path / "datalist.json"
    path.write_text(json.dumps({"training": training, "test": [{"image": "copy-0.npy", "label": 0}]}))
    assert survey(path, task="time_series", whole=True)["problems"] == [
        f"images with the same content are in training and in test: {tmp_path / '0.npy'} = {tmp_path / 'copy-0.npy'}; "
        "keep one of each",
        f"images with the same content have different labels: {tmp_path / '1.npy'} = {tmp_path / 'copy-1.npy'}; keep "
        "one of each",
    ]
    assert survey(path, task="time_series")["problems"] == []


def test_a_copy_in_another_container_or_type_is_a_copy(tmp_path: Path) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8)
    np.savez(tmp_path / "0.npz", pixels[None].astype(">f8"))
    for name in ("0.png", "1.tif"):
        Image.fromarray(pixels + int(name[0])).save(tmp_path / name)
    Image.fromarray(pixels + 1).save(tmp_path / "1.png")
    entries = [{"image": name, "label": int(name == "1.tif")} for name in ("0.png", "1.png", "1.tif")]
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries, "test": [{"image": "0.npz", "label": 0}]}))
    problems = survey(tmp_path / "datalist.json", whole=True)["problems"]
    named = [
        "images with the same content are in training and in test: "
        f"{tmp_path / '0.npz'} = {tmp_path / '0.png'}; keep one of each",
        "images with the same content have different labels: "
        f"{tmp_path / '1.png'} = {tmp_path / '1.tif'}; keep one of each",
    ]
    assert [line for line in problems if "same content" in line] == named
    listed = inspect_datalist(tmp_path / "datalist.json")
    assert (copy_problems(listed, values=True), copy_problems(listed)) == (named, [])


def test_what_cannot_be_read_is_no_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [{"image": f"{name}.npy", "label": 0} for name in "ab"]
    for entry in entries:
        np.save(tmp_path / str(entry["image"]), np.eye(2))
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries[:1], "test": entries[1:]}))
    listed = inspect_datalist(tmp_path / "datalist.json")
    assert len(copy_problems(listed)) == 1
    (tmp_path / "b.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1] + b"x")

    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)
    assert copy_problems(listed) == []


@pytest.mark.parametrize("task", ["classification", "time_series"])
def test_an_array_without_axes_is_surveyed(tmp_path: Path, task: str) -> None:
    np.save(tmp_path / "a.npy", np.float64(1))
    assert survey_entries(tmp_path, {"image": "a.npy", "label": 0}, task=task)["splits"]["training"]["samples"] == 1


def test_lists_that_are_not_used_are_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(2, 9))
    entry = {"image": "a.npy", "label": 0}
    lists = {"training": [entry, {**entry, "label": 1}], "validation": [entry] * 2, "testing": [entry], "notes": ["b"]}
    (tmp_path / "datalist.json").write_text(json.dumps(lists))
    assert survey(tmp_path / "datalist.json")["warnings"] == [
        "the list 'validation' is not used (entries: 2): put them into 'training', of which [data] validation_share "
        "holds out a part",
        "the list 'testing' is not used (entries: 1): call the list 'test'",
    ]


def test_keys_that_are_not_used_are_counted(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.eye(2, 9))
    surveyed = survey_entries(tmp_path, *({"image": "a.npy", "label": label, "age": 7} for label in (0, 1)))
    assert surveyed["unused_keys"] == {"age": 2}
    assert surveyed["warnings"] == []


@pytest.mark.parametrize(("lengths", "warned"), [((100, 210), True), ((100, 100), False)])
def test_signals_of_different_lengths_are_warned_of(tmp_path: Path, lengths: tuple[int, int], warned: bool) -> None:
    for number, length in enumerate(lengths):
        np.save(tmp_path / f"{number}.npy", np.eye(2, length))
    entries = [{"image": f"{number}.npy", "label": number} for number in (0, 1)]
    warnings = survey_entries(tmp_path, *entries, task="time_series")["warnings"]
    assert [line.startswith("signals have lengths from 100 to 210") for line in warnings] == [True] * warned


@pytest.mark.parametrize("codes", ["LAS", "PIR", "SAL"])
def test_a_label_map_may_be_stored_in_another_direction_than_its_image(tmp_path: Path, codes: str) -> None:
    phantoms.nifti(tmp_path / "image.nii")
    phantoms.nifti(tmp_path / "label.nii", codes, values=(phantoms.turned(codes)[0] > 10).astype(np.int16))
    answer = survey_entries(tmp_path, {"image": "image.nii", "label": "label.nii"}, task="segmentation", whole=True)
    assert answer["problems"] == []


def test_no_warning_advises_to_set_a_key_that_the_site_has_set(tmp_path: Path) -> None:
    for name, codes, length, dtype in (("a", "RAS", 1.0, np.int16), ("b", "LPS", 2.0, np.float32)):
        values = np.arange(64, dtype=dtype).reshape(4, 4, 4)
        image = nibabel.Nifti1Image(values, np.diag([length, length, length, 1.0]))
        turn = nibabel.orientations.ornt_transform(*map(nibabel.orientations.axcodes2ornt, ("RAS", codes)))
        nibabel.save(image.as_reoriented(turn), tmp_path / f"{name}.nii.gz")
    entries = [{"image": f"{name}.nii.gz", "label": label, "subject": name} for label, name in enumerate("ab")]
    (tmp_path / "list.json").write_text(json.dumps({"training": entries, "test": []}))
    warnings = survey(tmp_path / "list.json")["warnings"]
    assert len(warnings) == 3
    for settled in ("orientation", "spacing", "intensity"):
        assert len(survey(tmp_path / "list.json", settled=[settled])["warnings"]) == 2
    assert survey(tmp_path / "list.json", settled=["orientation", "spacing", "normalise"])["warnings"] == []


def test_images_that_relate_otherwise_to_the_beam_are_named(tmp_path: Path) -> None:
    pixels = np.arange(12, dtype=np.uint16).reshape(3, 4)
    for index in range(4):
        tags = {"Modality": "DX", "PixelIntensityRelationship": "LOG" if index == 2 else "LIN"}
        phantoms.dataset(tmp_path / f"{index}.dcm", pixels + index, **tags).save_as(tmp_path / f"{index}.dcm")
    entries = [{"image": f"{index}.dcm", "label": index % 2} for index in range(4)]
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries}))
    (warning,) = [line for line in survey(tmp_path / "datalist.json")["warnings"] if "beam" in line]
    assert "LIN or not stated (3 files), but" in warning
    assert "2.dcm LOG; take one kind" in warning


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("Units", ("BQML", "CNTS")),
        ("RescaleType", ("HU", "US")),
        ("SUVType", ("BW", "LBM")),
        ("DecayCorrection", ("START", "ADMIN")),
    ],
)
def test_images_in_other_units_are_named(tmp_path: Path, field: str, values: tuple[str, str]) -> None:
    pixels = np.arange(12, dtype=np.uint16).reshape(3, 4)
    for index in range(4):
        tags = {} if index == 3 else {field: values[index == 2]}
        phantoms.dataset(tmp_path / f"{index}.dcm", pixels + index, **tags).save_as(tmp_path / f"{index}.dcm")
    (warning,) = survey_entries(tmp_path, *({"image": f"{k}.dcm", "label": k % 2} for k in range(4)))["warnings"]
    assert warning.startswith(
        f"values are in several units: {values[0]} (2 files), but {tmp_path / '2.dcm'} {values[1]}"
    )


def test_a_folder_beside_the_slices_is_named(tmp_path: Path) -> None:
    phantoms.series(tmp_path / "a")
    (tmp_path / "a" / "more").mkdir()
    (warning,) = survey_entries(tmp_path, {"image": "a", "label": 0}, {"image": "a", "label": 1})["warnings"]
    assert "a holds folders beside its slices (more), which are not read" in warning


def ultrasound(*sides: tuple[float, float], unit: int = 3) -> dict[str, Any]:
    """Return the regions of an ultrasound image; unit 3 means centimetres."""
    regions = [Dataset() for _ in sides]
    for region, (region.PhysicalDeltaX, region.PhysicalDeltaY) in zip(regions, sides, strict=True):
        region.PhysicalUnitsXDirection, region.PhysicalUnitsYDirection = unit, 3
    return {"SequenceOfUltrasoundRegions": regions}


def test_a_hidden_slice_is_named_and_a_hidden_note_is_not(tmp_path: Path) -> None:
    *_, last = sorted(phantoms.series(tmp_path / "a"))
    last.rename(tmp_path / "a" / f".{last.name}")
    (tmp_path / "a" / f"._{last.name}").write_bytes(bytes(200))
    (warning,) = survey_entries(tmp_path, {"image": "a", "label": 0}, {"image": "a", "label": 1})["warnings"]
    assert f"a holds hidden DICOM files (.{last.name}), which are not read" in warning


@pytest.mark.parametrize(
    ("name", "change", "text"),
    [
        ("0.dcm", {"PixelAspectRatio": ["2", "1"]}, "has PixelAspectRatio 2:1: its pixels are not square"),
        ("0.dcm", {"ImagerPixelSpacing": ["0.2", "0.1"]}, "has ImagerPixelSpacing 0.2:0.1"),
        ("0.dcm", {"PixelAspectRatio": ["1", "1"]}, ""),
        ("0.dcm", {(0x2005, 0x100E): 0.004}, "has Philips' scale slope (2005,100E) 0.004, which is not applied"),
        ("0.dcm", {(0x2005, 0x100E): 1.0}, ""),
        ("0.dcm", ultrasound((0.02, 0.03)), "ultrasound regions of 0.02:0.03 cm a pixel: its pixels are not square"),
        (
            "0.dcm",
            ultrasound((0.02, -0.02), (0.01, 0.01)),
            "of several scales, 0.01:0.01, 0.02:0.02 cm a pixel",
        ),
        ("0.dcm", ultrasound((0.02, 0.02), (0.02, 0.02)), ""),
        ("0.dcm", ultrasound((0.02, 0.5), unit=4), ""),  # seconds, of a curve
        ("0.png", {"dpi": (72, 144)}, "says that its pixels are not square (72.009 to 143.993 a length)"),
        ("0.tif", {"dpi": (72, 144)}, "says that its pixels are not square (72 to 144 a length)"),
        ("0.jpg", {"dpi": (72, 144)}, "says that its pixels are not square (72 to 144 a length)"),
        ("0.png", {"dpi": (72, 72.1)}, ""),
    ],
)
def test_what_changes_geometry_or_scale_and_is_not_applied_is_named(
    tmp_path: Path, name: str, change: dict[Any, Any], text: str
) -> None:
    pixels = np.arange(48, dtype=np.uint8).reshape(6, 8)
    if name == "0.dcm":
        file = phantoms.dataset(tmp_path / name, pixels.astype(np.uint16))
        for key in ("PixelSpacing", "ImagePositionPatient", "ImageOrientationPatient"):
            file.pop(key, None)
        for key, value in change.items():
            file.add_new(key, dictionary_VR(key) if isinstance(key, str) else "FL", value)
        file.save_as(tmp_path / name)
    else:
        Image.fromarray(pixels).save(tmp_path / name, **change)
    warnings = survey_entries(tmp_path, {"image": name, "label": 0})["warnings"]
    assert len(warnings) == bool(text)
    assert text in "".join(warnings)


@pytest.mark.parametrize(
    ("turns", "named"), [((1, 1), ()), ((1, 6), ("label.png",)), ((6, 1), ("image.png",)), ((6, 6), ("image.png",))]
)
def test_a_label_map_that_is_turned_otherwise_than_its_image_is_named(
    tmp_path: Path, turns: tuple[int, int], named: tuple[str, ...]
) -> None:
    for name, turn in zip(("image", "label"), turns, strict=True):
        exif = Image.Exif()
        exif[274] = turn
        Image.fromarray(np.eye(6, dtype=np.uint8)).save(tmp_path / f"{name}.png", exif=exif)
    warnings = survey_entries(tmp_path, {"image": "image.png", "label": "label.png"}, task="segmentation")["warnings"]
    assert [name for name in ("image.png", "label.png") if any(f"{name} is turned" in line for line in warnings)] == [
        *named
    ]


def test_a_label_map_that_contradicts_itself_is_named(tmp_path: Path) -> None:
    phantoms.nifti(tmp_path / "image.nii")
    label = phantoms.nifti(tmp_path / "label.nii", values=(phantoms.PHANTOM > 10).astype(np.int16))
    label.set_sform(label.affine, code=1)
    label.set_qform(label.affine, code=0)
    label.header["pixdim"][1:4] = 2, 3, 40
    nibabel.save(label, tmp_path / "label.nii")
    (warning,) = survey_entries(tmp_path, {"image": "image.nii", "label": "label.nii"}, task="segmentation")["warnings"]
    assert "label.nii contradicts itself: its pixdim says voxels of 2x3x40 mm, its sform, which is taken, 2x3x4 mm" in (
        warning
    )


def test_values_that_are_alike_as_float32_are_constant(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", 1e9 + np.arange(6.0).reshape(1, 2, 3))
    problems = survey_entries(tmp_path, {"image": "a.npy", "label": 0}, whole=True)["problems"]
    assert any("images are constant" in line for line in problems)
