"""Copies of circulating models on a site's disk: which the worker compares, and which it adopts."""

from __future__ import annotations

from peer.core import exchange, limits
from peer.core.artifacts import Source
from peer.core.site_memory import OpenRound
from peer.core.state import SiteState


def own_copy(site: SiteState) -> Source | None:
    """Return the best-trained copy of this site's own model from its own disk, in circulating rounds, or None."""
    name = site.lived_rules.site
    own = [source for source in site.artifacts_on_disk() if source.artifact.owner == name and source.origin == name]
    return max(own, key=lambda source: exchange.trained(source, site.lived_rules), default=None)


def judges_finally(site: SiteState, source: Source) -> bool:
    """Return whether no better copy for a comparison can be fetched."""
    before = exchange.holder_before(source, site.lived_rules)
    asked = source.artifact.sha256 in site.compared
    at_hand = before in {(copy.round, copy.origin) for copy in _copies(site, source)}
    return before is None or before[1] == site.lived_rules.site or at_hand or asked


def earlier_copy(site: SiteState, source: Source) -> Source | None:
    """Return the newest local copy of a circulating model older than ``source`` and of another origin, or None."""
    earlier = [copy for copy in _copies(site, source) if copy.round < source.round and copy.origin != source.origin]
    return max(earlier, key=lambda copy: copy.round, default=None)


def _copies(site: SiteState, source: Source) -> list[Source]:
    """List the copies of a circulating model on disk, each with the round it was published for."""
    published = [Source(site.lived_rules.site, key[0], artifact) for key, artifact in site.memory.published.items()]
    copies = (*site.memory.received.values(), *published)
    return [copy for copy in copies if copy.artifact.owner == source.artifact.owner]


def comparison(site: SiteState, source: Source) -> tuple[Source | None, bool]:
    """Return the copy with which the worker compares a circulating copy, and whether that decides; None for a
    replacement.
    """
    if source.origin == site.lived_rules.site or source.fallback:
        return None, True
    return earlier_copy(site, source), judges_finally(site, source)


def made_up_rounds(current: OpenRound) -> int:
    """Return the rounds of work for a circulating model, including rounds lost with a copy that was left out."""
    lost = [current.number - source.round for source in current.sources if source.fallback]
    left_out = not {"refused", "declined", "lost", "unused"}.isdisjoint(current.missing.values())
    return min(limits.MADE_UP_ROUNDS_MAX, 1 + max(lost, default=0)) if left_out else 1
