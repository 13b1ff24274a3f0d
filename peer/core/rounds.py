"""The course of the rounds: when a round opens, what its exchange waits for, and which phase comes next.

The next step depends on memory alone, so a restarted site continues where it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from peer.core import (
    commands,
    copies,
    cross_evaluation,
    exchange,
    fetches,
    liveness,
    peer_progress,
    retention,
    rows,
    secure_exchange,
)
from peer.core.artifacts import Artifact, Purpose, Source
from peer.core.exchange import Exchange
from peer.core.messages import Seen
from peer.core.phases import BETWEEN, BUSY, Phase
from peer.core.roster import Sha256, SiteName
from peer.core.site_memory import later_generation
from peer.core.state import SiteState
from peer.core.sum_wait import SumWait


def settle(site: SiteState) -> bool:
    """Drop the peers that are not worth a longer wait; once no want is open, choose the round's sources.

    Returns:
        Whether the exchange is over and memory holds the choice. A hand-back usually ends with an order to adopt
            instead.
    """
    current, rules = site.exchange, site.lived_rules
    if site.sum_wait is not None:
        return _settle_sum(site, site.sum_wait)
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
            fetches.want(site, owner, owner=owner)
            return settle(site)
    if not current.settled():
        return False
    _choose(site, current)
    return True


def _settle_sum(site: SiteState, wait: SumWait) -> bool:
    """Return whether the secure sum is over; memory then holds the total, or that there is none."""
    outcome = secure_exchange.settle(site, wait)
    if outcome is None:
        return False
    choose(
        site,
        outcome.sources,
        outcome.missing,
        position=site.lived_rules.phases(wait.round).index("exchange"),
        waited_s=outcome.waited_s,
        in_vain_s=outcome.in_vain_s,
        below_quorum=len(outcome.sources) < site.epoch.quorum_others,
        total=outcome.total,
    )
    return True


def _choose(site: SiteState, current: Exchange) -> None:
    rules, memory = site.lived_rules, site.memory
    received, missing = current.sources(), current.missing()
    sources = received
    if current.pattern == "all_to_all":
        if rules.plan.keeps_last_received:
            sources = exchange.last_received(
                rules, round=current.round, fresh=received, earlier=memory.received.values()
            )
    elif not received and current.pattern != "visit":
        slot = rules.turn(current.round)
        local_copy = memory.published.get((current.round, slot)) if current.pattern == "circulate" else None
        if local_copy is not None:
            sources = (Source(rules.site, current.round, local_copy),)
        elif current.pattern == "circulate" or current.wants:
            sources = exchange.fallback(rules, round=current.round, owner=slot, on_disk=site.artifacts_on_disk())
    equals = _refuse_equals(site, current, sources)
    sources = tuple(source for source in sources if source.origin not in equals)
    missing |= dict.fromkeys(equals, "refused")
    waited_s = current.waited_s(site.now_s, wait_max_s=site.pace.wait_max_s)
    fresh = sum(source.origin not in equals for source in received)
    below = current.pattern == "all_to_all" and fresh < site.epoch.quorum_others
    purpose: Purpose | None = "return" if current.purpose == "return" else None
    position = rules.phases(current.round).index("returns" if purpose else "exchange")
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


def _refuse_equals(site: SiteState, current: Exchange, sources: Iterable[Source]) -> Mapping[SiteName, SiteName]:
    """Name both origins of each artifact that two have signed; return the origins whose copy does not count.

    A mean of all sites is left to the worker: it compares tensors, and all sites leave out the same contribution.
    """
    rules = site.lived_rules
    if current.pattern == "circulate" or (current.pattern == "all_to_all" and "aggregate" in rules.plan.phases):
        return {}
    own = None if current.purpose == "return" else site.memory.published.get((current.round, rules.site))
    equals = exchange.find_equals(sources, own, rules.site)
    for origin, first in equals.items():
        for name, other in ((origin, first), (first, origin)):
            if name != rules.site:
                site.refuse(
                    name, f"{exchange.EQUAL}{other}: one of the two counts, and neither is shown to have copied"
                )
    return equals


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
    total: Artifact | None = None,
) -> None:
    """Journal the sources with which the round continues.

    A circulating round without a copy of its slot idles, and so does a shadow's without any source.

    Args:
        site: the site.
        sources: the artifacts that the next stages use, in roster order.
        missing: the peers that did not contribute, each with the reason.
        position: index of the phase that this choice ends.
        waited_s: how long the exchange took, for the adaptive deadline; ``None`` if the wait does not count.
        in_vain_s: by peer that did not deliver, how long the site waited for it.
        below_quorum: fewer artifacts arrived than the federation's quorum.
        purpose: ``return`` if the sources are the site's own model, trained by other sites.
        total: the sum of the masked sources and the site's own masked artifact.
    """
    rules, current = site.lived_rules, site.opened
    idle = not sources and (rules.pattern(current.number) == "circulate" or rules.shadows(current.number))
    row = rows.ChosenRow(
        current.number,
        position=len(rules.phases(current.number)) - 1 if idle else position,
        sources=sources,
        missing=dict(missing),
        waited_s=waited_s,
        in_vain_s=dict(in_vain_s) if in_vain_s else None,
        below_quorum=below_quorum,
        purpose=purpose,
        total=total,
    )
    site.persist(row)


def leave_out(site: SiteState, sha256: Sha256, reason: str = "", *, missing_as: str = "refused") -> None:
    """Choose again without an artifact that the worker cannot use; delete its file if unneeded.

    If the artifact was refused, its origin is named with the reason.
    """
    rules, opened = site.lived_rules, site.opened
    number, returning, in_use = opened.number, site.chose_returns(), site.sources_in_use()
    missing = dict(opened.missing_returns if returning else opened.missing)
    own = any(source.artifact.sha256 == sha256 and source.origin == rules.site for source in in_use)
    for source in in_use:
        if source.artifact.sha256 == sha256 and source.origin != rules.site:
            if missing_as == "refused":
                site.refuse(source.origin, reason)
            missing[source.origin] = missing_as
    sources = tuple(source for source in in_use if source.artifact.sha256 != sha256)
    if opened.total is not None:  # no part of a sum can be left out of it
        missing |= {source.origin: "unused" for source in sources}
        sources = ()
    if sha256 in site.memory.received:
        site.persist(rows.DiscardedRow(number, sha256=sha256))
    below = False
    if rules.pattern(number) == "all_to_all":
        exchanged = opened.position > rules.phases(number).index("exchange")
        below = exchanged and sum(not source.fallback for source in sources) < site.epoch.quorum_others
    elif not sources and not own and rules.pattern(number) != "visit":
        usable = [source for source in site.artifacts_on_disk() if source.artifact.sha256 != sha256]
        sources = exchange.fallback(rules, round=number, owner=rules.turn(number), on_disk=usable)
    purpose: Purpose | None = "return" if returning else None
    choose(site, sources, missing, position=opened.position - 1, below_quorum=below, purpose=purpose)
    if sha256 not in site.memory.needed_digests():
        site.emit(commands.Discard(sha256))


def revert(site: SiteState, reason: str) -> bool:
    """Return to the state before the last committed round, if peers contributed to that round.

    Their artifacts are no longer available, so the row names all of these peers as contributors. None is refused:
    nobody can tell which of them caused the divergence, if any did. An artifact that the open round has published
    stays: a second one for the same round would be a forgery.

    Returns:
        Whether the site went back.
    """
    current, before, rules = site.opened, site.memory.before, site.lived_rules
    newest = (current.number + rules.staleness, rules.site)
    published = rules.plan.published != "commit" and newest in site.memory.published
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
    round, rules = site.memory.committed, site.lived_rules
    stays = rules.site not in rules.epochs.gone
    serves_next = stays and rules.plan.published == "commit" and rules.pattern(round + 1) != "none"
    publish = round + 1 if serves_next else None
    site.persist(rows.AdoptedRow(round, state=state, artifact=artifact, publish=publish))


def _bring_home(site: SiteState, current: Exchange) -> bool:
    returned = {origin: want.received for origin, want in current.wants.items() if want.received is not None}
    rules, own = site.lived_rules, copies.own_copy(site)
    away = rules.trained_at(current.round, rules.site) != rules.site
    if own is not None:
        returned[rules.site] = own
    site.cancel_exchange()
    best = exchange.best_copy(returned.values(), rules) if returned else None
    if away and (best is None or best.origin == rules.site):
        site.persist(rows.SlotLostRow(current.round - 1))
    if best is None:
        record_homecoming(site)
        return True
    adopt(site, best)
    return False


def depart(site: SiteState) -> None:
    """End the daemon in order: this site is no member any more.

    A site that left of its own accord takes its own model home first, if another one has it. The worker halts
    meanwhile.
    """
    busy, memory, rules = site.phase in BUSY, site.memory, site.rules
    number = rules.epochs.expelled_by(rules.site)
    site.departure = "this site is no member of the federation any more"
    if rules.site in rules.epochs.leaving:
        site.departure = "this site left the federation"
    if number is not None:
        site.departure = f"this site was expelled from the federation by amendment {number}: ask the members why"
    away = rules.first_round <= memory.committed <= rules.circulating and not memory.model_is_home
    away = away and bool(memory.state) and number is None
    if away and site.phase in (Phase.ADOPT, Phase.HANDBACK):
        return  # the model is on its way home; the site departs after that
    site.cancel_exchange()
    if away:
        if busy:
            site.emit(commands.Halt(memory.generation, site.next_attempt()))
        fetches.take_home(site)
        review(site)
    elif busy:
        site.enter(Phase.LEAVING)
        site.emit(commands.Halt(memory.generation, site.next_attempt()))
    else:
        site.leave()


def go_on(site: SiteState) -> None:
    """Enter the phase that follows from memory: a restarted site continues where it was."""
    site.cancel_exchange()
    memory, rules = site.memory, site.lived_rules
    if rules.site in rules.epochs.gone:
        depart(site)
        return
    if not memory.state:
        site.enter(Phase.INITIALISING)
        site.emit(commands.Initialise(memory.generation, site.next_attempt()))
        return
    if rules.first_round > 1 and not memory.joined:
        _join(site)
    site.publish_due()
    circulated = 0 < rules.circulating == memory.committed
    if memory.finished and memory.committed >= rules.rounds:
        site.enter(Phase.DONE)
        check_done(site)
    elif memory.open is not None:
        next_phase(site)
    elif circulated and not memory.model_is_home:
        fetches.hand_back(site)
        review(site)
    elif circulated and rules.evaluates(memory.committed) and not memory.evaluated_after_handback:
        _evaluate(site, memory.committed, memory.state)
    elif memory.committed or rules.plan.pattern == "none" or memory.joined or site.phase in BETWEEN:
        set_pace(site)
    else:
        site.enter(Phase.GATHERING)
        check_gathered(site)


def _join(site: SiteState) -> None:
    """Skip the rounds before this site's first one.

    In an all-to-all federation the site opens the round before its first, and only receives there.
    """
    rules, first = site.rules, site.rules.first_round
    opened = first - 1 if rules.shadows(first - 1) else first
    publish = site.publish_from(first) if rules.plan.published == "commit" else None
    site.persist(rows.JoinedRow(opened - 1, publish=publish, home=0 < rules.circulating < first))


def review(site: SiteState) -> None:
    """Settle the exchange, and continue if it is over."""
    if settle(site):
        go_on(site)


def check_gathered(site: SiteState) -> None:
    """Begin round 1 once every peer is there, after ``gather_s``, or when enough peers have begun.

    Peers that have begun continue without the missing one; a site that still waited for it would delay them, too.
    """
    gather_s = site.pace.gather_s
    timed_out = gather_s is not None and site.now_s >= site.peers.began_s + gather_s
    begun = len(site.peers.begun) >= site.lived_rules.witnesses_of_a_start
    if timed_out or begun or peer_progress.all_there(site):
        set_pace(site)


def set_pace(site: SiteState) -> None:
    """Between rounds: finish, hold, wait for the peers, jump to their round, or open the next one.

    A round that was held while open continues where it was.
    """
    rules, memory = site.rules, site.memory
    if memory.open is not None:  # held since an amendment, until the key of the round's new epoch arrives
        if not site.lived_rules.lacks_order(memory.open.number):
            site.enter(Phase.PACING)
            next_phase(site)
        return
    following = memory.committed + 1
    if memory.committed < rules.rounds and site.is_held(following):
        _hold(site)
        return
    others_count = rules.others_count_in(following)
    needs_nobody = memory.committed >= rules.rounds or rules.plan.pattern == "none" or not others_count
    if site.phase != Phase.ISOLATED or needs_nobody:  # amendments may end its isolation
        site.enter(Phase.PACING)
    if memory.committed >= rules.rounds:
        site.persist(rows.FinishedRow(memory.committed))
        go_on(site)
        return
    if needs_nobody:
        open_round(site, following)
        return
    counts = site.count_peers(following)
    present = any(standing.present for standing, _ in counts)
    if not present and not _alone(site, rules.others_in(following)):
        return
    site.alone = not present
    site.enter(Phase.PACING)
    rounds: Counter[int] = Counter()
    for standing, count in counts:
        if standing.round is not None:
            rounds[standing.round] += count
    middle = liveness.lower_median(rounds)
    if middle is not None and rules.circulating < following < middle - site.pace.lag_rounds_max:
        target, ahead = min(middle, rules.rounds), peer_progress.ahead(site, middle)
        if len(ahead) >= min(2, max(others_count, rules.others_count_in(target))):
            following = _jump(site, target, ahead)
            if site.is_held(following):
                _hold(site)
                return
    if middle is None and 1 < following <= rules.first_round and not peer_progress.any_told(site, following):
        return  # a newcomer does not know yet how far the others are
    if middle is None or following <= middle + site.pace.lead_rounds_max:
        open_round(site, following)


def _hold(site: SiteState) -> None:
    """Open no round but keep serving, until an amendment or the members' heartbeats end the hold."""
    if site.phase != Phase.HELD:
        site.enter(Phase.PACING)
        site.enter(Phase.HELD)


def _jump(site: SiteState, round: int, ahead: Mapping[SiteName, int]) -> int:
    """Skip the rounds that the peers have passed; the newest own artifact serves the next round."""
    publish = site.publish_from(round) if site.rules.plan.published == "commit" else None
    site.persist(rows.SkippedRow(round, first=site.memory.committed + 1, publish=publish, proven=dict(ahead)))
    site.publish_due()
    return round


def _alone(site: SiteState, others: Iterable[SiteName]) -> bool:
    """Return whether to continue without any peer: only after ``isolated_s`` of isolation."""
    if site.alone:
        return True
    if not all(site.peers.silent(name, site.now_s) for name in others):
        return False
    if site.phase != Phase.ISOLATED:
        site.persist(rows.IsolatedRow(site.memory.committed))
        site.enter(Phase.ISOLATED)
        return False
    return site.now_s >= site.since_s + site.pace.isolated_s


def open_round(site: SiteState, round: int) -> None:
    """Open a round; a method that keeps the last received artifacts uses them from its first stage on."""
    keeps, earlier = site.rules.plan.keeps_last_received, site.memory.received_before(round)
    sources = exchange.last_received(site.rules, round=round, fresh=(), earlier=earlier) if keeps else ()
    away = site.memory.model_is_home and site.rules.pattern(round) == "circulate"
    site.persist(rows.OpenedRow(round, sources=sources, epoch=site.rules.epoch(round).digest, away=away or None))
    next_phase(site)


def next_phase(site: SiteState) -> None:
    """Enter the open round's next phase, or end the round; hold the site if it lacks the order that this needs."""
    current, rules, memory = site.opened, site.lived_rules, site.memory
    circulates = rules.pattern(current.number) == "circulate"
    site.progress, site.queued = None, False
    phases = rules.phases(current.number)
    exchanges = current.position < len(phases) and phases[current.position] == "exchange"
    if (exchanges or circulates) and rules.lacks_order(current.number):
        _hold(site)
        return
    if current.position == len(phases):
        measured = circulates or current.evaluated or rules.shadows(current.number)
        if rules.evaluates(current.number) and not measured:
            _evaluate(site, current.number, current.state, current.sources)
        else:
            commit(site)
        return
    name = phases[current.position]
    order = (memory.generation, current.number)
    best = (memory.best.state,) if memory.best is not None else ()
    kept = (memory.state, *((memory.before[0],) if memory.before is not None else ()), *best)
    if name == "exchange":
        (secure_exchange.begin if rules.sums_in(current.number) else fetches.open_exchange)(site)
        review(site)
    elif name == "returns":
        fetches.await_returns(site)
        review(site)
    elif name == "aggregate":
        site.enter(Phase.AGGREGATE)
        of_round = site.chose_returns() or rules.staleness
        model = memory.published.get((current.number, rules.site)) if of_round else None
        sent = None if model is None else Source(rules.site, current.number, model)
        attempt = site.next_attempt()
        sources, shadow = site.sources_in_use(), rules.shadows(current.number)
        total = current.total
        site.emit(commands.Aggregate(*order, attempt, current.state, sources, kept, sent, shadow, total))
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
    cached = sources if site.lived_rules.plan.keeps_last_received else ()
    lent = site.lived_rules.lends(round)
    site.emit(commands.Evaluate(site.memory.generation, round, site.next_attempt(), base, cached, lent))


def commit(site: SiteState) -> None:
    """End the round with one row that holds all of its results; publish and tidy up after it."""
    current, rules, memory = site.opened, site.lived_rules, site.memory
    round, artifact, needed_before = current.number, current.artifact, memory.needed_digests()
    visiting = rules.pattern(round) == "circulate" and rules.turn(round) != rules.site
    left_out = current.cut.keys() - set(current.contributors)
    goes_home = round == rules.circulating and not visiting
    serves_next = rules.plan.published == "commit" and not goes_home
    visits, shadows = rules.pattern(round) == "visit", rules.shadows(round)
    origins = {source.origin for source in (*current.sources, *current.returned)}
    row = rows.CommittedRow(
        round,
        generation=memory.generation,
        sources=_used(current.sources),
        contributors=tuple(sorted((origins if shadows else {rules.site, *origins}) - left_out)),
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
        publish=site.publish_from(round + 1) if serves_next and artifact is not None else None,
        visiting=visiting,
        returned=_used(current.returned) if visits else None,
        missing_returns=dict(current.missing_returns) if visits else None,
        made_in=rules.made_in(round) if rules.staleness else None,
    )
    site.persist(row)
    if memory.aggregate is not None:
        peer_progress.compare_means(site, rules.others_in(round))
    site.publish_due()
    retention.tidy(site, needed_before)
    site.forget_sums(before=round)
    site.round_ended = True


def _used(sources: Iterable[Source]) -> tuple[rows.UsedSource, ...]:
    return tuple(
        rows.UsedSource(source.origin, source.round, source.artifact.sha256, source.fallback) for source in sources
    )


def come_home(site: SiteState, state: str = "", artifact: Artifact | None = None) -> None:
    """End the circulating rounds: the site's own model is back. Then continue."""
    needed_before = site.memory.needed_digests()
    record_homecoming(site, state, artifact)
    site.publish_due()
    retention.tidy(site, needed_before)
    go_on(site)


def check_done(site: SiteState) -> None:
    """Leave once no peer can need this site any more, or after ``linger_s``."""
    rules = site.lived_rules
    needed = peer_progress.any_unfinished(site) or cross_evaluation.awaited(site)
    if needed and site.now_s < site.since_s + site.pace.linger_s:
        return
    site.forget_sums(before=site.memory.committed + 1)
    if not rules.stay:
        site.leave()


def regenerate(site: SiteState, *, reported_by: SiteName, seen: Seen) -> None:
    """Continue as a new generation after a backup was restored here.

    Otherwise peers would take the artifacts that this site makes again for forgeries.
    """
    memory, busy = site.memory, site.phase in BUSY
    site.cancel_early()
    generation = later_generation(seen.generation, site.chance)
    row = rows.RegeneratedRow(memory.committed, generation=generation, reported_by=reported_by, their_round=seen.round)
    site.persist(row)
    for (round, _), artifact in sorted(memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    cross_evaluation.begin(site)
    if busy:
        site.emit(commands.Halt(memory.generation, site.next_attempt()))
    if site.phase not in (Phase.PAUSED, Phase.FAILED):
        go_on(site)
