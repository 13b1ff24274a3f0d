"""Prepare a sample's image, or the atlas of regions, for the network: axes, values and size.

``peer.train.data.image_files`` reads the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from nibabel.affines import voxel_sizes
from nibabel.orientations import aff2axcodes, inv_ornt_aff
from torch import Tensor

from models.lean_monai import load_monai
from peer.errors import ConfigError
from peer.train.data.image_files import (
    PICTURES,
    Affine,
    StoredImage,
    Turn,
    apply_turn,
    file_ending,
    fill_nan,
    grid_shift,
    open_image,
    read_values,
    turn_back,
    turn_to,
)
from peer.train.errors import UnusableConfigurationError, UnusableDataError
from peer.train.settings import DataSettings, IntensitySettings, TaskSettings

PICTURE_DIMS = 2
VOLUME_DIMS = 3
BYTE_MAX = 255  # the brightest value of an 8-bit picture
INTERPOLATION = {1: "linear", 2: "bilinear", 3: "trilinear"}
UNTURNED = np.array([[0, 1], [1, 1], [2, 1]])


@dataclass(frozen=True, slots=True)
class PlacedImage:
    """An image and the place of its voxels.

    Attributes:
        values: float32 ``(c, *space)``, with axes in the network's order.
        space: the sides of the image in its file.
        turn: how the file's axes were turned, if at all.
        affine: for a volume whose file states one, maps voxels of ``values`` to mm in RAS.
        spacing: mm between voxels, along the axes of ``values``, if the file states them.
        files: the name of each file and its number of channels, if there are several.
    """

    values: Tensor
    space: tuple[int, ...]
    turn: Turn | None = None
    affine: Affine | None = None
    spacing: tuple[float, ...] | None = None
    files: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True, slots=True)
class Preparation:
    """Loads an image with its channels first, and converts values, axes and size to the network's input.

    ``normalise`` applies to each channel of each image: ``zscore`` gives mean 0 and standard deviation 1, ``unit`` the
    range [0, 1], ``none`` keeps the values as the datalist's producer scaled them. ``orientation``, ``spacing``,
    ``intensity`` and ``nan`` are those of ``DataSettings``.
    """

    in_channels: int
    input_size: tuple[int, ...]
    normalise: str = "none"
    orientation: str | None = None
    spacing: tuple[float, ...] | None = None
    intensity: IntensitySettings | None = None
    nan: str | None = None

    @classmethod
    def of(cls, task: TaskSettings, data: DataSettings) -> Preparation:
        """Return the site's own preparation."""
        return cls(
            task.in_channels,
            data.input_size,
            data.normalise,
            data.orientation,
            data.spacing,
            data.intensity,
            data.nan,
        )

    def __call__(self, paths: Sequence[Path]) -> Tensor:
        """Return the image, float32 ``(in_channels, *input_size)``; raise ``ValueError`` if it does not fit."""
        return self.finish(self.load(paths))

    def load(self, paths: Sequence[Path]) -> PlacedImage:
        """Load the image from these files, ``(in_channels, *space)``."""
        return load_images(
            paths,
            spatial_dims=len(self.input_size),
            channels=self.in_channels,
            key="in_channels",
            orientation=self.orientation,
            nan=self.nan,
        )

    def finish(self, image: PlacedImage) -> Tensor:
        """Bring a loaded image to ``input_size``, with its values scaled and normalised.

        Raises:
            ValueError: the result is constant, or exceeds the range of float32; or the image does not fit.
        """
        values = scale_intensity(image.values, self.intensity)
        values = self.fit(values, image.spacing)
        values = _normalise(values, self.normalise).contiguous()
        if not torch.isfinite(values).all():
            raise ValueError("holds a value beyond the range of float32 once its values are normalised")
        when = f" once it is brought to [data] input_size = {list(self.input_size)}"
        check_not_constant(values, when)
        first = 0
        for name, count in image.files:  # nothing may be left of one scan of several
            try:
                check_not_constant(values[first : first + count], when)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
            first += count
        return values

    def fit(self, values: Tensor, spacing: tuple[float, ...] | None) -> Tensor:
        """Resize the values to ``input_size``.

        With ``[data] spacing``, resample to that spacing, then crop or pad about the centre with each channel's lowest
        value.
        """
        if self.spacing is None:
            return resize(values, self.input_size)
        values = resize(values, self._resampled_size(values.shape[1:], spacing))
        lowest = values.flatten(1).amin(dim=1).reshape(-1, *[1] * len(self.input_size))
        return F.pad(values - lowest, self._margins(values.shape[1:])) + lowest

    def fit_labels(self, labels: Tensor, spacing: tuple[float, ...] | None) -> Tensor:
        """Bring a label map ``space`` to the grid of ``fit``, by the nearest label; pad with 0."""
        size = self.input_size if self.spacing is None else self._resampled_size(labels.shape, spacing)
        labels = F.interpolate(labels[None, None], size=size, mode="nearest-exact")[0, 0]
        return labels if self.spacing is None else F.pad(labels, self._margins(size))

    def restore(self, shares: Tensor, image: PlacedImage) -> Tensor:
        """Map predicted shares ``(classes, *input_size)`` to a grid that covers the image in its file.

        Places that the network did not see are class 0.
        """
        if self.spacing is not None:
            size = self._resampled_size(image.values.shape[1:], image.spacing)
            margins = [-margin for margin in self._margins(size)]
            background = F.pad(shares[:1] - 1, margins) + 1
            shares = torch.cat([background, F.pad(shares[1:], margins)])
        return undo_turn(shares, image)

    def _resampled_size(self, space: Sequence[int], spacing: tuple[float, ...] | None) -> tuple[int, ...]:
        if spacing is None:
            raise ValueError("says no distance of its voxels, which [data] spacing needs")
        wanted = self.spacing or spacing
        return tuple(max(1, round(side * mm / target)) for side, mm, target in zip(space, spacing, wanted, strict=True))

    def _margins(self, size: Sequence[int]) -> list[int]:
        """Return the padding for ``F.pad`` before and after each axis, last axis first; negative values crop."""
        margins = []
        for side, wanted in zip(reversed(size), reversed(self.input_size), strict=True):
            before = (wanted - side) // 2
            margins += [before, wanted - side - before]
        return margins


def load_images(
    paths: Sequence[Path],
    *,
    spatial_dims: int,
    channels: int,
    key: str,
    unit: bool = False,
    orientation: str | None = None,
    nan: str | None = None,
) -> PlacedImage:
    """Load the channels of all files as one image ``(channels, *space)``.

    Args:
        channels: the required total number.

    Raises:
        ValueError: the number of channels differs, a value is not finite, or the files lie on
            different grids.
        UnusableConfigurationError: this installation cannot read such a file.
    """
    images = []
    for path in paths:
        try:
            images.append(load_placed(path, spatial_dims=spatial_dims, unit=unit, orientation=orientation, nan=nan))
            if len(paths) > 1:  # an empty scan beside others, which `data validate` names, too
                check_not_constant(images[-1].values)
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}" if len(paths) > 1 else str(error)) from error
    first = images[0]
    for path, other in zip(paths, images, strict=True):
        check_same_grid(first, other, f"{paths[0].name} and {path.name}")
    values = torch.cat([image.values for image in images])
    if values.shape[0] != channels:
        count = f"{values.shape[0]} channel{'' if values.shape[0] == 1 else 's'}"
        raise ValueError(f"has {count}, [task] {key} is {channels}")
    files = [(path.name, len(image.values)) for path, image in zip(paths, images, strict=True)]
    return replace(first, values=values, files=files if len(files) > 1 else ())


def load_image(
    path: Path,
    *,
    spatial_dims: int,
    key: str = "image",
    unit: bool = False,
    orientation: str | None = None,
) -> Tensor:
    """Return the values of :func:`load_placed`."""
    return load_placed(path, spatial_dims=spatial_dims, key=key, unit=unit, orientation=orientation).values


def load_placed(
    path: Path,
    *,
    spatial_dims: int,
    key: str = "image",
    unit: bool = False,
    orientation: str | None = None,
    nan: str | None = None,
) -> PlacedImage:
    """Load one file as ``(c, *space)``.

    Args:
        key: the array to take from an ``.npz`` of several.
        unit: scale 8-bit pictures to [0, 1].
        orientation: the directions to which a volume is turned; ``stored`` and None keep it as stored.
        nan: ``background`` gives each NaN the lowest value of its channel; None refuses it.

    Raises:
        ValueError: the file cannot be read as an image of this kind.
        UnusableConfigurationError: this installation lacks a package; the file may be valid.
    """
    try:
        stored = open_image(path, key=key)
        array = read_values(path, stored, nan=nan)
    except ConfigError as error:
        raise UnusableConfigurationError(str(error)) from error
    if stored.channels is None and array.ndim <= spatial_dims:
        array = array[None]
    if array.ndim != spatial_dims + 1 or not array.size:
        raise ValueError(f"has the shape {array.shape}, not (channels, {spatial_dims} spatial dimensions)")
    array = array if nan is None else fill_nan(array)
    affine, spacing, turn = None if stored.doubts else stored.affine, stored.spacing, None
    byte = unit and array.dtype == np.uint8 and file_ending(path) in PICTURES
    if spatial_dims == VOLUME_DIMS and orientation not in (None, "stored"):
        turn = find_turn(stored, str(orientation))
    if turn is not None and affine is not None:
        affine = affine @ inv_ornt_aff(turn, array.shape[1:])
        spacing = tuple(float(size) for size in voxel_sizes(affine))
    space = array.shape[1:]
    array = array if turn is None else apply_turn(array, turn)
    values = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    if not torch.isfinite(values).all():
        raise ValueError("holds a value beyond the range of float32")
    return PlacedImage(values / BYTE_MAX if byte else values, space, turn, affine, spacing)


def find_turn(stored: StoredImage, orientation: str) -> Turn | None:
    """Return how a volume is turned; None for an array or a stack of pages, which state no orientation.

    Raise ``ValueError`` if the file's orientation is unreliable.
    """
    if stored.doubts:
        raise ValueError(
            f'{"; ".join(stored.doubts)}; correct the file, or set [data] orientation = "stored" if the axes of all '
            "files run alike"
        )
    return None if stored.affine is None else turn_to(stored.affine, orientation)


def undo_turn(values: Tensor, image: PlacedImage) -> Tensor:
    """Turn values ``(c, *space)`` back to the axes of the image's file."""
    if image.turn is None:
        return values
    return torch.from_numpy(np.ascontiguousarray(apply_turn(values.numpy(), turn_back(image.turn))))


def check_same_grid(one: PlacedImage, other: PlacedImage, names: str) -> None:
    """Raise ``ValueError`` if two files lie on different grids; if one states none, compare their sides only."""
    if one.values.shape[1:] != other.values.shape[1:]:
        shapes = [tuple(image.values.shape[1:]) for image in (one, other)]
        raise ValueError(f"{names} have the shapes {shapes[0]} and {shapes[1]}")
    check_turned_alike(one, other, names)
    if one.affine is None or other.affine is None or one.values.ndim != VOLUME_DIMS + 1:
        return
    directions = ["".join(map(str, aff2axcodes(image.affine))) for image in (one, other)]
    if directions[0] != directions[1]:
        raise ValueError(
            f"{names} are read as stored, and their axes run to {directions[0]} and to {directions[1]}; set [data] "
            'orientation = "RAS"'
        )
    shift = grid_shift(one.affine, other.affine, tuple(one.values.shape[1:]))
    if shift is not None:
        raise ValueError(f"{names} lie on different grids, up to {shift:.3g} mm apart; resample one to the other")


def check_turned_alike(one: PlacedImage, other: PlacedImage, names: str) -> None:
    """Raise ``ValueError`` if one image of a sample was turned and another states no orientation."""
    turns = [image.turn for image in (one, other) if image.turn is not None]
    if len(turns) == 1 and not np.array_equal(turns[0], UNTURNED):
        raise ValueError(f"{names} cannot be turned alike: only one of them says its orientation")


def scale_intensity(image: Tensor, intensity: IntensitySettings | None) -> Tensor:
    """Scale the values ``(c, *space)`` within the window to [0, 1], and clip the others.

    Raises:
        ValueError: all values lie at one end of the window.
    """
    if intensity is None:
        return image
    bounds = [(intensity.low, intensity.high)] * len(image)
    if intensity.percentiles:
        share = bounds[0]
        bounds = [(float(low), float(high)) for low, high in (np.percentile(channel, share) for channel in image)]
    if any(low >= high for low, high in bounds):
        raise ValueError(f"has {intensity.describe()} of its values at one, {bounds[0][0]:g}; widen [data] intensity")
    scaled = torch.stack(
        [((channel - low) / (high - low)).clamp(0, 1) for channel, (low, high) in zip(image, bounds, strict=True)]
    )
    if scaled.amin() == scaled.amax():
        lowest, highest = (float(bound) for bound in image.aminmax())
        raise ValueError(
            f"has values from {lowest:g} to {highest:g}, all beyond {intensity.describe()} of [data] intensity"
        )
    return scaled


def check_not_constant(values: Tensor, when: str = "") -> None:
    """``ValueError`` for an image from which nothing can be learnt, such as an empty scan."""
    if all(bool(channel.amin() == channel.amax()) for channel in values):
        raise ValueError(f"is constant{when}: every value is {values.flatten()[0]:g}")


def in_unit_range(image: Tensor) -> Tensor:
    """Return the image of super-resolution if its values are in [0, 1]; else raise ``ValueError``."""
    lowest, highest = (float(bound) for bound in image.aminmax())
    if lowest < 0 or highest > 1:
        raise ValueError(f"holds values from {lowest:g} to {highest:g}; super-resolution takes those in [0, 1]")
    return image


def resize(image: Tensor, size: tuple[int, ...]) -> Tensor:
    """Resize the image ``(c, *space)``: average along axes that shrink, interpolate along those that grow.

    A constant image stays constant up to its edges, whereas MONAI's anti-aliasing fades to zero there.
    """
    smaller = tuple(map(min, image.shape[1:], size))
    if smaller != image.shape[1:]:
        image = F.interpolate(image[None], size=smaller, mode="area")[0]
    if smaller != size:
        image = F.interpolate(image[None], size=size, mode=INTERPOLATION[len(size)], align_corners=False)[0]
    return image


def load_regions(path: Path, preparation: Preparation) -> Tensor:
    """Load an atlas as soft masks, float32 ``(r, *input_size)``: the share of each cell that belongs to the region.

    The file is a label map (0 is background, every other whole number a region), or an ``.npz`` whose array ``masks``
    is ``(r, *space)``. Raise ``UnusableDataError`` if the file is invalid.
    """
    size = preparation.input_size
    spacing = None
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                masks = torch.from_numpy(arrays["masks"].astype(np.float32))
        else:
            image = load_placed(
                path,
                spatial_dims=len(size),
                orientation=preparation.orientation,
            )
            labels, spacing = image.values, image.spacing
            if labels.shape[0] != 1:
                raise ValueError(f"a label map has one channel, not {labels.shape[0]}")
            present = torch.unique(labels)
            masks = (labels == present[present != 0].reshape(-1, *[1] * len(size))).float()
    except UnusableConfigurationError:
        raise
    except Exception as error:
        raise UnusableDataError(f"[data] regions {path} cannot be read: {error}") from error
    if masks.ndim != len(size) + 1 or not masks.numel():
        raise UnusableDataError(
            f"[data] regions {path} gives {tuple(masks.shape)}, not (regions, {len(size)} dimensions)"
        )
    if not (torch.isfinite(masks).all() and (masks >= 0).all()):
        raise UnusableDataError(f"[data] regions {path} holds a negative or non-finite weight")
    if preparation.spacing is None:
        return F.interpolate(masks[None], size=size, mode="area")[0]
    try:
        return preparation.fit(masks, spacing)
    except ValueError as error:
        raise UnusableDataError(f"[data] regions {path} {error}") from error


def _normalise(values: Tensor, normalise: str) -> Tensor:
    """Normalise each channel by MONAI, which a table or an image as it is does not load."""
    if normalise == "none":
        return values
    load_monai()
    from monai.data import MetaTensor
    from monai.transforms import NormalizeIntensity, ScaleIntensity

    transform = {"zscore": NormalizeIntensity, "unit": ScaleIntensity}[normalise](channel_wise=True)
    values = transform(values)
    return values.as_tensor() if isinstance(values, MetaTensor) else values
