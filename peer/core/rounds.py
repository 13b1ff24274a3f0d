"""The course of the rounds: when a round opens, what its exchange waits for, and which phase comes
next.

What comes next is read from memory alone, so a restarted site goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peer.core import commands, copies, exchange, global_test, liveness, rows
from peer.core.commands import Source
from peer.core.exchange import Exchange, Want
from peer.core.messages import Artifact, Purpose, Seen
from peer.core.phases import BUSY, Phase
from peer.core.roster import Sha256, SiteName
from peer.core.site_memory import later_generation
from peer.core.state import IllegalTransitionError, SiteState


def open_exchange(site: SiteState) -> None:
    """Ask for the artifacts of the open round."""
    round, rules = site.opened.number, site.rules
    pattern = rules.pattern(round)
    _begin(site, round, "train")
    if pattern == "all_to_all":
        for origin in rules.roster.others(rules.site):
            want(site, origin, owner=origin)
    elif pattern == "visit":
        for visitor in rules.visitors(round):
            want(site, visitor, owner=visitor)
    else:
        slot = rules.turn(round)
        origin = rules.holder(round, slot) if pattern == "circulate" else slot
        if origin == rules.site and (round, slot) not in site.memory.published:
            origin = slot  # this site should hold the model, but had no copy to train in the round before
        if origin != rules.site:
            want(site, origin, owner=slot)
    site.enter(Phase.EXCHANGE)


def await_returns(site: SiteState) -> None:
    """Ask the sites that this site's model visits for their trained copies of it."""
    round = site.opened.number
    _begin(site, round, "return")
    for host in site.rules.hosts(round):
        want(site, host, owner=site.rules.site)
    site.enter(Phase.RETURNS)


def hand_back(site: SiteState) -> None:
    """Ask the peers for this site's own model after the last circulating round, unless it is here."""
    rules = site.rules
    round = rules.circulating + 1
    _begin(site, round, "handback")
    if rules.holder(round, rules.site) != rules.site:
        for origin in rules.roster.others(rules.site):
            want(site, origin, owner=rules.site)
    site.enter(Phase.HANDBACK)


def _begin(site: SiteState, round: int, purpose: Purpose, *, for_comparison: bool = False) -> None:
    pattern = "all_to_all" if purpose == "handback" else site.rules.pattern(round)
    kind = "return" if purpose == "return" else site.rules.plan.artifact
    if kind is None:
        raise IllegalTransitionError(f"method {site.rules.method} exchanges nothing")
    waits_s = site.memory.return_waits_s if purpose == "return" else site.memory.waits_s
    slow_s = liveness.slow_after_s(waits_s, site.rules.pace)
    site.exchange = Exchange(round, pattern, purpose, site.now_s, slow_s, kind=kind, for_comparison=for_comparison)


def want(site: SiteState, origin: SiteName, *, owner: SiteName) -> None:
    """Wait for one artifact: use the received file if there is one, fetch it otherwise."""
    current = site.exchange
    if current is None:
        raise IllegalTransitionError(f"no exchange is open in phase {site.phase}")
    wanted = current.wants[origin] = Want(origin, owner, site.next_attempt(), site.now_s, site.patience_s(origin))
    for source in site.memory.received.values():
        if (source.origin, source.round, source.artifact.owner) == (origin, current.round, owner):
            wanted.arrive(source, site.now_s)
    if origin in site.rules.without:
        wanted.drop(exchange.ABSENT, site.now_s)
    elif wanted.received is None:
        order = (site.memory.generation, current.round, wanted.attempt)
        site.emit(commands.Fetch(*order, origin, current.kind, current.purpose, owner, site.received_bytes_max))


def ask_earlier(site: SiteState, source: Source) -> bool:
    """Fetch the copy from which a circulating copy was to be trained, so that the worker can compare both.

    Returns:
        Whether the site waits for it now. It waits once for each copy, and not for one that is at hand.
    """
    home, before = site.memory.open is None, exchange.holder_before(source, site.rules)
    circulates = home or site.rules.pattern(site.opened.number) == "circulate"
    if not circulates or source.fallback or before is None or copies.judges_finally(site, source):
        return False
    round, holder = before
    site.compared.add(source.artifact.sha256)
    _begin(site, round if home else site.opened.number, "handback" if home else "train", for_comparison=True)
    want(site, holder, owner=source.artifact.owner)
    site.enter(Phase.HANDBACK if home else Phase.EXCHANGE)
    return True


def settle(site: SiteState) -> bool:
    """Drop the peers that are not worth a longer wait; once no want is open, choose the round's
    sources.

    Returns:
        Whether the exchange is over and memory holds the choice. A hand-back usually ends with an
        order to adopt instead.
    """
    current, rules = site.exchange, site.rules
    if current is None:
        return False
    for dropped in current.give_up(site.peers, rules, site.now_s):
        site.emit(commands.CancelFetch(dropped.origin, current.purpose))
    if current.for_comparison:
        if current.settled():
            site.exchange = None
        return current.settled()
    if current.purpose == "handback":
        scheduled = current.wants.get(rules.holder(current.round, rules.site))
        if not current.settled() and (scheduled is None or scheduled.received is None):
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
    received, missing = current.sources(), current.missing()
    sources = received
    if current.pattern == "all_to_all":
        if rules.plan.keeps_last_received:
            sources = exchange.last_received(rules, fresh=received, earlier=memory.received.values())
    elif not received and current.pattern != "visit":
        slot = rules.turn(current.round)
        local_copy = memory.published.get((current.round, slot)) if current.pattern == "circulate" else None
        if local_copy is not None:
            sources = (Source(rules.site, current.round, local_copy),)
        elif current.pattern == "circulate" or current.wants:
            sources = exchange.fallback(rules, round=current.round, owner=slot, on_disk=site.artifacts_on_disk())
    waited_s = current.waited_s(site.now_s, wait_max_s=rules.pace.wait_max_s)
    below = current.pattern == "all_to_all" and len(received) < rules.quorum_others
    purpose: Purpose | None = "return" if current.purpose == "return" else None
    position = rules.plan.phases.index("returns" if purpose else "exchange")
    site.exchange = None
    choose(
        site,
        sources,
        missing,
        position=position,
        waited_s=waited_s,
        in_vain_s=current.in_vain_s(),
        below_quorum=below,
        purpose=purpose,
    )


def choose(
    site: SiteState,
    sources: tuple[Source, ...],
    missing: Mapping[str, str],
    *,
    position: int,
    waited_s: float | None = None,
    in_vain_s: Mapping[SiteName, float] | None = None,
    below_quorum: bool = False,
    purpose: Purpose | None = None,
) -> None:
    """Journal the sources that the round goes on with.

    A circulating round without a copy of its slot idles.

    Args:
        site: the site.
        sources: the artifacts that the next stages use, in roster order.
        missing: the peers that did not contribute, each with the reason.
        position: index of the phase that this choice ends.
        waited_s: how long the exchange took, for the adaptive deadline; ``None`` where the wait
            does not count.
        in_vain_s: by peer that did not deliver, how long the site waited for it.
        below_quorum: fewer artifacts arrived than the federation's quorum asks for.
        purpose: ``return`` where the sources are the site's own model, trained by other sites.
    """
    rules, current = site.rules, site.opened
    idle = rules.pattern(current.number) == "circulate" and not sources
    row = rows.ChosenRow(
        current.number,
        position=len(rules.plan.phases) - 1 if idle else position,
        sources=sources,
        missing=dict(missing),
        waited_s=waited_s,
        in_vain_s=dict(in_vain_s) if in_vain_s else None,
        below_quorum=below_quorum,
        purpose=purpose,
    )
    site.persist(row)


def leave_out(site: SiteState, sha256: Sha256, reason: str) -> None:
    """Choose again without an artifact that the worker found unusable; delete its file if unneeded."""
    rules, opened = site.rules, site.opened
    number, returning, in_use = opened.number, site.chose_returns(), site.sources_in_use()
    missing = dict(opened.missing_returns if returning else opened.missing)
    own = any(source.artifact.sha256 == sha256 and source.origin == rules.site for source in in_use)
    for source in in_use:
        if source.artifact.sha256 == sha256 and source.origin != rules.site:
            site.refuse(source.origin, reason)
            missing[source.origin] = "refused"
    sources = tuple(source for source in in_use if source.artifact.sha256 != sha256)
    if sha256 in site.memory.received:
        site.persist(rows.DiscardedRow(number, sha256=sha256))
    below = False
    if rules.pattern(number) == "all_to_all":
        exchanged = opened.position > rules.plan.phases.index("exchange")
        below = exchanged and sum(not source.fallback for source in sources) < rules.quorum_others
    elif not sources and not own and rules.pattern(number) != "visit":
        usable = [source for source in site.artifacts_on_disk() if source.artifact.sha256 != sha256]
        sources = exchange.fallback(rules, round=number, owner=rules.turn(number), on_disk=usable)
    purpose: Purpose | None = "return" if returning else None
    choose(site, sources, missing, position=opened.position - 1, below_quorum=below, purpose=purpose)
    if sha256 not in site.memory.needed_digests():
        site.emit(commands.Discard(sha256))


def revert(site: SiteState, reason: str) -> bool:
    """Go back to the state before the last committed round, if peers had a part in that round.

    Their artifacts are not at hand any more, so the row names all of these peers as contributors.
    None is refused: nobody can tell which of them caused it, if any did. An artifact that the open
    round has published stays: a second one for the same round would be a forgery.

    Returns:
        Whether the site went back.
    """
    current, before, rules = site.opened, site.memory.before, site.rules
    published = rules.plan.published != "commit" and (current.number, rules.site) in site.memory.published
    state, contributors = before or (site.memory.state, ())
    origins = tuple(name for name in contributors if name != rules.site)
    if published or not origins or state == site.memory.state:
        return False
    trained = any(name.startswith("train") for name in rules.phases(current.number)[: current.position])
    position = 0 if trained else current.position
    row = rows.RevertedRow(current.number, position=position, state=state, origins=origins, reason=reason)
    site.persist(row)
    return True


def adopt(site: SiteState, source: Source) -> None:
    """Order the worker to replace the local model by a copy."""
    site.enter(Phase.ADOPT)
    memory, attempt = site.memory, site.next_attempt()
    compared = copies.comparison(site, source)
    site.emit(commands.Adopt(memory.generation, memory.committed, attempt, memory.state, source, *compared))


def record_homecoming(site: SiteState, state: str = "", artifact: Artifact | None = None) -> None:
    """Journal that the site's own model is back; without a state it is unchanged."""
    round, rules = site.memory.committed, site.rules
    serves_next = rules.plan.published == "commit" and round < rules.rounds and rules.pattern(round + 1) != "none"
    publish = round + 1 if serves_next else None
    site.persist(rows.AdoptedRow(round, state=state, artifact=artifact, publish=publish))


def _bring_home(site: SiteState, current: Exchange) -> bool:
    returned = {origin: want.received for origin, want in current.wants.items() if want.received is not None}
    asked, own = bool(current.wants), copies.own_copy(site)
    if own is not None:
        returned[site.rules.site] = own
    site.cancel_exchange()
    best = exchange.best_copy(returned.values(), site.rules) if returned else None
    if asked and (best is None or best.origin == site.rules.site):
        site.persist(rows.SlotLostRow(current.round - 1))
    if best is None:
        record_homecoming(site)
        return True
    adopt(site, best)
    return False


def go_on(site: SiteState) -> None:
    """Enter the phase that follows from memory: a restarted site goes on where it was."""
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
    elif circulated and not memory.model_is_home:
        hand_back(site)
        review(site)
    elif circulated and rules.evaluates(memory.committed) and not memory.evaluated_after_handback:
        _evaluate(site, memory.committed, memory.state)
    elif memory.committed == 0 and rules.plan.pattern != "none":
        site.enter(Phase.GATHERING)
        check_gathered(site)
    else:
        set_pace(site)


def review(site: SiteState) -> None:
    """Settle the exchange, and go on if it is over."""
    if settle(site):
        go_on(site)


def check_gathered(site: SiteState) -> None:
    """Begin round 1 once every peer is there, after ``gather_s``, or when enough peers have begun.

    Peers that have begun go on without the missing one; a site that still waited for it would delay
    them, too.
    """
    gather_s = site.rules.pace.gather_s
    timed_out = gather_s is not None and site.now_s >= site.peers.began_s + gather_s
    begun = len(site.peers.begun) >= site.rules.witnesses_of_a_start
    if timed_out or begun or all(is_there(site, name) for name in site.rules.others):
        set_pace(site)


def is_there(site: SiteState, name: SiteName) -> bool:
    """Whether a peer can take part in round 1 now: it has greeted, is heard, and is ready.

    A peer that greeted may have ended since. One that says that it is not ready is waited for no
    longer than ``wait_max_s``, since it may say so for ever.
    """
    if name not in site.greeted or site.peers.silent(name, site.now_s):
        return False
    return site.peers.ready(name) or site.now_s >= site.since_s + site.rules.pace.wait_max_s


def set_pace(site: SiteState) -> None:
    """Between rounds: finish, wait for the peers, jump to their round, or open the next one."""
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
    following = memory.committed + 1
    rounds = site.peers.rounds(
        rules.others,
        site.now_s,
        patience_s=site.patience_s,
        unproven_max=rules.unproven_round_max(memory.committed),
    )
    middle = liveness.lower_median(sorted(rounds.values()))
    if middle is not None and rules.circulating < following < middle - rules.pace.lag_rounds_max:
        ahead = {name: round for name, round in rounds.items() if round >= middle}
        if len(ahead) >= min(2, len(rules.others)):
            following = _jump(site, min(middle, rules.rounds), ahead)
    if middle is None or following <= middle + rules.pace.lead_rounds_max:
        open_round(site, following)


def _jump(site: SiteState, round: int, ahead: Mapping[SiteName, int]) -> int:
    """Skip the rounds that the peers have passed; the newest own artifact serves the next round."""
    publish = round if site.rules.plan.published == "commit" else None
    site.persist(rows.SkippedRow(round, first=site.memory.committed + 1, publish=publish, proven=dict(ahead)))
    site.publish_due()
    return round


def _alone(site: SiteState) -> bool:
    """Whether to go on without any peer: only after ``isolated_s`` of isolation."""
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
    keeps, received = site.rules.plan.keeps_last_received, site.memory.received.values()
    sources = exchange.last_received(site.rules, fresh=(), earlier=received) if keeps else ()
    site.persist(rows.OpenedRow(round, sources=sources))
    next_phase(site)


def next_phase(site: SiteState) -> None:
    """Enter the plan's next phase of the open round, or end the round."""
    current, rules, memory = site.opened, site.rules, site.memory
    circulates = rules.pattern(current.number) == "circulate"
    site.progress = None
    phases = rules.phases(current.number)
    if current.position == len(phases):
        if rules.evaluates(current.number) and not circulates and not current.evaluated:
            _evaluate(site, current.number, current.state, current.sources)
        else:
            commit(site)
        return
    name = phases[current.position]
    order = (memory.generation, current.number)
    best = (memory.best.state,) if memory.best is not None else ()
    kept = (memory.state, *((memory.before[0],) if memory.before is not None else ()), *best)
    if name == "exchange":
        open_exchange(site)
        review(site)
    elif name == "returns":
        await_returns(site)
        review(site)
    elif name == "aggregate":
        site.enter(Phase.AGGREGATE)
        model = memory.published.get((current.number, rules.site)) if site.chose_returns() else None
        sent = None if model is None else Source(rules.site, current.number, model)
        attempt = site.next_attempt()
        site.emit(commands.Aggregate(*order, attempt, current.state, site.sources_in_use(), kept, sent))
    else:
        slot = rules.turn(current.number) if circulates else None
        stage = name.removeprefix("train:")
        site.enter(Phase.TRAIN)
        compared = copies.comparison(site, current.sources[0]) if circulates and current.sources else (None, True)
        rounds = copies.made_up_rounds(current) if circulates else 1
        train = (*order, site.next_attempt(), stage, current.state, current.sources, slot, kept, *compared, rounds)
        site.emit(commands.Train(*train))


def _evaluate(site: SiteState, round: int, base: str, sources: tuple[Source, ...] = ()) -> None:
    site.enter(Phase.EVALUATE)
    cached = sources if site.rules.plan.keeps_last_received else ()
    lent = site.rules.lends(round)
    site.emit(commands.Evaluate(site.memory.generation, round, site.next_attempt(), base, cached, lent))


def commit(site: SiteState) -> None:
    """End the round with one row that holds all of its results; publish and tidy up after it."""
    current, rules, memory = site.opened, site.rules, site.memory
    round, artifact, needed_before = current.number, current.artifact, memory.needed_digests()
    visiting = rules.pattern(round) == "circulate" and rules.turn(round) != rules.site
    last = rules.circulating if rules.pattern(round) == "circulate" else rules.rounds
    left_out = current.cut.keys() - set(current.contributors)
    serves_next = rules.plan.published == "commit" and (visiting or round < last)
    visits = rules.pattern(round) == "visit"
    origins = {source.origin for source in (*current.sources, *current.returned)}
    row = rows.CommittedRow(
        round,
        generation=memory.generation,
        sources=_used(current.sources),
        contributors=tuple(sorted({rules.site, *origins} - left_out)),
        missing=dict(current.missing),
        cut=dict(current.cut) or None,
        below_quorum=current.below_quorum,
        skipped=tuple(memory.skipped),
        artifact_sha256=artifact.sha256 if artifact is not None else None,
        aggregate_sha256=None if visits else current.aggregate,  # every site has a result of its own
        metrics=dict(current.metrics),
        threads=current.threads,
        duration_s=current.duration_s,
        state=current.state,
        publish=round + 1 if serves_next and artifact is not None else None,
        visiting=visiting,
        returned=_used(current.returned) if visits else None,
        missing_returns=dict(current.missing_returns) if visits else None,
    )
    site.persist(row)
    compare(site, rules.others)
    site.publish_due()
    tidy(site, needed_before)
    site.round_ended = True


def _used(sources: Iterable[Source]) -> tuple[rows.UsedSource, ...]:
    return tuple(
        rows.UsedSource(source.origin, source.round, source.artifact.sha256, source.fallback) for source in sources
    )


def compare(site: SiteState, names: Iterable[SiteName]) -> None:
    """Journal which peers ended the last committed round with this site's mean, and which did not.

    A peer with other contributors has another mean, which is no fault.
    """
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
    """Discard artifacts that no later round, fallback or receiver can need.

    Args:
        site: the site.
        needed_before: the digests that memory needed before the row that ended the round.
    """
    rules, memory = site.rules, site.memory
    newest: dict[SiteName, int] = {}
    for source in memory.received.values():
        newest[source.artifact.owner] = max(newest.get(source.artifact.owner, 0), source.round)
    for digest, source in list(memory.received.items()):
        last = source.round == newest[source.artifact.owner]
        cached = last and (rules.plan.keeps_last_received or memory.committed < rules.circulating)
        age = memory.committed - source.round
        may_replace = last and rules.fallback == "stale" and age < rules.staleness_rounds_max
        used = age >= 0 or (memory.model_is_home and source.artifact.owner == rules.site)
        if used and not cached and not may_replace:
            site.persist(rows.DiscardedRow(memory.committed, sha256=digest))
    old = memory.committed - rules.pace.artifact_rounds_max
    away = rules.circulating > 0 and not memory.model_is_home
    own = max((key for key in memory.published if key[1] == rules.site), default=None) if away else None
    if any(key[0] <= old and key != own for key in memory.published):
        site.persist(rows.RetiredRow(old, kept=own))
    for round in [round for round in memory.evaluation.lent if round <= old]:
        site.lapse(round, retired=True)
    for digest in sorted(needed_before - memory.needed_digests()):
        site.emit(commands.Discard(digest))


def come_home(site: SiteState, state: str = "", artifact: Artifact | None = None) -> None:
    """End the circulating rounds: the site's own model is back. Then go on."""
    needed_before = site.memory.needed_digests()
    record_homecoming(site, state, artifact)
    site.publish_due()
    tidy(site, needed_before)
    go_on(site)


def check_done(site: SiteState) -> None:
    """Leave once no peer can need this site any more, or after ``linger_s``."""
    rules = site.rules
    needed = unfinished(site) or global_test.awaited(site)
    if not rules.stay and (not needed or site.now_s >= site.since_s + rules.pace.linger_s):
        site.leave()


def unfinished(site: SiteState) -> list[SiteName]:
    """The peers that may still need this site: those that have not said that they are done."""
    rules = site.rules
    if rules.plan.pattern == "none":
        return []
    return [name for name in rules.others if not site.peers.done(name, rules.rounds)]


def regenerate(site: SiteState, *, reported_by: SiteName, seen: Seen) -> None:
    """A backup was restored here: go on as a new generation.

    Otherwise peers would take the artifacts that this site makes again for forgeries.
    """
    memory, busy = site.memory, site.phase in BUSY
    generation = later_generation(seen.generation, site.chance)
    row = rows.RegeneratedRow(memory.committed, generation=generation, reported_by=reported_by, their_round=seen.round)
    site.persist(row)
    for (round, _), artifact in sorted(memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    global_test.begin(site)
    if busy:
        site.emit(commands.Halt(memory.generation, site.next_attempt()))
    if site.phase not in (Phase.PAUSED, Phase.FAILED):
        go_on(site)
