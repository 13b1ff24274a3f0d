"""Arrays of many samples: ``X.npy`` with ``y.npy``, or ``X_train.npy`` with ``y_train.npy`` and so on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.errors import DataError, DiskError, UsageError
from peer.train.data.image_files import open_image
from peer.train.data.importers.candidates import SPLIT_WORDS, Candidate, ImportOptions, SourceContent, label_kind

FILE = re.compile(r"(X|y|subjects)(?:_([a-z]+))?\.npy", re.IGNORECASE)
COLOURS = (3, 4)
MEGABYTE = 1_000_000


def is_layout(source: Path) -> bool:
    """Return whether a folder holds ``X.npy`` or a part of it such as ``X_train.npy``."""
    return any(role == "x" for role, _ in _files(source))


def gather(source: Path, options: ImportOptions, samples: Path) -> SourceContent:
    """Gather one sample per index of the first axis, and write each as ``.npy`` into the folder ``samples``.

    Raises:
        DataError: an array cannot be read, has no partner of the same length, or has its channels last.
        UsageError: the task's labels are no classes.
        DiskError: the samples cannot be written.
    """
    content = SourceContent("arrays", options.task or "classification")
    if label_kind(content.task) != "class":
        raise UsageError(
            f"--layout arrays: y.npy has classes, and the labels of {content.task} are files",
            "save the samples as files, and write a table with a column of label files",
        )
    files = _files(source)
    parts = [part for role, part in files if role == "x"]
    if not parts:
        raise DataError(
            f"{source} holds no X.npy", "name the folder with X.npy and y.npy, or X_train.npy and y_train.npy"
        )
    content.subject_remedy = "save each sample's subject in subjects.npy"
    for path in sorted({*source.iterdir()} - {*files.values()}):
        if not path.name.startswith(".") or path.match(".[!_]*.npy"):
            content.left_out.add("no array named X, y or subjects", path.name)
    total = 0
    for part in parts:
        if part and part not in SPLIT_WORDS:
            raise DataError(f"{files['x', part]}: {part} is none of train, val, test", "rename it")
        images = _read(files["x", part])
        labels = _column(files, "y", part, len(images))
        subjects = _column(files, "subjects", part, len(images)) if ("subjects", part) in files else None
        _check_axes(files["x", part], images, content)
        for index, image in enumerate(images):
            path = samples / f"{files['x', part].stem}-{index:06d}.npy"
            total += _write(path, image)
            subject = None if subjects is None else subjects[index]
            where = f"{files['x', part].name}[{index}]"
            content.candidates.append(Candidate(where, (path,), labels[index], subject=subject, split=part or None))
    content.notes.append(f"{len(content.candidates)} files, {total / MEGABYTE:.1f} MB, were written to {samples}")
    return content


def _files(source: Path) -> dict[tuple[str, str], Path]:
    """Return the arrays by role, ``x``, ``y`` or ``subjects``, and part, which may be empty."""
    matches = ((path, FILE.fullmatch(path.name)) for path in sorted(source.iterdir()))
    return {(match[1].lower(), (match[2] or "").lower()): path for path, match in matches if match}


def _read(path: Path) -> NDArray[Any]:
    """Map an array into memory; raise ``DataError`` if it is not one of numbers or texts with a first axis."""
    try:
        open_image(path)  # names what is wrong with the header, such as pickled objects
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} {error}", "save it with numpy.save, as an array of numbers") from error
    if not array.ndim:
        raise DataError(f"{path} is a single value", "save an array whose first axis counts the samples")
    return array


def _column(files: dict[tuple[str, str], Path], role: str, part: str, count: int) -> list[str]:
    """Return one text per sample of an array ``(count,)`` or ``(count, 1)``."""
    path, partner = files.get((role, part)), files["x", part]
    if path is None:
        raise DataError(f"{partner} has no {role}{partner.name[1:]} beside it", "save its labels there")
    values = _read(path)
    if values.shape not in ((count,), (count, 1)):
        shape = "x".join(map(str, values.shape))
        raise DataError(f"{path} has the shape {shape}, {partner.name} {count} samples", "save one value a sample")
    values = values.reshape(-1)
    return [str(value) for value in (values.astype(np.int64) if values.dtype == bool else values).tolist()]


def _check_axes(path: Path, images: NDArray[Any], content: SourceContent) -> None:
    """Raise ``DataError`` for single values and pictures with their channels last; note signals that seem to be."""
    if images.ndim < 2:
        raise DataError(f"{path} has one axis: a sample is a single value", "save an array (samples, channels, steps)")
    if images.ndim == 4 and images.shape[-1] in (1, *COLOURS) and images.shape[1] not in (1, *COLOURS):
        raise DataError(
            f"{path} has the shape {'x'.join(map(str, images.shape))}, with its channels last",
            "save it channels first: numpy.moveaxis(X, -1, 1)",
        )
    if images.ndim == 3 and content.task == "time_series" and images.shape[1] > images.shape[2]:
        content.notes.append(
            f"{path.name}: a sample has {images.shape[1]} channels of {images.shape[2]} steps; if it is the other way "
            "round, save numpy.moveaxis(X, -1, 1)"
        )


def _write(path: Path, image: NDArray[Any]) -> int:
    """Write one sample; return its bytes."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        np.save(path, image, allow_pickle=False)
        return path.stat().st_size
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}") from error
