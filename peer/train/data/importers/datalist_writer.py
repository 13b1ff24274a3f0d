"""The import: recognise a source, gather its samples, check and divide them, and write a datalist."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.core.targets import EVENT_NAMES
from peer.documents.data import DatalistImported, ImportedSplit
from peer.errors import DataError, DiskError, StateError, UsageError
from peer.files import write_file
from peer.train.data.copies import copy_problems
from peer.train.data.datalist import SPREADSHEETS, inspect_datalist
from peer.train.data.importers import (
    arrays_source,
    bids_source,
    dicom_source,
    folders_source,
    nnunet_source,
    table_source,
)
from peer.train.data.importers.candidates import (
    ROW,
    Candidate,
    Faults,
    ImportOptions,
    SourceContent,
    check_files,
    check_label_maps,
    divide,
    label_kind,
    number_classes,
    read_answers,
    without_repetitions,
)

LINKS, SAMPLES = "-series", "-samples"
"""Suffixes of the folders of links to DICOM files and of samples from arrays, appended to the datalist's name."""


GATHERERS = {
    "table": table_source.gather,
    "bids": bids_source.gather,
    "nnunet": nnunet_source.gather,
    "folders": folders_source.gather,
}


def import_datalist(source: Path, out: Path, options: ImportOptions, layout: str | None = None) -> DatalistImported:
    """Write the datalist of a source.

    Raises:
        DataError: the source is unusable; the message names file, line and remedy. Nothing is
            written.
        UsageError: an option is missing or does not fit the source.
        StateError: ``out`` exists.
    """
    links, samples = out.with_name(out.stem + LINKS), out.with_name(out.stem + SAMPLES)
    for path in (out, links, samples):
        if path.exists():
            raise StateError(f"{path} exists", "remove it, or name another file with --out")
    layout = layout or _recognise(source)
    if options.target.kind != "class" and layout != "table":
        kind = {"survival": "times and events", "number": "numbers"}.get(options.target.kind, "several labels")
        raise UsageError(f"--layout {layout}: only a table has {kind}", "write a table with a column of files")
    if layout != "table" and not source.is_dir():
        raise DataError(f"{source} is no folder", "name a folder, or leave --layout out")
    try:
        if layout == "dicom":
            content = dicom_source.gather(source, options, links)
        elif layout == "arrays":
            content = arrays_source.gather(source, options, samples)
        else:
            content = GATHERERS[layout](source, options)
        dicom_source.make_links(content.candidates)
        document, answer = _draft(content, source, out, options)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_file(out, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), 0o600)
        except OSError as error:
            raise DiskError(f"{out} cannot be written: {error.strerror}") from error
        classes = len(answer["classes"]) or None
        listed = inspect_datalist(out, task=content.task, classes=classes, columns=options.table, target=options.target)
        if listed.problems:
            reasons = "; ".join(filter(None, [*listed.problems, content.left_out.describe()]))
            raise DataError(f"{source} gives no usable datalist: {reasons}", "correct the source")
        answer["notes"] += [*listed.notes, *copy_problems(listed)]
    except BaseException:
        out.unlink(missing_ok=True)
        for folder in (links, samples):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return answer


def _recognise(source: Path) -> str:
    """Return the layout of a file or a folder."""
    if source.suffix.lower() in SPREADSHEETS:
        raise DataError(f"{source} is a spreadsheet", "save it as CSV in UTF-8, and import that")
    if source.is_file():
        return "table"
    if not source.is_dir():
        raise DataError(f"{source} is not there", "name a table, or a folder of images")
    if (source / "imagesTr").is_dir():
        return "nnunet"
    if (source / "participants.tsv").exists():
        return "bids"
    if arrays_source.is_layout(source):
        return "arrays"
    return "folders" if folders_source.is_layout(source) else "dicom"


def _draft(
    content: SourceContent, source: Path, out: Path, options: ImportOptions
) -> tuple[dict[str, Any], DatalistImported]:
    """Return the datalist and its description."""
    faults, shapes = Faults(options, content.left_out), Counter[str]()
    by_class = label_kind(content.task) == "class"
    candidates: list[Candidate] = without_repetitions(content.candidates, faults)
    if label_kind(content.task) == "file":
        unlabelled = [candidate for candidate in candidates if candidate.label is None]
        for candidate in unlabelled:
            content.left_out.add("no label", candidate.where)
        candidates = [candidate for candidate in candidates if candidate.label is not None]
    classes = {
        str(number): name
        for number, name in enumerate(options.classes or options.agreed_classes or content.class_names)
    }
    if options.target.kind != "class":
        classes = dict(EVENT_NAMES) if options.target.kind == "survival" else {}
        candidates = read_answers(candidates, options.target, faults)
    elif by_class:
        candidates = number_classes(candidates, options, faults)
    holds_maps = content.task == "segmentation"
    if options.label_values and not holds_maps:
        raise UsageError(f"--map: the labels of {content.task} are no label maps", "give --task segmentation")
    candidates = list(check_files(candidates, faults, shapes, label_key="label" if holds_maps else "image"))
    if holds_maps:
        candidates, count = check_label_maps(candidates, options, faults, len(classes) or None)
        classes = classes or {str(number): "" for number in range(count)}
    splits, drawn = divide(candidates, options, faults, content)
    faults.refuse()
    if by_class and options.target.kind == "class" and not (options.classes or options.agreed_classes):
        present = {candidate.class_number for candidate in candidates if candidate.class_number is not None}
        classes = {str(number): "" for number in range(max(present, default=-1) + 1)}
        absent = [number for number in classes if int(number) not in present]
        if absent:
            content.notes.append(
                f"no sample has the class {', '.join(absent)}: classes count from 0; where they have other numbers, "
                f"give --classes {','.join(map(str, sorted(present)))}"
            )
    if not splits["test"]:
        content.notes.append("no sample is for testing: models will not be evaluated")
    entries = {
        split: [_entry(candidate, out.parent, options) for candidate in samples] for split, samples in splits.items()
    }
    named = any(classes.values()) and options.target.kind == "class"
    document: dict[str, Any] = {
        "source": str(source),
        **({"labels": classes} if named else {}),
        **({"drawn": drawn} if drawn else {}),
        **entries,
    }
    answer: DatalistImported = {
        "datalist": str(out),
        "source": str(source),
        "layout": content.layout,
        "task": content.task,
        "target": options.target.kind,
        "encoding": content.encoding,
        "columns": content.columns,
        "classes": classes,
        "splits": {split: _describe(samples) for split, samples in splits.items()},
        "drawn": drawn,
        "shapes": dict(shapes.most_common()),
        "left_out": content.left_out.rows(),
        "notes": content.notes,
    }
    return document, answer


def _entry(candidate: Candidate, folder: Path, options: ImportOptions) -> dict[str, Any]:
    is_row = ROW in candidate.extra
    images = [str(path) if is_row else _relative(path, folder) for path in candidate.images]
    entry: dict[str, Any] = {"image": images[0] if len(images) == 1 else images}
    if candidate.answer is not None:
        entry["label"] = candidate.answer
    elif candidate.class_number is not None:
        entry["label"] = candidate.class_number
    elif isinstance(candidate.label, Path):
        entry["label"] = _relative(candidate.label, folder)
        if options.label_values:
            entry["label_values"] = {str(value): number for value, number in options.label_values}
    if candidate.subject is not None:
        entry["subject"] = candidate.subject
    return {**candidate.extra, **entry}


def _relative(path: Path, folder: Path) -> str:
    """Return the path relative to the datalist's folder if it lies below, else the absolute path."""
    absolute, base = Path(os.path.abspath(path)), Path(os.path.abspath(folder))
    return str(absolute.relative_to(base) if absolute.is_relative_to(base) else absolute)


def _describe(samples: Sequence[Candidate]) -> ImportedSplit:
    subjects: dict[int, set[str]] = {}
    for candidate in samples:
        if candidate.class_number is not None:
            subjects.setdefault(candidate.class_number, set()).update(filter(None, [candidate.subject]))
    present = Counter(candidate.class_number for candidate in samples if candidate.class_number is not None)
    return {
        "samples": len(samples),
        "subjects": len({candidate.subject for candidate in samples if candidate.subject is not None}),
        "unnamed": sum(candidate.subject is None for candidate in samples),
        "classes": {str(number): count for number, count in sorted(present.items())},
        "class_subjects": {str(number): len(names) for number, names in sorted(subjects.items())},
    }
