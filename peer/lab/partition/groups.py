"""Groups of entries that stay together, and their stratified distribution to parts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from peer.errors import DataError

Entry: TypeAlias = Mapping[str, Any]
"""An entry of a datalist: ``image``, ``label``, ``subject`` and any other key."""
Label: TypeAlias = int | None
"""A class; None if the label is a file or absent."""

SUBJECT = "subject"
SLACK = 1e-9  # the rounding error of a product such as 0.29 * 100 is less


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that stay together: their indices among all entries, and the count of each label."""

    name: str
    entry_indices: tuple[int, ...]
    labels: Mapping[Label, int]

    @property
    def size(self) -> int:
        return len(self.entry_indices)

    @property
    def label(self) -> Label:
        """The most frequent label of its entries, of equally frequent ones the lowest."""
        return min(self.labels, key=lambda label: (-self.labels[label], rank(label)))


def image_names(entry: Entry) -> tuple[str, ...]:
    """Return the paths of an entry's image. Raise ``DataError`` if it has none."""
    image = entry.get("image")
    names = [image] if isinstance(image, str) else image
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"an entry has no image: {dict(entry)!r:.200}", "give its path, or a list of paths, as 'image'")
    return tuple(names)


def class_of(entry: Entry) -> Label:
    """Return the entry's class, or whether there was an event; None if its label is another one or absent."""
    label = entry.get("label")
    if isinstance(label, dict):
        return int(bool(label.get("event")))
    return label if isinstance(label, int) and not isinstance(label, bool) else None


def rank(label: Label) -> tuple[bool, int]:
    """Return the sort key of a label: classes by number, None last."""
    return (True, 0) if label is None else (False, label)


def groups_of(entries: Sequence[Entry], by: str = SUBJECT) -> list[Group]:
    """Group the entries, in an order that does not depend on the order of the entries.

    Args:
        by: the key whose value the entries of a group share, such as ``subject`` or ``slide``; an
            entry without it is a group by itself. ``image`` splits by image, as some papers do.

    Raises:
        DataError: there is no entry, or one has no image.
    """
    if not entries:
        raise DataError("there are no entries to divide", "name a datalist that has some")
    canonical = [(image_names(entry), json.dumps(entry, sort_keys=True, default=str)) for entry in entries]
    indices_by_key: dict[str | int, list[int]] = {}
    for index in sorted(range(len(entries)), key=canonical.__getitem__):
        value = entries[index].get(by)
        indices_by_key.setdefault(index if value is None else str(value), []).append(index)
    return [
        Group(
            name=key if isinstance(key, str) else canonical[key][0][0],
            entry_indices=tuple(indices),
            labels=Counter(class_of(entries[index]) for index in indices),
        )
        for key, indices in indices_by_key.items()
    ]


def stratify(
    groups: Sequence[Group], quotas: Callable[[int], Sequence[float]], rng: np.random.Generator
) -> list[list[int]]:
    """Distribute all groups to parts: every part gets its quota of every class and of all samples.

    The classes are distributed one by one, the rarest first, as in the iterative stratification of
    Sechidis et al. 2011; within a class larger groups come first, groups of one size in random
    order. A group goes to the part that lacks a whole group of the class. Among several such parts,
    or where none lacks more than a fraction, it goes to the part that lacks most samples.

    Args:
        quotas: maps n groups, or n samples, to each part's quota; the sum is n.
        rng: shuffles groups of one size.

    Returns:
        For each part the indices of its groups in ``groups``, ascending.
    """
    shuffled = sorted(rng.permutation(len(groups)).tolist(), key=lambda index: -groups[index].size)
    holders: dict[Label, list[int]] = {}
    for index in shuffled:
        for label in groups[index].labels:
            holders.setdefault(label, []).append(index)
    parts = range(len(quotas(1)))
    group_indices: list[list[int]] = [[] for _ in parts]
    samples = [0 for _ in parts]
    label_counts: Counter[tuple[int, Label]] = Counter()
    assigned: set[int] = set()
    for label in sorted(holders, key=lambda label: (len(holders[label]), rank(label))):
        class_quotas = quotas(len(holders[label]))
        for index in holders[label]:
            if index in assigned:
                continue
            group = groups[index]
            sample_quotas = quotas(sum(samples) + group.size)
            lacking = [aim - label_counts[part, label] for part, aim in enumerate(class_quotas)]
            target = max(
                parts,
                key=lambda part: (
                    lacking[part] > 1 - SLACK,
                    lacking[part] > SLACK,
                    sample_quotas[part] - samples[part],
                ),
            )
            group_indices[target].append(index)
            samples[target] += group.size
            label_counts.update((target, other) for other in group.labels)
            assigned.add(index)
    return [sorted(indices) for indices in group_indices]


@dataclass(frozen=True, slots=True)
class SampleCount:
    """Samples and named subjects of one class in one split of a site; label None is no class."""

    site: str
    split: str
    label: Label
    samples: int
    subjects: int


def counts(sites: Mapping[str, Mapping[str, Sequence[Entry]]], *, by: str = SUBJECT) -> list[SampleCount]:
    """Count the samples of every site, split and class; a row also where there are none.

    Returns:
        Rows in the order of the given sites and splits, classes ascending.
    """
    entries_by_split = {(site, split): entries for site, splits in sites.items() for split, entries in splits.items()}
    labels = sorted({class_of(entry) for entries in entries_by_split.values() for entry in entries}, key=rank)
    rows = []
    for (site, split), entries in entries_by_split.items():
        samples = Counter(class_of(entry) for entry in entries)
        named_subjects = {(class_of(entry), str(entry[by])) for entry in entries if entry.get(by) is not None}
        subjects = Counter(label for label, _ in named_subjects)
        rows += [SampleCount(site, split, label, samples[label], subjects[label]) for label in labels]
    return rows
