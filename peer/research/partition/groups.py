"""Groups of entries that stay together, and how they are dealt to parts: stratified by class, as even as they allow."""

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
"""A class, or nothing where the label is a file or absent."""

SUBJECT = "subject"
SLACK = 1e-9  # what a product such as 0.29 * 100 may miss the whole number by


@dataclass(frozen=True, slots=True)
class Group:
    """Entries that stay together: ``places`` in the sequence that they came in, and how many have which class."""

    name: str
    places: tuple[int, ...]
    labels: Mapping[Label, int]

    @property
    def size(self) -> int:
        return len(self.places)

    @property
    def label(self) -> Label:
        """The class that most of its entries have, of equally frequent ones the lowest."""
        return min(self.labels, key=lambda label: (-self.labels[label], rank(label)))


def image_names(entry: Entry) -> tuple[str, ...]:
    """The paths of an entry's image; ``DataError`` where it has none."""
    image = entry.get("image")
    names = [image] if isinstance(image, str) else image
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) and name for name in names):
        raise DataError(f"an entry has no image: {dict(entry)!r:.200}", "give its path, or a list of paths, as 'image'")
    return tuple(names)


def class_of(entry: Entry) -> Label:
    """The entry's class; nothing where its label is a file or absent."""
    label = entry.get("label")
    return label if isinstance(label, int) and not isinstance(label, bool) else None


def rank(label: Label) -> tuple[bool, int]:
    """What classes are ordered by: their number, and last those that have no class."""
    return (True, 0) if label is None else (False, label)


def groups_of(entries: Sequence[Entry], by: str = SUBJECT) -> list[Group]:
    """The groups, in an order that does not depend on the order of the entries.

    Args:
        entries: of one pool, in which a subject's name means the same person everywhere.
        by: the key whose value the entries of a group share, such as ``subject`` or ``slide``; an entry without it is a
            group by itself. With ``image`` only an image stays together, as in papers that split by image.

    Raises:
        DataError: there is no entry, or one has no image.
    """
    if not entries:
        raise DataError("there are no entries to divide", "name a datalist that has some")
    canonical = [(image_names(entry), json.dumps(entry, sort_keys=True, default=str)) for entry in entries]
    together: dict[str | int, list[int]] = {}
    for place in sorted(range(len(entries)), key=canonical.__getitem__):
        value = entries[place].get(by)
        together.setdefault(place if value is None else str(value), []).append(place)
    return [
        Group(
            name=key if isinstance(key, str) else canonical[key][0][0],
            places=tuple(places),
            labels=Counter(class_of(entries[place]) for place in places),
        )
        for key, places in together.items()
    ]


def deal(
    groups: Sequence[Group], wanted: Callable[[int], Sequence[float]], draw: np.random.Generator
) -> list[list[int]]:
    """Deal all groups to parts: every part gets its quota of every class, and parts are as large as they should be.

    Class by class, the rarest first, as in the iterative stratification of Sechidis et al. 2011; larger groups before
    smaller ones, otherwise at random. A group goes to the part that lacks a whole group of the class; among several, or
    where none lacks more than a fraction, to the one with the fewest samples for its share so far.

    Args:
        groups: each may hold several classes.
        wanted: how many of n groups, or of n samples, each part should have; the sum is n.
        draw: shuffles groups of one size.

    Returns:
        For each part the places of its groups in ``groups``, ascending.
    """
    shuffled = sorted(draw.permutation(len(groups)).tolist(), key=lambda place: -groups[place].size)
    holders: dict[Label, list[int]] = {}
    for place in shuffled:
        for label in groups[place].labels:
            holders.setdefault(label, []).append(place)
    parts = range(len(wanted(1)))
    dealt: list[list[int]] = [[] for _ in parts]
    samples = [0 for _ in parts]
    held: Counter[tuple[int, Label]] = Counter()
    done: set[int] = set()
    for label in sorted(holders, key=lambda label: (len(holders[label]), rank(label))):
        aims = wanted(len(holders[label]))
        for place in holders[label]:
            if place in done:
                continue
            group = groups[place]
            due = wanted(sum(samples) + group.size)
            rooms = [aim - held[part, label] for part, aim in enumerate(aims)]
            chosen = max(
                parts, key=lambda part: (rooms[part] > 1 - SLACK, rooms[part] > SLACK, due[part] - samples[part])
            )
            dealt[chosen].append(place)
            samples[chosen] += group.size
            held.update((chosen, other) for other in group.labels)
            done.add(place)
    return [sorted(places) for places in dealt]


@dataclass(frozen=True, slots=True)
class SampleCount:
    """How many samples, and subjects that are named, one split of a site has of a class; None is no class."""

    site: str
    split: str
    label: Label
    samples: int
    subjects: int


def counts(sites: Mapping[str, Mapping[str, Sequence[Entry]]], *, by: str = SUBJECT) -> list[SampleCount]:
    """A row for every site, split and class, also where there is nothing, so that rows make a full table.

    Args:
        sites: entries by site and split.
        by: the key that says whose an entry is.

    Returns:
        Sites and splits in the order that they are given in, classes ascending.
    """
    entries = {(site, split): found for site, splits in sites.items() for split, found in splits.items()}
    labels = sorted({class_of(entry) for found in entries.values() for entry in found}, key=rank)
    rows = []
    for (site, split), found in entries.items():
        samples = Counter(class_of(entry) for entry in found)
        named = {(class_of(entry), str(entry[by])) for entry in found if entry.get(by) is not None}
        subjects = Counter(label for label, _ in named)
        rows += [SampleCount(site, split, label, samples[label], subjects[label]) for label in labels]
    return rows
