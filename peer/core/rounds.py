"""What a round does with its exchange: ask, drop, settle. Settling changes memory; what follows from that is
``peer.core.rounds``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peer.core import commands, exchange, global_test, liveness, rows
from peer.core.commands import Source
from peer.core.exchange import Exchange, Want
from peer.core.messages import Artifact, Purpose, Seen
from peer.core.phases import BUSY, Phase
from peer.core.roster import Sha256, SiteName
from peer.core.state import IllegalTransitionError, SiteState

SLOW_FACTOR = 2.0
"""A peer that was too slow needs longer than we waited: the wait counts double, so that the next deadline grows."""


def open_exchange(site: SiteState) -> None:
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


def hand_back(site: SiteState) -> None:
    """Ask every peer for the own model after the last circulating round; nobody if it is here already."""
    rules = site.rules
    round = rules.circulating + 1
    _begin(site, round, "handback")
    if rules.holder(round, rules.site) != rules.site:
        for origin in rules.roster.others(rules.site):
            want(site, origin, owner=rules.site)
    site.enter(Phase.HANDBACK)


def _begin(site: SiteState, round: int, purpose: Purpose) -> None:
    pattern = "all_to_all" if purpose == "handback" else site.rules.pattern(round)
    slow_s = liveness.slow_after_s(site.memory.waits_s, site.rules.pace)
    site.exchange = Exchange(round, pattern, purpose, site.now_s, slow_s)


def want(site: SiteState, origin: SiteName, *, owner: SiteName) -> None:
    """Wait for one artifact: take it from disk if it came before, ask for it otherwise."""
    current, kind = site.exchange, site.rules.plan.artifact
    if current is None or kind is None:
        raise IllegalTransitionError(f"method {site.rules.method} exchanges nothing")
    wanted = current.wants[origin] = Want(origin, owner, site.next_attempt(), site.now_s)
    for source in site.memory.held.values():
        if (source.origin, source.round, source.artifact.owner) == (origin, current.round, owner):
            wanted.came = source
    if origin in site.rules.without:
        wanted.dropped = exchange.ABSENT
    elif wanted.came is None:
        generation = site.memory.generation
        site.emit(commands.Fetch(generation, current.round, wanted.attempt, origin, kind, current.purpose, owner))


def settle(site: SiteState) -> bool:
    """Drop what there is no point in waiting for; once nothing is left to wait for, choose what to go on with.

    Returns:
        Whether the exchange is over and memory holds the choice. A hand-back usually ends in an order to adopt instead.
    """
    current, rules = site.exchange, site.rules
    if current is None:
        return False
    for dropped in current.give_up(site.peers, rules, site.now_s):
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


def _choose(site: SiteState, current: Exchange) -> None:
    rules, memory = site.rules, site.memory
    came, missing = current.sources(), current.missing()
    sources = came
    if current.pattern == "all_to_all":
        if rules.plan.keeps_last_received:
            sources = exchange.last_received(rules, came=came, held=memory.held.values())
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
    site: SiteState,
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
    row = rows.ChosenRow(
        current.number,
        position=len(rules.plan.phases) - 1 if idle else position,
        sources=sources,
        missing=dict(missing),
        waited_s=waited_s,
        below_quorum=below_quorum,
    )
    site.persist(row)


def leave_out(site: SiteState, sha256: Sha256, reason: str) -> None:
    """Choose again without an artifact that the worker found unusable; its file goes unless something else needs it."""
    rules, opened = site.rules, site.opened
    number, missing = opened.number, dict(opened.missing)
    for source in opened.sources:
        if source.artifact.sha256 == sha256:
            site.refuse(source.origin, reason)
            missing[source.origin] = "refused"
    sources = tuple(source for source in opened.sources if source.artifact.sha256 != sha256)
    if sha256 in site.memory.held:
        site.persist(rows.DiscardedRow(number, sha256=sha256))
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


def own_copy(site: SiteState) -> Source | None:
    """The site's own newest copy of its model in circulating rounds."""
    name = site.rules.site
    own = [source for source in site.held() if source.artifact.owner == name and source.origin == name]
    return max(own, key=lambda source: source.artifact.steps, default=None)


def adopt(site: SiteState, source: Source) -> None:
    """Have the worker replace the local model."""
    site.enter(Phase.ADOPT)
    memory, attempt = site.memory, site.next_attempt()
    site.emit(commands.Adopt(memory.generation, memory.committed, attempt, memory.state, source))


def remember_home(site: SiteState, state: str = "", artifact: Artifact | None = None) -> None:
    """Write down that the own model is home; without a state it is as it was before it circulated."""
    round, rules = site.memory.committed, site.rules
    publish = round + 1 if rules.plan.published == "commit" and round < rules.rounds else None
    site.persist(rows.AdoptedRow(round, state=state, artifact=artifact, publish=publish))


def _bring_home(site: SiteState, current: Exchange) -> bool:
    copies = {origin: wanted.came for origin, wanted in current.wants.items() if wanted.came is not None}
    wanted, own = bool(current.wants), own_copy(site)
    if own is not None:
        copies[site.rules.site] = own
    site.cancel_exchange()
    best = exchange.best_copy(copies, site.rules) if copies else None
    if wanted and (best is None or best.origin == site.rules.site):
        site.persist(rows.SlotLostRow(current.round - 1))
    if best is None:
        remember_home(site)
        return True
    adopt(site, best)
    return False


def go_on(site: SiteState) -> None:
    """Do what comes next. Everything that matters is read from memory, so a restart goes on where it was."""
    site.cancel_exchange()
    memory, rules = site.memory, site.rules
    if not memory.state:
        site.enter(Phase.INITIALISING)
        site.emit(commands.Initialise(memory.generation, site.next_attempt()))
        return
    site.publish_due()
    circulated = 0 < rules.circulating == memory.committed
    if memory.finished:
        site.enter(Phase.DONE)
        check_done(site)
    elif memory.open is not None:
        next_phase(site)
    elif circulated and not memory.home:
        hand_back(site)
        review(site)
    elif circulated and rules.evaluates(memory.committed) and not memory.measured:
        _evaluate(site, memory.committed, memory.state)
    elif memory.committed == 0 and rules.plan.pattern != "none":
        site.enter(Phase.GATHERING)
        check_gathered(site)
    else:
        set_pace(site)


def review(site: SiteState) -> None:
    """Look at the exchange; go on if it is over."""
    if settle(site):
        go_on(site)


def check_gathered(site: SiteState) -> None:
    """Begin round 1 once everybody answered, after ``gather_s``, or when others have begun.

    Peers that have begun do without the site that is missing here; to wait for that site would hold them up, too.
    """
    gather_s, others = site.rules.pace.gather_s, site.rules.others
    waited = gather_s is not None and site.now_s >= site.peers.began_s + gather_s
    begun = len(site.peers.begun) >= site.rules.witnesses_of_a_start
    if waited or begun or len(site.greeted) == len(others):
        set_pace(site)


def set_pace(site: SiteState) -> None:
    """Between rounds: finish, wait for the others, jump after them, or open the next round."""
    rules, memory = site.rules, site.memory
    if site.phase != Phase.ISOLATED:
        site.enter(Phase.PACING)
    if memory.committed >= rules.rounds:
        site.persist(rows.FinishedRow(memory.committed))
        go_on(site)
        return
    if rules.plan.pattern == "none" or not rules.others:
        open_round(site, memory.committed + 1)
        return
    present = site.peers.present(rules.others, site.now_s)
    if not present and not _alone(site):
        return
    site.alone = not present
    site.enter(Phase.PACING)
    rounds = site.peers.rounds(rules.others, site.now_s)
    middle = liveness.lower_median(rounds)
    following = memory.committed + 1
    if middle is not None and rules.circulating < following < middle - rules.pace.lag_rounds_max:
        ahead = sum(round >= middle for round in rounds)
        if ahead >= min(2, len(rules.others)):
            following = _jump(site, min(middle, rules.rounds))
    if middle is None or following <= middle + rules.pace.lead_rounds_max:
        open_round(site, following)


def _jump(site: SiteState, round: int) -> int:
    """Leave out the rounds that the others have passed; the newest own artifact serves the round that comes now."""
    publish = round if site.rules.plan.published == "commit" else None
    site.persist(rows.SkippedRow(round, first=site.memory.committed + 1, publish=publish))
    site.publish_due()
    return round


def _alone(site: SiteState) -> bool:
    """Whether to go on although nobody is heard: only after ``isolated_s`` of isolation."""
    if site.alone:
        return True
    if not all(site.peers.silent(name, site.now_s) for name in site.rules.others):
        return False
    if site.phase != Phase.ISOLATED:
        site.persist(rows.IsolatedRow(site.memory.committed))
        site.enter(Phase.ISOLATED)
        return False
    return site.now_s >= site.since_s + site.rules.pace.isolated_s


def open_round(site: SiteState, round: int) -> None:
    """Begin a round; a method that keeps the last received artifacts uses them from its first stage on."""
    keeps, held = site.rules.plan.keeps_last_received, site.memory.held.values()
    sources = exchange.last_received(site.rules, came=(), held=held) if keeps else ()
    site.persist(rows.OpenedRow(round, sources=sources))
    next_phase(site)


def next_phase(site: SiteState) -> None:
    """Enter the plan's next phase of the open round, or end the round."""
    current, rules, memory = site.opened, site.rules, site.memory
    circulates = rules.pattern(current.number) == "circulate"
    site.progress = None
    if current.position == len(rules.plan.phases):
        if rules.evaluates(current.number) and not circulates and not current.evaluated:
            _evaluate(site, current.number, current.state, current.sources)
        else:
            commit(site)
        return
    name = rules.plan.phases[current.position]
    order = (memory.generation, current.number)
    if name == "exchange":
        open_exchange(site)
        review(site)
    elif name == "aggregate":
        site.enter(Phase.AGGREGATE)
        site.emit(commands.Aggregate(*order, site.next_attempt(), current.state, current.sources))
    else:
        slot = rules.turn(current.number) if circulates else None
        stage = name.removeprefix("train:")
        site.enter(Phase.TRAIN)
        site.emit(commands.Train(*order, site.next_attempt(), stage, current.state, current.sources, slot))


def _evaluate(site: SiteState, round: int, base: str, sources: tuple[Source, ...] = ()) -> None:
    site.enter(Phase.EVALUATE)
    cached = sources if site.rules.plan.keeps_last_received else ()
    lent = site.rules.lends(round)
    site.emit(commands.Evaluate(site.memory.generation, round, site.next_attempt(), base, cached, lent))


def commit(site: SiteState) -> None:
    """End the round: one row that holds all of it, then what follows from it."""
    current, rules, memory = site.opened, site.rules, site.memory
    round, artifact, needed = current.number, current.artifact, memory.names()
    visiting = rules.pattern(round) == "circulate" and rules.turn(round) != rules.site
    last = rules.circulating if rules.pattern(round) == "circulate" else rules.rounds
    consumed = rules.plan.published == "commit" and (visiting or round < last)
    row = rows.CommittedRow(
        round,
        generation=memory.generation,
        sources=tuple(
            rows.UsedSource(source.origin, source.round, source.artifact.sha256, source.fallback)
            for source in current.sources
        ),
        contributors=tuple(sorted({rules.site, *(source.origin for source in current.sources)})),
        missing=dict(current.missing),
        below_quorum=current.below_quorum,
        skipped=tuple(memory.skipped),
        artifact_sha256=artifact.sha256 if artifact is not None else None,
        aggregate_sha256=current.aggregate,
        metrics=dict(current.metrics),
        threads=current.threads,
        duration_s=current.duration_s,
        state=current.state,
        publish=round + 1 if consumed and artifact is not None else None,
        visiting=visiting,
    )
    site.persist(row)
    compare(site, rules.others)
    site.publish_due()
    tidy(site, needed)
    site.ended = True


def compare(site: SiteState, names: Iterable[SiteName]) -> None:
    """Note who ended the last committed round with the same mean; other contributors make another one, and may."""
    memory = site.memory
    if memory.aggregate is None:
        return
    for name in names:
        pulse = site.peers.pulse(name)
        if pulse is None or name in memory.compared or pulse.aggregate is None:
            continue
        if pulse.committed_round == memory.committed:
            agrees = pulse.aggregate == memory.aggregate
            site.persist(rows.ComparedRow(memory.committed, site=name, sha256=pulse.aggregate, agrees=agrees))


def tidy(site: SiteState, needed_before: set[Sha256]) -> None:
    """Let go of artifacts that no later round, fallback or receiver can need.

    Args:
        site: the site.
        needed_before: the digests that memory named before the row that ended the round.
    """
    rules, memory = site.rules, site.memory
    newest: dict[SiteName, int] = {}
    for source in memory.held.values():
        newest[source.artifact.owner] = max(newest.get(source.artifact.owner, 0), source.round)
    for digest, source in list(memory.held.items()):
        last = source.round == newest[source.artifact.owner]
        cached = last and (rules.plan.keeps_last_received or memory.committed < rules.circulating)
        age = memory.committed - source.round
        fresh = last and rules.fallback == "stale" and age < rules.staleness_rounds_max
        used = age >= 0 or (memory.home and source.artifact.owner == rules.site)
        if used and not cached and not fresh:
            site.persist(rows.DiscardedRow(memory.committed, sha256=digest))
    old = memory.committed - rules.pace.artifact_rounds_max
    away = rules.circulating > 0 and not memory.home
    own = max((key for key in memory.published if key[1] == rules.site), default=None) if away else None
    if any(key[0] <= old and key != own for key in memory.published):
        site.persist(rows.RetiredRow(old, kept=own))
    for round in [round for round in memory.evaluation.lent if round <= old]:
        site.lapse(round, retired=True)
    for digest in sorted(needed_before - memory.names()):
        site.emit(commands.Discard(digest))


def come_home(site: SiteState, state: str = "", artifact: Artifact | None = None) -> None:
    """End the circulating rounds with the own model where it belongs."""
    needed = site.memory.names()
    remember_home(site, state, artifact)
    site.publish_due()
    tidy(site, needed)
    go_on(site)


def check_done(site: SiteState) -> None:
    """Leave once nobody can need this site any more, or it lingered long enough."""
    rules = site.rules
    needed = unfinished(site) or global_test.awaited(site)
    if not rules.stay and (not needed or site.now_s >= site.since_s + rules.pace.linger_s):
        site.leave()


def unfinished(site: SiteState) -> list[SiteName]:
    """Who may still need this site: whoever has not said that it is done, silent, stopped or not."""
    rules = site.rules
    if rules.plan.pattern == "none":
        return []
    return [name for name in rules.others if not site.peers.done(name, rules.rounds)]


def regenerate(site: SiteState, *, reported_by: SiteName, seen: Seen) -> None:
    """A backup was restored here: go on as a new generation, so that what is made again is not taken for a forgery."""
    memory, busy = site.memory, site.phase in BUSY
    generation = seen.generation + 1
    row = rows.RegeneratedRow(memory.committed, generation=generation, reported_by=reported_by, their_round=seen.round)
    site.persist(row)
    for (round, _), artifact in sorted(memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    global_test.begin(site)
    if busy:
        site.emit(commands.Halt(memory.generation, site.next_attempt()))
    if site.phase not in (Phase.PAUSED, Phase.FAILED):
        go_on(site)
