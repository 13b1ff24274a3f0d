"""Published maps from where samples come from to sites."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, TypeAlias

import numpy as np
from pydantic import Field

from peer.config.toml import Count, Loose, StrictTable, suggestion
from peer.data.datalist import named
from peer.errors import DataError
from peer.research.partition.groups import SUBJECT, Entry, Group, deal, rank

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
"""Institutions that the Preprocessed Connectomes Project lists as two of its 20 ids."""


def spelled(value: object) -> str:
    """A value as published maps spell it: as a site's name is, so that ``MAX_MUN`` and ``max-mun`` are one."""
    return str(value).lower().replace("_", "-")


ABIDE: Mapping[str, str] = {
    spelled(name): region
    for region, institutions in ABIDE_REGIONS.items()
    for institution in institutions
    for name in (institution, *ABIDE_SAMPLES.get(institution, ()))
}
"""The site of every institution, and of every id of the Preprocessed Connectomes Project."""

MAPPINGS: Mapping[str, Mapping[str, str]] = {"abide": ABIDE}
"""The maps that an experiment can name; their keys are :func:`spelled`."""


DRAWS_MAX = 1000  # the papers' partitions need a few; what a thousand draws do not meet is asked too much
SHARES_TOLERANCE = 1e-6

Places: TypeAlias = list[int]
"""Which groups of a sequence a site has."""


class PartitionRule(StrictTable):
    """What every kind has: ``by``, the key whose value samples share that stay together."""

    by: str = SUBJECT

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Keys that do not fit the sites, each with the reason."""
        yield from ()

    @abstractmethod
    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        """The groups of each site; ``DataError`` where the entries do not allow it."""


class Resolution(PartitionRule):
    """The same entries at every site; what differs is the input size that each site gives them."""

    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        return [list(range(len(groups))) for _ in sites]


class Ratio(PartitionRule):
    """Stratified parts with given shares of the samples, in the order of the sites."""

    shares: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Loose]

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        if len(self.shares) != len(sites):
            yield "shares", f"there are {len(self.shares)} for {len(sites)} sites; give one each"
        elif abs(sum(self.shares) - 1) > SHARES_TOLERANCE:
            yield "shares", f"add up to {sum(self.shares):g}, not 1"

    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        return deal(groups, lambda count: [share * count for share in self.shares], draw)


class Sized(PartitionRule):
    """A kind in which every site may keep exactly ``per_site`` of its samples, drawn at random."""

    per_site: Count | None = None

    def kept(self, groups: Sequence[Group], places: Places, draw: np.random.Generator) -> Places:
        """The groups that a site keeps; none where no ``per_site`` samples come together."""
        if self.per_site is None:
            return sorted(places)
        chosen, samples = [], 0
        for place in draw.permutation(np.array(places, dtype=np.int64)).tolist():
            if samples + groups[place].size <= self.per_site:
                chosen.append(place)
                samples += groups[place].size
        return sorted(chosen) if samples == self.per_site else []

    def shortage(self, site: str) -> DataError:
        """That a site cannot keep so many."""
        return DataError(
            f"per_site: no {self.per_site} samples of whole {self.by}s come together for {site!r}", "lower per_site"
        )


class Equal(Sized):
    """Stratified parts of one size: identically distributed sites."""

    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        parts = deal(groups, lambda count: [count / len(sites)] * len(sites), draw)
        return _all_kept(self, groups, parts, sites, draw)


class Key(Sized):
    """By what an entry says: the value of ``key`` is the site, or is one of a site's in a mapping.

    ``mapping`` gives the site of each value, ``published`` names one of a paper. Entries of no site are refused unless
    ``others`` drops them.
    """

    key: str = "site"
    mapping: dict[str, str] = Field(default_factory=dict)
    published: str | None = None
    others: Literal["refuse", "drop"] = "refuse"

    def problems(self, sites: Sequence[str]) -> Iterator[tuple[str, str]]:
        """A mapping that is unknown, or that leads elsewhere than to the sites."""
        if self.published is not None and self.published not in MAPPINGS:
            yield "published", f"unknown mapping {self.published!r}{suggestion(self.published, MAPPINGS)}"
        elif self.published is not None and self.mapping:
            yield "mapping", "give it, or the name of a published one, but not both"
        elif table := self.mapping if self.published is None else MAPPINGS[self.published]:
            source, reached = "published" if self.published else "mapping", set(table.values())
            for site in sorted(set(sites) - reached):
                yield source, f"gives nothing to {site!r}{suggestion(site, reached)}"
            for site in sorted(reached - set(sites)) if self.others == "refuse" else ():
                yield source, f"gives samples to {site!r}, which is no site{suggestion(site, sites)}"

    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        parts: dict[str, Places] = {site: [] for site in sites}
        foreign: Counter[str] = Counter()
        for place, group in enumerate(groups):
            found = {self._site(entries[at]) for at in group.places}
            if len(found) > 1:
                raise DataError(
                    f"{self.by} {group.name!r} is at several sites by {self.key!r}: {named(sorted(map(str, found)))}",
                    f"give its entries one {self.key}, or group them by another key with `by`",
                )
            (site,) = found
            if site in parts:
                parts[site].append(place)
            else:
                foreign[str(entries[group.places[0]].get(self.key))] += group.size
        if foreign and self.others == "refuse":
            shown = named(f"{value} ({count} entries)" for value, count in sorted(foreign.items()))
            raise DataError(
                f"entries have a {self.key!r} that belongs to no site: {shown}",
                'add it to the sites or to the mapping, or leave such entries out with others = "drop"',
            )
        return _all_kept(self, groups, list(parts.values()), sites, draw)

    def _site(self, entry: Entry) -> str | None:
        value = entry.get(self.key)
        if value is None:
            return None
        if self.published is not None:
            return MAPPINGS[self.published].get(spelled(value))
        return self.mapping.get(str(value)) if self.mapping else str(value)


class Skewed(Sized):
    """A kind that draws which site has how much of each class, until all sites can be cross-validated.

    That is when every site has ``samples_min`` samples, of as many subjects, of each of ``classes_min`` classes.
    """

    samples_min: Count = 5
    classes_min: Count = 2

    def divided(
        self, entries: Sequence[Entry], groups: Sequence[Group], sites: Sequence[str], draw: np.random.Generator
    ) -> list[Places]:
        """The first draw that suffices."""
        if without := [group.name for group in groups if None in group.labels]:
            raise DataError(
                f"labels are no classes: {named(without)}", "partition by a key, evenly or by shares, which need none"
            )
        for _ in range(DRAWS_MAX):
            parts = [self.kept(groups, places, draw) for places in self.drawn(groups, len(sites), draw)]
            poor = [site for site, places in zip(sites, parts, strict=True) if not self._suffices(groups, places)]
            if not poor:
                return parts
        exactly = f" among exactly {self.per_site}" if self.per_site else ""
        raise DataError(
            f"{DRAWS_MAX} draws gave none in which every site has {self.samples_min} samples of as many {self.by}s "
            f"of {self.classes_min} classes{exactly}; the last left too few for {named(map(repr, poor))}",
            f"lower samples_min, classes_min or per_site, {self.remedy}, or name fewer sites",
        )

    def _suffices(self, groups: Sequence[Group], places: Places) -> bool:
        holders = Counter(label for place in places for label in groups[place].labels)
        return sum(count >= self.samples_min for count in holders.values()) >= self.classes_min

    @property
    @abstractmethod
    def remedy(self) -> str:
        """The option that would make the sites less different."""

    @abstractmethod
    def drawn(self, groups: Sequence[Group], sites: int, draw: np.random.Generator) -> list[Places]:
        """One draw of the groups of each site."""


class Dirichlet(Skewed):
    """Each class spread over the sites by shares from Dir(alpha * 1): the smaller alpha, the more the sites differ.

    A subject with several classes counts as the one that most of its samples have.
    """

    alpha: Annotated[float, Field(gt=0)]

    @property
    def remedy(self) -> str:
        return "raise alpha"

    def drawn(self, groups: Sequence[Group], sites: int, draw: np.random.Generator) -> list[Places]:
        """Each class's shuffled samples cut at the cumulative shares; a group lies where its middle does."""
        classes: dict[int, Places] = {}
        for place, group in enumerate(groups):
            classes.setdefault(_class(group), []).append(place)
        parts: list[Places] = [[] for _ in range(sites)]
        for label in sorted(classes):
            shuffled = draw.permutation(np.array(classes[label]))
            sizes = np.array([groups[place].size for place in shuffled])
            cuts = np.cumsum(draw.dirichlet(np.full(sites, self.alpha))) * sizes.sum()
            homes = np.searchsorted(cuts[:-1], np.cumsum(sizes) - sizes / 2)
            for place, home in zip(shuffled.tolist(), homes.tolist(), strict=True):
                parts[home].append(place)
        return parts


class Shards(Skewed):
    """Samples sorted by class and cut into equal shards, of which every site has ``shards``, drawn at random.

    Differs from the published code: it is drawn again until all sites can be cross-validated. Of shards of 8 classes,
    sometimes all of one site are of one class.
    """

    shards: Count

    @property
    def remedy(self) -> str:
        return "raise shards"

    def drawn(self, groups: Sequence[Group], sites: int, draw: np.random.Generator) -> list[Places]:
        """Samples of one class are shuffled before they are cut; a group lies where its middle does."""
        total = sites * self.shards
        if total > len(groups):
            raise DataError(f"{len(groups)} {self.by}s make no {total} shards", "lower shards, or name fewer sites")
        order = sorted(draw.permutation(len(groups)).tolist(), key=lambda place: rank(groups[place].label))
        sizes = np.array([groups[place].size for place in order])
        shards = (np.cumsum(sizes) - sizes / 2) * total // sizes.sum()
        owners = draw.permutation(np.repeat(np.arange(sites), self.shards))
        homes = owners[shards.astype(np.int64)].tolist()
        return [[place for place, home in zip(order, homes, strict=True) if home == site] for site in range(sites)]


KINDS: Mapping[str, type[PartitionRule]] = {
    "dirichlet": Dirichlet,
    "equal": Equal,
    "key": Key,
    "ratio": Ratio,
    "resolution": Resolution,
    "shards": Shards,
}
"""The kinds by the name that an experiment gives."""


def _class(group: Group) -> int:
    label = group.label
    assert label is not None, "groups without a class were refused"
    return label


def _all_kept(
    rule: Sized, groups: Sequence[Group], parts: Sequence[Places], sites: Sequence[str], draw: np.random.Generator
) -> list[Places]:
    kept = []
    for site, places in zip(sites, parts, strict=True):
        kept.append(rule.kept(groups, places, draw))
        if places and not kept[-1]:
            raise rule.shortage(site)
    return kept
