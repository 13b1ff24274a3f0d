"""A site's samples as batches; the batch of a step is a function of (seed, round, stage, step) and of nothing else."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.core.plan import Work
from peer.datalist import Sample, inspect_datalist, named
from peer.methods.method import Batch
from peer.training import disk
from peer.training.augmentation import affine_maps, warp
from peer.training.fault import DataError
from peer.training.images import Preparation, load_regions
from peer.training.recipe import Augmentation, Recipe
from peer.training.seeding import derive

logger = logging.getLogger(__name__)

Seed = Callable[..., int]
"""A site's ``derive`` with federation and site filled in."""


@dataclass(frozen=True)
class Split:
    """Readable samples of one purpose. ``load(k)`` is the image of sample ``k``, prepared, on the CPU."""

    samples: Sequence[Sample]
    load: Callable[[int], Tensor]
    in_memory: bool

    def __len__(self) -> int:
        return len(self.samples)

    @cached_property
    def labels(self) -> Tensor:
        """The class of every sample."""
        return torch.tensor([sample.label for sample in self.samples], dtype=torch.int64)

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images ``(b, c, *space)`` and labels ``(b,)``; ``DataError`` when one that was readable is not any more."""
        images = []
        for index in indices:
            try:
                images.append(self.load(index))
            except Exception as error:
                raise DataError(f"sample {self.samples[index].name} was readable and is not now: {error}") from error
        return torch.stack(images), self.labels[list(indices)]

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples once, in order."""
        for first in range(0, len(self), batch_size):
            yield self.read(range(first, min(first + batch_size, len(self))))


@dataclass(frozen=True)
class SiteData:
    """Everything that a site trains and is measured on."""

    training: Split
    validation: Split
    test: Split
    unreadable: int
    masks: Tensor | None

    @property
    def counts(self) -> dict[str, int]:
        """Samples by purpose, as an ``Initialised`` reports them."""
        found = {"training": len(self.training), "test": len(self.test), "unreadable": self.unreadable}
        return found | ({"validation": len(self.validation)} if len(self.validation) else {})


def load_data(recipe: Recipe, seed: Seed, *, pulse: Callable[[], None]) -> SiteData:
    """Check the datalist and read every sample once.

    Args:
        recipe: the site's.
        seed: the site's; it decides what is held out for validation.
        pulse: called before each sample; what it raises ends the reading.

    Raises:
        DataError: the datalist has a problem, or more than ``unreadable_share_max`` of its samples cannot be read.
    """
    data, task = recipe.data, recipe.task
    listed = inspect_datalist(data.datalist, root=data.root, task=task.kind, classes=task.classes)
    if listed.problems:
        raise DataError(f"{data.datalist}: " + "; ".join(listed.problems))
    if listed.unlabelled:
        logger.warning("test entries without label are not evaluated: count=%d", listed.unlabelled)
    preparation = Preparation(task.in_channels, data.input_size, data.normalise)
    held_out = validation_names(listed.training, data.validation_share, seed)
    groups = {
        "training": [sample for sample in listed.training if sample.name not in held_out],
        "validation": [sample for sample in listed.training if sample.name in held_out],
        "test": list(listed.test),
    }
    unreadable: list[str] = []
    splits = {name: _split(samples, preparation, recipe, unreadable, pulse) for name, samples in groups.items()}
    total = len(listed.training) + len(listed.test)
    if len(unreadable) > data.unreadable_share_max * total:
        raise DataError(
            f"{len(unreadable)} of {total} samples cannot be read ({named(unreadable)}), more than [data] "
            f"unreadable_share_max = {data.unreadable_share_max}; the log has the reasons"
        )
    if len(torch.unique(splits["training"].labels)) < 2:
        raise DataError(f"{data.datalist}: what can be read for training has one class only; a classifier needs two")
    masks = load_regions(data.regions, input_size=data.input_size) if data.regions is not None else None
    return SiteData(**splits, unreadable=len(unreadable), masks=masks)


def validation_names(samples: Sequence[Sample], share: float, seed: Seed) -> set[str]:
    """Which training samples are held out: of each class the same share of its subjects, drawn by the seed.

    A subject is never divided; a sample without a subject is one of its own.
    """
    subjects: dict[Any, dict[str, list[str]]] = {}
    home: dict[str, Any] = {}
    for sample in samples:
        subject = sample.subject or f"/{sample.name}"
        first_label = home.setdefault(subject, sample.label)
        subjects.setdefault(first_label, {}).setdefault(subject, []).append(sample.name)
    names: set[str] = set()
    for members in subjects.values():
        drawn = sorted(members, key=lambda subject: seed("validation", subject))
        for subject in drawn[: round(share * len(drawn))]:
            names.update(members[subject])
    return names


def _split(
    samples: Sequence[Sample],
    preparation: Preparation,
    recipe: Recipe,
    unreadable: list[str],
    pulse: Callable[[], None],
) -> Split:
    """Read the samples once; those that fail are logged, named in ``unreadable`` and left out."""
    cache = recipe.data.cache
    load = _cached(samples, preparation, recipe.home / "cache") if cache == "disk" else _direct(samples, preparation)
    readable: list[int] = []
    images: list[Tensor] = []
    for index, sample in enumerate(samples):
        pulse()
        try:
            image = load(index)
        except Exception as error:
            logger.warning("sample unreadable: image=%s reason=%s", sample.name, " ".join(str(error).split()))
            unreadable.append(sample.name)
            continue
        readable.append(index)
        if cache == "memory":
            images.append(image)
    kept = [samples[index] for index in readable]
    if cache == "memory":
        return Split(kept, images.__getitem__, in_memory=True)
    return Split(kept, lambda k: load(readable[k]), in_memory=False)


def _direct(samples: Sequence[Sample], preparation: Preparation) -> Callable[[int], Tensor]:
    return lambda index: preparation(samples[index].images)


def _cached(samples: Sequence[Sample], preparation: Preparation, folder: Path) -> Callable[[int], Tensor]:
    """Prepared images on disk. The key holds each file's size and time, so that a change is noticed.

    Not MONAI's PersistentDataset: that one passes images through the system's temporary folder, and a crash on the way
    leaves half of one, which then counts as unreadable.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    disk.clear_unfinished(folder)

    def load(index: int) -> Tensor:
        images = samples[index].images
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in images]
        path = folder / f"{hashlib.sha256(repr((preparation, stamps)).encode()).hexdigest()}.npy"
        if path.exists():
            return torch.from_numpy(np.load(path, allow_pickle=False))
        image, content = preparation(images), io.BytesIO()
        np.save(content, image.numpy(), allow_pickle=False)
        disk.write_file(path, content.getvalue())
        return image

    return load


class Batches:
    """The batches of one training stage, by step.

    Every epoch is a permutation of the samples drawn from its own seed; step s takes the slice that is its turn. The
    last, smaller slice of an epoch is dropped; with fewer samples than ``batch_size`` an epoch is one full batch.
    """

    def __init__(
        self,
        data: SiteData,
        *,
        batch_size: int,
        augmentation: Augmentation,
        seed: Seed,
        device: torch.device,
    ) -> None:
        """``seed`` is that of the site, round and stage: every part that is the same for the whole stage."""
        self._split, self._augmentation, self._seed, self._device = data.training, augmentation, seed, device
        self._size = min(batch_size, len(data.training))
        self._masks = None if data.masks is None else self._coarse(data.masks).to(device)
        self._ahead: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None
        self._reader = None if data.training.in_memory else ThreadPoolExecutor(1, thread_name_prefix="reader")

    @property
    def per_epoch(self) -> int:
        """Steps in one epoch."""
        return len(self._split) // self._size

    def steps(self, work: Work) -> int:
        """How many steps the work takes here."""
        return work.count * (self.per_epoch if work.unit == "epoch" else 1)

    def indices(self, step: int) -> list[int]:
        """The samples of a step, counted from 0."""
        epoch, turn = divmod(step, self.per_epoch)
        order = np.random.default_rng(self._seed("order", epoch)).permutation(len(self._split))
        return [int(index) for index in order[turn * self._size : (turn + 1) * self._size]]

    def __getitem__(self, step: int) -> Batch:
        images, labels = (tensor.to(self._device) for tensor in self._read(step))
        masks = self._masks
        if self._augmentation.active:
            seeds = [self._seed("augment", step, index) for index in self.indices(step)]
            maps = affine_maps(self._augmentation, seeds, images.shape[2:])
            images = warp(images, maps)
            if masks is not None:  # the anatomy moves with the image
                masks = torch.stack([warp(masks[None], one[None])[0] for one in maps])
        return Batch(images=images, targets=labels, masks=masks)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    def _coarse(self, masks: Tensor) -> Tensor:
        """Masks that move with each image are moved at half its resolution: the losses average them over coarser cells
        anyhow, and at full resolution a hundred regions would take longer than the networks."""
        if not self._augmentation.active:
            return masks
        return F.interpolate(masks[None], size=[(length + 1) // 2 for length in masks.shape[1:]], mode="area")[0]

    def _read(self, step: int) -> tuple[Tensor, Tensor]:
        """This step's samples; where they come from disk, the next step's are read meanwhile."""
        if self._reader is None:
            return self._split.read(self.indices(step))
        due, ahead = self._ahead if self._ahead is not None else (-1, None)
        found = ahead.result() if ahead is not None and due == step else self._split.read(self.indices(step))
        self._ahead = step + 1, self._reader.submit(self._split.read, self.indices(step + 1))
        return found


def site_seed(recipe: Recipe) -> Seed:
    """The site's own seeds: ``derive`` of the federation's name and seed and of the site, then whatever is asked for.

    Not of the digest: federations that differ in the method alone start alike, and can be compared.
    """
    return lambda *parts: derive(recipe.federation_name, recipe.seed, recipe.site, *parts)
