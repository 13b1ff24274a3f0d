"""What a round does with its exchange: ask, drop, settle. Settling changes memory; what follows from that is
``peer.core.stages``."""

from __future__ import annotations

from collections.abc import Mapping

from peer.core import commands, exchange, pace
from peer.core.commands import Source
from peer.core.exchange import Exchange, Want
from peer.core.facts import Purpose
from peer.core.replay import body_of
from peer.core.roster import SiteName
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
        Whether the exchange is over and memory holds the choice. A hand-back ends in an order to adopt instead.
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
        _bring_home(site, current)
        return False
    if current.pattern == "circulate" and current.settled() and current.wants and not current.sources():
        owner = rules.turn(current.round)
        if owner not in current.wants and owner != rules.site:
            want(site, owner, owner=owner)
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
    elif current.pattern == "circulate" and not current.wants:
        own = memory.published.get((current.round, rules.turn(current.round))) or memory.artifact
        sources = (Source(rules.site, current.round, own),) if own is not None else ()
    elif current.wants and not came:
        sources = exchange.fallback(rules, round=current.round, owner=rules.turn(current.round), held=site.held())
    waited_s = site.now_s - current.opened_s if current.wants else None
    if waited_s is not None and "slow" in missing.values():
        waited_s *= SLOW_FACTOR
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
    slot = rules.turn(current.number)
    idle = rules.pattern(current.number) == "circulate" and not sources
    if idle and slot == rules.site and site.memory.artifact is not None:
        sources, idle = (Source(rules.site, current.number, site.memory.artifact, "self"),), False
    body = {
        "position": len(rules.plan.phases) - 1 if idle else position,
        "sources": body_of(sources),
        "missing": dict(missing),
        "waited_s": waited_s,
        "below_quorum": below_quorum,
    }
    site.persist("chosen", current.number, body)


def _bring_home(site: Site, current: Exchange) -> None:
    name = site.rules.site
    copies = {origin: wanted.came for origin, wanted in current.wants.items() if wanted.came is not None}
    own = [source for source in site.held() if source.artifact.owner == name and source.origin == name]
    copies[name] = max(own, key=lambda source: source.artifact.steps)
    best = exchange.best_copy(copies, site.rules)
    wanted = bool(current.wants)
    site.cancel_exchange()
    if wanted and best.origin == name:
        site.persist("slot_lost", current.round - 1)
    site.enter(Phase.ADOPT)
    generation, attempt = site.memory.generation, site.next_attempt()
    site.emit(commands.Adopt(generation, current.round - 1, attempt, site.memory.state, best))
