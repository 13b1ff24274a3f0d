"""Published pictures and masks as the trainer reads them: of one mode, and with labels for values.

What the trainer can read as it is stays where it is; of everything else a PNG is made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peer.errors import DataError, DiskError

READABLE = frozenset({".png", ".jpg", ".jpeg", ".bmp"})  # of the endings that the trainer has a reader for
LEVEL_MAX = 255
REMEDY = "download it again, or take it out of the source"


def size(path: Path) -> tuple[int, int]:
    """The width and height of a picture; ``DataError`` where it is none."""
    try:
        with Image.open(path) as image:
            return image.size
    except OSError as error:
        raise DataError(f"{path} is no picture: {error}", REMEDY) from error


def readable(path: Path, *, mode: str, copy: Path) -> Path:
    """A picture that the trainer can read.

    Args:
        path: the published one.
        mode: "L" for grey, "RGB" for colours.
        copy: the PNG that is made where the ending or the mode is another; greys of 16 bits are scaled by their
            largest value.

    Returns:
        ``path`` or ``copy``.

    Raises:
        DataError: it is no picture.
        DiskError: the copy cannot be written.
    """
    try:
        with Image.open(path) as image:
            if image.mode == mode and path.suffix.lower() in READABLE:
                return path
            wide = image.mode.startswith(("I", "F"))
            converted = Image.fromarray(_levels(np.asarray(image))) if wide else image
            converted = converted.convert(mode)
    except OSError as error:
        raise DataError(f"{path} is no picture: {error}", REMEDY) from error
    _save(converted, copy)
    return copy


def entry(path: Path, *, mode: str, out: Path, copy: Path) -> str:
    """The picture, or its `readable` copy below ``out``, as a datalist in ``out`` names it."""
    return str(path if readable(path, mode=mode, copy=out / copy) == path else copy)


def label_map(path: Path, *, picture: Path, made: Path) -> None:
    """Make a map of the labels 0 and 1 from a published mask, whose foreground is bright: 255, or 1 of 1.

    Masks stored as JPEG have some values in between; the nearer label is taken.

    Args:
        path: the mask.
        picture: what it belongs to.
        made: the PNG to write.

    Raises:
        DataError: it is no picture, or of another size than its picture.
        DiskError: the map cannot be written.
    """
    try:
        with Image.open(path) as image:
            levels = np.asarray(image.convert("RGB" if image.mode == "P" else image.mode))
    except OSError as error:
        raise DataError(f"{path} is no picture: {error}", REMEDY) from error
    levels = levels[..., :3].max(axis=-1) if levels.ndim == 3 else levels
    width, height = size(picture)
    if levels.shape != (height, width):
        found = f"{levels.shape[1]} x {levels.shape[0]}"
        raise DataError(f"the mask {path} has {found} pixels, its picture {width} x {height}", REMEDY)
    brightest = 1 if levels.max() <= 1 else LEVEL_MAX
    _save(Image.fromarray((levels > brightest / 2).astype(np.uint8)), made)


def _levels(greys: NDArray[np.generic]) -> NDArray[np.uint8]:
    values = greys.astype(np.float64)
    scaled: NDArray[np.uint8] = np.round(values * (LEVEL_MAX / max(values.max(), 1))).astype(np.uint8)
    return scaled


def _save(image: Image.Image, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror or error}") from error
