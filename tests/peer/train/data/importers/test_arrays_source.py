"""Arrays whose first axis counts the samples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.documents.data import DatalistImported
from peer.errors import PeerError

Import = Callable[..., DatalistImported]

SIGNALS = np.arange(6 * 2 * 5, dtype=np.float32).reshape(6, 2, 5)
LABELS = np.array([0, 1, 0, 1, 0, 1])


def save(folder: Path, **arrays: np.ndarray) -> Path:
    (folder / "arrays").mkdir()
    for name, array in arrays.items():
        np.save(folder / "arrays" / name, array)
    return folder / "arrays"


def test_each_sample_becomes_a_file(tmp_path: Path, import_source: Import) -> None:
    source = save(tmp_path, X=SIGNALS, y=LABELS[:, None], subjects=np.array(["a", "a", "b", "b", "c", "c"]))
    answer = import_source(source, task="time_series", test_share=0.0)
    assert (answer["layout"], answer["shapes"]) == ("arrays", {"2x5": 6})
    assert answer["notes"][0] == f"6 files, 0.0 MB, were written to {tmp_path / 'datalist-samples'}"
    document = json.loads((tmp_path / "datalist.json").read_text())
    assert document["training"][3] == {"image": "datalist-samples/X-000003.npy", "label": 1, "subject": "b"}
    for number, entry in enumerate(document["training"]):
        assert np.array_equal(np.load(tmp_path / entry["image"], allow_pickle=False), SIGNALS[number])
    assert (tmp_path / "datalist-samples").stat().st_mode & 0o777 == 0o700


def test_parts_are_splits_and_labels_may_be_words(tmp_path: Path, import_source: Import) -> None:
    words = np.array(["no", "yes"] * 3)
    source = save(tmp_path, X_train=SIGNALS, y_train=words, x_test=SIGNALS[:2] + 100, y_test=words[:2])
    answer = import_source(source, classes=("no", "yes"))
    assert answer["drawn"] is None
    assert [part["classes"] for part in answer["splits"].values()] == [{"0": 3, "1": 3}, {"0": 1, "1": 1}]
    assert "save each sample's subject in subjects.npy" in " ".join(answer["notes"])


def test_truths_are_the_classes_0_and_1(tmp_path: Path, import_source: Import) -> None:
    answer = import_source(save(tmp_path, X=SIGNALS, y=LABELS == 1), test_share=0.0)
    assert answer["splits"]["training"]["classes"] == {"0": 3, "1": 3}


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"X": SIGNALS}, {}, "X.npy has no y.npy beside it; save its labels there"),
        ({"X_train": SIGNALS, "y": LABELS}, {}, "X_train.npy has no y_train.npy beside it"),
        ({"X": SIGNALS, "y": LABELS[:5]}, {}, "y.npy has the shape 5, X.npy 6 samples"),
        ({"X": SIGNALS, "y": np.eye(6)}, {}, "y.npy has the shape 6x6"),
        ({"X": SIGNALS, "y": LABELS.astype(object)}, {}, "y.npy holds pickled Python objects, which are never read"),
        ({"X": LABELS, "y": LABELS}, {}, "X.npy has one axis: a sample is a single value"),
        ({"X": np.zeros((6, 8, 9, 3)), "y": LABELS}, {}, "X.npy has the shape 6x8x9x3, with its channels last"),
        ({"X_more": SIGNALS, "y_more": LABELS}, {}, "more is none of train, val, test"),
        ({"y": LABELS}, {"layout": "arrays"}, "holds no X.npy"),
        ({"X": SIGNALS, "y": LABELS}, {"task": "segmentation"}, "the labels of segmentation are files"),
        ({"X": SIGNALS, "y": np.array(["no", "yes"] * 3)}, {}, "--classes 'no,yes'"),
    ],
)
def test_arrays_that_do_not_go_together_are_refused_and_nothing_stays(
    tmp_path: Path, import_source: Import, arrays: dict[str, np.ndarray], options: Any, message: str
) -> None:
    source = save(tmp_path, **arrays)
    with pytest.raises(PeerError, match=message):
        import_source(source, **options)
    assert [path.name for path in tmp_path.iterdir()] == ["arrays"]


def test_other_files_are_counted(tmp_path: Path, import_source: Import) -> None:
    folder = tmp_path / "arrays"
    folder.mkdir()
    for name, array in (
        ("X", np.arange(24.0).reshape(6, 1, 4)),
        ("y", np.arange(6) % 2),
        ("ages", np.arange(6)),
        (".X", np.ones(6)),
    ):
        np.save(folder / f"{name}.npy", array)
    (row,) = import_source(folder, "arrays", task="time_series")["left_out"]
    assert row == {"reason": "no array named X, y or subjects", "count": 2, "examples": [".X.npy", "ages.npy"]}


def test_signals_that_seem_to_have_their_steps_first_are_noted(tmp_path: Path, import_source: Import) -> None:
    source = save(tmp_path, X=SIGNALS.swapaxes(1, 2), y=LABELS)
    answer = import_source(source, task="time_series", test_share=0.0)
    assert "a sample has 5 channels of 2 steps" in answer["notes"][0]
