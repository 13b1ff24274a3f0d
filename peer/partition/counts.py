"""Who has how much of what: the figures of a partition's table and picture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peer.partition.groups import SUBJECT, Entry, Label, class_of, rank


@dataclass(frozen=True, slots=True)
class Count:
    """How many samples, and subjects that are named, one split of a site has of a class; None is no class."""

    site: str
    split: str
    label: Label
    samples: int
    subjects: int


def counts(sites: Mapping[str, Mapping[str, Sequence[Entry]]], *, by: str = SUBJECT) -> list[Count]:
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
        rows += [Count(site, split, label, samples[label], subjects[label]) for label in labels]
    return rows
