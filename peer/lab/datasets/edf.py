"""Reader of the European Data Format: the signals, and the annotations of EDF+.

Source: Kemp et al., Electroencephalogr Clin Neurophysiol 82, 1992, 391-393; Kemp and Olivan, Clin
Neurophysiol 114, 2003, 1755-1761. Only continuous recordings can be read: a file with gaps between
records (EDF+D) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError

HEADER_BYTES = 256  # of the file, and again of each signal
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
    """

    patient: str
    begins: str
    record_s: float
    signals: tuple[Signal, ...]
    offset: int

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
            signals.append(Signal(label, unit, gain, float(low) - gain * int(lowest), first, int(samples)))
            first += int(samples)
        return Header(head[8:88].strip(), f"{head[168:176]} {head[176:184]}", record_s, tuple(signals), offset)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", REMEDY) from error
    except (ValueError, ZeroDivisionError) as error:
        raise DataError(f"{path} is no EDF file that can be used: {error}", REMEDY) from error


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
