from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.datasets import annotation_signal, prepare, refuses, write_recording
from peer.errors import DataError, StateError, UsageError
from peer.lab.datasets import sleep

WAKE = 100  # epochs before and after the sleep
NIGHT = [("W", WAKE), ("1", 2), ("2", 3), ("Movement time", 1), ("3", 1), ("4", 2), ("R", 2), ("W", WAKE), ("?", 90)]
LABELS = [0] * 60 + [1] * 2 + [2] * 3 + [3] * 3 + [4] * 2 + [0] * 60
"""The labels of that night: 30 minutes of wake on either side, without the movement."""


def write_night(folder: Path, name: str = "SC4001E", **head: Any) -> None:
    """Write a night's two files; but for the first, every value of an epoch is its number as it is stored."""
    notes, onset = [], 0
    for stage, epochs in NIGHT:
        notes.append((onset, 30 * epochs, stage if stage.startswith("M") else f"Sleep stage {stage}"))
        onset += 30 * epochs
    epochs = np.arange(sum(epochs for _, epochs in NIGHT) - 90)[:, None]
    eeg = np.repeat(epochs, 3000, axis=1)
    eeg[:, 0] += 1  # a constant signal is none
    signals = [
        {"label": "EEG Fpz-Cz", "stored": eeg},
        {"label": "EMG submental", "stored": np.zeros((len(epochs), 30))},
    ]
    write_recording(folder / f"{name}0-PSG.edf", signals, **head)
    write_recording(folder / f"{name}C-Hypnogram.edf", [annotation_signal(notes)], record_s=0)


def microvolts(stored: float) -> float:
    return (stored + 2048) * 384 / 4095 - 192


def test_read_night_keeps_what_is_scored_and_half_an_hour_around(tmp_path: Path) -> None:
    write_night(tmp_path)
    epochs, labels, indices = sleep.read_night(tmp_path / "SC4001E0-PSG.edf", tmp_path / "SC4001EC-Hypnogram.edf")
    assert (epochs.shape, epochs.dtype) == ((len(LABELS), 3000), np.float32)
    assert labels.tolist() == LABELS
    assert indices.tolist() == [*range(40, 105), *range(106, 171)]
    np.testing.assert_allclose(epochs[:, 17], [microvolts(index) for index in indices], rtol=1e-4, atol=1e-3)


def test_prepare(tmp_path: Path) -> None:
    base = tmp_path / "sleep-edfx" / "sleep-cassette"
    write_night(base)
    write_night(base, "SC4112F", patient="X M X Male_71yr")
    (base / "SC4112FC-Hypnogram.edf").rename(base / "SC4112FJ-Hypnogram.edf")
    write_night(base, "SC4201E")
    (base / "SC4201EC-Hypnogram.edf").unlink()
    (base.parent / "sleep-telemetry").mkdir()
    summary, training, test = prepare(sleep, tmp_path, source=tmp_path)
    assert (len(training), len(test)) == (2 * len(LABELS), 0)
    assert training[60] == {
        "image": "signals/SC4001/0100.npy", "label": 1, "subject": "SC400", "site": "sleep-edf", "recording": "SC4001",
        "night": 1, "sex": "female", "age": 33,
    }  # fmt: skip
    assert {key: training[-1][key] for key in ("subject", "recording", "night", "sex", "age")} == {
        "subject": "SC411", "recording": "SC4112", "night": 2, "sex": "male", "age": 71,
    }  # fmt: skip
    assert np.load(tmp_path / "out" / training[60]["image"]).shape == (1, 3000)
    assert summary["sites"]["sleep-edf"]["training"]["classes"] == {"W": 240, "N1": 4, "N2": 6, "N3": 6, "REM": 4}
    for warning in (
        "recordings: 39 expected, 2 found",
        "W: 8285 expected, 240 found",
        "1 listed files are not there: SC4201*-Hypnogram.edf",
    ):
        assert warning in summary["warnings"]


def test_only_the_first_subjects_are_taken(tmp_path: Path) -> None:
    for name in ("SC4001E", "SC4002E", "SC4011E"):
        write_night(tmp_path / "in", name)
    for subject in range(2, 22):
        (tmp_path / "in" / f"SC4{subject:02d}1E0-PSG.edf").touch()  # without a hypnogram, not opened
    summary = sleep.prepare(tmp_path / "out", source=tmp_path / "in")
    assert summary["sites"]["sleep-edf"]["training"]["subjects"] == 2
    assert summary["dropped"] == {"recordings of further subjects": 2}
    assert any("18 listed files are not there: SC4021*-Hypnogram.edf" in warning for warning in summary["warnings"])


def test_the_published_counts_add_up() -> None:
    for counts in sleep.PUBLISHED.values():
        by_name = {count.name: count.expected for count in counts}
        assert sum(by_name[name] for name in sleep.CLASSES) == by_name["samples"]


def test_faults_are_named(tmp_path: Path) -> None:
    files = (tmp_path / "SC4001E0-PSG.edf", tmp_path / "SC4001EC-Hypnogram.edf")
    write_night(tmp_path, begins="24.04.8916.13.30")
    with pytest.raises(DataError, match=r"SC4001E0-PSG\.edf and SC4001EC-Hypnogram\.edf begin at different times"):
        sleep.read_night(*files)
    write_recording(files[0], [{"label": "EEG Fpz-Cz", "stored": np.zeros((4, 6000))}])
    with pytest.raises(DataError, match="EEG Fpz-Cz has 200 Hz and uV, not 100 Hz and uV"):
        sleep.read_night(*files)
    write_recording(files[0], [{"label": "EEG Fpz-Cz", "stored": np.zeros((4, 3000))}])
    write_recording(files[1], [annotation_signal([(0, 120, "Sleep stage W")])], record_s=0)
    with pytest.raises(DataError, match=r"SC4001EC-Hypnogram\.edf has no epoch of sleep"):
        sleep.read_night(*files)


def test_another_source_folder_or_number_is_refused(tmp_path: Path) -> None:
    absent = r"absent is no folder; give --source the folder with SC4\*-PSG\.edf"
    refuses(sleep, tmp_path / "absent", absent, out=tmp_path / "out")
    (tmp_path / "in").mkdir()
    refuses(sleep, tmp_path / "in", r"in holds no SC4\*-PSG\.edf", out=tmp_path / "out")
    (tmp_path / "in" / "SC4001E0-PSG.edf").touch()
    refuses(sleep, tmp_path / "in", "is not empty", StateError, out=tmp_path)
    refuses(sleep, tmp_path / "in", "subjects is 21, none of 20, 78", UsageError, out=tmp_path / "out", subjects=21)
    assert not (tmp_path / "out").exists()
