"""Leaks: subjects or images that are both in training and test data, or at two sites."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from peer.errors import DataError
from peer.lab.partition.groups import SUBJECT, Entry, image_names
from peer.train.data.copies import same_content
from peer.train.data.file_names import named

SiteSplit: TypeAlias = tuple[str, str]
"""Site and split."""
Sites: TypeAlias = Mapping[str, Mapping[str, Sequence[Entry]]]
"""The entries by site and split."""


def leaks(sites: Sites, root: Path, *, across_sites: bool = True, by: str = SUBJECT, values: bool = False) -> list[str]:
    """Find the subjects and images that are in two splits: a line for each pair of splits, empty if none.

    Two splits of one or two sites must not share a subject or an image.

    Args:
        sites: entries by site and split; subjects' names mean the same person everywhere.
        across_sites: False if sites share samples by design, as at several resolutions. Then the
            same split of two sites may share samples, but no site may train on test samples of
            another.
        values: compare images by their values and not by their bytes, as `same_content` does.

    Raises:
        DataError: an image cannot be read.
    """
    subjects: dict[str, set[SiteSplit]] = {}
    files: dict[Path, set[SiteSplit]] = {}
    for site, splits in sites.items():
        for split, entries in splits.items():
            for entry in entries:
                if (subject := entry.get(by)) is not None:
                    subjects.setdefault(str(subject), set()).add((site, split))
                for name in () if "row" in entry else image_names(entry):
                    files.setdefault(root / name, set()).add((site, split))
    order = {(site, split): rank for rank, (site, split) in enumerate((s, t) for s in sites for t in sites[s])}
    return [
        *_describe(f"{by}s", subjects.items(), order, across_sites),
        *_describe("images with the same content", _contents(files, values), order, across_sites),
    ]


def _contents(files: Mapping[Path, set[SiteSplit]], values: bool) -> list[tuple[str, set[SiteSplit]]]:
    """Return the names of all files with the same content, and the splits that have any of them."""
    try:
        groups = same_content(files, values=values)
    except OSError as error:
        raise DataError(
            f"image {error.filename} cannot be read: {error.strerror}", "correct the datalist or its root"
        ) from error
    return [(" = ".join(sorted(map(str, paths))), set().union(*(files[path] for path in paths))) for paths in groups]


def _describe(
    category: str,
    splits_by_name: Iterable[tuple[str, set[SiteSplit]]],
    order: Mapping[SiteSplit, int],
    across_sites: bool,
) -> list[str]:
    """Describe, a line each, the pairs of splits that share something and must not."""
    shared: dict[tuple[SiteSplit, SiteSplit], list[str]] = {}
    for name, site_splits in splits_by_name:
        for first, second in itertools.combinations(sorted(site_splits, key=order.__getitem__), 2):
            if across_sites or first[1] != second[1]:
                shared.setdefault((first, second), []).append(name)
    return [
        f"{category} in {' and '.join(f'{split} of {site}' for site, split in pair)}: {named(sorted(names))}"
        for pair, names in sorted(shared.items(), key=lambda item: [order[site_split] for site_split in item[0]])
    ]
