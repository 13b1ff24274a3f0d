"""Load a sample's image, or the atlas of regions, at the size that the network takes.

Whatever the file, a picture's axes are rows and columns (height, width), and a volume's are columns,
rows and slices, as NIfTI stores them. Arrays have theirs as stored. ``COLUMNS_ROWS`` is the order
of release 0.2.0, which is MONAI's: pictures are columns, rows, and the frames of a DICOM file lie
between its rows and its columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from monai.data import MetaTensor
from monai.data.image_reader import ImageReader, NibabelReader, PILReader, PydicomReader
from monai.transforms import EnsureChannelFirst, NormalizeIntensity, ScaleIntensity
from torch import Tensor

from peer.core.tasks import ROWS_COLUMNS
from peer.extras import missing_package
from peer.training.errors import UnusableConfigurationError, UnusableDataError

READERS: dict[str, type[ImageReader]] = {
    ".nii": NibabelReader,
    ".nii.gz": NibabelReader,
    ".png": PILReader,
    ".jpg": PILReader,
    ".jpeg": PILReader,
    ".bmp": PILReader,
    ".dcm": PydicomReader,
    "": PydicomReader,
}
"""MONAI's reader by the end of the name; a folder, or a file without an ending, is DICOM."""

ARRAYS = (".npz", ".npy")
PICTURE_DIMS = 2
BYTE_MAX = 255  # the brightest value of an 8-bit picture
INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}


@dataclass(frozen=True, slots=True)
class Preparation:
    """Loads an image, puts its channels first, resizes and normalises it.

    ``normalise`` works on each channel of each image: ``zscore`` gives mean 0 and deviation 1,
    ``unit`` the range [0, 1], ``none`` leaves the values as the datalist's producer scaled them.
    """

    in_channels: int
    input_size: tuple[int, ...]
    normalise: str = "none"
    image_axes: str = ROWS_COLUMNS

    def __call__(self, paths: Sequence[Path]) -> Tensor:
        """The image, float32 ``(in_channels, *input_size)``; ``ValueError`` if it does not fit."""
        return self.finish(self.load(paths))

    def load(self, paths: Sequence[Path]) -> Tensor:
        """The image as these files have it, float32 ``(in_channels, *space)``."""
        dims, axes = len(self.input_size), self.image_axes
        return load_images(paths, spatial_dims=dims, channels=self.in_channels, key="in_channels", image_axes=axes)

    def finish(self, image: Tensor) -> Tensor:
        """A loaded image at ``input_size``, normalised."""
        image = resize(image, self.input_size)
        if self.normalise == "zscore":
            image = NormalizeIntensity(channel_wise=True)(image)
        elif self.normalise == "unit":
            image = ScaleIntensity(channel_wise=True)(image)
        return _without_metadata(image).contiguous()


def load_images(
    paths: Sequence[Path],
    *,
    spatial_dims: int,
    channels: int,
    key: str,
    unit: bool = False,
    image_axes: str = ROWS_COLUMNS,
) -> Tensor:
    """The channels of all files as one image, float32 ``(channels, *space)``.

    Args:
        channels: how many there must be in all.

    Raises:
        ValueError: the number of channels differs, or a value is not finite.
        Exception: a reader cannot read a file.
    """
    image = torch.cat([load_image(path, spatial_dims=spatial_dims, unit=unit, image_axes=image_axes) for path in paths])
    if image.shape[0] != channels:
        raise ValueError(f"has {image.shape[0]} channels, [task] {key} is {channels}")
    if not torch.isfinite(image).all():
        raise ValueError("holds a NaN or an infinity")
    return image


def load_image(
    path: Path, *, spatial_dims: int, key: str = "image", unit: bool = False, image_axes: str = ROWS_COLUMNS
) -> Tensor:
    """One file as float32 ``(c, *space)``; raises where its reader cannot read it.

    ``UnusableConfigurationError`` says that this installation lacks a package, not that the file is
    bad.

    Args:
        key: the array to take from an ``.npz``; without one of that name the first.
        unit: scale 8-bit pictures to [0, 1].
    """
    ending = _ending(path)
    if ending in ARRAYS:
        image = torch.from_numpy(np.ascontiguousarray(_load_array(path, key), dtype=np.float32))
        image = image if image.ndim > spatial_dims else image[None]
    else:
        if ending not in READERS:
            raise ValueError(f"has the ending {ending!r}, none of {', '.join([*ARRAYS, *filter(None, READERS)])}")
        try:
            reader = READERS[ending]()
            stored = reader.read(str(path))
            array, meta = reader.get_data(stored)
        except ImportError as error:
            raise UnusableConfigurationError(str(missing_package(error, f"reading {path.name}"))) from error
        if image_axes == ROWS_COLUMNS and _has_frames(stored, array):
            array = array.transpose(2, 0, 1)  # MONAI's rows, frames, columns
        byte = unit and isinstance(reader, PILReader) and array.dtype == np.uint8
        image = _without_metadata(
            EnsureChannelFirst()(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)), meta)
        )
        image = image / BYTE_MAX if byte else image
    if image.ndim != spatial_dims + 1 or not image.numel():
        raise ValueError(f"has the shape {tuple(image.shape)}, not (channels, {spatial_dims} spatial dimensions)")
    turned = columns_first(path, spatial_dims=spatial_dims, image_axes=image_axes)
    return image.transpose(-1, -2).contiguous() if turned else image


def columns_first(path: Path, *, spatial_dims: int, image_axes: str) -> bool:
    """Whether a file of this format has the columns of a picture before its rows, against the
    federation's order.
    """
    return image_axes == ROWS_COLUMNS and spatial_dims == PICTURE_DIMS and _ending(path) not in ARRAYS


def _has_frames(stored: Any, array: np.ndarray) -> bool:
    """Whether what MONAI read is one DICOM file with several frames, other than a segmentation."""
    frames = getattr(stored, "NumberOfFrames", None)
    return frames is not None and int(frames) > 1 and array.ndim == 3 and "SegmentSequence" not in stored


def in_unit_range(image: Tensor) -> Tensor:
    """The image of super-resolution if its values are in [0, 1]; ``ValueError`` otherwise."""
    lowest, highest = (float(bound) for bound in image.aminmax())
    if lowest < 0 or highest > 1:
        raise ValueError(f"holds values from {lowest:g} to {highest:g}; super-resolution takes those in [0, 1]")
    return image


def resize(image: Tensor, size: tuple[int, ...]) -> Tensor:
    """The image ``(c, *space)`` at another size: averaged along axes that shrink, interpolated
    along those that grow.

    A constant image stays constant up to its edges, where MONAI's anti-aliasing fades to zero.
    """
    smaller = tuple(map(min, image.shape[1:], size))
    if smaller != image.shape[1:]:
        image = F.interpolate(image[None], size=smaller, mode="area")[0]
    if smaller != size:
        image = F.interpolate(image[None], size=size, mode=INTERPOLATION[len(size)], align_corners=False)[0]
    return image


def load_regions(path: Path, *, input_size: tuple[int, ...], image_axes: str = ROWS_COLUMNS) -> Tensor:
    """An atlas as soft masks, float32 ``(r, *input_size)``: the share of each cell that belongs to
    the region.

    The file is a label map (0 is background, every other whole number a region), or an ``.npz``
    whose array ``masks`` is ``(r, *space)``. ``UnusableDataError`` says what is wrong with the
    file.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                masks = torch.from_numpy(arrays["masks"].astype(np.float32))
        else:
            labels = load_image(path, spatial_dims=len(input_size), image_axes=image_axes)
            if labels.shape[0] != 1:
                raise ValueError(f"a label map has one channel, not {labels.shape[0]}")
            present = torch.unique(labels)
            masks = (labels == present[present != 0].reshape(-1, *[1] * len(input_size))).float()
    except UnusableConfigurationError:
        raise
    except Exception as error:
        raise UnusableDataError(f"[data] regions {path} cannot be read: {error}") from error
    if masks.ndim != len(input_size) + 1 or not masks.numel():
        raise UnusableDataError(
            f"[data] regions {path} gives {tuple(masks.shape)}, not (regions, {len(input_size)} dimensions)"
        )
    if not (torch.isfinite(masks).all() and (masks >= 0).all()):
        raise UnusableDataError(f"[data] regions {path} holds a negative or non-finite weight")
    return F.interpolate(masks[None], size=input_size, mode="area")[0]


def _without_metadata(image: Tensor) -> Tensor:
    return image.as_tensor() if isinstance(image, MetaTensor) else image


def _load_array(path: Path, key: str) -> np.ndarray:
    loaded = np.load(path, allow_pickle=False)
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded as arrays:
        array: np.ndarray = arrays[key if key in arrays else arrays.files[0]]
        return array


def _ending(path: Path) -> str:
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else "" if path.is_dir() else path.suffix.lower()
