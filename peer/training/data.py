"""A site's samples as batches, each a function of seed, round, stage and step alone."""

from __future__ import annotations

import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.core.plan import Work
from peer.core.seeds import derive
from peer.core.tasks import CLASSIFYING, ROWS_COLUMNS
from peer.data.consistency import mixed_orientations
from peer.data.datalist import UNREADABLE, Sample, inspect_datalist, named
from peer.data.image_files import open_image
from peer.errors import ConfigError
from peer.files import clear_unfinished, write_file
from peer.methods.method import Batch
from peer.training.augmentation import affine_maps, warp, warp_targets
from peer.training.errors import UnusableConfigurationError, UnusableDataError
from peer.training.images import VOLUME_DIMS, Preparation, load_regions
from peer.training.settings import AugmentationSettings, TrainingSettings
from peer.training.targets import Example, SampleReader, sample_reader

logger = logging.getLogger(__name__)

Seed = Callable[..., int]
"""``peer.core.seeds.derive`` with federation and site filled in."""


@dataclass(frozen=True)
class DataSplit:
    """Readable samples of one purpose.

    Attributes:
        load: the image and the target of sample ``k``, prepared, on the CPU; labels in any integer
            type.
        in_memory: whether ``load`` reads no file.
        present: the classes that occur in the targets; none in super-resolution.
    """

    samples: Sequence[Sample]
    load: Callable[[int], Example]
    in_memory: bool
    present: frozenset[int]

    def __len__(self) -> int:
        return len(self.samples)

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Images ``(b, c, *space)`` and their targets.

        Classes ``(b,)`` or label maps ``(b, *space)``, int64, or large images
        ``(b, classes, *(scale * space))``, float32.

        Raises:
            UnusableDataError: a sample that was readable is not any more.
        """
        images, targets = [], []
        for index in indices:
            try:
                image, target = self.load(index)
            except UnusableConfigurationError:
                raise
            except Exception as error:
                raise UnusableDataError(
                    f"sample {self.samples[index].name} was readable and is not now: {error}"
                ) from error
            images.append(image)
            targets.append(target)
        stacked = torch.stack(targets)
        return torch.stack(images), stacked if stacked.is_floating_point() else stacked.long()

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All samples once, in order."""
        for first in range(0, len(self), batch_size):
            yield self.read(range(first, min(first + batch_size, len(self))))


@dataclass(frozen=True)
class SiteData:
    """All data of a site."""

    training: DataSplit
    validation: DataSplit
    test: DataSplit
    unreadable: int
    masks: Tensor | None
    task: str

    @property
    def counts(self) -> dict[str, int]:
        """Samples by purpose, as an ``Initialised`` reports them."""
        counts = {"training": len(self.training), "test": len(self.test), "unreadable": self.unreadable}
        return counts | ({"validation": len(self.validation)} if len(self.validation) else {})


def load_data(settings: TrainingSettings, seed: Seed, *, check_halt: Callable[[], None]) -> SiteData:
    """Check the datalist and read every sample once.

    Args:
        seed: the site's; it chooses the samples held out for validation.
        check_halt: called before each sample; an exception from it ends the reading.

    Raises:
        UnusableDataError: the datalist has a problem, more than ``unreadable_share_max`` of its
            samples cannot be read, or nothing can be learnt from those for training.
    """
    data, task = settings.data, settings.task
    datalist = inspect_datalist(data.datalist, root=data.root, task=task.kind, classes=task.classes)
    if datalist.problems:
        raise UnusableDataError(f"{data.datalist}: " + "; ".join(datalist.problems))
    if datalist.unlabelled:
        logger.warning("test entries without label are not evaluated: count=%d", datalist.unlabelled)
    _check_orientations([*datalist.training, *datalist.test], settings)
    read = sample_reader(task, data)
    held_out = validation_names(datalist.training, data.validation_share, seed)
    groups = {
        "training": [sample for sample in datalist.training if sample.name not in held_out],
        "validation": [sample for sample in datalist.training if sample.name in held_out],
        "test": list(datalist.test),
    }
    unreadable: dict[str, str] = {}
    splits = {name: _read_split(samples, read, settings, unreadable, check_halt) for name, samples in groups.items()}
    total = len(datalist.training) + len(datalist.test)
    if len(unreadable) > data.unreadable_share_max * total:
        raise UnusableDataError(
            f"{len(unreadable)} of {total} samples cannot be read ({named(unreadable)}), more than [data] "
            f"unreadable_share_max = {data.unreadable_share_max}; the first one {next(iter(unreadable.values()))}; the "
            "log has the other reasons"
        )
    lack = _find_lack(splits["training"], task.kind)
    if lack is not None:
        raise UnusableDataError(f"{data.datalist}: what can be read for training {lack}")
    masks = None
    if data.regions is not None:
        masks = load_regions(data.regions, Preparation.of(task, data))
    return SiteData(**splits, unreadable=len(unreadable), masks=masks, task=task.kind)


def _check_orientations(samples: Sequence[Sample], settings: TrainingSettings) -> None:
    """``UnusableDataError`` where volumes are left as stored by default and run in different
    directions; a site of a federation of release 0.2.0 goes on, with a warning.
    """
    data = settings.data
    if settings.task.spatial_dims != VOLUME_DIMS or data.orientation is not None:
        return
    orientations: dict[str, str] = {}
    for sample in samples:
        with contextlib.suppress(ValueError, ConfigError):  # the reader of samples says why
            orientations[sample.name] = open_image(sample.images[0]).orientation
    mixed = mixed_orientations({name: axcodes for name, axcodes in orientations.items() if axcodes})
    if mixed is None:
        return
    if data.image_axes == ROWS_COLUMNS:
        raise UnusableDataError(
            f'{data.datalist}: {mixed}; set [data] orientation = "RAS", or "stored" if their axes do run alike'
        )
    logger.warning("mixed orientations: %s", mixed)


def validation_names(samples: Sequence[Sample], share: float, seed: Seed) -> set[str]:
    """The names of the held-out training samples: the same share of each class's subjects, drawn by
    the seed.

    A subject is never divided; a sample without a subject is a subject of its own. Samples whose
    labels are files count as one class.
    """
    subjects: dict[int | None, dict[str, list[str]]] = {}
    first_labels: dict[str, int | None] = {}
    for sample in samples:
        subject = sample.subject or f"/{sample.name}"
        first_label = first_labels.setdefault(subject, sample.label if isinstance(sample.label, int) else None)
        subjects.setdefault(first_label, {}).setdefault(subject, []).append(sample.name)
    names: set[str] = set()
    for members in subjects.values():
        drawn = sorted(members, key=lambda subject: seed("validation", subject))
        for subject in drawn[: round(share * len(drawn))]:
            names.update(members[subject])
    return names


def _find_lack(training: DataSplit, kind: str) -> str | None:
    """Why a network could learn nothing from these samples, or none."""
    if kind in CLASSIFYING:
        return "has one class only; a classifier needs two" if len(training.present) < 2 else None
    if kind == "segmentation":
        return None if training.present - {0} else "has no foreground: every label map is 0 all over"
    return None if len(training) else "is nothing"


def _read_split(
    samples: Sequence[Sample],
    read: SampleReader,
    settings: TrainingSettings,
    unreadable: dict[str, str],
    check_halt: Callable[[], None],
) -> DataSplit:
    """Read the samples once; log and leave out those that fail, and give their reasons in ``unreadable``."""
    cache = settings.data.cache
    if cache == "disk":
        read = _cache_on_disk(read, settings.home / "cache")
    readable: list[Sample] = []
    examples: list[Example] = []
    present: set[int] = set()
    for sample in samples:
        check_halt()
        try:
            example = read(sample)
        except UnusableConfigurationError:
            raise
        except Exception as error:
            unreadable[sample.name] = " ".join(str(error).split())
            logger.warning("%s image=%s reason=%s", UNREADABLE, sample.name, unreadable[sample.name])
            continue
        readable.append(sample)
        _, target = example
        if not target.is_floating_point():
            present.update(torch.unique(target).tolist())
        if cache == "memory":
            examples.append(example)
    in_memory = cache == "memory"
    load = examples.__getitem__ if in_memory else lambda k: read(readable[k])
    return DataSplit(readable, load, in_memory, frozenset(present))


def _cache_on_disk(read_files: SampleReader, folder: Path) -> SampleReader:
    """A reader that keeps prepared samples on disk; the key holds each file's size and time, to
    notice changes.

    MONAI's PersistentDataset would not do: it passes images through the system's temporary folder,
    and a crash then leaves half an image, which counts as unreadable.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    clear_unfinished(folder)

    def read(sample: Sample) -> Example:
        label = sample.label
        files = (*sample.images, label) if isinstance(label, Path) else sample.images
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        path = folder / f"{hashlib.sha256(repr((read_files, stamps, label)).encode()).hexdigest()}.safetensors"
        if path.exists():
            tensors = safetensors.torch.load(path.read_bytes())
            return tensors["image"], tensors["target"]
        image, target = read_files(sample)
        write_file(path, safetensors.torch.save({"image": image, "target": target}))
        return image, target

    return read


class Batches:
    """The batches of one training stage, by step.

    Every epoch is a permutation of the samples drawn from its own seed, cut into slices, one a
    step. The last, smaller slice of an epoch is dropped; with fewer samples than ``batch_size`` an
    epoch is one batch of all samples.

    The augmentation maps targets and masks like their images. In super-resolution it only flips
    images, whatever the settings: everything else interpolates, and would teach the network a
    blurred target.
    """

    def __init__(
        self,
        data: SiteData,
        *,
        batch_size: int,
        augmentation: AugmentationSettings,
        seed: Seed,
        device: torch.device,
    ) -> None:
        """``seed`` is that of site, round and stage."""
        self._split, self._seed, self._device = data.training, seed, device
        self._flips_only = data.task == "super_resolution"
        self._augmentation = replace(augmentation, probability=0.0) if self._flips_only else augmentation
        self._size = min(batch_size, len(data.training))
        self._orders: dict[int, np.ndarray] = {}  # of the newest epoch
        self._masks = None if data.masks is None else self._coarse(data.masks).to(device)
        self._ahead: tuple[int, Future[tuple[Tensor, Tensor]]] | None = None
        self._reader = None if data.training.in_memory else ThreadPoolExecutor(1, thread_name_prefix="reader")

    @property
    def per_epoch(self) -> int:
        """Steps in one epoch."""
        return len(self._split) // self._size

    def steps(self, work: Work) -> int:
        """How many steps the work takes at this site."""
        return work.count * (self.per_epoch if work.unit == "epoch" else 1)

    def indices(self, step: int) -> list[int]:
        """The samples of a step, counted from 0."""
        epoch, turn = divmod(step, self.per_epoch)
        if epoch not in self._orders:
            self._orders = {epoch: np.random.default_rng(self._seed("order", epoch)).permutation(len(self._split))}
        return [int(index) for index in self._orders[epoch][turn * self._size : (turn + 1) * self._size]]

    def __getitem__(self, step: int) -> Batch:
        images, targets = (tensor.to(self._device) for tensor in self._read(step))
        masks = self._masks
        if self._augmentation.active:
            seeds = [self._seed("augment", step, index) for index in self.indices(step)]
            maps = affine_maps(self._augmentation, seeds, images.shape[2:])
            images = warp(images, maps, mode="nearest" if self._flips_only else "bilinear")
            targets = warp_targets(targets, maps)
            if masks is not None:  # the anatomy follows the image
                masks = torch.stack([warp(masks[None], affine_map[None])[0] for affine_map in maps])
        return Batch(images=images, targets=targets, masks=masks)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)

    def _coarse(self, masks: Tensor) -> Tensor:
        """Masks at half the image's resolution, where the augmentation has to warp them.

        The losses average masks over coarser cells anyhow; at full resolution, warping a hundred
        regions would take longer than the networks.
        """
        if not self._augmentation.active:
            return masks
        return F.interpolate(masks[None], size=[(length + 1) // 2 for length in masks.shape[1:]], mode="area")[0]

    def _read(self, step: int) -> tuple[Tensor, Tensor]:
        """This step's samples; meanwhile a thread reads the next step's, if they are on disk."""
        if self._reader is None:
            return self._split.read(self.indices(step))
        due, ahead = self._ahead if self._ahead is not None else (-1, None)
        samples = ahead.result() if ahead is not None and due == step else self._split.read(self.indices(step))
        self._ahead = step + 1, self._reader.submit(self._split.read, self.indices(step + 1))
        return samples


def site_seed(settings: TrainingSettings) -> Seed:
    """The site's seeds: ``derive`` of the federation's name and seed, the site, and the caller's
    parts.

    The federation's digest is not a part: federations that differ in the method alone start alike,
    and are comparable.
    """
    return lambda *parts: derive(settings.federation_name, settings.seed, settings.site, *parts)
