"""Divide one pool of entries among sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from peer.core.seeds import derive
from peer.errors import DataError
from peer.lab.partition.groups import Entry, groups_of
from peer.lab.partition.kinds import KINDS, PartitionRule
from peer.site.config import toml
from peer.site.config.toml import suggestion
from peer.train.data.file_names import named

WHERE = "partition"


def rule(kind: str, sites: Sequence[str], options: Mapping[str, Any], *, where: str = WHERE) -> PartitionRule:
    """Build the rule of a kind and check its options; :func:`divide` checks the entries.

    Raise ``ConfigError`` if the kind is unknown, an option is unknown, missing or wrong, or the sites
    do not fit.
    """
    if kind not in KINDS:
        toml.refuse(where, [f"kind: unknown partition {kind!r}{suggestion(kind, KINDS)}"])
    if duplicates := sorted(site for site, count in Counter(sites).items() if count > 1):
        toml.refuse(where, [f"sites: named twice: {named(duplicates)}"])
    if not sites:
        toml.refuse(where, ["sites: name at least one"])
    partition_rule = toml.validate(KINDS[kind], options, where)
    if problems := [f"{key}: {reason}" for key, reason in partition_rule.problems(sites)]:
        toml.refuse(where, problems)
    return partition_rule


def divide(
    entries: Sequence[Entry], kind: str, *, sites: Sequence[str], seed: int, **options: Any
) -> dict[str, list[Entry]]:
    """Divide the entries among the sites.

    Args:
        entries: the pool, in any order.
        kind: ``dirichlet`` (``alpha``, ``samples_min``, ``classes_min``), ``shards`` (``shards`` of
            a site, ``samples_min``, ``classes_min``), ``key`` (``key``, ``mapping`` or
            ``published``, ``others``), ``equal``, ``ratio`` (``shares``) or ``resolution``.
            :mod:`peer.lab.partition.kinds` explains them.
        sites: the names of the sites; their order decides which part each site gets.
        seed: of all random choices; ``key`` without ``per_site`` and ``resolution`` make none.
        options: those of the kind. All kinds have ``by``: samples with the same value of this key
            stay together. All but ``ratio`` and ``resolution`` have ``per_site``, the exact number
            of samples that every site keeps.

    Returns:
        The entries of each site, ordered by image, those of a subject together; with ``resolution``
        every site has all entries.

    Raises:
        ConfigError: kind, sites or options are wrong.
        DataError: the entries cannot be divided like this.
    """
    partition_rule = rule(kind, sites, options)
    groups = groups_of(entries, partition_rule.by)
    per_site = getattr(partition_rule, "per_site", None) or 0
    if per_site * len(sites) > len(entries):
        raise DataError(
            f"per_site: {len(sites)} sites of {per_site} samples are more than the {len(entries)} that there are",
            "lower per_site",
        )
    parts = partition_rule.divide(entries, groups, sites, np.random.default_rng(derive(WHERE, kind, seed)))
    if empty := [site for site, indices in zip(sites, parts, strict=True) if not indices]:
        raise DataError(f"no sample is left for {named(map(repr, empty))}", "name fewer sites, or give more samples")
    return {
        site: [entries[entry_index] for index in indices for entry_index in groups[index].entry_indices]
        for site, indices in zip(sites, parts, strict=True)
    }
