"""The import: recognise a source, gather its samples, check and divide them, and write a datalist."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.documents.data import DatalistImported, ImportedSplit
from peer.errors import DataError, DiskError, StateError
from peer.files import write_file
from peer.train.data.copies import copy_problems
from peer.train.data.datalist import SPREADSHEETS, inspect_datalist
from peer.train.data.importers import bids_source, dicom_source, nnunet_source, table_source
from peer.train.data.importers.candidates import (
    Candidate,
    Faults,
    ImportOptions,
    SourceContent,
    check_files,
    divide,
    label_kind,
    number_classes,
    without_repetitions,
)

LAYOUTS = ("table", "bids", "nnunet", "dicom")
LINKS = "-series"
"""Suffix of the folder of links to DICOM files, appended to the datalist's name."""


def import_datalist(source: Path, out: Path, options: ImportOptions, layout: str | None = None) -> DatalistImported:
    """Write the datalist of a source.

    Raises:
        DataError: the source is unusable; the message names file, line and remedy. Nothing is
            written.
        UsageError: an option is missing or does not fit the source.
        StateError: ``out`` exists.
    """
    links = out.with_name(out.stem + LINKS)
    for path in (out, links):
        if path.exists():
            raise StateError(f"{path} exists", "remove it, or name another file with --out")
    content = _gather(source, layout or _recognise(source), options, links)
    try:
        dicom_source.make_links(content.candidates)
        document, answer = _draft(content, source, out, options)
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            write_file(out, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode(), 0o600)
        except OSError as error:
            raise DiskError(f"{out} cannot be written: {error.strerror}") from error
        listed = inspect_datalist(out, task=content.task, classes=len(answer["classes"]) or None)
        if listed.problems:
            reasons = "; ".join(filter(None, [*listed.problems, content.left_out.describe()]))
            raise DataError(f"{source} gives no usable datalist: {reasons}", "correct the source")
        answer["notes"] += copy_problems(listed)
    except BaseException:
        out.unlink(missing_ok=True)
        shutil.rmtree(links, ignore_errors=True)
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
    return "bids" if (source / "participants.tsv").exists() else "dicom"


def _gather(source: Path, layout: str, options: ImportOptions, links: Path) -> SourceContent:
    if layout == "dicom":
        return dicom_source.gather(source, options, links)
    if layout == "bids":
        return bids_source.gather(source, options)
    return nnunet_source.gather(source, options) if layout == "nnunet" else table_source.gather(source, options)


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
    classes = {str(number): name for number, name in enumerate(options.classes or content.class_names)}
    if by_class:
        candidates = number_classes(candidates, options, faults)
    label_key = "label" if content.task == "segmentation" else "image"
    candidates = list(check_files(candidates, faults, shapes, label_key=label_key))
    splits, drawn = divide(candidates, options, faults, content.notes)
    faults.refuse()
    if by_class and not options.classes:
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
    entries = {split: [_entry(candidate, out.parent) for candidate in samples] for split, samples in splits.items()}
    named = any(classes.values())
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


def _entry(candidate: Candidate, folder: Path) -> dict[str, Any]:
    images = [_relative(path, folder) for path in candidate.images]
    entry: dict[str, Any] = {"image": images[0] if len(images) == 1 else images}
    if candidate.class_number is not None:
        entry["label"] = candidate.class_number
    elif isinstance(candidate.label, Path):
        entry["label"] = _relative(candidate.label, folder)
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
