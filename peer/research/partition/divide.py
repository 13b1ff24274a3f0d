"""From one pool to sites."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from peer.config import toml
from peer.config.toml import suggestion
from peer.core.seeds import derive
from peer.data.datalist import named
from peer.errors import DataError
from peer.research.partition.groups import Entry, groups_of
from peer.research.partition.kinds import KINDS, PartitionRule

WHERE = "partition"


def rule(kind: str, sites: Sequence[str], options: Mapping[str, Any], *, where: str = WHERE) -> PartitionRule:
    """The rule of that kind with these options: all that can be checked before there are entries.

    Args:
        kind: one of ``KINDS``.
        sites: the names of the sites; which site is which part depends on their order.
        options: the kind's own.
        where: what the options are called in errors.

    Raises:
        ConfigError: an unknown kind, an unknown, missing or wrong option, or sites that it does not fit.
    """
    if kind not in KINDS:
        toml.refuse(where, [f"kind: unknown partition {kind!r}{suggestion(kind, KINDS)}"])
    if twice := sorted(site for site, count in Counter(sites).items() if count > 1):
        toml.refuse(where, [f"sites: named twice: {named(twice)}"])
    if not sites:
        toml.refuse(where, ["sites: name at least one"])
    made = toml.validate(KINDS[kind], options, where)
    if problems := [f"{key}: {reason}" for key, reason in made.problems(sites)]:
        toml.refuse(where, problems)
    return made


def divide(
    entries: Sequence[Entry], kind: str, *, sites: Sequence[str], seed: int, **options: Any
) -> dict[str, list[Entry]]:
    """Give each site its entries.

    Args:
        entries: the pool, in any order.
        kind: ``dirichlet`` (``alpha``, ``samples_min``, ``classes_min``), ``shards`` (``shards``, how many a site has,
            ``samples_min``, ``classes_min``), ``key`` (``key``, ``mapping`` or ``published``, ``others``), ``equal``,
            ``ratio`` (``shares``) or ``resolution``; :mod:`peer.research.partition.kinds` explains them.
        sites: the names of the sites; which site is which part depends on their order.
        seed: another seed, another partition, except where the entries say all.
        options: the kind's own; all have ``by``, the key whose value samples share that stay together, and all but
            ``ratio`` and ``resolution`` have ``per_site``, the exact number of samples that every site keeps.

    Returns:
        The entries of each site, ordered by image, a subject's together; with ``resolution`` every site has all.

    Raises:
        ConfigError: kind, sites or options are wrong.
        DataError: these entries cannot be so divided.
    """
    made = rule(kind, sites, options)
    groups = groups_of(entries, made.by)
    wanted = getattr(made, "per_site", None) or 0
    if wanted * len(sites) > len(entries):
        raise DataError(
            f"per_site: {len(sites)} sites of {wanted} samples are more than the {len(entries)} that there are",
            "lower per_site",
        )
    parts = made.divided(entries, groups, sites, np.random.default_rng(derive(WHERE, kind, seed)))
    if empty := [site for site, places in zip(sites, parts, strict=True) if not places]:
        raise DataError(f"no sample is left for {named(map(repr, empty))}", "name fewer sites, or give more samples")
    return {
        site: [entries[at] for place in places for at in groups[place].places]
        for site, places in zip(sites, parts, strict=True)
    }
