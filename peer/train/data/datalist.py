"""A site's datalist, read and checked without opening an image.

A datalist is a JSON file in MONAI's form (Medical Segmentation Decathlon):
``{"training": [{"image": "a.nii.gz", "label": 0, "subject": "p1"}, ...], "test": [...]}``.

An ``image`` may be a list of files, one for each channel or group of channels. Paths are relative to the datalist's
folder or to ``root``. A ``label`` is a class number; in segmentation it is a label map on the image's grid, in
super-resolution the large image. In super-resolution, an entry without a label (or a bare path) is the large image
itself, from which the trainer makes the small one. In the other tasks, ``test`` entries without a label (Decathlon
writes them as bare paths) cannot be evaluated and are only counted. ``label_values``, such as ``{"255": 1}``, has the
classes of values in the label map that are no classes themselves.

Where the federation predicts no class, a ``label`` is a number; a list with 0, 1 or null for each of several labels; or
``{"time": 12.5, "event": true}``.

A row of a table is ``{"image": "patients.csv line 2", "row": {"age": 63, "sex": "male"}, "label": 0}``: ``image`` names
it, and ``row`` has the cells by the federation's names of the columns.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from peer.core.class_numbering import listed_names, plain_name
from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Label, Target, check_targets
from peer.core.tasks import CLASSIFYING
from peer.train.data.file_names import NAMES_SHOWN_MAX, describe_missing, named
from peer.train.data.table_rows import TableRows

SPLITS = ("training", "test")
SELF_LABELLED = frozenset({"super_resolution"})
"""Task kinds in which an image without a label is its own target."""

ENTRY_KEYS = ("image", "label", "subject", "label_values", "row")
"""Keys of an entry that are used."""
OTHER_WORDS = {
    **dict.fromkeys(("patient", "case", "participant", "person", "subjects", "patients"), "subject"),
    **dict.fromkeys(("patientid", "subjectid", "caseid", "participantid", "personid"), "subject"),
    **dict.fromkeys(("images", "img", "file", "path"), "image"),
    **dict.fromkeys(("labels", "class", "target", "mask", "seg", "segmentation"), "label"),
}
"""Keys without case and signs that mean one of them -> that one."""

SPREADSHEETS = frozenset({".xlsx", ".xls", ".ods"})
TABLES = frozenset({".csv", ".tsv", ".tab", ".txt"}) | SPREADSHEETS
"""Suffixes of tables in which people list samples, and which are not datalists."""
UNREADABLE = "sample unreadable:"
"""Prefix of the line in the worker's log about a sample that is left out."""

LabelValues: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a value in a label map and the class that it stands for; other values are classes themselves."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One entry to train on or to evaluate.

    ``name`` is the image as written in the datalist. ``label`` is a class or what another target has, a file, or None
    if the image is its own target. ``label_values`` has the classes of a label map's values. ``row`` has the values of
    a table's columns, as :meth:`TableColumn.parse` returns them; its ``images`` are empty.
    """

    name: str
    images: tuple[Path, ...]
    label: Label | Path | None
    subject: str | None = None
    label_values: LabelValues = ()
    row: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Datalist:
    """The well-formed samples of a datalist, and its problems.

    A site can train on it if ``problems`` is empty; each problem names what to correct. ``notes``
    say which samples are not used. ``unused_keys`` counts the entries with each key that is not.
    """

    training: tuple[Sample, ...] = ()
    test: tuple[Sample, ...] = ()
    unlabelled: int = 0
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    class_names: Mapping[int, str] = field(default_factory=dict)
    unused_keys: Mapping[str, int] = field(default_factory=dict)

    def counts(self, split: str) -> dict[int, int]:
        """Count the samples of each class in a split; empty if labels are files."""
        samples: tuple[Sample, ...] = getattr(self, split)
        return dict(sorted(Counter(sample.label for sample in samples if isinstance(sample.label, int)).items()))

    def subjects(self, split: str) -> set[str]:
        """Return the named subjects of ``training`` or ``test``."""
        samples: tuple[Sample, ...] = getattr(self, split)
        return {sample.subject for sample in samples if sample.subject is not None}


def inspect_datalist(
    path: Path,
    *,
    root: Path | None = None,
    task: str = "classification",
    classes: int | None = None,
    class_names: Sequence[str] = (),
    columns: Sequence[TableColumn] = (),
    target: Target = CLASS,
    with_labels: bool = True,
    learns: bool = True,
) -> Datalist:
    """Read and check a datalist.

    Args:
        root: folder that its paths are relative to; default: the datalist's folder.
        task: the federation's task kind, which determines whether a label is a class or a file.
        classes: number of classes; None leaves the labels' upper bound unchecked.
        class_names: the names that the sites have agreed on; a datalist with other ones has a problem.
        columns: the table's columns that the sites have agreed on, if the samples are its rows.
        target: what the federation predicts of a sample, if it classifies.
        with_labels: whether the samples have labels; otherwise labels are ignored.
        learns: whether a network learns from the labels; otherwise they may all be alike.

    Returns:
        The well-formed samples and all problems. No content of the file raises an error.
    """
    if path.is_dir() or path.suffix.lower() in TABLES:
        return Datalist(problems=(_how_to_import(path),))
    try:
        document = read_json(path)
    except OSError as error:
        return Datalist(problems=(f"datalist {path} cannot be read: {error.strerror}",))
    except ValueError as error:
        return Datalist(problems=(f"datalist {path} {error}",))
    if not isinstance(document, dict) or not isinstance(document.get("training"), list):
        return Datalist(
            problems=(f"datalist {path} has no list 'training'; write {{'training': [...], 'test': [...]}}",)
        )
    if not isinstance(document.get("test", []), list):
        return Datalist(problems=(f"datalist {path}: 'test' must be a list",))
    folder, unlabelled = path.parent if root is None else root, 0
    problems: list[str] = []
    task = task if with_labels else "super_resolution"
    splits: dict[str, tuple[Sample, ...]] = {}
    table = TableRows(columns)
    for split in SPLITS:
        entries = document.get(split, [])
        needed = split == "test" and task not in SELF_LABELLED
        labelled = [(index, entry) for index, entry in enumerate(entries) if not needed or _has_label(entry)]
        unlabelled += len(entries) - len(labelled)
        samples = []
        for index, entry in labelled:
            if not with_labels and isinstance(entry, Mapping):
                entry = {key: value for key, value in entry.items() if key != "label"}
            sample = _parse_entry(entry, folder, task, target, table)
            if isinstance(sample, Sample):
                samples.append(sample)
            else:
                problems.append(f"{split}[{index}]: {sample}")
        splits[split] = tuple(samples)
    if len(problems) > NAMES_SHOWN_MAX:
        problems = [*problems[:NAMES_SHOWN_MAX], f"and {len(problems) - NAMES_SHOWN_MAX} more entries of this kind"]
    bound = classes if target.kind == "class" else None
    problems += _check_samples(splits["training"], splits["test"], task, bound, target if learns else None)
    own_names = listed_names(document)
    problems += [*_other_names(own_names, class_names), *table.problems()]
    notes = (*_unused_lists(document), *_misnamed_keys(document), *_almost_shared(splits), *table.notes())
    unused = Counter(key for entry in _entries(document) for key in entry if key not in ENTRY_KEYS)
    return Datalist(splits["training"], splits["test"], unlabelled, tuple(problems), notes, own_names, unused)


def _entries(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the entries of both lists that are objects."""
    yield from (entry for split in SPLITS for entry in document.get(split, []) if isinstance(entry, Mapping))


def _misnamed_keys(document: Mapping[str, Any]) -> Iterator[str]:
    """Say of each key of the entries that seems to be one of those that are used, under another name."""
    counts: Counter[tuple[str, str]] = Counter()
    for entry in _entries(document):
        for key in entry.keys() - {*ENTRY_KEYS}:
            plain = squeezed_name(key)
            meant = plain if plain in ENTRY_KEYS else OTHER_WORDS.get(plain)
            if meant is not None and meant not in entry:
                counts[key, meant] += 1
    for (key, meant), count in counts.items():
        why = ": without it nobody sees whether a patient is in training and in test" if meant == "subject" else ""
        yield f"the key {key!r} of {count} entries is not used; call it {meant!r} if it is that{why}"


def squeezed_name(name: str) -> str:
    """Return a name of a key or a column without case and signs, as ``OTHER_WORDS`` has it."""
    return plain_name(name).replace("_", "").replace("-", "").replace(" ", "")


def _almost_shared(splits: Mapping[str, Sequence[Sample]]) -> Iterator[str]:
    """Say which subjects of training and of test have almost the same name."""
    training, test = ({sample.subject for sample in splits[split] if sample.subject} for split in SPLITS)
    plain = {plain_name(subject): subject for subject in training}
    near = sorted(f"{plain[plain_name(name)]!r} and {name!r}" for name in test - training if plain_name(name) in plain)
    if near:
        yield f"subjects of training and of test differ in case or signs alone: {named(near)}; see that they are two"


def _other_names(own: Mapping[int, str], agreed: Sequence[str]) -> Iterator[str]:
    """Say of each class that the datalist numbers otherwise than the federation."""
    for number, name in sorted(own.items()):
        if number < len(agreed) and plain_name(name) != plain_name(agreed[number]):
            yield (
                f"class {number} is {name!r} in 'labels', and {agreed[number]!r} in class_names of federation.toml; "
                "give the classes the federation's numbers"
            )


def read_json(path: Path) -> Any:
    """Read JSON in UTF-8, UTF-16 or UTF-32, with or without a byte order mark. Raises ``ValueError`` if invalid."""
    content = path.read_bytes()
    try:
        return json.loads(content, object_pairs_hook=_without_repetitions)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"is not UTF-8 in line {line}; save it as UTF-8") from error
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error


def _without_repetitions(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's pairs; raise ``ValueError`` for a key that it has twice, of which one value would be lost."""
    keys = Counter(key for key, _ in pairs)
    if len(keys) < len(pairs):
        raise ValueError(f"the key {keys.most_common(1)[0][0]!r} is twice in one object")
    return dict(pairs)


def _unused_lists(document: Mapping[str, Any]) -> Iterator[str]:
    """Say of each other list of samples that it is not used, and how they can be."""
    for key, entries in document.items():
        if key in SPLITS or not isinstance(entries, list) or not any(_is_sample(entry) for entry in entries):
            continue
        if key.casefold().startswith(("val", "dev")):
            remedy = "put them into 'training', of which [data] validation_share holds out a part"
        elif key.casefold().startswith("test"):
            remedy = "call the list 'test'"
        else:
            remedy = "the lists that count are 'training' and 'test'"
        yield f"the list {key!r} is not used (entries: {len(entries)}): {remedy}"


def _is_sample(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "image" in entry


def _how_to_import(path: Path) -> str:
    """Describe the problem of a table or folder given as a datalist, with the command that imports it."""
    kind = "folder" if path.is_dir() else "table"
    if path.suffix.lower() in SPREADSHEETS:
        return f"datalist {path} is a spreadsheet; save it as CSV and import that with `mhfl-peer data import`"
    out = path.with_name(f"{path.name}.json") if path.is_dir() else path.with_suffix(".json")
    command = f"mhfl-peer data import {shlex.quote(str(path))} --out {shlex.quote(str(out))}"
    return f"datalist {path} is a {kind}; run `{command}`, and set [data] datalist to the file that it writes"


def _has_label(entry: Any) -> bool:
    return isinstance(entry, Mapping) and "label" in entry


def _parse_entry(entry: Any, folder: Path, task: str, target: Target, table: TableRows) -> Sample | str:
    """Return the entry as a sample, or a text that says what is wrong with it."""
    if isinstance(entry, str) and task in SELF_LABELLED:
        entry = {"image": entry}
    if not isinstance(entry, Mapping):
        return "must be an object with 'image' and 'label'"
    images = entry.get("image")
    images = [images] if isinstance(images, str) else images
    if not isinstance(images, list) or not images or not all(isinstance(image, str) and image for image in images):
        return f"'image' must be a path or a list of paths, not {entry.get('image')!r}"
    label, subject = entry.get("label"), entry.get("subject")
    if task in CLASSIFYING:
        if "label" not in entry:
            wanted = "a class number (0, 1, ...)" if target.kind == "class" else f"what target = {target.kind!r} has"
            return f"{images[0]} has no 'label'; write {wanted}"
        try:
            label = target.parse(label)
        except ValueError as error:
            return f"'label' of {images[0]} {error}"
    elif not (isinstance(label, str) and label) and not (label is None and task in SELF_LABELLED):
        return f"'label' of {images[0]} must be a path, not {label!r}"
    if subject is not None and not isinstance(subject, str | int):
        return f"'subject' of {images[0]} must be a text or a number, not {subject!r}"
    try:
        label_values = _label_values(entry.get("label_values", {}))
    except ValueError as error:
        return f"'label_values' of {images[0]} {error}"
    if table.columns and not isinstance(entry.get("row"), Mapping):
        return f"{images[0]} has no 'row' with the values of the columns; run `mhfl-peer data import` on the table"
    return Sample(
        name=images[0],
        images=() if table.columns else tuple(folder / image for image in images),
        label=folder / label if isinstance(label, str) else label,
        subject=None if subject is None else str(subject),
        label_values=label_values,
        row=table.parse(images[0], entry["row"]) if table.columns else (),
    )


def _label_values(table: Any) -> LabelValues:
    """Return the pairs of an object such as ``{"255": 1}``; raise ``ValueError`` if it is not one."""
    if not isinstance(table, Mapping) or not all(
        isinstance(number, int) and not isinstance(number, bool) and number >= 0 for number in table.values()
    ):
        raise ValueError(f'must map values to classes, such as {{"255": 1}}, not {table!r}')
    try:
        return tuple((int(value), number) for value, number in table.items())
    except ValueError:
        raise ValueError(f"must map whole numbers, not {', '.join(map(repr, table))}") from None


def _check_samples(
    training: tuple[Sample, ...], test: tuple[Sample, ...], task: str, classes: int | None, target: Target | None
) -> list[str]:
    """Return the problems of the well-formed samples, one line for each kind of problem.

    Args:
        target: what a network learns of them; none where nothing is learnt.
    """
    problems = []
    if not training:
        problems.append("'training' holds no usable sample")
    files = [
        (sample, path)
        for sample in (*training, *test)
        for path in (*sample.images, *((sample.label,) if isinstance(sample.label, Path) else ()))
    ]
    missing = [describe_missing(path) for _, path in files if not path.exists()]
    if missing:
        problems.append(f"files are missing: {named(missing)}; correct the paths or set [data] root")
    if task in CLASSIFYING and any(isinstance(sample.label, int) for sample in training):
        problems += _check_classes(training, test, classes, learns=target is not None)
    shared = sorted({s.subject for s in training if s.subject} & {s.subject for s in test if s.subject})
    if shared:
        problems.append(f"subjects are in training and in test: {named(shared)}; keep each on one side")
    common = {path for sample in training for path in sample.images} & {p for sample in test for p in sample.images}
    if common and not shared:
        problems.append(f"images are in training and in test: {named(sorted(map(str, common)))}; keep each on one side")
    return problems if target is None else [*problems, *check_targets(target, [sample.label for sample in training])]


def _check_classes(
    training: tuple[Sample, ...], test: tuple[Sample, ...], classes: int | None, *, learns: bool
) -> list[str]:
    problems = []
    bound = float("inf") if classes is None else classes
    outside = [
        f"{sample.name} has {sample.label}"
        for sample in (*training, *test)
        if isinstance(sample.label, int) and not 0 <= sample.label < bound
    ]
    if outside:
        allowed = "0 or more" if classes is None else f"0 to {classes - 1}"
        problems.append(f"labels are not {allowed}: {named(outside)}; correct them or [task] classes")
    present = {sample.label for sample in training}
    if len(present) == 1 and learns:
        problems.append(f"'training' holds one class only ({next(iter(present))}); a classifier needs two")
    return problems
