"""Samples as the network sees them: read, prepared and augmented by the trainer's own code; of a table distributions.

Run as ``python -m peer.train.inference.contact_sheet``, the module reads one JSON document from standard input, with
the worker's ``setting`` and the number of ``samples``. It writes one to standard output, so that the caller does not
load torch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import nibabel
import numpy as np
import torch

from peer.core.targets import EVENT_NAMES, stratum
from peer.core.tasks import CLASSIFYING
from peer.core.worker_protocol import WorkerSetting, from_json
from peer.documents.data import ContactSheet, SheetHistogram, SheetSample, SheetSplit, ValueRange
from peer.train.data.datalist import Datalist, Sample
from peer.train.data.image_files import open_image, read_values
from peer.train.data.prepared_folder import shuffle
from peer.train.data.table_sheet import describe_columns
from peer.train.errors import UnusableConfigurationError, UnusableDataError, reason_of
from peer.train.inference import sheet_pictures
from peer.train.samples import Batches, DataSplit, SiteData, held_out_names, inspect_samples, site_seed
from peer.train.settings import TrainingSettings
from peer.train.targets import Example, ImageAndLabel, LabelMap, SampleReader, sample_reader

SHOWN_MAX = 96
"""Maximum number of samples on a sheet: a page of about 10 MB."""
BINS = 32
ROUNDING = 1e-5
"""Share of the standard deviation: a smaller mean is a rounding error of normalised float32 values."""
POOLED = 4096
"""Number of a sample's values that enter the histogram of its split."""


def make_sheet(settings: TrainingSettings, *, samples: int) -> tuple[ContactSheet, list[dict[str, Any]]]:
    """Return the facts of a sheet, and the pictures of each of its samples.

    Args:
        samples: number per split and class; three times as many per split if labels are files.

    Raises:
        UnusableDataError: no sample can be read.
    """
    task, data = settings.task, settings.data
    listed = inspect_samples(task, data)
    splits = _splits(listed, settings)
    if task.kind == "tabular":
        return _sheet_of_table(listed, splits, settings), []
    read = sample_reader(task, data)
    names = {str(number): name for number, name in (listed.class_names or dict(enumerate(task.class_names))).items()}
    shown, pictures, pooled = [], [], {name: [np.empty(0)] for name in splits}
    for split, chosen in _chosen(splits, samples, settings):
        facts, drawn, values = _show(chosen, split, read, settings)
        shown.append(facts)
        pictures.append(drawn)
        pooled[split].append(values)
    readable = [facts for facts in shown if not facts["problem"]]
    if not readable:
        reason = shown[0]["problem"] if shown else "; ".join(listed.problems) or "it lists none"
        raise UnusableDataError(f"{data.datalist}: no sample can be shown: {reason}")
    described = {name: _describe(members) for name, members in splits.items()}
    sheet: ContactSheet = {
        "page": "",
        "site": str(settings.site) or None,
        "task": task.kind,
        "classes": names,
        "preparation": _preparation(settings),
        "splits": described,
        "gaps": _gaps(listed, described, settings, shown),
        "histograms": _histograms({name: np.concatenate(values) for name, values in pooled.items()}),
        "samples": shown,
        "columns": [],
    }
    return sheet, pictures


def _sheet_of_table(listed: Datalist, splits: dict[str, list[Sample]], settings: TrainingSettings) -> ContactSheet:
    """Return the facts of a table's sheet, which has distributions in place of samples."""
    task = settings.task
    if not any(splits.values()):
        raise UnusableDataError(f"{settings.data.datalist}: {'; '.join(listed.problems) or 'it lists no row'}")
    described = {name: _describe(members) for name, members in splits.items()}
    names = {str(number): name for number, name in enumerate(task.class_names)} if task.target.kind == "class" else {}
    groups = {"class": task.classes, "survival": len(EVENT_NAMES)}.get(task.target.kind, 0)
    return {
        "page": "",
        "site": str(settings.site) or None,
        "task": task.kind,
        "classes": EVENT_NAMES if task.target.kind == "survival" else names,
        "preparation": {"channels": task.in_channels, "classes": groups, "columns": len(task.columns)},
        "splits": described,
        "gaps": _gaps(listed, described, settings, []),
        "histograms": {},
        "samples": [],
        "columns": describe_columns(task.columns, splits, task.target),
    }


def _splits(listed: Datalist, settings: TrainingSettings) -> dict[str, list[Sample]]:
    """Group the samples by the trainer's use of them."""
    held_out = held_out_names(listed.training, settings, site_seed(settings))
    splits = {
        "training": [sample for sample in listed.training if sample.name not in held_out],
        "validation": [sample for sample in listed.training if sample.name in held_out],
        "test": list(listed.test),
    }
    return {name: members for name, members in splits.items() if members or name != "validation"}


def _chosen(splits: dict[str, list[Sample]], samples: int, settings: TrainingSettings) -> Iterator[tuple[str, Sample]]:
    """Yield the samples to show, by split and class: first one of each subject, drawn by the site's seed."""
    groups: dict[tuple[str, int], list[Sample]] = {}
    for split, members in splits.items():
        for sample in members:
            groups.setdefault((split, sample.label if isinstance(sample.label, int) else -1), []).append(sample)
    of_group = samples if settings.task.kind in CLASSIFYING else 3 * samples
    of_group = max(1, min(of_group, SHOWN_MAX // max(len(groups), 1)))
    for (split, label), members in sorted(
        groups.items(), key=lambda item: (list(splits).index(item[0][0]), item[0][1])
    ):
        order = shuffle([sample.name for sample in members], seed=settings.seed, purpose=f"sheet/{split}/{label}")
        rank = {name: position for position, name in enumerate(order)}
        seen: dict[str, int] = {}
        turns = {}
        for sample in sorted(members, key=lambda sample: rank[sample.name]):
            subject = sample.subject or f"/{sample.name}"
            turns[sample.name] = seen[subject] = seen.get(subject, -1) + 1
        for sample in sorted(members, key=lambda sample: (turns[sample.name], rank[sample.name]))[:of_group]:
            yield split, sample


def _show(
    sample: Sample, split: str, read: SampleReader, settings: TrainingSettings
) -> tuple[SheetSample, dict[str, Any], np.ndarray]:
    """Return a sample's facts, its pictures, and some of its values."""
    facts: SheetSample = {
        "split": split,
        "image": sample.name,
        "label": sample.label if isinstance(sample.label, int) else None,
        "subject": sample.subject,
        "problem": "",
        "stored": None,
        "prepared": None,
        "orientation": None,
        "labels": {},
        "histogram": None,
        "views": [],
    }
    try:
        image, target = read(sample)
    except UnusableConfigurationError:
        raise
    except Exception as error:  # any error of a reader: the trainer also leaves such a sample out
        facts["problem"] = " ".join((str(error) or repr(error)).split())
        return facts, {}, np.empty(0)
    facts["stored"], facts["orientation"] = _stored(sample, read)
    values = image.numpy()
    facts["prepared"] = _value_range(values)
    facts["histogram"] = _histogram(values.ravel(), float(values.min()), float(values.max()))
    is_map = settings.task.kind == "segmentation"
    labels = target.numpy() if is_map else None
    if labels is not None:
        present, counts = np.unique(labels, return_counts=True)
        facts["labels"] = {
            str(label): float(f"{count / labels.size:.3g}") for label, count in zip(present, counts, strict=True)
        }
    augmented = _augment((image, target), sample, settings) if split == "training" else None
    drawn = np.random.default_rng(settings.seed).integers(values.size, size=min(values.size, POOLED))
    return facts, _pictures(facts, (image, target), augmented, sample, settings), values.ravel()[drawn]


def _pictures(
    facts: SheetSample, example: Example, augmented: Example | None, sample: Sample, settings: TrainingSettings
) -> dict[str, Any]:
    """Return curves, or a picture for each view, of the image and of its augmented version; set the views."""
    kind = settings.task.kind
    if example[0].ndim == 2:
        return {
            "curves": sheet_pictures.curves(example[0].numpy()),
            "augmented_curves": sheet_pictures.curves(augmented[0].numpy()) if augmented else None,
        }
    labels = example[1].numpy() if kind == "segmentation" else None
    planes = sheet_pictures.planes(example[0].shape[1:], facts["orientation"], labels)
    facts["views"] = [plane.view for plane in planes]
    window = (float(example[0].min()), float(example[0].max()))
    colour = len(sample.images) == 1 and example[0].shape[0] == 3 and example[0].ndim == 3

    def draw(shown: Example) -> list[str]:
        masks = shown[1].numpy() if kind == "segmentation" else None
        return [
            sheet_pictures.png(
                plane.cut(shown[0].numpy()),
                window,
                labels=None if masks is None else plane.cut(masks),
                colour=colour,
            )
            for plane in planes
        ]

    pictures = {"image": draw(example), "augmented": draw(augmented) if augmented else None}
    if kind == "super_resolution":
        pictures["target"] = draw((example[1], example[1]))
    return pictures


def _augment(example: Example, sample: Sample, settings: TrainingSettings) -> Example | None:
    """Return the sample as in the trainer's first batch; None if nothing is augmented."""
    image, target = example
    split = DataSplit([sample], lambda index: example, in_memory=True, class_counts={})
    nothing = dataclasses.replace(split, samples=[])
    data = SiteData(split, nothing, nothing, unreadable=0, masks=None, task=settings.task.kind)
    seed = site_seed(settings)
    batches = Batches(
        data,
        batch_size=1,
        augmentation=settings.data.augmentation,
        seed=lambda *parts: seed("contact sheet", sample.name, *parts),
        device=torch.device("cpu"),
    )
    batch = batches[0]
    changed = bool((batch.images[0] != image).any() or (batch.targets[0] != target).any())
    return (batch.images[0], batch.targets[0]) if changed or settings.data.augmentation.active else None


def _stored(sample: Sample, read: SampleReader) -> tuple[ValueRange, str | None]:
    """Return the range of the first file's values, and the directions of the network's axes, if the file has any."""
    path = sample.images[0]
    stored = open_image(path)
    if not isinstance(read, ImageAndLabel | LabelMap):
        return _value_range(read_values(path, stored), stored.shape), None
    loaded = read.preparation.load(sample.images)
    is_placed = loaded.affine is not None and not stored.doubts
    return _value_range(loaded.values.numpy()), "".join(nibabel.aff2axcodes(loaded.affine)) if is_placed else None


def _value_range(values: np.ndarray, shape: Sequence[int] | None = None) -> ValueRange:
    mean, deviation = float(values.mean(dtype=np.float64)), float(values.std(dtype=np.float64))
    mean = 0.0 if abs(mean) < ROUNDING * deviation else mean
    return {
        "shape": "x".join(map(str, shape or values.shape)),
        "lowest": float(values.min()),
        "highest": float(values.max()),
        "mean": float(f"{mean:.4g}"),
        "deviation": float(f"{deviation:.4g}"),
    }


def _histogram(values: np.ndarray, lowest: float, highest: float) -> SheetHistogram:
    counts, _ = np.histogram(values, bins=BINS, range=(lowest, highest) if highest > lowest else None)
    return {
        "lowest": lowest,
        "highest": highest,
        "shares": [float(f"{count / max(values.size, 1):.4g}") for count in counts],
    }


def _histograms(pooled: dict[str, np.ndarray]) -> dict[str, SheetHistogram]:
    """Return the splits' histograms, all over the same range."""
    values = np.concatenate(list(pooled.values()))
    lowest, highest = float(values.min()), float(values.max())
    return {name: _histogram(part, lowest, highest) for name, part in pooled.items() if part.size}


def _describe(members: Sequence[Sample]) -> SheetSplit:
    labels = sorted({label for sample in members if (label := stratum(sample.label)) is not None})
    of_class = {str(label): [sample for sample in members if stratum(sample.label) == label] for label in labels}
    return {
        "samples": len(members),
        "subjects": len({sample.subject for sample in members} - {None}),
        "unnamed": sum(sample.subject is None for sample in members),
        "classes": {label: len(chosen) for label, chosen in of_class.items()},
        "class_subjects": {label: len({s.subject for s in chosen} - {None}) for label, chosen in of_class.items()},
    }


def _gaps(
    listed: Datalist, splits: dict[str, SheetSplit], settings: TrainingSettings, shown: Sequence[SheetSample]
) -> list[str]:
    """List what the data lacks, apart from the problems in the survey."""
    gaps = []
    if listed.unlabelled:
        gaps.append(f"{listed.unlabelled} test entries have no label and are not evaluated")
    for name, split in splits.items():
        if not split["samples"]:
            gaps.append(f"no sample is for {name}")
        elif settings.task.objective == "survival":
            gaps += [f"{name} has nobody {EVENT_NAMES['1']}"] if "1" not in split["classes"] else []
        elif settings.task.objective in CLASSIFYING:
            absent = [str(number) for number in range(settings.task.classes) if str(number) not in split["classes"]]
            if absent:
                gaps.append(f"{name} has no sample of class {', '.join(absent)}")
            single = [label for label, count in split["class_subjects"].items() if count == 1]
            if single and not split["unnamed"]:
                gaps.append(f"{name} has a single subject of class {', '.join(single)}")
        if split["unnamed"]:
            gaps.append(f"{split['unnamed']} samples of {name} have no subject: a patient may be in two splits unseen")
    constant = [facts["image"] for facts in shown if facts["prepared"] and facts["prepared"]["deviation"] == 0]
    if constant:
        gaps.append(f"images are constant: {', '.join(constant)}")
    if settings.task.kind == "segmentation":
        present = {label for facts in shown for label in facts["labels"]}
        absent = [str(label) for label in range(1, settings.task.classes) if str(label) not in present]
        if absent:
            gaps.append(f"no label map that is shown has the label {', '.join(absent)} at this size")
    gaps += [f"{facts['image']} cannot be read: {facts['problem']}" for facts in shown if facts["problem"]]
    return gaps


def _preparation(settings: TrainingSettings) -> dict[str, Any]:
    """Return the settings that turn a file into the network's input."""
    data, hidden = (
        dataclasses.asdict(settings.data),
        ("datalist", "root", "regions", "public", "cache", "unreadable_share_max"),
    )
    facts = {key: value for key, value in data.items() if key not in hidden and value is not None}
    return {"channels": settings.task.in_channels, "classes": settings.task.classes, **facts}


def main() -> None:
    """Answer a request with ``sheet`` and ``pictures``."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    request: Any = json.load(sys.stdin)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            settings = TrainingSettings.of(from_json(WorkerSetting, request["setting"]))
            sheet, pictures = make_sheet(settings, samples=request["samples"])
    except Exception as error:
        sys.exit(reason_of(error))
    json.dump({"sheet": sheet, "pictures": pictures}, sys.stdout)


if __name__ == "__main__":
    main()
