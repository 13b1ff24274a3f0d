"""What must not be: a subject or an image that is trained on at one place and tested on, or also held, at another."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeAlias

from peer.data.datalist import named
from peer.errors import DataError
from peer.research.partition.groups import SUBJECT, Entry, image_names

Place: TypeAlias = tuple[str, str]
"""Site and split."""
Sites: TypeAlias = Mapping[str, Mapping[str, Sequence[Entry]]]
"""The entries by site and split."""


def leaks(sites: Sites, root: Path, *, across_sites: bool = True, by: str = SUBJECT) -> list[str]:
    """Who and what is at two places: one line for each kind and pair of places, empty where all is well.

    Two splits of any sites share no subject and no image, by the SHA-256 of its bytes. Nor do the same splits of two
    sites, unless they may.

    Args:
        sites: entries by site and split; subjects' names mean the same person everywhere.
        root: the folder that their paths are relative to.
        across_sites: False where sites share samples by design, as at several resolutions; then one split of two sites
            may have the same, but what one site tests on no other trains on.
        by: the key that says whose an entry is.

    Raises:
        DataError: an image cannot be read.
    """
    subjects: dict[str, set[Place]] = {}
    files: dict[Path, set[Place]] = {}
    for site, splits in sites.items():
        for split, entries in splits.items():
            for entry in entries:
                if (subject := entry.get(by)) is not None:
                    subjects.setdefault(str(subject), set()).add((site, split))
                for name in image_names(entry):
                    files.setdefault(root / name, set()).add((site, split))
    order = {(site, split): at for at, (site, split) in enumerate((s, t) for s in sites for t in sites[s])}
    return [
        *_lines(f"{by}s", subjects.items(), order, across_sites),
        *_lines("images with the same content", _contents(files), order, across_sites),
    ]


def _contents(files: Mapping[Path, set[Place]]) -> list[tuple[str, set[Place]]]:
    """The names of files with one content, and the places that have any of them."""
    sizes: dict[int, list[Path]] = {}
    contents: dict[str, list[Path]] = {}
    try:
        facts = {path: path.stat() for path in files}
        for path, fact in facts.items():
            sizes.setdefault(fact.st_size, []).append(path)
        for paths in sizes.values():
            for path in paths:
                # Files of different lengths differ: most need not be read.
                digest = _sha256(path, facts[path].st_mtime_ns) if len(paths) > 1 else str(path)
                contents.setdefault(digest, []).append(path)
    except OSError as error:
        raise DataError(
            f"image {error.filename} cannot be read: {error.strerror}", "correct the datalist or its root"
        ) from error
    return [
        (" = ".join(sorted(map(str, paths))), set().union(*(files[path] for path in paths)))
        for paths in contents.values()
    ]


@cache
def _sha256(path: Path, changed_ns: int) -> str:
    """Every file is read once, although each fold of each seed asks for it; again where it was changed meanwhile."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lines(
    what: str, found: Iterable[tuple[str, set[Place]]], order: Mapping[Place, int], across_sites: bool
) -> list[str]:
    """One line for each pair of places that share something and must not."""
    shared: dict[tuple[Place, Place], list[str]] = {}
    for name, places in found:
        for one, other in itertools.combinations(sorted(places, key=order.__getitem__), 2):
            if across_sites or one[1] != other[1]:
                shared.setdefault((one, other), []).append(name)
    return [
        f"{what} in {' and '.join(f'{split} of {site}' for site, split in pair)}: {named(sorted(names))}"
        for pair, names in sorted(shared.items(), key=lambda item: [order[place] for place in item[0]])
    ]
