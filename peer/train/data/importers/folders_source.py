"""Class folders: ``benign/*.png``, or ``train/benign/*.png`` beside ``test/benign/*.png``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from peer.errors import UsageError
from peer.train.data.image_files import ARRAYS, DICOM, FORMATS, file_ending
from peer.train.data.importers.candidates import SPLIT_WORDS, Candidate, ImportOptions, SourceContent, label_kind

FILES = frozenset({*FORMATS, *ARRAYS}) - {""}
"""Endings of files that are a sample each."""
MASKS = frozenset({"annotations", "label", "labels", "mask", "masks", "segmentation", "segmentations"})
"""Names of folders of label maps, in lower case."""


def is_layout(source: Path) -> bool:
    """Return whether a folder holds class folders with images. With DICOM in them it may be an export of a PACS."""
    outer = _folders(source)
    folders = [*outer, *(inner for folder in outer for inner in _folders(folder))]
    endings = {file_ending(path) for folder in folders for path in folder.iterdir() if path.is_file()}
    return bool(endings & FILES) and not endings & {*DICOM}


def gather(source: Path, options: ImportOptions) -> SourceContent:
    """Gather one sample per file of each class folder; a folder of DICOM slices is one sample.

    Raises:
        UsageError: the task's labels are no classes, the source has no class folder, or a name
            does not fit ``--subject-pattern``.
    """
    content = SourceContent("folders", options.task or "classification")
    if label_kind(content.task) != "class":
        raise UsageError(
            f"--layout folders: the labels of {content.task} are files, and a folder is a class",
            "write a table with a column of label files",
        )
    folders = _folders(source)
    if {folder.name.casefold() for folder in folders} & MASKS:
        raise UsageError(
            f"{source} has a folder of label maps, which is no class",
            "write a table with the columns file and mask, and import that with --column label=mask",
        )
    content.subject_remedy = "name subjects with --subject-pattern, such as '(P[0-9]+)_'"
    splits = [folder for folder in folders if folder.name.casefold() in SPLIT_WORDS]
    for other in [folder for folder in folders if splits and folder not in splits]:
        content.left_out.add("a folder beside those of splits", other.name)
    for side in splits or [source]:
        for path in sorted(side.iterdir()):
            if path.is_file() and file_ending(path) in FILES:
                content.left_out.add("not in the folder of a class", str(path.relative_to(source)))
        for folder in _folders(side):
            for path in _samples(folder, content, source):
                subject = _subject(path.relative_to(folder), options)
                split = side.name if splits else None
                content.candidates.append(
                    Candidate(str(path.relative_to(source)), (path,), folder.name, subject=subject, split=split)
                )
    if not content.candidates:
        left_out = content.left_out.describe()
        raise UsageError(
            f"{source} has no image in the folder of a class{f': {left_out}' if left_out else ''}",
            "name the folder whose folders are classes, or splits with such folders",
        )
    return content


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _samples(folder: Path, content: SourceContent, source: Path) -> Iterator[Path]:
    """Yield the files of a class, also in folders below; a folder of DICOM slices instead of its files."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            if file_ending(path) in FILES and not path.name.startswith("._"):  # which macOS writes beside each file
                content.left_out.add("hidden file: its name begins with a dot", str(path.relative_to(source)))
            continue
        if path.is_dir():
            is_series = any(file.suffix.lower() == ".dcm" for file in path.iterdir())
            yield from [path] if is_series else _samples(path, content, source)
        elif file_ending(path) in FILES:
            yield path
        else:
            content.left_out.add(f"no image: *{path.suffix}", str(path.relative_to(source)))


def _subject(path: Path, options: ImportOptions) -> str | None:
    """Return what ``--subject-pattern`` matches in the path below the class folder: its first group, if it has one."""
    if options.subject_pattern is None:
        return None
    match = re.search(options.subject_pattern, str(path))
    if match is None or not match[min(match.re.groups, 1)]:
        raise UsageError(
            f"--subject-pattern {options.subject_pattern}: there is no such text in {path}", "correct the pattern"
        )
    return match[min(match.re.groups, 1)]
