"""What a round does with its exchange: ask, drop, settle. Settling changes memory; what follows from that is
``peer.core.stages``."""

from __future__ import annotations

from collections.abc import Mapping

from peer.core import commands, exchange, pace
from peer.core.commands import Source
from peer.core.exchange import Exchange, Want
from peer.core.facts import Artifact, Purpose
from peer.core.replay import body_of
from peer.core.roster import Sha256, SiteName
from peer.core.site import IllegalTransitionError, Phase, Site

SLOW_FACTOR = 2.0
"""A peer that was too slow needs longer than we waited: the wait counts double, so that the next deadline grows."""


def open_exchange(site: Site) -> None:
    """Ask for the artifacts of the open round."""
    round, rules = site.opened.number, site.rules
    pattern = rules.pattern(round)
    _begin(site, round, "train")
    if pattern == "all_to_all":
        for origin in rules.roster.others(rules.site):
            want(site, origin, owner=origin)
    else:
        slot = rules.turn(round)
        origin = rules.holder(round, slot) if pattern == "circulate" else slot
        if origin == rules.site and (round, slot) not in site.memory.published:
            origin = slot  # it should be here, but this site had no copy to train in the round before
        if origin != rules.site:
            want(site, origin, owner=slot)
    site.enter(Phase.EXCHANGE)


def hand_back(site: Site) -> None:
    """Ask every peer for the own model after the last circulating round; nobody if it is here already."""
    rules = site.rules
    round = rules.circulating + 1
    _begin(site, round, "handback")
    if rules.holder(round, rules.site) != rules.site:
        for origin in rules.roster.others(rules.site):
            want(site, origin, owner=rules.site)
    site.enter(Phase.HANDBACK)


def _begin(site: Site, round: int, purpose: Purpose) -> None:
    pattern = "all_to_all" if purpose == "handback" else site.rules.pattern(round)
    slow_s = pace.slow_after_s(site.memory.waits_s, site.rules.pace)
    site.exchange = Exchange(round, pattern, purpose, site.now_s, slow_s)


def want(site: Site, origin: SiteName, *, owner: SiteName) -> None:
    """Wait for one artifact: take it from disk if it came before, ask for it otherwise."""
    current, kind = site.exchange, site.rules.plan.artifact
    if current is None or kind is None:
        raise IllegalTransitionError(f"method {site.rules.method} exchanges nothing")
    wanted = current.wants[origin] = Want(origin, owner, site.next_attempt(), site.now_s)
    for source in site.memory.held.values():
        if (source.origin, source.round, source.artifact.owner) == (origin, current.round, owner):
            wanted.came = source
    if origin in site.rules.without:
        wanted.dropped = "absent"
    elif wanted.came is None:
        generation = site.memory.generation
        site.emit(commands.Fetch(generation, current.round, wanted.attempt, origin, kind, current.purpose, owner))


def settle(site: Site) -> bool:
    """Drop what there is no point in waiting for; once nothing is left to wait for, choose what to go on with.

    Returns:
        Whether the exchange is over and memory holds the choice. A hand-back usually ends in an order to adopt instead.
    """
    current, rules = site.exchange, site.rules
    if current is None:
        return False
    for dropped in current.give_up(site.neighbours, rules, site.now_s):
        site.emit(commands.CancelFetch(dropped.origin, current.purpose))
    if current.purpose == "handback":
        scheduled = current.wants.get(rules.holder(current.round, rules.site))
        if not current.settled() and (scheduled is None or scheduled.came is None):
            return False
        return _bring_home(site, current)
    if current.pattern == "circulate" and current.settled() and current.wants and not current.sources():
        owner = rules.turn(current.round)
        if owner not in current.wants and owner != rules.site:
            want(site, owner, owner=owner)
            return settle(site)
    if not current.settled():
        return False
    _choose(site, current)
    return True


def _choose(site: Site, current: Exchange) -> None:
    rules, memory = site.rules, site.memory
    came, missing = current.sources(), current.missing()
    sources = came
    if current.pattern == "all_to_all":
        if rules.plan.cached:
            sources = exchange.kept_heads(rules, came=came, held=memory.held.values())
    elif not came:
        slot = rules.turn(current.round)
        here = memory.published.get((current.round, slot)) if current.pattern == "circulate" else None
        if here is not None:
            sources = (Source(rules.site, current.round, here),)
        elif current.pattern == "circulate" or current.wants:
            sources = exchange.fallback(rules, round=current.round, owner=slot, held=site.held())
    slow = "slow" in missing.values()
    waited_s = None
    if came or slow:  # who is silent or away teaches nothing of how long the living take
        waited_s = (site.now_s - current.opened_s) * (SLOW_FACTOR if slow else 1.0)
    below = current.pattern == "all_to_all" and len(came) < rules.quorum_others
    position = rules.plan.phases.index("exchange")
    site.exchange = None
    choose(site, sources, missing, position=position, waited_s=waited_s, below_quorum=below)


def choose(
    site: Site,
    sources: tuple[Source, ...],
    missing: Mapping[str, str],
    *,
    position: int,
    waited_s: float | None = None,
    below_quorum: bool = False,
) -> None:
    """Settle what the round goes on with, durably. A circulating round without any copy of its slot idles.

    Args:
        site: the site.
        sources: what the next stages use, in roster order.
        missing: who did not contribute, and why.
        position: index of the phase that is over with this.
        waited_s: how long the exchange took, for the adaptive deadline; nothing where nobody was waited for.
        below_quorum: fewer came than the federation asks for.
    """
    rules, current = site.rules, site.opened
    idle = rules.pattern(current.number) == "circulate" and not sources
    body = {
        "position": len(rules.plan.phases) - 1 if idle else position,
        "sources": body_of(sources),
        "missing": dict(missing),
        "waited_s": waited_s,
        "below_quorum": below_quorum,
    }
    site.persist("chosen", current.number, body)


def leave_out(site: Site, sha256: Sha256, reason: str) -> None:
    """Choose again without an artifact that the worker found unusable; its file goes unless something else needs it."""
    rules, opened = site.rules, site.opened
    number, missing = opened.number, dict(opened.missing)
    for source in opened.sources:
        if source.artifact.sha256 == sha256:
            site.refuse(source.origin, reason)
            missing[source.origin] = "refused"
    sources = tuple(source for source in opened.sources if source.artifact.sha256 != sha256)
    if sha256 in site.memory.held:
        site.persist("discarded", number, {"sha256": sha256})
    below = False
    if rules.pattern(number) == "all_to_all":
        exchanged = opened.position > rules.plan.phases.index("exchange")
        below = exchanged and sum(not source.fallback for source in sources) < rules.quorum_others
    elif not sources:
        held = [source for source in site.held() if source.artifact.sha256 != sha256]
        sources = exchange.fallback(rules, round=number, owner=rules.turn(number), held=held)
    choose(site, sources, missing, position=opened.position - 1, below_quorum=below)
    if sha256 not in site.memory.names():
        site.emit(commands.Discard(sha256))


def own_copy(site: Site) -> Source | None:
    """The site's own newest copy of its model in circulating rounds."""
    name = site.rules.site
    own = [source for source in site.held() if source.artifact.owner == name and source.origin == name]
    return max(own, key=lambda source: source.artifact.steps, default=None)


def adopt(site: Site, source: Source) -> None:
    """Have the worker replace the local model."""
    site.enter(Phase.ADOPT)
    memory, attempt = site.memory, site.next_attempt()
    site.emit(commands.Adopt(memory.generation, memory.committed, attempt, memory.state, source))


def come_home(site: Site, state: str, artifact: Artifact | None) -> None:
    """The own model is home, changed by a copy that came or as it was; it is the next round's where models travel."""
    round, rules = site.memory.committed, site.rules
    publish = round + 1 if rules.plan.published == "commit" and round < rules.rounds else None
    site.persist("adopted", round, {"state": state, "artifact": body_of(artifact), "publish": publish})


def _bring_home(site: Site, current: Exchange) -> bool:
    copies = {origin: wanted.came for origin, wanted in current.wants.items() if wanted.came is not None}
    wanted, own = bool(current.wants), own_copy(site)
    if own is not None:
        copies[site.rules.site] = own
    site.cancel_exchange()
    best = exchange.best_copy(copies, site.rules) if copies else None
    if wanted and (best is None or best.origin == site.rules.site):
        site.persist("slot_lost", current.round - 1)
    if best is None:
        come_home(site, "", None)
        return True
    adopt(site, best)
    return False
