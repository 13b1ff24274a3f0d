"""nnU-Net and Medical Segmentation Decathlon folders: ``dataset.json``, ``imagesTr``, ``labelsTr`` and, if labelled,
``imagesTs`` with ``labelsTs``.

nnU-Net stores each channel in its own file, ``case_0000.nii.gz``; the Decathlon stores all in one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peer.errors import DataError
from peer.train.data.datalist import read_json
from peer.train.data.importers.candidates import Candidate, ImportOptions, SourceContent
from peer.train.data.label_maps import propose_map

CHANNEL = re.compile(r"(.+)_(\d{4})")
SIDES = (("imagesTr", "labelsTr", "training"), ("imagesTs", "labelsTs", "test"))


def gather(source: Path, options: ImportOptions) -> SourceContent:
    """Gather the cases of the folder; without labelled test images, their splits must be drawn."""
    document = _description(source / "dataset.json")
    content = SourceContent("nnunet", options.task or "segmentation")
    content.class_names = _class_names(document, source, options)
    ending = document.get("file_ending", ".nii.gz")
    count = len(document.get("channel_names") or document.get("modality") or {})
    given = (source / "imagesTs").is_dir() and (source / "labelsTs").is_dir()
    for images, labels, split in SIDES:
        cases = dict(_cases(source / images, ending))
        if images == "imagesTr" and not cases:
            raise DataError(f"{source / images} holds no file *{ending}", "name the folder with dataset.json")
        for case, channels in cases.items():
            label = source / labels / f"{case}{ending}"
            where = f"{images}/{case}"
            if not label.exists():
                content.left_out.add(f"no label in {labels}", where)
            elif count and len(channels) not in (1, count):
                raise DataError(
                    f"{source / images}: {case} has {len(channels)} of {count} channels",
                    "add the missing files, or take the case out",
                )
            else:
                split_given = split if given else None
                content.candidates.append(Candidate(where, channels, label, subject=case, split=split_given))
        others = {path.name.removesuffix(ending) for path in (source / labels).glob(f"*{ending}")} - cases.keys()
        for case in sorted(case for case in others if not case.startswith(".")):
            content.left_out.add(f"no image in {images}", f"{labels}/{case}")
        for path in sorted((source / images).glob(f".[!_]*{ending}")):
            content.left_out.add("hidden file: its name begins with a dot", f"{images}/{path.name}")
    content.notes.append("a case counts as a subject: a patient with several cases may be in both splits")
    return content


def _cases(folder: Path, ending: str) -> Iterator[tuple[str, tuple[Path, ...]]]:
    """Yield each case and its files, ordered by channel."""
    paths = sorted(folder.glob(f"*{ending}")) if folder.is_dir() else []
    names = [path.name.removesuffix(ending) for path in paths if not path.name.startswith(".")]
    channelled = all(CHANNEL.fullmatch(name) for name in names) and any(name.endswith("_0000") for name in names)
    cases: dict[str, list[Path]] = {}
    for name in names:
        match = CHANNEL.fullmatch(name) if channelled else None
        cases.setdefault(match[1] if match else name, []).append(folder / f"{name}{ending}")
    for case, files in cases.items():
        yield case, tuple(files)


def _description(path: Path) -> Mapping[str, Any]:
    try:
        document = read_json(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", "name the folder with dataset.json") from error
    except ValueError as error:
        raise DataError(f"{path} {error}", "correct it") from error
    if not isinstance(document, dict):
        raise DataError(f"{path} is no JSON object", "name nnU-Net's dataset.json")
    return document


def _class_names(document: Mapping[str, Any], source: Path, options: ImportOptions) -> tuple[str, ...]:
    """Return the names of the labels 0, 1, ...; nnU-Net 2 lists them by name, the Decathlon by number."""
    labels = document.get("labels") or {}
    if any(isinstance(number, list) for number in labels.values()):
        raise DataError(
            f"{source / 'dataset.json'}: labels are regions of several values, which overlap",
            "write label maps in which a value is a class",
        )
    if "ignore" in labels:
        raise DataError(
            f"{source / 'dataset.json'}: the label `ignore` would be trained as a class",
            "write label maps without it, and take it out of dataset.json",
        )
    try:
        by_number = {int(key): str(name) for key, name in labels.items()}
    except ValueError:
        by_number = {int(number): str(name) for name, number in labels.items()}
    mapped = dict(options.label_values)
    by_number = {mapped.get(number, number): name for number, name in by_number.items()}
    if sorted(by_number) != list(range(len(by_number))):
        raise DataError(
            f"{source / 'dataset.json'}: labels are {', '.join(map(str, sorted(by_number)))}",
            f"number them 0, 1, ... without gaps, here and in the label maps, or give {propose_map(by_number)}",
        )
    return tuple(by_number[number] for number in sorted(by_number))
