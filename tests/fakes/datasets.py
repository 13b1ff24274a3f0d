"""SYNTHETIC data sets in published layouts, and checks of what an adapter writes of them."""

import json
import sqlite3
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import nibabel
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from peer.errors import DataError, StateError
from peer.train.data.survey import survey

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
        """Add a reader's outline, a square with its corner ``at`` a pixel in each slice; its number."""
        row = self._connection.execute("INSERT INTO annotations VALUES (NULL, ?, ?)", (scan, malignancy))
        assert row.lastrowid is not None
        (thickness,) = self._connection.execute("SELECT slice_thickness FROM scans WHERE id = ?", (scan,)).fetchone()
        coords = "\n".join(f"{x},{y}" for x, y in rectangle(*at, side, side))
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


def rectangle(x: int, y: int, width: int, height: int) -> list[tuple[int, int]]:
    """The pixels of a rectangle's outline, one after the other, closed; its edges count their pixels less one."""
    line = [(x + step, y) for step in range(width)] + [(x + width, y + step) for step in range(height)]
    line += [(x + width - step, y + height) for step in range(width)]
    line += [(x, y + height - step) for step in range(height)]
    return [*line, line[0]]


def write_picture(path: Path, mode: str = "RGB", values: NDArray[np.uint8] | None = None) -> Path:
    """Write a picture of 8 x 6 noisy pixels, or of the values given; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (6, 8, 3) if mode == "RGB" else (6, 8)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(noise if values is None else values).convert(mode).save(path)
    return path


def write_lungs(folder: Path, count: int, side: int) -> Path:
    """Write pictures with masks in the form of the lung data set; their folder."""
    random = np.random.default_rng(0)
    for index in range(count):
        values = random.integers(1, 256, (side, side), dtype=np.uint8)
        write_picture(folder / "CXR_png" / f"MCUCXR_{index:04d}_0.png", "L", values)
        write_picture(folder / "masks" / f"MCUCXR_{index:04d}_0.png", "L", 255 * np.uint8(values > 128))
    return folder


def write_volume(path: Path, values: NDArray[Any] | None = None) -> Path:
    """Write a NIfTI volume of 3 x 4 x 5 noisy voxels, or of the values given; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).random((3, 4, 5), dtype=np.float32)
    nibabel.save(nibabel.Nifti1Image(noise if values is None else values, np.eye(4)), path)
    return path


def write_cubes(folder: Path, *, seed: int, count: int = 24, side: int = 12, masks: bool = False) -> Path:
    """Write volumes of noise, of which those of class 1 have a brighter box; their datalist.

    With ``masks`` all have the box, and their label is a map of it.
    """
    random = np.random.default_rng(seed)
    items = []
    for index in range(count):
        volume, label = random.random((side, side, side), dtype=np.float32), 1 if masks else index % 2
        box = np.zeros_like(volume)
        box[3:7, 3:9, 3:9] = label
        write_volume(folder / f"{index}.nii", volume + 0.5 * box)
        if masks:
            write_volume(folder / f"{index}-mask.nii", box)
        label_of = f"{index}-mask.nii" if masks else label
        items.append({"image": f"{index}.nii", "label": label_of, "subject": f"{seed}-{index}"})
    path = folder / "datalist.json"
    path.write_text(json.dumps({"training": items[: count * 2 // 3], "test": items[count * 2 // 3 :]}))
    return path


def write_table(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write rows as a CSV file with a heading; its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def write_recording(path: Path, signals: Sequence[Mapping[str, Any]], **head: Any) -> Path:
    """Write an EDF file by the published description of the format; its path.

    Signals have ``label`` and ``stored`` (records by samples, int16), perhaps ``unit`` and ``physical``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    records, count = len(signals[0]["stored"]), len(signals)
    fields = [
        ("0", 8), (head.get("patient", "X F X Female_33yr"), 80), ("Startdate 24-APR-1989", 80),
        (head.get("begins", "24.04.8916.13.00"), 16), (256 * (count + 1), 8), (head.get("kind", "EDF+C"), 44),
        (records, 8), (head.get("record_s", 30), 8), (count, 4),
    ]  # fmt: skip
    defaults = {"low": -192, "high": 192, "lowest": -2048, "highest": 2047, "unit": "uV"}
    for key, width in (("label", 16), ("", 80), *((key, 8) for key in ("unit", "low", "high", "lowest", "highest"))):
        fields += [(signal.get(key, defaults.get(key, "")), width) for signal in signals]
    for text, width in (("", 80), ("samples", 8), ("", 32)):
        fields += [(signal["stored"].shape[1] if text else "", width) for signal in signals]
    header = "".join(str(value).ljust(width) for value, width in fields).encode("latin-1")
    body = np.concatenate([signal["stored"] for signal in signals], axis=1).astype("<i2")
    path.write_bytes(header + body.tobytes())
    return path


def annotation_signal(notes: Sequence[tuple[float, float, str]]) -> Mapping[str, Any]:
    """Build the signal of annotations, all in one record."""
    texts = [b"+0\x14\x14\x00"]
    texts += [f"+{onset:g}\x15{length:g}\x14{text}\x14\x00".encode() for onset, length, text in notes]
    stored = b"".join(texts)
    stored += b"\x00" * (len(stored) % 2)
    return {"label": "EDF Annotations", "unit": "", "stored": np.frombuffer(stored, dtype="<i2")[None]}


def prepare(adapter: Any, folder: Path, **options: Any) -> tuple[dict[str, Any], Entries, Entries]:
    """Prepare a set in ``folder / "out"`` and check every file; its summary, training and test entries."""
    out = folder / "out"
    summary = adapter.prepare(out, **options)
    assert json.loads((out / "summary.json").read_text()) == summary
    for datalist in (out / "pool.json", *out.glob("*/datalist.json")):
        document = survey(datalist, task=summary["kind"], classes=len(summary["classes"]) or None, whole=True)
        assert not document["problems"], document
    pool = json.loads((out / "pool.json").read_text())
    entries = [*pool["training"], *pool["test"]]
    assert all(entry["site"] in summary["sites"] for entry in entries)
    assert sum(part["samples"] for site in summary["sites"].values() for part in site.values()) == len(entries)
    return summary, pool["training"], pool["test"]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_seeds(prepare: Callable[..., Any], folder: Path) -> None:
    """The same seed gives the same bytes, another one other files."""
    for name, seed in (("first", 0), ("second", 0), ("third", 1)):
        prepare(folder / name, seed=seed)
    first, second, third = (contents(folder / name) for name in ("first", "second", "third"))
    assert first == second
    assert first.keys() != third.keys()


def check_full_folder(prepare: Callable[..., Any], folder: Path) -> None:
    """A folder that holds a file already is refused and stays as it is."""
    (folder / "mine").touch()
    before = contents(folder)
    with pytest.raises(StateError, match="not empty"):
        prepare(folder)
    assert contents(folder) == before


def refuses(
    adapter: Any,
    source: Path,
    message: str,
    error: type[Exception] = DataError,
    *,
    out: Path | None = None,
    **options: Any,
) -> None:
    """The adapter refuses to prepare its set from this source with these options, and says why."""
    with pytest.raises(error, match=message):
        adapter.prepare(out or Path(mkdtemp(dir=source.parent)) / "out", source=source, **options)
