"""A site's samples as batches, each a function of seed, round, stage and step alone."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.cohorts import Cohorts, person_of
from peer.core.plan import Work
from peer.core.roster import Sha256
from peer.core.seeds import SEEDS, derive
from peer.core.targets import stratum
from peer.core.tasks import CLASSIFYING
from peer.errors import ConfigError
from peer.files import clear_unfinished, write_file
from peer.methods.method import Batch, Record, Supervision
from peer.methods.supervised import class_weights, label_weights
from peer.train.augmentation import affine_maps, warp, warp_targets
from peer.train.data.consistency import mixed_orientations
from peer.train.data.datalist import UNREADABLE, Datalist, Sample, inspect_datalist
from peer.train.data.file_names import named
from peer.train.data.image_files import open_image
from peer.train.data.label_maps import LOST_CLASSES, describe_lost_classes
from peer.train.errors import UnusableConfigurationError, UnusableDataError
from peer.train.images import VOLUME_DIMS, Preparation, load_regions
from peer.train.ranks import Ranks
from peer.train.settings import AugmentationSettings, DataSettings, TaskSettings, TrainingSettings
from peer.train.targets import Example, SampleReader, sample_reader

logger = logging.getLogger(__name__)

STEPS_AHEAD = 2
"""Steps whose samples are read while one trains; the second helps if a single file takes long."""

WAIT_SHARE_MAX, WAIT_MAX_S = 0.1, 1.0
"""Share of a stage's duration, and seconds, that training may wait for samples before the log says so."""
WAITED = (
    "training waits for its samples: stage=%s waited_s=%.1f duration_s=%.1f; raise [training] readers, or set [data] "
    'cache = "memory" or "disk"'
)

Seed = Callable[..., int]
"""``peer.core.seeds.derive`` with federation and site filled in."""


@dataclass(frozen=True)
class DataSplit:
    """Readable samples of one purpose.

    Attributes:
        load: returns the image and the target of sample ``k``, prepared, on the CPU; labels in any integer
            type.
        in_memory: whether ``load`` reads no file.
        class_counts: the samples of each class that occurs, in segmentation the places; empty without classes.
        label_counts: negatives and positives of each label, where there are several; those not known count in neither.
        targets_sha256: the digest of all targets when first read, in the order of the samples.
    """

    samples: Sequence[Sample]
    load: Callable[[int], Example]
    in_memory: bool
    class_counts: Mapping[int, int]
    label_counts: Sequence[tuple[int, int]] = ()
    targets_sha256: str = ""

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def present(self) -> frozenset[int]:
        """The classes that occur in the targets; empty without classes."""
        return frozenset(self.class_counts)

    def context_fields(self, settings: TrainingSettings) -> dict[str, Any]:
        """Return the fields of a stage's context that depend on the labels of these samples."""
        training = settings.training
        if settings.task.objective == "labels":
            weights = label_weights(training.class_weights, self.label_counts)
        else:
            weights = class_weights(training.class_weights, self.class_counts, settings.task.classes)
        return {"classes_present": self.present, "supervision": Supervision(weights, training.label_smoothing)}

    @property
    def people(self) -> dict[str, list[int]]:
        """The positions of each person's samples, in the order of the datalist."""
        people: dict[str, list[int]] = {}
        for index, sample in enumerate(self.samples):
            people.setdefault(person_of(sample.name, sample.subject), []).append(index)
        return people

    def by_person(self) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """Yield for each person the samples as images ``(1, c, *space)`` and targets."""
        for indices in self.people.values():
            yield (self.read([index]) for index in indices)

    @property
    def digest(self) -> str:
        """Digest of sample names and targets, which two processes compare."""
        names = [sample.name for sample in self.samples]
        return hashlib.sha256("\n".join([*names, self.targets_sha256]).encode()).hexdigest()

    def read(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Read images ``(b, c, *space)`` and their targets; raise ``UnusableDataError`` like ``read_one``.

        Targets are classes ``(b,)`` or label maps ``(b, *space)``, int64, or large images, float32,
        ``(b, classes, *(scale * space))``, or the numbers of ``peer.train.targets``, float32 ``(b, n)``.
        """
        return self.stack([self.read_one(index) for index in indices])

    def read_one(self, index: int) -> Example:
        """Read a sample's image and target; raise ``UnusableDataError`` if it is no longer readable."""
        try:
            return self.load(index)
        except UnusableConfigurationError:
            raise
        except Exception as error:
            raise UnusableDataError(
                f"sample {self.samples[index].name} was readable and is not now: {error}",
                "a sample was readable and is not now",
            ) from error

    @staticmethod
    def stack(examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
        """Stack these examples into a batch as returned by ``read``."""
        images, targets = zip(*examples, strict=True)
        stacked = torch.stack(targets)
        return torch.stack(images), stacked if stacked.is_floating_point() else stacked.long()

    def batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples once, in order."""
        for first in range(0, len(self), batch_size):
            yield self.read(range(first, min(first + batch_size, len(self))))


@dataclass(frozen=True)
class SiteData:
    training: DataSplit
    validation: DataSplit
    test: DataSplit
    unreadable: int
    masks: Tensor | None
    task: str
    cohort: Sha256 | None = None
    """Digest of the people in the samples; ``None`` where there is no key to record them with."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of samples by purpose, as reported in ``Initialised``."""
        counts = {"training": len(self.training), "test": len(self.test), "unreadable": self.unreadable}
        return counts | ({"validation": len(self.validation)} if len(self.validation) else {})

    def context_fields(self, settings: TrainingSettings) -> dict[str, Any]:
        """Return the fields of a stage's context that depend on the samples."""
        samples: dict[str, Any] = {"samples": partial(self.training.batches, 1)}
        samples["validation_samples"] = partial(self.validation.batches, 1)
        samples["people"] = self.training.by_person
        return (
            self.training.context_fields(settings)
            | samples
            | {"records": self.records, "target": settings.task.target, "count_min": settings.count_min}
        )

    def records(self) -> list[Record]:
        """Return the datalist's entry of every sample."""
        samples = (*self.training.samples, *self.validation.samples, *self.test.samples)
        return [
            Record(person_of(sample.name, sample.subject), sample.row, sample.label)
            for sample in samples
            if not isinstance(sample.label, Path)
        ]


def inspect_samples(task: TaskSettings, data: DataSettings, *, learns: bool = True) -> Datalist:
    """Read and check the site's datalist; unless a network ``learns``, its labels may all be alike."""
    return inspect_datalist(
        data.datalist,
        root=data.root,
        task=task.kind,
        classes=task.classes,
        class_names=task.class_names,
        columns=task.columns,
        target=task.target,
        learns=learns,
    )


def load_data(
    settings: TrainingSettings,
    seed: Seed,
    *,
    check_halt: Callable[[], None],
    training_only: bool = False,
    unreadable: dict[str, str] | None = None,
    lost_classes: dict[str, list[int]] | None = None,
) -> SiteData:
    """Check the datalist and read every sample once.

    Args:
        seed: the site's seed, which selects the samples held out for validation.
        check_halt: called before each sample; an exception from it stops the reading.
        training_only: leave out the other samples.
        unreadable: gets the reason by the name of each sample that is left out, also if this raises.
        lost_classes: gets the classes that a label map loses in preparation, by the sample's name.

    Raises:
        UnusableDataError: the datalist has a problem, more than ``unreadable_share_max`` of its
            samples cannot be read, or the training samples allow no learning.
    """
    data, task = settings.data, settings.task
    datalist = inspect_samples(task, data, learns=settings.plan.predicts)
    if datalist.problems:
        raise UnusableDataError(f"{data.datalist}: " + "; ".join(datalist.problems))
    for note in datalist.notes:
        logger.info("%s: %s", data.datalist, note)
    if datalist.unlabelled:
        logger.warning("test entries without label are not evaluated: count=%d", datalist.unlabelled)
    if data.cache == "disk" and not training_only:  # the rank that reads all samples also cleans up
        clear_unfinished(_cache_folder(settings))
    _check_orientations([*datalist.training, *datalist.test], settings)
    lost_classes = {} if lost_classes is None else lost_classes
    read = sample_reader(task, data, lost_classes)
    held_out = held_out_names(datalist.training, settings, seed)
    groups = {
        "training": [sample for sample in datalist.training if sample.name not in held_out],
        "validation": [sample for sample in datalist.training if sample.name in held_out],
        "test": list(datalist.test),
    }
    if training_only:
        groups |= {"validation": [], "test": []}
    unreadable = {} if unreadable is None else unreadable
    splits = {name: _read_split(samples, read, settings, unreadable, check_halt) for name, samples in groups.items()}
    if lost_classes:
        logger.warning("%s %s", LOST_CLASSES, describe_lost_classes(lost_classes))
    total = len(datalist.training) + len(datalist.test)
    if len(unreadable) > data.unreadable_share_max * total:
        raise UnusableDataError(
            f"{len(unreadable)} of {total} samples cannot be read ({named(unreadable)}), more than [data] "
            f"unreadable_share_max = {data.unreadable_share_max}; the first one {next(iter(unreadable.values()))}; the "
            "log has the other reasons",
            f"{len(unreadable)} of {total} samples cannot be read",
        )
    lack = _find_lack(splits["training"], task.objective) if settings.plan.predicts else None
    if lack is not None:
        raise UnusableDataError(f"{data.datalist}: what can be read for training {lack}")
    masks = None
    if data.regions is not None:
        masks = load_regions(data.regions, Preparation.of(task, data))
    cohort = None if training_only else _record_people(settings.home, splits)
    return SiteData(**splits, unreadable=len(unreadable), masks=masks, task=task.kind, cohort=cohort)


def _record_people(home: Path, splits: Mapping[str, DataSplit]) -> Sha256 | None:
    """Write which people are in each split, where the daemon has made a key for it; return the set's digest."""
    people = {
        name: {person_of(sample.name, sample.subject) for sample in split.samples} for name, split in splits.items()
    }
    cohort = Cohorts(home).write(people)
    return None if cohort is None else Sha256(cohort)


def _check_orientations(samples: Sequence[Sample], settings: TrainingSettings) -> None:
    """Raise ``UnusableDataError`` if volumes are left as stored by default and differ in orientation."""
    data = settings.data
    if settings.task.spatial_dims != VOLUME_DIMS or data.orientation is not None:
        return
    orientations: dict[str, str] = {}
    for sample in samples:
        with contextlib.suppress(ValueError, ConfigError):  # the sample reader reports the reason
            orientations[sample.name] = open_image(sample.images[0]).orientation
    mixed = mixed_orientations({name: axcodes for name, axcodes in orientations.items() if axcodes})
    if mixed is not None:
        raise UnusableDataError(
            f'{data.datalist}: {mixed}; set [data] orientation = "RAS", or "stored" if their axes do run alike'
        )


def held_out_names(samples: Sequence[Sample], settings: TrainingSettings, seed: Seed) -> set[str]:
    """Return the names of the held-out training samples.

    In a private federation each person is held out whoever else is there, so that the share holds on average: in a
    ranking, one person more would move another, and the noise is for one.
    """
    share = settings.data.validation_share
    if settings.noise is None:
        return validation_names(samples, share, seed)
    people = {sample.name: person_of(sample.name, sample.subject) for sample in samples}
    return {name for name, person in people.items() if seed("validation", person) < share * SEEDS}


def validation_names(samples: Sequence[Sample], share: float, seed: Seed) -> set[str]:
    """Return the names of the held-out training samples: the same share of each class's subjects, drawn by the seed.

    A subject is never divided; a sample without a subject counts as a subject of its own. Persons with an event count
    as one class, and samples whose labels are files or numbers as one.
    """
    subjects: dict[int | None, dict[str, list[str]]] = {}
    first_labels: dict[str, int | None] = {}
    for sample in samples:
        subject = person_of(sample.name, sample.subject)
        first_label = first_labels.setdefault(subject, stratum(sample.label))
        subjects.setdefault(first_label, {}).setdefault(subject, []).append(sample.name)
    names: set[str] = set()
    for members in subjects.values():
        drawn = sorted(members, key=lambda subject: seed("validation", subject))
        for subject in drawn[: round(share * len(drawn))]:
            names.update(members[subject])
    return names


def _find_lack(training: DataSplit, kind: str) -> str | None:
    """Return why a network could learn nothing from these samples, or None."""
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
    """Read the samples once; log and leave out those that fail, and add their reasons to ``unreadable``."""
    cache = "memory" if settings.task.kind == "tabular" else settings.data.cache  # to encode a row takes longer
    if cache == "disk":
        read = _cache_on_disk(read, _cache_folder(settings))
    readable: list[Sample] = []
    examples: list[Example] = []
    class_counts: Counter[int] = Counter()
    answers: list[Tensor] = []
    targets = hashlib.sha256()
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
        targets.update(target.contiguous().numpy().tobytes())
        if not target.is_floating_point():
            classes, counts = torch.unique(target, return_counts=True)
            class_counts.update(dict(zip(classes.tolist(), counts.tolist(), strict=True)))
        if settings.task.objective == "labels":
            answers.append(target)
        if cache == "memory":
            examples.append(example)
    in_memory = cache == "memory"
    load = examples.__getitem__ if in_memory else lambda k: read(readable[k])
    return DataSplit(readable, load, in_memory, class_counts, _count_answers(answers), targets.hexdigest())


def _count_answers(answers: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Count the negatives and positives of each label in targets ``(labels,)``."""
    if not answers:
        return []
    stacked = torch.stack(list(answers))
    counts = zip((stacked == 0).sum(0).tolist(), (stacked == 1).sum(0).tolist(), strict=True)
    return [(int(negatives), int(positives)) for negatives, positives in counts]


def _cache_folder(settings: TrainingSettings) -> Path:
    folder = settings.home / "cache"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _cache_on_disk(read_files: SampleReader, folder: Path) -> SampleReader:
    """Wrap a reader to keep prepared samples on disk; the key includes each file's size and time, to notice changes.

    MONAI's PersistentDataset is unsuitable: it passes images through the system's temporary folder, and a crash then
    leaves half an image, which counts as unreadable.
    """

    def read(sample: Sample) -> Example:
        label = sample.label
        files = (*sample.images, label) if isinstance(label, Path) else sample.images
        stamps = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
        parts = (read_files, stamps, label, *sample.label_values, *sample.row)
        path = folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.safetensors"
        if path.exists():
            tensors = safetensors.torch.load(path.read_bytes())
            return tensors["image"], tensors["target"]
        image, target = read_files(sample)
        write_file(path, safetensors.torch.save({"image": image, "target": target}))
        return image, target

    return read


class Batches:
    """The batches of one training stage, by step.

    Every pass is a permutation of the samples drawn from its own seed, cut into slices, one per step. The last, smaller
    slice of a pass is dropped; with fewer samples than ``batch_size`` a pass is one batch of all samples. A balanced
    pass is as long, and takes its samples by ``_balanced_order``. A rank reads
    and augments its share of a batch, and gets the joint batch.

    The augmentation maps targets and masks like their images. In super-resolution it only flips images, whatever the
    settings: everything else interpolates, and would teach the network a blurred target.
    """

    def __init__(
        self,
        data: SiteData,
        *,
        batch_size: int,
        augmentation: AugmentationSettings,
        seed: Seed,
        device: torch.device,
        readers: int = 1,
        ranks: Ranks | None = None,
        balanced: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare the stage's batches; reading starts with the first step.

        Args:
            seed: the seed of site, round and stage.
            readers: number of threads that read the samples of the next steps, if they are on disk.
            ranks: the processes that divide every batch.
            balanced: let every class come equally often; each sample's label is a class.
        """
        self._balanced = balanced
        self._ranks = ranks
        self._split, self._seed, self._device = data.training, seed, device
        self._flips_only = data.task in ("super_resolution", "tabular")  # a row at one place is its own mirror image
        self._augmentation = replace(augmentation, probability=0.0) if self._flips_only else augmentation
        self._size = min(batch_size, len(data.training))
        self._orders: dict[int, np.ndarray] = {}  # of the newest two passes: samples are read ahead
        self._masks = None if data.masks is None else self._coarse(data.masks).to(device)
        self._ahead: dict[int, list[Future[Example]]] = {}
        self._readers = None if data.training.in_memory else ThreadPoolExecutor(readers, thread_name_prefix="reader")
        self._clock = clock
        self.waited_s = 0.0

    @property
    def per_epoch(self) -> int:
        """Steps in one pass."""
        return len(self._split) // self._size

    def steps(self, work: Work) -> int:
        """Return the number of steps of the work at this site."""
        return work.count * (self.per_epoch if work.unit == "epoch" else 1)

    def indices(self, step: int) -> list[int]:
        """Return the samples of a step, counted from 0."""
        epoch, turn = divmod(step, self.per_epoch)
        if epoch not in self._orders:
            newest = dict(list(self._orders.items())[-1:])
            generator = np.random.default_rng(self._seed("order", epoch))
            if self._balanced:
                order = _balanced_order([sample.label for sample in self._split.samples], generator)
            else:
                order = generator.permutation(len(self._split))
            self._orders = {**newest, epoch: order}
        return [int(index) for index in self._orders[epoch][turn * self._size : (turn + 1) * self._size]]

    def _own(self, step: int) -> Sequence[int]:
        """Return the samples of a step that this process reads."""
        indices = self.indices(step)
        return indices if self._ranks is None else self._ranks.own(indices)

    def __getitem__(self, step: int) -> Batch:
        began_s = self._clock()
        images, targets = self._read(step)
        self.waited_s += self._clock() - began_s
        return self._augment(images, targets, [("augment", step, index) for index in self._own(step)])

    def _augment(self, images: Tensor, targets: Tensor, purposes: Sequence[tuple[object, ...]]) -> Batch:
        """Return the batch of these samples on the device, each augmented with the seed of its purpose."""
        images, targets = self._on_device(images), self._on_device(targets)
        masks = self._masks
        if self._augmentation.active:
            seeds = [self._seed(*purpose) for purpose in purposes]
            maps = affine_maps(self._augmentation, seeds, images.shape[2:])
            images = warp(images, maps, mode="nearest" if self._flips_only else "bilinear")
            targets = warp_targets(targets, maps)
            if masks is not None:  # the anatomy follows the image
                masks = self._join(torch.stack([warp(masks[None], affine_map[None])[0] for affine_map in maps]))
        return Batch(images=self._join(images), targets=self._join(targets), masks=masks)

    def _join(self, own: Tensor) -> Tensor:
        """Return the joint tensor of what all ranks have read."""
        if self._ranks is None or self._ranks.share(self._size) is None:
            return own
        return self._ranks.join(own, self._size)

    def warn_of_waits(self, stage: str, duration_s: float) -> None:
        """Log a warning if a stage of this duration waited long for its samples."""
        if self.waited_s > max(WAIT_SHARE_MAX * duration_s, WAIT_MAX_S):
            logger.warning(WAITED, stage, self.waited_s, duration_s)

    def close(self) -> None:
        """Stop reading ahead."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)

    def _coarse(self, masks: Tensor) -> Tensor:
        """Return masks at half the image's resolution if the augmentation must warp them.

        The losses average masks over coarser cells anyway; at full resolution, warping a hundred regions would take
        longer than the networks.
        """
        if not self._augmentation.active:
            return masks
        return F.interpolate(masks[None], size=[(length + 1) // 2 for length in masks.shape[1:]], mode="area")[0]

    def _on_device(self, tensor: Tensor) -> Tensor:
        """Move the tensor to the device; a GPU copies it from pinned memory while still computing."""
        if self._device.type == "cuda":
            tensor = tensor.pin_memory()
        return tensor.to(self._device, non_blocking=True)

    def _read(self, step: int) -> tuple[Tensor, Tensor]:
        """Return this step's samples; threads meanwhile read those of the next steps, if they are on disk."""
        if self._readers is None:
            return self._split.read(self._own(step))
        ahead = {due: self._ahead.get(due) or self._submit(due) for due in range(step, step + 1 + STEPS_AHEAD)}
        for passed in self._ahead.keys() - ahead.keys():
            for future in self._ahead[passed]:
                future.cancel()
        self._ahead = ahead
        return self._split.stack([future.result() for future in self._ahead.pop(step)])

    def _submit(self, step: int) -> list[Future[Example]]:
        assert self._readers is not None
        return [self._readers.submit(self._split.read_one, index) for index in self._own(step)]


def _balanced_order(labels: Sequence[object], generator: np.random.Generator) -> np.ndarray:
    """Return as many samples as there are labels, such that each class comes once in as many as there are classes.

    The classes of these come in an order drawn anew. A class's samples come in an order drawn anew, too, once all of
    them have come.
    """
    members: dict[object, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    due: dict[object, list[int]] = {label: [] for label in members}
    order: list[int] = []
    while len(order) < len(labels):
        for turn in generator.permutation(len(members)):
            label = [*members][turn]
            due[label] = due[label] or generator.permutation(members[label]).tolist()
            order.append(due[label].pop())
    return np.array(order[: len(labels)])


def site_seed(settings: TrainingSettings) -> Seed:
    """Return the site's seeds: ``derive`` of the federation's name and seed, the site, and the caller's parts.

    The federation's digest is excluded, so that federations that differ only in the method start alike and are
    comparable.
    """
    return lambda *parts: derive(settings.federation_name, settings.seed, settings.site, *parts)
