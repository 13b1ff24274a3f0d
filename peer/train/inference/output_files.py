"""Write predictions to files: label maps and larger images, in the format of their images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import nibabel
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from peer.train.data.image_files import ARRAYS, FORMATS, NIFTI, PICTURES, file_ending, open_image
from peer.train.images import BYTE_MAX, INTERPOLATION, PICTURE_DIMS

Values: TypeAlias = NDArray[Any]

PICTURE_CHANNELS = (1, 3)
"""Numbers of channels that a PNG can hold."""
BYTE_LABELS_MAX = 256


def output_path(path: Path, *, channels: int = 1, spatial_dims: int = 2) -> Path:
    """Return the path of an image's result: the image's path with the suffix of the result's format.

    A picture becomes ``.png``, an array or a stack of pages ``.npy``, a NIfTI file keeps its suffix, DICOM becomes
    ``.nii.gz``.
    """
    name = path.name
    known = [ending for ending in (*ARRAYS, *FORMATS) if ending and name.lower().endswith(ending)]
    ending = max(known, key=len, default="")
    if ending in NIFTI:
        return path
    output_ending = ".npy" if ending in ARRAYS else ".nii.gz"
    if ending in PICTURES:
        output_ending = ".png" if channels in PICTURE_CHANNELS and spatial_dims < 3 else ".npy"
    return path.with_name(name[: len(name) - len(ending)] + output_ending)


def label_map(shares: Tensor, grid: Sequence[int]) -> Values:
    """Return the class with the largest share at each cell of another grid; the first of equal ones.

    Args:
        shares: probabilities ``(classes, *space)``, interpolated linearly between the centres of
            their cells.

    Returns:
        uint8, above 256 classes int16.
    """
    mode = INTERPOLATION[len(grid)]
    labels = torch.zeros(*grid, dtype=torch.uint8 if len(shares) <= BYTE_LABELS_MAX else torch.int16)
    best: Tensor | None = None
    for index, share in enumerate(shares):  # one class at a time: all classes of a large volume do not fit into memory
        interpolated = F.interpolate(share[None, None], size=tuple(grid), mode=mode, align_corners=False)[0, 0]
        if best is not None:
            labels[interpolated > best] = index
        best = interpolated if best is None else torch.maximum(best, interpolated)
    values: Values = labels.numpy()
    return values


def write(path: Path, values: Values, *, reference: Path, grid: Sequence[int]) -> None:
    """Write a result to the path of :func:`output_path`; a single channel loses its channel axis.

    Args:
        path: its suffix sets the format. A PNG takes labels unchanged, and float values in [0, 1]
            as bytes.
        values: ``(c, *space)``, with axes as ``peer.train.images`` reads them.
        reference: the predicted image, whose geometry a volume gets.
        grid: the sides of that image; a volume with longer sides has proportionally smaller voxels.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if len(grid) == PICTURE_DIMS and file_ending(path) not in ARRAYS:  # the file has columns first
        values, grid = values.swapaxes(-1, -2), (grid[1], grid[0])
    plain = values[0] if len(values) == 1 else values
    if path.suffix == ".npy":
        np.save(path, plain)
    elif path.suffix == ".png":
        _write_picture(path, plain)
    else:
        finer = np.eye(4)
        for axis, (before, after) in enumerate(zip(grid, values.shape[1:], strict=True)):
            share = before / after
            finer[axis, axis], finer[axis, 3] = share, (share - 1) / 2  # the corners stay in place, the centres move
        _write_volume(path, plain if len(values) == 1 else _channels_last(values), reference, finer)


def _write_picture(path: Path, values: Values) -> None:
    """Write values ``(width, height)`` or ``(c, width, height)``."""
    if values.dtype.kind == "f":
        values = (values.clip(0, 1) * BYTE_MAX).round().astype(np.uint8)
    elif values.dtype != np.uint8:
        values = values.astype(np.uint16)
    Image.fromarray(np.ascontiguousarray(values.T)).save(path)


def _channels_last(values: Values) -> Values:
    """Move channels behind three spatial dimensions, as NIfTI stores them."""
    space = values.shape[1:]
    return np.moveaxis(values.reshape(len(values), *space, *[1] * (3 - len(space))), 0, -1)


def _write_volume(path: Path, values: Values, reference: Path, finer: NDArray[np.float64]) -> None:
    kind, header = nibabel.Nifti1Image, None
    if reference.name.lower().endswith(NIFTI):
        original = nibabel.load(reference)
        kind, header, affine = type(original), original.header, original.affine
    else:
        stored = open_image(reference).affine
        affine = np.eye(4) if stored is None else stored
    volume = kind(values, affine @ finer, header)
    volume.header.set_data_dtype(values.dtype)
    volume.header.set_slope_inter(1, 0)
    volume.header["cal_min"] = volume.header["cal_max"] = 0  # the original's window
    nibabel.save(volume, path)
