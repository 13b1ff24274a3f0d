"""Find images that are copies of each other, under several names."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.errors import ConfigError
from peer.train.data.datalist import Datalist, Sample
from peer.train.data.file_names import named
from peer.train.data.image_files import open_image, read_values


def same_content(paths: Iterable[Path], *, values: bool = False) -> list[list[Path]]:
    """Group files by content; a folder counts as the files in it.

    Files of different sizes differ in content, so that most files are not read.

    Args:
        values: compare the values of images, whatever their container; a file that is no image counts by its bytes.
            This reads every image that has the shape of another one.

    Raises:
        OSError: a file cannot be read.
    """
    alike: dict[object, list[Path]] = {}
    contents: dict[object, list[Path]] = {}
    for path in paths:
        sizes = tuple(sorted(part.stat().st_size for part in _parts(path)))
        alike.setdefault((values and _shape(path)) or ("bytes", sizes), []).append(path)
    for group in alike.values():
        for path in group:
            digest = (values and _values(path)) or _digest(path) if len(group) > 1 else path
            contents.setdefault(digest, []).append(path)
    return list(contents.values())


def digest_values(values: NDArray[Any]) -> str:
    """Return a digest of an image's values that is the same in each container, type and order of bytes."""
    plain = np.ascontiguousarray(values.squeeze(), dtype="<f4")
    return hashlib.sha256(repr(plain.shape).encode() + plain.data).hexdigest()


def copy_problems(listed: Datalist, digests: Mapping[Path, str] | None = None, *, values: bool = False) -> list[str]:
    """Find copies of an image that are in training and in test, or that have different labels; one line per kind.

    With ``values``, as of `same_content`, or the digests of the values, copies in another container are found, too; an
    image without a digest is no copy.
    Returns nothing if a file cannot be read: its reader names it.
    """
    samples: dict[Path, Sample] = {}
    for sample in (*listed.training, *listed.test):
        samples |= {path: sample for path in sample.images if path.is_file() or path.is_dir()}
    tested = {path for sample in listed.test for path in sample.images}
    leaked, contradicted = [], []
    try:
        groups = same_content(samples, values=values) if digests is None else _alike(digests)
    except OSError:
        return []
    for paths in groups:
        names = " = ".join(sorted(map(str, paths)))
        if len(paths) < 2:
            continue
        if len({path in tested for path in paths}) > 1:
            leaked.append(names)
        elif len({_label(samples[path]) for path in paths}) > 1:
            contradicted.append(names)
    lines = []
    if leaked:
        lines.append(f"images with the same content are in training and in test: {named(leaked)}; keep one of each")
    if contradicted:
        lines.append(f"images with the same content have different labels: {named(contradicted)}; keep one of each")
    return lines


def _alike(digests: Mapping[Path, str]) -> list[list[Path]]:
    groups: dict[str, list[Path]] = {}
    for path, digest in digests.items():
        groups.setdefault(digest, []).append(path)
    return list(groups.values())


def _label(sample: Sample) -> int | None:
    """Return the class; the label maps of copies may differ, as those of two readers do."""
    return sample.label if isinstance(sample.label, int) else None


def _parts(path: Path) -> Sequence[Path]:
    return sorted(part for part in path.iterdir() if part.is_file()) if path.is_dir() else [path]


def _digest(path: Path) -> str:
    digests = [_sha256(part, part.stat().st_mtime_ns) for part in _parts(path)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def _shape(path: Path) -> tuple[int, ...] | None:
    """Return the lengths of an image's axes but those of length 1, or None for what is no image."""
    try:
        return tuple(length for length in open_image(path).shape if length != 1)
    except (ValueError, ConfigError):
        return None


def _values(path: Path) -> str | None:
    changed_ns = max((part.stat().st_mtime_ns for part in _parts(path)), default=0)
    return _digest_of_values(path, changed_ns)


@cache
def _digest_of_values(path: Path, changed_ns: int) -> str | None:
    """Compute the digest of an image's values, cached as that of its bytes; None for what cannot be read."""
    try:
        return digest_values(read_values(path, open_image(path), nan="background"))
    except (ValueError, ConfigError):
        return None


@cache
def _sha256(path: Path, changed_ns: int) -> str:
    """Compute the digest, cached, as each fold of each seed needs it. A changed file is read again."""
    if not path.is_file():  # to open a named pipe may never end
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
