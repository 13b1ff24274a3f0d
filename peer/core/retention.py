"""Retention of artifacts on a site's disk."""

from __future__ import annotations

from peer.core import commands, rows
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.state import SiteState


def tidy(site: SiteState, needed_before: set[Sha256]) -> None:
    """Discard artifacts that no later round, fallback or receiver can need, and those of expelled sites.

    Args:
        site: the site.
        needed_before: the digests that memory needed before the row that ended the round.
    """
    rules, memory, epoch = site.lived_rules, site.memory, site.epoch
    fetched = {name for early in site.early for name, want in early.wants.items() if want.open}
    repeated = fetched if rules.staleness else set()  # with staleness, these may send their last file again
    expelled, newest = site.rules.epochs.head.expelled, dict[SiteName, int]()
    for source in memory.received.values():
        if source.round <= memory.committed:  # one of a later round arrived early, and replaces nothing yet
            newest[source.artifact.owner] = max(newest.get(source.artifact.owner, 0), source.round)
    awaited = _awaited_digests(site)
    for digest, source in list(memory.received.items()):
        last = source.round == newest.get(source.artifact.owner)
        cached = last and (rules.plan.keeps_last_received or memory.committed < rules.circulating)
        age = memory.committed - source.round
        may_replace = last and epoch.fallback == "stale" and age < epoch.staleness_rounds_max
        used = age >= 0 or (memory.model_is_home and source.artifact.owner == rules.site)
        kept = cached or may_replace or (last and source.origin in repeated)
        if (source.origin in expelled or (used and not kept)) and digest not in awaited:
            site.persist(rows.DiscardedRow(memory.committed, sha256=digest))
    old = memory.committed - epoch.pace.artifact_rounds_max
    away = rules.circulating > 0 and not memory.model_is_home
    own = max((key for key in memory.published if key[1] == rules.site), default=None) if away else None
    if any(key[0] <= old and key != own for key in memory.published):
        site.persist(rows.RetiredRow(old, kept=own))
    for round in [round for round in memory.evaluation.lent if round <= old]:
        site.lapse(round, retired=True)
    for digest in sorted(needed_before - memory.needed_digests()):
        site.emit(commands.Discard(digest))


def drop_expelled(site: SiteState) -> None:
    """Delete artifacts of expelled sites, except those that the open round selected or the worker is loading."""
    memory, expelled = site.memory, site.rules.epochs.head.expelled
    used = () if memory.open is None else (*memory.open.sources, *memory.open.returned)
    kept = {source.artifact.sha256 for source in used} | _awaited_digests(site)
    for digest, source in list(memory.received.items()):
        adopts = site.phase == Phase.ADOPT and source.artifact.owner == site.rules.site
        if source.origin in expelled and digest not in kept and not adopts:
            site.persist(rows.DiscardedRow(site.number, sha256=digest))
            if digest not in memory.needed_digests():
                site.emit(commands.Discard(digest))


def _awaited_digests(site: SiteState) -> set[Sha256]:
    """Return the digests that arrived for an open exchange from members; memory may have them under another origin."""
    expelled = site.rules.epochs.head.expelled
    exchanges = (*site.early, *([] if site.exchange is None else [site.exchange]))
    wants = [want for each in exchanges for origin, want in each.wants.items() if origin not in expelled]
    return {want.received.artifact.sha256 for want in wants if want.received is not None}
