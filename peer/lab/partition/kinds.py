"""The kinds of partitions: rules that divide a pool's groups of entries among sites."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from peer.errors import DataError
from peer.lab.partition.groups import SUBJECT, Entry, Group, rank, stratify
from peer.site.config.toml import Count, Loose, StrictTable, suggestion
from peer.train.data.file_names import named

ABIDE_REGIONS: Mapping[str, tuple[str, ...]] = {
    "europe": ("LEUVEN", "MAX_MUN", "TRINITY", "SBL"),
    "west-us": ("UCLA", "USM", "SDSU", "STANFORD", "OHSU", "CALTECH"),
    "central-us": ("UM", "PITT", "CMU"),
    "east-us": ("NYU", "YALE", "KKI", "OLIN"),
}
"""The four sites of FedASD and their 17 institutions (FedSKD, table I)."""

ABIDE_SAMPLES: Mapping[str, tuple[str, ...]] = {
    "LEUVEN": ("LEUVEN_1", "LEUVEN_2"),
    "UCLA": ("UCLA_1", "UCLA_2"),
    "UM": ("UM_1", "UM_2"),
}
"""Institutions that the Preprocessed Connectomes Project lists under two ids each."""


def canonical_spelling(value: object) -> str:
    """Spell a value as published maps do: ``MAX_MUN`` and ``max-mun`` are equal."""
    return str(value).lower().replace("_", "-")


ABIDE: Mapping[str, str] = {
    canonical_spelling(name): region
    for region, institutions in ABIDE_REGIONS.items()
    for institution in institutions
    for name in (institution, *ABIDE_SAMPLES.get(institution, ()))
}
"""The site of every institution, and of every id of the Preprocessed Connectomes Project."""

MAPPINGS: Mapping[str, Mapping[str, str]] = {"abide": ABIDE}
"""The maps that an experiment can name; their keys are in :func:`canonical_spelling`."""


DRAWS_MAX = 1000  # the papers' partitions need a few draws; more would hide impossible options
SHARES_TOLERANCE = 1e-6

GroupIndices: TypeAlias = list[int]
"""Indices into a sequence of groups: the groups of one site."""


class PartitionRule(StrictTable):
    """A kind of partition. Samples with the same value of the key ``by`` stay together."""

    by: str = SUBJECT

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the options that do not fit the sites, each with the reason."""
        yield from ()

    @abstractmethod
    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        """Divide the groups among the sites. Raise ``DataError`` if the entries do not allow it."""


class Resolution(PartitionRule):
    """All entries at every site; the sites differ in the input size at which they read them."""

    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        return [list(range(len(groups))) for _ in sites]


class Ratio(PartitionRule):
    """Stratified parts with given shares of the samples, in the order of the sites."""

    shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Loose]

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        if len(self.shares) != len(sites):
            yield "shares", f"there are {len(self.shares)} for {len(sites)} sites; give one each"
        elif abs(sum(self.shares) - 1) > SHARES_TOLERANCE:
            yield "shares", f"add up to {sum(self.shares):g}, not 1"

    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        return stratify(groups, lambda count: [share * count for share in self.shares], rng)


class Sized(PartitionRule):
    """A kind in which every site can keep a random subset of exactly ``per_site`` samples."""

    per_site: Count | None = None

    def subsample(self, groups: Sequence[Group], indices: GroupIndices, rng: np.random.Generator) -> GroupIndices:
        """Choose the groups that a site keeps; none if whole groups cannot make ``per_site`` samples."""
        if self.per_site is None:
            return sorted(indices)
        chosen_indices, samples = [], 0
        for index in rng.permutation(np.array(indices, dtype=np.int64)).tolist():
            if samples + groups[index].size <= self.per_site:
                chosen_indices.append(index)
                samples += groups[index].size
        return sorted(chosen_indices) if samples == self.per_site else []

    def shortage_error(self, site: str) -> DataError:

        return DataError(
            f"per_site: no {self.per_site} samples of whole {self.by}s come together for {site!r}", "lower per_site"
        )


class Equal(Sized):
    """Stratified parts of equal size, so that all sites have the same distribution."""

    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        parts = stratify(groups, lambda count: [count / len(sites)] * len(sites), rng)
        return _subsample_all(self, groups, parts, sites, rng)


class Key(Sized):
    """Division by each entry's value of ``key``.

    The value is the site's name, or ``mapping`` gives the site of each value, or ``published``
    names a paper's mapping. Entries of other sites are refused unless ``others`` drops them.
    """

    key: str = "site"
    mapping: dict[str, str] = Field(default_factory=dict)
    published: str | None = None
    others: Literal["refuse", "drop"] = "refuse"

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield an unknown mapping, and sites that the mapping lacks or has too many."""
        if self.published is not None and self.published not in MAPPINGS:
            yield "published", f"unknown mapping {self.published!r}{suggestion(self.published, MAPPINGS)}"
        elif self.published is not None and self.mapping:
            yield "mapping", "give it, or the name of a published one, but not both"
        elif table := self.mapping if self.published is None else MAPPINGS[self.published]:
            source, mapped_sites = "published" if self.published else "mapping", set(table.values())
            for site in sorted(set(sites) - mapped_sites):
                yield source, f"gives nothing to {site!r}{suggestion(site, mapped_sites)}"
            for site in sorted(mapped_sites - set(sites)) if self.others == "refuse" else ():
                yield source, f"gives samples to {site!r}, which is no site{suggestion(site, sites)}"

    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        parts: dict[str, GroupIndices] = {site: [] for site in sites}
        unassigned: Counter[str] = Counter()
        for index, group in enumerate(groups):
            sites_of_group = {self._site(entries[entry_index]) for entry_index in group.entry_indices}
            if len(sites_of_group) > 1:
                listed = named(sorted(map(str, sites_of_group)))
                raise DataError(
                    f"{self.by} {group.name!r} is at several sites by {self.key!r}: {listed}",
                    f"give its entries one {self.key}, or group them by another key with `by`",
                )
            (site,) = sites_of_group
            if site in parts:
                parts[site].append(index)
            else:
                unassigned[str(entries[group.entry_indices[0]].get(self.key))] += group.size
        if unassigned and self.others == "refuse":
            listed = named(f"{value} ({count} entries)" for value, count in sorted(unassigned.items()))
            raise DataError(
                f"entries have a {self.key!r} that belongs to no site: {listed}",
                'add it to the sites or to the mapping, or leave such entries out with others = "drop"',
            )
        return _subsample_all(self, groups, list(parts.values()), sites, rng)

    def _site(self, entry: Entry) -> str | None:
        value = entry.get(self.key)
        if value is None:
            return None
        if self.published is not None:
            return MAPPINGS[self.published].get(canonical_spelling(value))
        return self.mapping.get(str(value)) if self.mapping else str(value)


class Skewed(Sized):
    """A kind that draws the class distribution of each site until all sites can be cross-validated.

    They can when every site has, of each of ``classes_min`` classes, samples of ``samples_min``
    subjects.
    """

    samples_min: Count = 5
    classes_min: Count = 2

    def divide(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], rng: np.random.Generator
    ) -> list[GroupIndices]:
        """Take the first draw in which every site has enough samples."""
        if unlabelled := [group.name for group in groups if None in group.labels]:
            raise DataError(
                f"labels are no classes: {named(unlabelled)}",
                "partition by a key, evenly or by shares, which need none",
            )
        for _ in range(DRAWS_MAX):
            parts = [self.subsample(groups, indices, rng) for indices in self.draw_parts(groups, len(sites), rng)]
            short = [site for site, indices in zip(sites, parts, strict=True) if not self._suffices(groups, indices)]
            if not short:
                return parts
        exactly = f" among exactly {self.per_site}" if self.per_site else ""
        raise DataError(
            f"{DRAWS_MAX} draws gave none in which every site has {self.samples_min} samples of as many {self.by}s "
            f"of {self.classes_min} classes{exactly}; the last left too few for {named(map(repr, short))}",
            f"lower samples_min, classes_min or per_site, {self.remedy}, or name fewer sites",
        )

    def _suffices(self, groups: Sequence[Group], indices: GroupIndices) -> bool:
        holders = Counter(label for index in indices for label in groups[index].labels)
        return sum(count >= self.samples_min for count in holders.values()) >= self.classes_min

    @property
    @abstractmethod
    def remedy(self) -> str:
        """The change of an option that makes the sites more alike."""

    @abstractmethod
    def draw_parts(self, groups: Sequence[Group], sites: int, rng: np.random.Generator) -> list[GroupIndices]:
        """Draw the groups of each site once."""


class Dirichlet(Skewed):
    """Shares of each class at the sites from Dir(alpha * 1): the smaller alpha, the more non-IID the sites.

    A subject with several classes counts as the class of most of its samples.
    """

    alpha: Annotated[float, Field(gt=0)]

    @property
    def remedy(self) -> str:
        return "raise alpha"

    def draw_parts(self, groups: Sequence[Group], sites: int, rng: np.random.Generator) -> list[GroupIndices]:
        """Cut each class's shuffled samples at the cumulative shares, groups by their middles."""
        classes: dict[int, GroupIndices] = {}
        for index, group in enumerate(groups):
            classes.setdefault(_class(group), []).append(index)
        parts: list[GroupIndices] = [[] for _ in range(sites)]
        for label in sorted(classes):
            shuffled = rng.permutation(np.array(classes[label]))
            sizes = np.array([groups[index].size for index in shuffled])
            cuts = np.cumsum(rng.dirichlet(np.full(sites, self.alpha))) * sizes.sum()
            owners = np.searchsorted(cuts[:-1], np.cumsum(sizes) - sizes / 2)
            for index, owner in zip(shuffled.tolist(), owners.tolist(), strict=True):
                parts[owner].append(index)
        return parts


class Shards(Skewed):
    """Samples sorted by class and cut into equal shards; every site gets ``shards`` of them, at random.

    Differs from the published code: it draws again until all sites can be cross-validated. With
    shards of 8 classes, a draw can give a site samples of one class only.
    """

    shards: Count

    @property
    def remedy(self) -> str:
        return "raise shards"

    def draw_parts(self, groups: Sequence[Group], sites: int, rng: np.random.Generator) -> list[GroupIndices]:
        """Shuffle the samples of each class before cutting; a group's middle decides its shard."""
        total = sites * self.shards
        if total > len(groups):
            raise DataError(f"{len(groups)} {self.by}s make no {total} shards", "lower shards, or name fewer sites")
        order = sorted(rng.permutation(len(groups)).tolist(), key=lambda index: rank(groups[index].label))
        sizes = np.array([groups[index].size for index in order])
        shards = (np.cumsum(sizes) - sizes / 2) * total // sizes.sum()
        shard_owners = rng.permutation(np.repeat(np.arange(sites), self.shards))
        owners = shard_owners[shards.astype(np.int64)].tolist()
        return [[index for index, owner in zip(order, owners, strict=True) if owner == site] for site in range(sites)]


KINDS: Mapping[str, type[PartitionRule]] = {
    "dirichlet": Dirichlet,
    "equal": Equal,
    "key": Key,
    "ratio": Ratio,
    "resolution": Resolution,
    "shards": Shards,
}
"""The kinds by their names in an experiment's file."""


def _class(group: Group) -> int:
    label = group.label
    assert label is not None, "groups without a class were refused"
    return label


def _subsample_all(
    rule: Sized, groups: Sequence[Group], parts: Sequence[GroupIndices], sites: Sequence[str], rng: np.random.Generator
) -> list[GroupIndices]:
    parts_kept = []
    for site, indices in zip(sites, parts, strict=True):
        parts_kept.append(rule.subsample(groups, indices, rng))
        if indices and not parts_kept[-1]:
            raise rule.shortage_error(site)
    return parts_kept
