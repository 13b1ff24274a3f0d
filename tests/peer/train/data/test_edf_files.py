import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.datasets import annotation_signal, write_recording
from peer.errors import DataError
from peer.train.data import edf_files
from peer.train.data.image_files import open_image, read_values
from peer.train.data.survey import survey


def eeg(records: int = 3) -> dict[str, Any]:
    return {"label": "EEG Fpz-Cz", "stored": np.arange(4 * records).reshape(records, 4) - 5}


def test_a_signal_is_taken_out_of_its_records_and_scaled(tmp_path: Path) -> None:
    other = {"label": "Temp", "unit": "C", "low": 0, "high": 100, "stored": np.full((3, 2), 2047)}
    path = write_recording(tmp_path / "a.edf", [other, eeg()], record_s=2)
    values, rate_hz, unit = edf_files.read_signal(path, "EEG Fpz-Cz")
    # -2048..2047 stands for -192..192
    np.testing.assert_allclose(values, (np.arange(12) - 5 + 2048) * (384 / 4095) - 192, rtol=1e-5)
    assert (values.dtype, rate_hz, unit) == (np.float32, 2.0, "uV")
    np.testing.assert_allclose(edf_files.read_signal(path, "Temp")[0], 100)


def test_the_header_is_read(tmp_path: Path) -> None:
    header = edf_files.read_header(write_recording(tmp_path / "a.edf", [eeg()], patient="X M X Male_40yr"))
    assert (header.patient, header.begins, header.record_s) == ("X M X Male_40yr", "24.04.89 16.13.00", 30)
    assert [(signal.label, signal.samples) for signal in header.signals] == [("EEG Fpz-Cz", 4)]


def test_annotations_have_onset_length_and_texts(tmp_path: Path) -> None:
    notes = [(0, 30630, "Sleep stage W"), (30630, 120.5, "Sleep stage 1"), (30750.5, 0, "Lights off\x14Zähler")]
    path = write_recording(tmp_path / "a.edf", [annotation_signal(notes)], record_s=0)
    assert edf_files.read_annotations(path) == [
        (0, 30630, "Sleep stage W"),
        (30630, 120.5, "Sleep stage 1"),
        (30750.5, 0, "Lights off"),
        (30750.5, 0, "Zähler"),
    ]


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.edf", [eeg()])
    path.write_bytes(path.read_bytes()[:-3])
    assert edf_files.read_signal(path, "EEG Fpz-Cz")[0].shape == (8,)
    path.write_bytes(path.read_bytes()[:514])
    with pytest.raises(DataError, match=r"a\.edf holds no record; download it again"):
        edf_files.read_signal(path, "EEG Fpz-Cz")


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.edf", [eeg()])
    with pytest.raises(DataError, match=r"a\.edf has no signal 'EEG Pz-Oz': EEG Fpz-Cz"):
        edf_files.read_signal(path, "EEG Pz-Oz")
    with pytest.raises(DataError, match=r"a\.edf has no annotations"):
        edf_files.read_annotations(path)
    with pytest.raises(DataError, match=r"absent\.edf cannot be read: No such file"):
        edf_files.read_header(tmp_path / "absent.edf")
    whole = path.read_bytes()
    for position, text, fault in (
        (252, b"0   ", "says that it has 0 signals"),
        (252, b"9999", "says that it has 9999 signals"),
        (184, b"999     ", "has a header of 999 bytes"),
        (244, b"long    ", "could not convert"),
        (192, b"EDF+D", "is not continuous"),
        (256 + 16 + 80 + 8 + 16, b"2047    ", "division by zero"),
    ):
        path.write_bytes(whole[:position] + text + whole[position + len(text) :])
        with pytest.raises(DataError, match=rf"a\.edf is no EDF file that can be used: .*{fault}"):
            edf_files.read_header(path)
    path.write_bytes(b"0")
    with pytest.raises(DataError, match="is no EDF file"):
        edf_files.read_header(path)


def test_a_recording_is_an_array_of_its_signals_in_microvolts(tmp_path: Path) -> None:
    other = {"label": "EMG", "unit": "mV", "low": -1, "high": 1, "stored": np.full((3, 4), 2047)}
    notes = {**annotation_signal([]), "stored": np.zeros((3, 8), dtype=np.int16)}
    path = write_recording(tmp_path / "a.edf", [eeg(), notes, other], record_s=2)
    image = open_image(path)
    assert (image.shape, image.signals) == ((2, 12), "EEG Fpz-Cz [uV], EMG [uV] at 2 Hz")
    values = read_values(path, image)
    np.testing.assert_allclose(values[0], (np.arange(12) - 5 + 2048) * (384 / 4095) - 192, rtol=1e-5)
    np.testing.assert_allclose(values[1], 1000)


def test_a_recording_that_is_no_sample_is_refused(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "a.edf", [annotation_signal([])], record_s=0)
    with pytest.raises(ValueError, match=r"^holds annotations and no signal$"):
        open_image(path)
    slow = {"label": "Temp", "unit": "C", "stored": np.zeros((3, 1))}
    write_recording(path, [eeg(), slow], record_s=2)
    with pytest.raises(ValueError, match=r"^has signals of different rates: EEG Fpz-Cz 2 Hz, Temp 0.5 Hz$"):
        open_image(path)
    whole = write_recording(path, [eeg()]).read_bytes()
    for content in (whole[:-1], whole + b"00", whole[:236] + b"-1      " + whole[244:]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"bytes and a header of (3|-1) records: it is cut short, or did not end$"):
            open_image(path)
    path.write_bytes(b"0")
    with pytest.raises(ValueError, match=r"^is no EDF file that can be used"):
        open_image(path)


def test_recordings_of_other_channels_are_named(tmp_path: Path) -> None:
    entries = []
    for number, label in enumerate(("EEG Fpz-Cz", "EEG Fpz-Cz", "EEG Pz-Oz")):
        write_recording(tmp_path / f"{number}.edf", [{**eeg(), "label": label}], record_s=1)
        entries.append({"image": f"{number}.edf", "label": number % 2})
    (tmp_path / "datalist.json").write_text(json.dumps({"training": entries}))
    document = survey(tmp_path / "datalist.json", task="time_series", classes=2)
    (warning,) = document["warnings"]
    assert warning.startswith("recordings differ in their signals: EEG Fpz-Cz [uV] at 4 Hz (2 files), but ")
    assert "2.edf EEG Pz-Oz [uV] at 4 Hz" in warning
    assert document["problems"] == []
