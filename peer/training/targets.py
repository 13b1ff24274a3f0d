"""From a sample to its image and its target: one reader for each kind of task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from peer.core.tasks import CLASSIFYING, ROWS_COLUMNS
from peer.data.datalist import Sample
from peer.training.errors import UnusableConfigurationError
from peer.training.images import Preparation, in_unit_range, load_image, load_images, resize
from peer.training.settings import DataSettings, TaskSettings

Example: TypeAlias = tuple[Tensor, Tensor]
"""One image ``(c, *space)``, float32, and its target, on the CPU."""

SampleReader: TypeAlias = Callable[[Sample], Example]
"""Reads a sample's files, or raises why it cannot; its ``repr`` holds all its settings."""

SMALL_CLASSES_MAX = 256  # a label map in memory takes one byte a place where that is enough


def sample_reader(task: TaskSettings, data: DataSettings) -> SampleReader:
    """This site's reader; ``UnusableConfigurationError`` where super-resolution has no scale."""
    if task.kind == "super_resolution":
        if data.scale is None:
            raise UnusableConfigurationError("[data] scale is missing; super-resolution needs 2, 4 or 8")
        return LargeImage(task.in_channels, task.classes, data.input_size, data.scale, data.image_axes)
    preparation = Preparation(task.in_channels, data.input_size, data.normalise, data.image_axes)
    return ClassIndex(preparation) if task.kind in CLASSIFYING else LabelMap(preparation, task.classes)


@dataclass(frozen=True, slots=True)
class ClassIndex:
    """The target is the class that the datalist gives, int64 ``()``."""

    preparation: Preparation

    def __call__(self, sample: Sample) -> Example:
        """The image ``(c, *input_size)`` and its class."""
        return self.preparation(sample.images), torch.tensor(sample.label, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class LabelMap:
    """The target is a label map on the image's grid, resized to ``input_size`` by the nearest
    label.

    Labels are whole numbers in [0, classes), 0 the background; uint8 up to 256 classes, else int32.
    """

    preparation: Preparation
    classes: int

    def __call__(self, sample: Sample) -> Example:
        """The image ``(c, *input_size)`` and its labels ``input_size``."""
        image, labels = self.preparation.load(sample.images), self._load(_label_file(sample))
        if labels.shape != image.shape[1:]:
            raise ValueError(f"has the shape {tuple(image.shape[1:])}, its label map {tuple(labels.shape)}")
        size = self.preparation.input_size
        labels = F.interpolate(labels[None, None], size=size, mode="nearest-exact")[0, 0]
        small = self.classes <= SMALL_CLASSES_MAX
        return self.preparation.finish(image), labels.to(torch.uint8 if small else torch.int32)

    def _load(self, path: Path) -> Tensor:
        dims, axes = len(self.preparation.input_size), self.preparation.image_axes
        labels = load_image(path, spatial_dims=dims, key="label", image_axes=axes)
        if labels.shape[0] != 1:
            raise ValueError(f"its label map has {labels.shape[0]} channels, not one")
        wrong = labels[(labels < 0) | (labels >= self.classes) | (labels != labels.round())]
        if wrong.numel():
            raise ValueError(
                f"its label map holds the value {wrong[0]:g}; labels are whole numbers from 0 to {self.classes - 1}"
            )
        return labels[0]


@dataclass(frozen=True, slots=True)
class LargeImage:
    """The target is the image ``scale`` times as large, averaged down to ``scale * input_size``.

    Without a label file, the target is the image itself, and the input its average over cells of
    ``scale``. Values are in [0, 1]; 8-bit pictures are scaled to that range. No image is
    interpolated to a finer grid than its file has.
    """

    in_channels: int
    classes: int
    input_size: tuple[int, ...]
    scale: int
    image_axes: str = ROWS_COLUMNS

    def __call__(self, sample: Sample) -> Example:
        """The small image, and the large one ``(classes, *(scale * input_size))``."""
        image = self._load(sample.images, channels=self.in_channels, key="in_channels")
        if sample.label is None:
            if self.classes != self.in_channels:
                raise ValueError(
                    f"has no label file, and its {self.in_channels} channels are not [task] classes = {self.classes}"
                )
            target = self._shrink_target(image)
            return F.interpolate(target[None], size=self.input_size, mode="area")[0], target
        target = self._load([_label_file(sample)], channels=self.classes, key="classes")
        expected = self._enlarge_size(image.shape[1:])
        if target.shape[1:] != expected:
            raise ValueError(
                f"has the shape {tuple(image.shape[1:])}, its label file {tuple(target.shape[1:])}, "
                f"which [data] scale = {self.scale} makes {expected}"
            )
        return resize(image, self.input_size).contiguous(), self._shrink_target(target)

    def _load(self, paths: Sequence[Path], *, channels: int, key: str) -> Tensor:
        dims, axes = len(self.input_size), self.image_axes
        return in_unit_range(
            load_images(paths, spatial_dims=dims, channels=channels, key=key, unit=True, image_axes=axes)
        )

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
