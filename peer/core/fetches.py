"""Fetches for exchanges: which artifacts a site fetches, and when, beginning with the work before the exchange.

The fetches of an exchange begin with the work before it. So a site waits for an artifact only until its origin has
published it and the link has carried it: max(0, origin's end + link time - own end).

An artifact that arrives early is journalled like any other, and kept in memory under the round for which it was
published. The stages of the round in progress already have their sources, and no choice of sources looks at a later
round. When the exchange opens, it uses the arrived artifacts, takes over the fetches in progress, and only then starts
to count how long it waits for a peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from peer.core import commands, copies, exchange, liveness, rows
from peer.core.artifacts import Purpose, Source
from peer.core.exchange import Exchange, Want
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.core.state import IllegalTransitionError, SiteState

BESIDE = frozenset({Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE, Phase.ADOPT, Phase.RETURNS, Phase.PACING})
"""Phases during which the next exchange's artifacts are fetched: while the worker works, while the
site waits for peers that are behind, and while its own model comes home from its visits."""


def open_exchange(site: SiteState) -> None:
    """Request the artifacts of the open round."""
    round = site.opened.number
    _begin(site, round, "train", exchange.scheduled(site.lived_rules, site.memory.published, round))
    site.enter(Phase.EXCHANGE)


def open_masked(site: SiteState, round: int, origins: Iterable[SiteName]) -> None:
    """Request the masked artifacts of a secure sum from the members with whose keys this site has masked its own."""
    _begin(site, round, "train", [(origin, origin) for origin in origins if origin != site.rules.site])


def await_returns(site: SiteState) -> None:
    """Request this site's trained copies from the sites that its model visits."""
    round = site.opened.number
    rules = site.lived_rules
    _begin(site, round, "return", [(host, rules.site) for host in rules.hosts(round)])
    site.enter(Phase.RETURNS)


def hand_back(site: SiteState) -> None:
    """Request this site's own model after the last circulating round, unless it is here: from its holder, or from all
    peers if this site cannot tell the holder.
    """
    rules = site.lived_rules
    round = rules.circulating + 1
    holder = rules.holder(round, rules.site)
    origins: Iterable[SiteName] = [holder] if rules.knows_holder(round, rules.site) else rules.known
    _begin(site, round, "handback", [(origin, rules.site) for origin in origins if origin != rules.site])
    site.enter(Phase.HANDBACK)


def take_home(site: SiteState) -> None:
    """Request this site's model from the site that trained it last: this site leaves before the models return."""
    rules, round = site.rules, site.memory.committed + 1
    holder = rules.trained_at(round, rules.site)
    holders = [holder] if holder is not None and holder != rules.site else []
    _begin(site, round, "handback", [(each, rules.site) for each in holders])
    site.enter(Phase.HANDBACK)


def _rules(site: SiteState, round: int) -> Rules:
    """Return the rules of a round: the open round keeps its epoch, and the next one follows the chain."""
    current = site.memory.open
    return site.lived_rules if current is not None and current.number == round else site.rules


def _new_exchange(site: SiteState, round: int, purpose: Purpose) -> Exchange:
    """Build an exchange without wants; its deadline follows from the peers' times in the last rounds."""
    rules = _rules(site, round)
    pattern = "all_to_all" if purpose == "handback" else rules.pattern(round)
    kind = "return" if purpose == "return" else rules.plan.artifact
    if kind is None:
        raise IllegalTransitionError(f"method {rules.method} exchanges nothing")
    waits_s = site.memory.return_waits_s if purpose == "return" else site.memory.waits_s
    return Exchange(round, pattern, purpose, site.now_s, liveness.slow_after_s(waits_s, site.pace), kind=kind)


def _begin(
    site: SiteState,
    round: int,
    purpose: Purpose,
    artifacts: Iterable[tuple[SiteName, SiteName]],
    *,
    again: bool = False,
) -> None:
    """Open an exchange of these artifacts, as (origin, owner) pairs, and take over the fetches that began early.

    ``again``: fetch an earlier copy of a model that is here, to compare both.
    """
    current, begun = _new_exchange(site, round, purpose), dict[SiteName, Want]()
    for early in [early for early in site.early if (early.round, early.purpose, again) == (round, purpose, False)]:
        begun = early.wants
        site.early.remove(early)
    site.cancel_early(purpose=purpose)  # a site fetches one artifact of a peer for a purpose
    current.for_comparison, site.exchange = again, current
    here = _received_for(site, round)
    for origin, owner in artifacts:
        _want(site, current, origin, owner, here=here.get((origin, owner)), begun=begun.pop(origin, None))
    site.cancel_fetches(begun.values(), purpose)


def want(site: SiteState, origin: SiteName, *, owner: SiteName) -> None:
    """Wait for one more artifact in the open exchange."""
    current = site.exchange
    if current is None:
        raise IllegalTransitionError(f"no exchange is open in phase {site.phase}")
    _want(site, current, origin, owner, here=_received_for(site, current.round).get((origin, owner)))


def _received_for(site: SiteState, round: int) -> dict[tuple[SiteName, SiteName], Source]:
    """Return a round's received artifacts by origin and owner, without expelled sites', whose file may be in use."""
    expelled, received = site.rules.epochs.head.expelled, site.memory.received.values()
    arrived = (each for each in received if each.round == round and each.origin not in expelled)
    return {(each.origin, each.artifact.owner): each for each in arrived}


def _want(
    site: SiteState,
    current: Exchange,
    origin: SiteName,
    owner: SiteName,
    *,
    here: Source | None,
    begun: Want | None = None,
) -> None:
    """Wait for one artifact: use the received file if it is ``here``, fetch it otherwise.

    ``begun`` is the want whose fetch began before the exchange; the time until now does not count.
    """
    if begun is not None and (here is not None or begun.owner != owner or begun.received is not None):
        begun = None
    attempt, dropped = (site.next_attempt(), "") if begun is None else (begun.attempt, begun.dropped)
    wanted = current.add(Want(origin, owner, attempt, site.now_s, site.patience_s(origin), dropped=dropped))
    if here is not None:
        wanted.arrive(here, site.now_s)
    if origin in site.rules.without:
        wanted.drop(rows.ABSENT, site.now_s)
    elif here is None and not site.rules.has_peer(origin):
        wanted.drop(exchange.GONE, site.now_s)
    elif here is None and begun is None:
        site.emit(_fetch(site, current, wanted))


def _fetch(site: SiteState, current: Exchange, wanted: Want) -> commands.Fetch:
    """Build the order to fetch an artifact of an exchange."""
    order = (site.memory.generation, current.round, wanted.attempt)
    return commands.Fetch(*order, wanted.origin, current.kind, current.purpose, wanted.owner, site.received_bytes_max)


def ask_earlier(site: SiteState, source: Source) -> bool:
    """Fetch the copy from which a circulating copy was to be trained, so that the worker can compare both.

    Returns:
        Whether the site waits for it now: once for each copy, and not if it is at hand.
    """
    home, before = site.memory.open is None, exchange.holder_before(source, site.lived_rules)
    circulates = home or site.lived_rules.pattern(site.opened.number) == "circulate"
    if not circulates or source.fallback or before is None or copies.judges_finally(site, source):
        return False
    round, holder = before
    site.compared.add(source.artifact.sha256)
    wanted = [(holder, source.artifact.owner)]
    _begin(site, round if home else site.opened.number, "handback" if home else "train", wanted, again=True)
    site.enter(Phase.HANDBACK if home else Phase.EXCHANGE)
    return True


def order_due(site: SiteState) -> None:
    """Start the fetches of the next exchanges, and cancel those of others."""
    following = following_exchanges(site) if site.phase in BESIDE else []
    for early in [early for early in site.early if (early.round, early.purpose) not in following]:
        site.cancel_early(purpose=early.purpose)
    begun = {(early.round, early.purpose) for early in site.early}
    for round, purpose in following:
        if (round, purpose) in begun:
            continue
        here = _received_for(site, round)
        early = _new_exchange(site, round, purpose)
        site.early.append(early)
        for origin, owner in _artifacts(site, round, purpose):
            if site.rules.has_peer(origin) and (origin, owner) not in here:
                wanted = early.wants[origin] = Want(origin, owner, site.next_attempt(), site.now_s, 0.0)
                site.emit(_fetch(site, early, wanted))


def following_exchanges(site: SiteState) -> list[tuple[int, Purpose]]:
    """List round and purpose of the next exchange after the present phase.

    A round's returns are followed at once by the next round's exchange, which is fetched as early: a site that trains
    long finds both.
    """
    memory, rules = site.memory, site.rules
    if rules.site in rules.epochs.gone:
        return []
    round = memory.committed + 1
    returns: list[tuple[int, Purpose]] = []
    if memory.open is not None:
        round, position = memory.open.number + 1, memory.open.position
        for name in site.lived_rules.phases(memory.open.number)[position + 1 :]:
            if name == "exchange":
                sums = site.lived_rules.sums_in(memory.open.number)  # no artifact is masked before all keys are here
                return [] if sums else [(memory.open.number, "train")]
            if name == "returns":
                returns = [(memory.open.number, "return")]
    elif memory.joined and memory.committed < rules.first_round:
        return []  # a newcomer's first round may be far off
    home = memory.model_is_home or site.phase == Phase.ADOPT
    if round == rules.circulating + 1 > 1 and not home:
        return [*returns, (round, "handback")]
    held = rules.epoch(round).hold or rules.lacks_order(round)
    if round > rules.rounds or rules.pattern(round) == "none" or held or rules.sums_in(round):
        return returns
    return [*returns, (round, "train")]


def _artifacts(site: SiteState, round: int, purpose: Purpose) -> list[tuple[SiteName, SiteName]]:
    """List origin and owner of each artifact; the site that trained a model last hands it back."""
    rules = _rules(site, round)
    if purpose == "return":
        return [(host, rules.site) for host in rules.hosts(round)]
    if purpose == "handback":
        return [(rules.holder(round, rules.site), rules.site)]
    makes = site.memory.open is not None and site.memory.open.number < round and rules.pattern(round) == "circulate"
    if makes and rules.holder(round, rules.turn(round)) == rules.site:
        return []  # this site trains the model of the next round now
    return exchange.scheduled(rules, site.memory.published, round)
