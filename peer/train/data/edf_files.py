"""Reader of the European Data Format: the signals, and the annotations of EDF+.

Source: Kemp et al., Electroencephalogr Clin Neurophysiol 82, 1992, 391-393; Kemp and Olivan, Clin
Neurophysiol 114, 2003, 1755-1761. Only continuous recordings can be read: a file with gaps between
records (EDF+D) is refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError

HEADER_BYTES = 256  # of the file, and again of each signal
VOLTS = {"v": 1e6, "mv": 1e3, "uv": 1.0, "\N{MICRO SIGN}v": 1.0, "nv": 1e-3}
"""Unit of a voltage in lower case -> microvolts."""
SIGNALS_MAX = 512  # the format allows 9999, but a file with more than 512 is damaged
ANNOTATIONS = "EDF Annotations"
FIELDS = (16, 80, 8, 8, 8, 8, 8, 80, 8, 32)
"""Bytes of each signal's fields: label, transducer, unit, smallest and largest physical value,
smallest and largest digital value, filter, samples in a record, reserved. The header has them field
by field, not signal by signal.
"""
ANNOTATION = re.compile(
    rb"(?P<onset>[+-][0-9]+(?:\.[0-9]*)?)(?:\x15(?P<length>[0-9]+(?:\.[0-9]*)?))?\x14(?P<texts>[^\x00]*)\x14"
)
REMEDY = "download it again"


@dataclass(frozen=True, slots=True)
class Signal:
    """One signal: its position in a record, and its scale.

    A stored number times ``gain`` plus ``shift`` is in ``unit``.
    """

    label: str
    unit: str
    gain: float
    shift: float
    start: int
    samples: int


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a file.

    Attributes:
        patient: the local identification, in EDF+ ``code sex birthdate name``.
        offset: bytes before the first record.
        records: their number; -1 if the recording did not end.
    """

    patient: str
    begins: str
    record_s: float
    signals: tuple[Signal, ...]
    offset: int
    records: int

    def rate_hz(self, signal: Signal) -> float:
        """Return the signal's samples a second."""
        return signal.samples / self.record_s


def read_header(path: Path) -> Header:
    """Read the header of an EDF file. Raise ``DataError`` if it is damaged, or of another format."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER_BYTES).decode("latin-1")
            count = int(head[252:256])
            if not 0 < count <= SIGNALS_MAX:
                raise ValueError(f"says that it has {count} signals")
            if head[192:197] == "EDF+D":
                raise ValueError("is not continuous (EDF+D)")
            body = file.read(HEADER_BYTES * count).decode("latin-1")
        columns, start = [], 0
        for width in FIELDS:
            columns.append([body[start + width * index :][:width].strip() for index in range(count)])
            start += width * count
        record_s, offset = float(head[244:252]), int(head[184:192])
        if record_s < 0 or offset != HEADER_BYTES * (count + 1):
            raise ValueError(f"has a header of {offset} bytes and records of {record_s:g} s")
        signals, first = [], 0
        for label, _, unit, low, high, lowest, highest, _, samples, _ in zip(*columns, strict=True):
            gain = (float(high) - float(low)) / (int(highest) - int(lowest))
            if not math.isfinite(gain):
                raise ValueError(f"has a signal from {low} to {high}")
            signals.append(Signal(label, unit, gain, float(low) - gain * int(lowest), first, int(samples)))
            first += int(samples)
        begins, records = f"{head[168:176]} {head[176:184]}", int(head[236:244])
        return Header(head[8:88].strip(), begins, record_s, tuple(signals), offset, records)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(f"{path} is no EDF file that can be used: {error}", REMEDY) from error


def open_recording(path: Path) -> tuple[Header, tuple[Signal, ...]]:
    """Read the header of a recording whose signals are the channels of one sample; annotations are none.

    Raises:
        DataError: there is no signal, the rates differ, or the file does not hold the records of its header.
    """
    header = read_header(path)
    signals = tuple(signal for signal in header.signals if signal.label != ANNOTATIONS)
    if not signals or not header.record_s:
        raise DataError(f"{path} holds annotations and no signal", "name the file of the signals")
    if len({signal.samples for signal in signals}) > 1:
        rates = ", ".join(f"{signal.label} {header.rate_hz(signal):g} Hz" for signal in signals)
        raise DataError(f"{path} has signals of different rates: {rates}", "write a file of the signals of one rate")
    size = path.stat().st_size
    expected = header.offset + 2 * header.records * sum(signal.samples for signal in header.signals)
    if header.records < 1 or size != expected:
        raise DataError(
            f"{path} has {size} bytes and a header of {header.records} records: it is cut short, or did not end", REMEDY
        )
    return header, signals


def read_recording(path: Path) -> NDArray[np.float32]:
    """Read the signals ``(channels, steps)`` of a recording: voltages in microvolts, others in their units.

    Raise ``DataError`` like ``open_recording``.
    """
    header, signals = open_recording(path)
    stored = _records(path, header)
    rows = []
    for signal in signals:
        values = stored[:, signal.start : signal.start + signal.samples].reshape(-1).astype(np.float64)
        rows.append((values * signal.gain + signal.shift) * VOLTS.get(signal.unit.lower(), 1.0))
    return np.stack(rows).astype(np.float32)


def describe_signals(header: Header, signals: tuple[Signal, ...]) -> str:
    """Describe the labels, units and the rate, which all recordings of a datalist should share."""
    labels = ", ".join(f"{s.label} [{'uV' if s.unit.lower() in VOLTS else s.unit}]" for s in signals)
    return f"{labels} at {header.rate_hz(signals[0]):g} Hz"


def read_signal(path: Path, label: str) -> tuple[NDArray[np.float32], float, str]:
    """Read a signal from beginning to end.

    Returns:
        The values ``(steps,)`` in the signal's unit, the rate in Hz, and the unit.

    Raises:
        DataError: the file is damaged, or has no such signal.
    """
    header = read_header(path)
    signal = next((signal for signal in header.signals if signal.label == label), None)
    if signal is None or not header.record_s:
        raise DataError(f"{path} has no signal {label!r}: {', '.join(s.label for s in header.signals)}", REMEDY)
    stored = _records(path, header)[:, signal.start : signal.start + signal.samples]
    values = (stored.astype(np.float64) * signal.gain + signal.shift).astype(np.float32)
    return values.reshape(-1), header.rate_hz(signal), signal.unit


def read_annotations(path: Path) -> list[tuple[float, float, str]]:
    """Read the annotations of an EDF+ file: onset and length in s from the file's beginning, and the text.

    Raise ``DataError`` if the file is damaged, or has no annotations.
    """
    header = read_header(path)
    signal = next((signal for signal in header.signals if signal.label == ANNOTATIONS), None)
    if signal is None:
        raise DataError(f"{path} has no annotations", REMEDY)
    stored = _records(path, header)[:, signal.start : signal.start + signal.samples].tobytes()
    return [
        (float(match["onset"]), float(match["length"] or 0), text.decode("utf-8", "replace"))
        for match in ANNOTATION.finditer(stored)
        for text in match["texts"].split(b"\x14")
        if text
    ]


def _records(path: Path, header: Header) -> NDArray[np.int16]:
    """Read the stored records, one a row; a truncated last record is left out."""
    width = sum(signal.samples for signal in header.signals)
    try:
        stored = np.fromfile(path, dtype="<i2", offset=header.offset)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    if not width or stored.size < width:
        raise DataError(f"{path} holds no record", REMEDY)
    records: NDArray[np.int16] = stored[: stored.size // width * width].reshape(-1, width)
    return records
