"""Survey of a datalist and its files, without torch: counts, classes, shapes and problems."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target
from peer.documents.commands import DatalistSurvey, SplitSurvey
from peer.errors import ConfigError
from peer.train.data.consistency import Consistency, distance_of, turn_like
from peer.train.data.copies import copy_problems, digest_values
from peer.train.data.datalist import SPLITS, Datalist, Sample, inspect_datalist
from peer.train.data.file_names import named
from peer.train.data.image_files import PICTURES, Shape, StoredImage, file_ending, open_image, read_values
from peer.train.data.label_maps import not_classes, propose_map, to_classes
from peer.train.data.table_rows import column_warnings, survey_columns

SCALES = {"segmentation": (1,), "super_resolution": (2, 4, 8)}
"""Task kind -> allowed ratios of a label file's size to its image's."""


@dataclass(slots=True)
class _Faults:
    """Texts that name a file and its fault, by kind of fault."""

    unreadable: list[str] = field(default_factory=list)
    misfit: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    unmapped: set[float] = field(default_factory=set)
    constant: list[str] = field(default_factory=list)

    def problems(self, task: str, classes: int | None) -> list[str]:
        """Return one line for each kind of fault."""
        lines = []
        if self.unreadable:
            hint = (
                ', or set [data] nan = "background"' if any("holds a NaN" in text for text in self.unreadable) else ""
            )
            lines.append(
                f"files cannot be read: {named(self.unreadable)}; replace them or take them out of the datalist{hint}"
            )
        if self.misfit:
            times = "not on the grid" if task == "segmentation" else "not 2, 4 or 8 times the size"
            lines.append(f"label files are {times} of their images: {named(self.misfit)}; make them anew")
        if self.elsewhere:
            lines.append(
                f"label maps lie elsewhere in the patient than their images: {named(self.elsewhere)}; correct their "
                "affines, or resample them"
            )
        if self.constant:
            lines.append(f"images are constant: {named(self.constant)}; replace them or take them out of the datalist")
        if self.values and task == "segmentation":
            allowed = "0, 1, ..." if classes is None else f"0 to {classes - 1}"
            proposal = propose_map(self.unmapped)
            lines.append(
                f"label maps hold other values than {allowed}: {named(self.values)}; map them"
                f"{f' with `data import {proposal}`' if proposal else ''} or correct [task] classes"
            )
        elif self.values:
            lines.append(f"values are not from 0 to 1: {named(self.values)}; scale them")
        return lines


def survey(
    path: Path,
    *,
    root: Path | None = None,
    task: str = "classification",
    classes: int | None = None,
    class_names: Sequence[str] = (),
    columns: Sequence[TableColumn] = (),
    target: Target = CLASS,
    whole: bool = False,
    nan: str | None = None,
    settled: Collection[str] = (),
) -> DatalistSurvey:
    """Describe a datalist.

    Args:
        root: folder that its paths are relative to; default: the datalist's folder.
        classes: number of classes; None leaves the labels' upper bound unchecked.
        class_names: the names that the sites have agreed on.
        columns: the table's columns that they have agreed on.
        target: what they predict of a sample, if they classify.
        whole: read every value of every image; otherwise only the headers. Label maps are
            always read to the end.
        nan: as ``[data] nan``.
        settled: keys of ``[data]`` that the site has set, of which no warning advises to set them.

    Returns:
        ``{datalist, splits, columns, unlabelled, unused_keys, problems, warnings}``; ``splits`` has
        for ``training`` and ``test`` ``{samples, subjects, unnamed, classes, shapes, orientations, spacings, labels,
        label_shapes}``. ``warnings`` need a user's attention.
        ``unnamed`` counts samples without a subject, for which the survey cannot detect leakage
        between the splits. ``classes`` counts the samples of each class, or the label maps in which
        a label occurs. ``labels`` counts label files.
    """
    listed = inspect_datalist(
        path, root=root, task=task, classes=classes, class_names=class_names, columns=columns, target=target
    )
    faults, consistency = _Faults(), Consistency()
    digests: dict[Path, str] = {}
    samples = (*listed.training, *listed.test)
    splits = {
        split: _describe(listed, split, task, classes, faults, consistency, digests, whole=whole, nan=nan)
        for split in SPLITS
    }
    return {
        "datalist": str(path),
        "splits": splits,
        "class_names": {str(number): name for number, name in listed.class_names.items()},
        "columns": survey_columns(
            [*columns, *target.table], [(*sample.row, *target.row(sample.label)) for sample in samples]
        ),
        "unlabelled": listed.unlabelled,
        "unused_keys": dict(sorted(listed.unused_keys.items())),
        "problems": [
            *listed.problems,
            *faults.problems(task, classes),
            *consistency.problems(),
            *(copy_problems(listed, digests) if whole else ()),
        ],
        "warnings": [
            *listed.notes,
            *consistency.warnings(settled),
            *_lengths(splits, task),
            *column_warnings(columns, [(sample.row, sample.label) for sample in listed.training], target),
        ],
    }


def header_warnings(listed: Datalist, settled: Collection[str] = ()) -> list[str]:
    """Return the warnings of ``survey`` that the headers of a datalist's images give; unreadable ones give none."""
    consistency = Consistency()
    for sample in filter(lambda sample: sample.images, (*listed.training, *listed.test)):
        with contextlib.suppress(ValueError, ConfigError):
            consistency.add({path: open_image(path) for path in sample.images})
    return consistency.warnings(settled)


def _lengths(splits: Mapping[str, SplitSurvey], task: str) -> list[str]:
    """Warn of signals of different lengths, since training stretches each of them to one length."""
    lengths = {int(shape.split("x")[-1]) for split in splits.values() for shape in split["shapes"] if shape}
    if task != "time_series" or len(lengths) < 2:
        return []
    return [
        f"signals have lengths from {min(lengths)} to {max(lengths)}, and training stretches each to [data] "
        "input_size, which changes its rate: cut them to windows of the same duration and sampling rate"
    ]


def _describe(
    listed: Datalist,
    split: str,
    task: str,
    classes: int | None,
    faults: _Faults,
    consistency: Consistency,
    digests: dict[Path, str],
    *,
    whole: bool,
    nan: str | None,
) -> SplitSurvey:
    samples: Iterable[Sample] = getattr(listed, split)
    shapes: Counter[str] = Counter()
    orientations: Counter[str] = Counter()
    spacings: Counter[str] = Counter()
    label_shapes: Counter[str] = Counter()
    present: Counter[int] = Counter(listed.counts(split))
    for sample in samples:
        images: dict[Path, StoredImage] = {}
        for path in filter(Path.exists, sample.images):
            try:
                images[path] = image = open_image(path)
                values = read_values(path, image, nan=nan) if whole else None
                if values is not None:
                    digests[path] = digest_values(values)
                if values is not None and nan is not None and not (values := values[~np.isnan(values)]).size:
                    raise ValueError("holds NaN alone")
            except ValueError as error:
                faults.unreadable.append(f"{path} ({error})")
                images.pop(path, None)
                continue
            shapes["x".join(map(str, image.shape))] += 1
            if image.orientation:
                orientations[image.orientation] += 1
            if image.spacing is not None:
                spacings["x".join(f"{length:.3g}" for length in image.spacing)] += 1
            if values is not None and values.size and _is_constant(values):
                faults.constant.append(f"{path} ({values.flat[0]:g})")
            if task == "super_resolution":
                faults.values += _beyond_unit(path, values)
        if images and len(images) == len(sample.images):
            consistency.add(images)
        if isinstance(sample.label, Path) and sample.label.exists():
            try:
                label = open_image(sample.label, key="label" if task == "segmentation" else "image")
                shape, labels = _label(sample, label, list(images.values()), task, classes, faults, whole=whole)
            except ValueError as error:
                faults.unreadable.append(f"{sample.label} ({error})")
                continue
            label_shapes["x".join(map(str, shape))] += 1
            present.update(labels)
            consistency.add_label(sample.label, label, next(iter(images.values()), None))
    return {
        "samples": len(getattr(listed, split)),
        "subjects": len(listed.subjects(split)),
        "unnamed": sum(sample.subject is None for sample in samples),
        "classes": {str(label): count for label, count in sorted(present.items())},
        "shapes": dict(shapes.most_common()),
        "orientations": dict(orientations.most_common()),
        "spacings": dict(spacings.most_common()),
        "labels": sum(isinstance(sample.label, Path) for sample in samples),
        "label_shapes": dict(label_shapes.most_common()),
    }


def _label(
    sample: Sample,
    label: StoredImage,
    images: list[StoredImage],
    task: str,
    classes: int | None,
    faults: _Faults,
    *,
    whole: bool,
) -> tuple[Shape, list[int]]:
    """Return a label file's shape and, for a label map, its labels; add their problems to the faults."""
    assert isinstance(sample.label, Path)
    path = sample.label
    maps = task == "segmentation"
    shape, values = label.shape, read_values(path, label) if whole or maps else None
    grids = {grid for image in images for grid, _ in _grids(image)}
    fitting = {tuple(scale * length for length in grid) for grid in grids for scale in SCALES.get(task, (1,))}
    own = {grid for grid, channels in _grids(label) if channels == 1 or not maps}
    if maps and images and label.channels == 1 and (turned := turn_like(label, images[0])) is not None:
        own = {turned[0]}
    if grids and not own & fitting:
        faults.misfit.append(f"{path} ({'x'.join(map(str, shape))})")
    elif maps and images and (shift := distance_of(images[0], label)) is not None:
        faults.elsewhere.append(f"{path} (up to {shift:.3g} mm)")
    if not maps or values is None:
        faults.values += _beyond_unit(path, values)
        return shape, []
    labels = np.unique(to_classes(np.unique(values), sample.label_values))
    wrong = not_classes(labels, classes)
    if wrong:
        faults.values.append(f"{path} ({wrong[0]:g})")
        faults.unmapped.update(wrong)
        return shape, []
    return shape, [int(label) for label in labels]


def _is_constant(values: NDArray[Any]) -> bool:
    """Return whether the values are alike as float32, in which the trainer has them."""
    return bool(np.float32(values.min()) == np.float32(values.max()))


def _beyond_unit(path: Path, values: NDArray[Any] | None) -> list[str]:
    """Return the file with its range if its values were read and lie outside [0, 1]; else nothing.

    The trainer divides 8-bit pictures by 255, so that they are always inside.
    """
    if values is None or (values.dtype == np.uint8 and file_ending(path) in PICTURES):
        return []
    lowest, highest = values.min(), values.max()
    return [f"{path} ({lowest:g} to {highest:g})"] if lowest < 0 or highest > 1 else []


def _grids(image: StoredImage) -> list[tuple[Shape, int]]:
    """Return the possible meanings of a shape: a grid, and a number of channels."""
    space = image.space
    if image.channels is not None:
        return [(space, image.channels)]
    return [(space, 1), (space[1:], space[0] if space else 1)]
