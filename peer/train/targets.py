"""Read a sample's image and target: one reader for each kind of task.

A target that is no class, label map or image becomes numbers that losses and metrics take:

- several labels: float32 ``(labels,)`` of 0, 1 or NaN;
- a number: float32 ``(1,)``, in [-1, 1] over its range;
- the time to an event: float32 ``(2,)``, the time in units of the agreed intervals, and 1 for an event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, TimeToEvent
from peer.core.tasks import CLASSIFYING
from peer.survival import interval_position
from peer.train.column_channels import encode_row
from peer.train.data.datalist import Sample
from peer.train.data.label_maps import not_classes, propose_map, to_classes
from peer.train.errors import UnusableConfigurationError
from peer.train.images import (
    PlacedImage,
    Preparation,
    check_not_constant,
    check_same_grid,
    check_turned_alike,
    in_unit_range,
    load_images,
    load_placed,
    resize,
)
from peer.train.outputs import number_range
from peer.train.settings import DataSettings, TaskSettings

Example: TypeAlias = tuple[Tensor, Tensor]
"""One image ``(c, *space)``, float32, and its target, on the CPU."""

SampleReader: TypeAlias = Callable[[Sample], Example]
"""Reads a sample's files, or raises the reason why it cannot; its ``repr`` contains all its settings."""

SMALL_CLASSES_MAX = 256  # a label map in memory takes one byte per place if that suffices


def sample_reader(
    task: TaskSettings, data: DataSettings, lost_classes: dict[str, list[int]] | None = None
) -> SampleReader:
    """Return this site's reader; raise ``UnusableConfigurationError`` if super-resolution has no scale.

    Args:
        lost_classes: gets, by the name of each sample that it reads, the classes of its label map of which
            ``input_size`` leaves no place.
    """
    if task.kind == "super_resolution":
        if data.scale is None:
            raise UnusableConfigurationError("[data] scale is missing; super-resolution needs 2, 4 or 8")
        return LargeImage(task.in_channels, task.classes, data.input_size, data.scale, data.orientation)
    if task.kind == "tabular":
        return RowValues(task.columns, task.target)
    preparation = Preparation.of(task, data)
    if task.kind in CLASSIFYING:
        return ImageAndLabel(preparation, task.target)
    return LabelMap(preparation, task.classes, lost_classes)


def encode_label(label: object, target: Target) -> Tensor:
    """Return a sample's label as a tensor: a class int64 ``()``, or numbers, as this module says."""
    if isinstance(label, TimeToEvent):
        position = interval_position(np.array([label.time]), np.array(target.times))[0]
        return torch.tensor([position, float(label.event and label.time <= target.times[-1])])
    if target.kind == "number" and isinstance(label, int | float):
        low, high = number_range(target)
        return torch.tensor([(2 * label - low - high) / (high - low)])
    return torch.tensor(label, dtype=torch.float32 if target.kind == "labels" else torch.int64)


@dataclass(frozen=True, slots=True)
class RowValues:
    """The input has the channels of the columns at one place; the target is the label."""

    columns: tuple[TableColumn, ...]
    target: Target

    def __call__(self, sample: Sample) -> Example:
        """Return the row ``(channels, 1)`` and its label."""
        return _encode(self.columns, sample.row), encode_label(sample.label, self.target)


@lru_cache(maxsize=1 << 12)
def _encode(columns: tuple[TableColumn, ...], row: tuple[float, ...]) -> Tensor:
    """Encode a row once, which a simulation reads for every site and run."""
    return encode_row(columns, row)


@dataclass(frozen=True, slots=True)
class ImageAndLabel:
    """The target is the label that the datalist gives."""

    preparation: Preparation
    target: Target = CLASS

    def __call__(self, sample: Sample) -> Example:
        """Return the image ``(c, *input_size)`` and its label."""
        image = self.preparation.load(sample.images)
        check_not_constant(image.values)
        return self.preparation.finish(image), encode_label(sample.label, self.target)


@dataclass(frozen=True, slots=True)
class LabelMap:
    """The target is a label map on the image's grid, resized to ``input_size`` by the nearest label.

    Labels are whole numbers in [0, classes), 0 the background, or values that the datalist maps to such; uint8 up to
    256 classes, else int32.
    """

    preparation: Preparation
    classes: int
    lost_classes: dict[str, list[int]] | None = field(default=None, repr=False, compare=False)

    def __call__(self, sample: Sample) -> Example:
        """Return the image ``(c, *input_size)`` and its labels ``input_size``."""
        path = _label_file(sample)
        image, placed = self.preparation.load(sample.images), self._load(path, sample)
        check_not_constant(image.values)
        shape, labels = image.values.shape[1:], placed.values[0]
        if labels.shape != shape:
            raise ValueError(f"has the shape {tuple(shape)}, its label map {tuple(labels.shape)}")
        check_same_grid(image, placed, f"{sample.images[0].name} and its label map {path.name}")
        present = torch.unique(labels)
        labels = self.preparation.fit_labels(labels, image.spacing)
        if present.any() and not labels.any():
            raise ValueError(
                f"has a label map, {path.name}, of which no foreground is left at [data] input_size = "
                f"{list(self.preparation.input_size)}: it is smaller than a cell, or cut off"
            )
        lost = present[(present > 0) & ~torch.isin(present, labels)]
        if self.lost_classes is not None and len(lost):
            self.lost_classes[sample.name] = [int(label) for label in lost]
        small = self.classes <= SMALL_CLASSES_MAX
        return self.preparation.finish(image), labels.to(torch.uint8 if small else torch.int32)

    def _load(self, path: Path, sample: Sample) -> PlacedImage:
        try:
            image = load_placed(
                path,
                spatial_dims=len(self.preparation.input_size),
                key="label",
                orientation=self.preparation.orientation,
            )
        except ValueError as error:
            raise ValueError(f"its label map {path.name} {error}") from error
        if image.values.shape[0] != 1:
            raise ValueError(f"its label map has {image.values.shape[0]} channels, not one")
        labels = to_classes(image.values.numpy(), sample.label_values)
        wrong = not_classes(labels, self.classes)
        if wrong:
            proposal = propose_map(wrong)
            raise ValueError(
                f"its label map holds the value {wrong[0]:g}; labels are whole numbers from 0 to {self.classes - 1}"
                + (f", or are mapped to them with `data import {proposal}`" if proposal else "")
            )
        return replace(image, values=torch.from_numpy(labels))


@dataclass(frozen=True, slots=True)
class LargeImage:
    """The target is the image ``scale`` times as large, averaged down to ``scale * input_size``.

    Without a label file, the target is the image itself, and the input its average over cells of ``scale``. Values are
    in [0, 1]; 8-bit pictures are scaled to that range. No image is interpolated to a finer grid than its file has.
    """

    in_channels: int
    classes: int
    input_size: tuple[int, ...]
    scale: int
    orientation: str | None = None

    def __call__(self, sample: Sample) -> Example:
        """Return the small image, and the large one ``(classes, *(scale * input_size))``."""
        placed = self._load(sample.images, channels=self.in_channels, key="in_channels")
        image = placed.values
        if sample.label is None:
            if self.classes != self.in_channels:
                raise ValueError(
                    f"has no label file, and its {self.in_channels} channels are not [task] classes = {self.classes}"
                )
            target = self._shrink_target(image)
            check_not_constant(image)
            return F.interpolate(target[None], size=self.input_size, mode="area")[0], target
        large = self._load([_label_file(sample)], channels=self.classes, key="classes")
        target = large.values
        check_turned_alike(placed, large, f"{sample.images[0].name} and its label file")
        expected = self._enlarge_size(image.shape[1:])
        if target.shape[1:] != expected:
            raise ValueError(
                f"has the shape {tuple(image.shape[1:])}, its label file {tuple(target.shape[1:])}, "
                f"which [data] scale = {self.scale} makes {expected}"
            )
        target = self._shrink_target(target)
        check_not_constant(image)
        return resize(image, self.input_size).contiguous(), target

    def _load(self, paths: Sequence[Path], *, channels: int, key: str) -> PlacedImage:
        image = load_images(
            paths,
            spatial_dims=len(self.input_size),
            channels=channels,
            key=key,
            unit=True,
            orientation=self.orientation,
        )
        in_unit_range(image.values)
        return image

    def _shrink_target(self, image: Tensor) -> Tensor:
        size = self._enlarge_size(self.input_size)
        if any(length < needed for length, needed in zip(image.shape[1:], size, strict=True)):
            raise ValueError(
                f"gives a target of {tuple(image.shape[1:])}, smaller than scale * input_size = {size}; "
                "lower [data] input_size"
            )
        return resize(image, size).contiguous()

    def _enlarge_size(self, size: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.scale * length for length in size)


def _label_file(sample: Sample) -> Path:
    if not isinstance(sample.label, Path):
        raise ValueError(f"has the label {sample.label!r}, not a file")
    return sample.label
