"""Conversion of published pictures and masks for the trainer: pictures of one mode, and label maps.

A picture that the trainer can read stays where it is; of every other one, this module writes a PNG.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peer.errors import DataError, DiskError

READABLE = frozenset({".png", ".jpg", ".jpeg", ".bmp"})  # file endings that the trainer has a reader for
LEVEL_MAX = 255
REMEDY = "download it again, or take it out of the source"


def size(path: Path) -> tuple[int, int]:
    """Return the width and height of a picture. Raise ``DataError`` if the file is not one."""
    try:
        with Image.open(path) as image:
            return image.size
    except OSError as error:
        raise DataError(f"{path} is no picture: {error}", REMEDY) from error


def make_readable(path: Path, *, mode: str, copy: Path) -> Path:
    """Convert a picture if the trainer cannot read it; return the readable path.

    Args:
        copy: the PNG to write if the ending or the mode differs; greys of 16 bits are divided by
            their largest value.

    Raises:
        DataError: the file is not a picture.
        DiskError: the copy cannot be written.
    """
    try:
        with Image.open(path) as image:
            if image.mode == mode and path.suffix.lower() in READABLE:
                return path
            wide = image.mode.startswith(("I", "F"))
            converted = Image.fromarray(_scale_levels(np.asarray(image))) if wide else image
            converted = converted.convert(mode)
    except OSError as error:
        raise DataError(f"{path} is no picture: {error}", REMEDY) from error
    _save(converted, copy)
    return copy


def readable_path(path: Path, *, mode: str, out: Path, copy: Path) -> str:
    """Return the picture's path, or that of its readable copy, as a datalist in ``out`` names it."""
    return str(path if make_readable(path, mode=mode, copy=out / copy) == path else copy)


def write_label_map(mask: Path, *, picture: Path, target: Path) -> None:
    """Write a map of the labels 0 and 1 from a published mask.

    The foreground of a mask is bright: 255, or 1 if no value is larger. Masks stored as JPEG
    have values in between, which become the nearer label.

    Raises:
        DataError: the mask is not a picture, or has another size than its picture.
        DiskError: the map cannot be written.
    """
    try:
        with Image.open(mask) as image:
            levels = np.asarray(image.convert("RGB" if image.mode == "P" else image.mode))
    except OSError as error:
        raise DataError(f"{mask} is no picture: {error}", REMEDY) from error
    levels = levels[..., :3].max(axis=-1) if levels.ndim == 3 else levels
    width, height = size(picture)
    if levels.shape != (height, width):
        mask_size = f"{levels.shape[1]} x {levels.shape[0]}"
        raise DataError(f"the mask {mask} has {mask_size} pixels, its picture {width} x {height}", REMEDY)
    brightest = 1 if levels.max() <= 1 else LEVEL_MAX
    _save(Image.fromarray((levels > brightest / 2).astype(np.uint8)), target)


def _scale_levels(greys: NDArray[np.generic]) -> NDArray[np.uint8]:
    values = greys.astype(np.float64)
    scaled: NDArray[np.uint8] = np.round(values * (LEVEL_MAX / max(values.max(), 1))).astype(np.uint8)
    return scaled


def _save(image: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from error
