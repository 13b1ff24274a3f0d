"""The table of the state machine: what each event does in each phase.

Every event that a peer, a timer, an operator or a late result can cause has a handler in every phase. If the event does
not matter, the handler is ``ignore``, which journals why. A pair of phase and event without a handler can only be a bug
of this program.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from peer.core import (
    commands,
    cross_evaluation,
    events,
    membership,
    peer_progress,
    rounds,
    rows,
    secure_exchange,
    worker_events,
)
from peer.core.artifacts import Artifact, Source
from peer.core.exchange import Exchange, Want
from peer.core.messages import Unavailable
from peer.core.phases import BETWEEN, BUSY, Phase
from peer.core.roster import SiteName
from peer.core.state import HALT_S, SiteState

Handler = Callable[[SiteState, Any], None]

WAITING = (Phase.EXCHANGE, Phase.RETURNS, Phase.HANDBACK)
RUNNING = tuple(phase for phase in Phase if phase != Phase.NEW)


def begin(site: SiteState, event: events.Began) -> None:
    """Start, or continue from the journal. Published artifacts are served again first."""
    site.peers.began_s = site.since_s = site.now_s
    site.persist(rows.BeganRow(site.memory.committed, generation=site.memory.generation))
    for (round, _), artifact in sorted(site.memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    cross_evaluation.begin(site)
    membership.begin(site)


def learn(site: SiteState, event: events.EpochsLearned) -> None:
    """Follow the chain, which has grown; this may end a wait."""
    membership.learn(site, event)
    check_wait(site)


def pause(site: SiteState, event: events.PauseRequested) -> None:
    """Stop training and keep serving. The peers are told before the worker halts."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    site.persist(rows.PausedRow(site.number))
    site.enter(Phase.PAUSED)
    if busy:
        site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def resume(site: SiteState, event: events.ResumeRequested) -> None:
    """Continue after a pause, or try again after a failure."""
    site.failure, site.failures = "", 0
    site.persist(rows.ResumedRow(site.number))
    rounds.go_on(site)


def stop(site: SiteState, event: events.StopRequested) -> None:
    """Leave: announce it to the peers, let the worker write its checkpoint, then end."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    if site.phase == Phase.DONE and not peer_progress.any_unfinished(site):
        site.forget_sums(before=site.memory.committed + 1)
    if not busy:
        site.leave()
        return
    site.enter(Phase.LEAVING)
    site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def greet(site: SiteState, event: events.PeerGreeted) -> None:
    """Record that a peer of this federation greeted.

    If it knows an artifact that this site forgot, a backup was restored here. Backups are restored before a start, so
    only a peer's first greeting counts.
    """
    if not site.rules.has_peer(event.site):
        return
    seen, memory = event.greeting.seen, site.memory
    first_greeting = event.site not in site.greeted and site.phase not in (Phase.DONE, Phase.LEAVING)
    site.greeted.add(event.site)
    site.accepts_evaluation[event.site] = event.greeting.evaluates
    site.peers.hear(event.site, None, site.now_s)
    if first_greeting and seen is not None and memory.lacks(seen):
        rounds.regenerate(site, reported_by=event.site, seen=seen)
        return
    check_wait(site, event.site)


def hear(site: SiteState, event: events.PeerHeard) -> None:
    """Record that a peer was heard; its heartbeat may end a wait.

    A round after the last one is a fault only of a peer that has no amendment which this site lacks.
    """
    if site.rules.has_peer(event.site):
        pulse = event.pulse
        rounds_max = max(epoch.rounds for epoch in site.rules.epochs.all)
        if pulse is not None and max(pulse.round, pulse.committed_round) > rounds_max:
            if pulse.head is None or pulse.head in site.heads:
                site.report_fault(event.site, f"claims a round after the last one ({rounds_max})")
            pulse = None  # the peer is heard, but its claim is ignored
        if pulse is not None:
            site.first_told.setdefault(event.site, pulse.round)
        site.peers.hear(event.site, pulse, site.now_s)
        peer_progress.compare_means(site, (event.site,))
        check_wait(site, event.site)


def prove(site: SiteState, event: events.RoundProved) -> None:
    """Record the round that a peer has signed; its next heartbeat may then move this site."""
    if site.rules.has_peer(event.site) and event.round <= site.rules.rounds + 1:
        site.peers.prove(event.site, event.round)


def tick(site: SiteState, event: events.Ticked) -> None:
    """End a wait whose time is over."""
    site.wake_s = None  # after an early tick the next one must be ordered again
    if site.phase == Phase.LEAVING and site.now_s >= site.since_s + HALT_S:
        site.leave()
        return
    check_wait(site)


def check_wait(site: SiteState, heard: SiteName | None = None) -> None:
    """End the wait of the current phase if its condition is met now.

    Args:
        site: the site.
        heard: the peer that was heard; None: time has passed.
    """
    if site.exchange is not None and heard is not None:
        site.exchange.heard.add(heard)
    if site.phase == Phase.GATHERING:
        rounds.check_gathered(site)
    elif site.phase in BETWEEN:
        rounds.set_pace(site)
    elif site.phase in WAITING:
        rounds.review(site)
    elif site.phase == Phase.DONE:
        rounds.check_done(site)


def report_fault(site: SiteState, event: events.PeerRefused) -> None:
    """Journal that a peer broke the protocol, is of another federation or declined a call; continue without it."""
    site.report_fault(event.site, event.reason, declined=event.declined)


def ignore(site: SiteState, event: events.Event) -> None:
    """Journal an event that came too late or belongs to another phase, and change nothing."""
    site.ignore(event)


def do_nothing(site: SiteState, event: events.Event) -> None:
    """Ignore an event that changes nothing and needs no row."""


def arrive(site: SiteState, event: events.ArtifactArrived) -> None:
    """Record a fetched artifact that is on disk, then check whether it was the last one.

    An artifact that was fetched early waits in memory until its exchange opens.
    """
    wanted = _wanted(site, event)
    if wanted is None:
        discard(site, event)
        return
    problem = _problem(site, wanted, event)
    if problem:
        wanted.drop("refused", site.now_s)
        site.refuse(event.origin, problem, fetched_for=_asked(site, event))
        discard(site, event)
    else:
        late = "" if event.true_round == event.round else "stale"
        source = Source(event.origin, event.true_round, _with_possible_steps(site, event), late)
        wanted.arrive(source, site.now_s)
        site.persist(rows.ArrivedRow(event.round, source=source, origin_generation=event.origin_generation))
    rounds.review(site)


def _problem(site: SiteState, wanted: Want, event: events.ArtifactArrived) -> str:
    """Return why the artifact is not the one that was due; empty if it is.

    Only a circulating model may be an older copy.
    """
    artifact, current = event.artifact, _asked(site, event)
    kind = current.kind if current is not None else site.rules.plan.artifact
    may_be_older = current is not None and current.pattern == "circulate"
    key = (event.origin_generation, event.true_round, artifact.owner)
    first = site.memory.first_digests.get(event.origin, {}).get(key, artifact.sha256)
    if first != artifact.sha256:
        digests = f"{artifact.sha256[:12]}, not {first[:12]}"
        return f"sent another artifact for round {event.true_round} than before ({digests})"
    if not (1 if may_be_older else event.round) <= event.true_round <= event.round:
        return f"sent the artifact of round {event.true_round} for round {event.round}"
    if artifact.owner != wanted.owner or artifact.kind != kind:
        return f"sent {artifact.owner}'s {artifact.kind} where {wanted.owner}'s {kind} was due"
    if (artifact.commitments is not None) != site.lived_rules.sums_in(event.round):
        return f"sent a {'bare' if artifact.commitments is None else 'masked'} {kind}"
    known = _circulates(site, event) and site.rules.knows_holder(event.true_round, artifact.owner)
    if known and (holder := site.rules.holder(event.true_round, artifact.owner)) != event.origin:
        return f"sent {artifact.owner}'s {kind} for round {event.true_round}, which only {holder} can have"
    return ""


def _circulates(site: SiteState, event: events.ArtifactArrived) -> bool:
    """Return whether the artifact is a copy of a circulating model, whose holders the schedule determines."""
    current = _asked(site, event)
    return event.purpose == "handback" or (current is not None and current.pattern == "circulate")


def _with_possible_steps(site: SiteState, event: events.ArtifactArrived) -> Artifact:
    """Limit the artifact's steps to those that a circulating model can have by its round.

    The sender is named. The copy stays in use: the model is another site's, and would lose rounds.
    """
    artifact, steps_max = event.artifact, site.rules.steps_max(event.true_round)
    if steps_max is None or artifact.steps <= steps_max or not _circulates(site, event):
        return artifact
    reason = f"claims {artifact.steps} steps of a {artifact.kind} that can have {steps_max} by then"
    site.refuse(event.origin, reason, fetched_for=_asked(site, event))
    return dataclasses.replace(artifact, steps=steps_max)


def discard(site: SiteState, event: events.ArtifactArrived | events.ArtifactMasked | events.MaskedAdded) -> None:
    """Delete an artifact that this site does not wait for, unless memory needs the same bytes."""
    ignore(site, event)
    if event.artifact.sha256 not in site.memory.needed_digests():
        site.emit(commands.Discard(event.artifact.sha256))


def miss(site: SiteState, event: events.ArtifactUnavailable) -> None:
    """Fall back at once: the origin will not have the artifact. (The fetcher repeats on NOT_YET.)"""
    wanted = _wanted(site, event)
    if wanted is None or event.answer == Unavailable.NOT_YET:
        ignore(site, event)
        return
    wanted.drop(str(event.answer), site.now_s)
    rounds.review(site)


def refuse(site: SiteState, event: events.ArtifactRefused) -> None:
    """Handle an unacceptable artifact as if its origin were silent, and name the origin if it is at fault."""
    current, wanted = _asked(site, event), _wanted(site, event)
    compared = wanted is not None and current is not None and current.for_comparison
    if not event.blameless and not compared:  # an older release gives no earlier copy
        site.refuse(event.origin, event.reason, fetched_for=current, declined=event.declined)
    if wanted is None and event.blameless:
        ignore(site, event)
    elif wanted is not None:
        wanted.drop("unused" if event.blameless else "declined" if event.declined else "refused", site.now_s)
        rounds.review(site)


def _wanted(site: SiteState, event: Any) -> Want | None:
    """Return the open want that the event answers; ``None`` for an answer to an earlier order."""
    current = _asked(site, event)
    wanted = current.wants.get(event.origin) if current is not None else None
    return wanted if wanted is not None and wanted.open and wanted.attempt == event.attempt else None


def _asked(site: SiteState, event: Any) -> Exchange | None:
    """Return the exchange whose fetch the event answers: the open one, or one fetched early; None without any."""
    for each in (site.exchange, *site.early):
        asked = (site.memory.generation, each.round, each.purpose) if each is not None else None
        if asked == (event.generation, event.round, event.purpose):
            return each
    return None


def of_sum(take: Callable[[SiteState, Any], bool]) -> Handler:
    """Build the handler of an event of a secure sum; an answer to an earlier order changes nothing."""

    def handle(site: SiteState, event: Any) -> None:
        if take(site, event):
            rounds.review(site)
        elif isinstance(event, events.ArtifactMasked | events.MaskedAdded):
            discard(site, event)
        elif not isinstance(event, events.SumShown):
            ignore(site, event)

    return handle


def by_purpose(evaluation: Handler, exchange: Handler) -> Handler:
    """Build the handler of a fetch's end, which depends on the fetch's purpose.

    Fetches for evaluation end alike in every phase, and change nothing of the round.
    """

    def handle(site: SiteState, event: Any) -> None:
        (evaluation if event.purpose == "evaluate" else exchange)(site, event)

    return handle


IN_EVERY_PHASE: Mapping[type[events.Event], Handler] = {
    events.Ticked: tick,
    events.PauseRequested: pause,
    events.ResumeRequested: ignore,
    events.StopRequested: stop,
    events.EpochsLearned: learn,
    events.PeerGreeted: greet,
    events.PeerHeard: hear,
    events.RoundProved: prove,
    events.PeerRefused: report_fault,
    events.ArtifactArrived: by_purpose(cross_evaluation.arrive, arrive),
    events.ArtifactUnavailable: by_purpose(cross_evaluation.miss, miss),
    events.ArtifactRefused: by_purpose(cross_evaluation.refuse, refuse),
    events.Initialised: ignore,
    events.Queued: do_nothing,
    events.Progressed: do_nothing,
    events.Trained: ignore,
    events.Aggregated: ignore,
    events.Adopted: ignore,
    events.Evaluated: ignore,
    events.Rehearsed: ignore,
    events.Halted: do_nothing,
    events.ArtifactRejected: ignore,
    events.WorkFailed: ignore,
    events.Measured: cross_evaluation.take_measurement,
    events.MeasurementFailed: cross_evaluation.fail,
    events.ReportArrived: cross_evaluation.record_report,
    events.ReportAnswered: cross_evaluation.answer,
    events.SumKeyDrawn: of_sum(secure_exchange.take_key),
    events.SumShown: of_sum(secure_exchange.take_statements),
    events.ArtifactMasked: of_sum(secure_exchange.take_masked),
    events.MaskedAdded: of_sum(secure_exchange.take_total),
    events.SumFailed: of_sum(secure_exchange.take_failure),
}
"""What each event does unless ``BY_PHASE`` has another handler."""

BY_PHASE: Mapping[Phase, Mapping[type[events.Event], Handler]] = {
    Phase.INITIALISING: {events.Initialised: worker_events.initialise, events.WorkFailed: worker_events.fail},
    Phase.TRAIN: {
        events.Queued: worker_events.queue,
        events.Progressed: worker_events.advance,
        events.Trained: worker_events.train,
        events.ArtifactRejected: worker_events.reject,
        events.WorkFailed: worker_events.fail,
    },
    Phase.AGGREGATE: {
        events.Queued: worker_events.queue,
        events.Aggregated: worker_events.aggregate,
        events.ArtifactRejected: worker_events.reject,
        events.WorkFailed: worker_events.fail,
    },
    Phase.EVALUATE: {
        events.Queued: worker_events.queue,
        events.Evaluated: worker_events.evaluate,
        events.WorkFailed: worker_events.fail,
    },
    Phase.ADOPT: {
        events.Queued: worker_events.queue,
        events.Adopted: worker_events.adopt,
        events.ArtifactRejected: worker_events.reject_home,
        events.WorkFailed: worker_events.fail,
    },
    Phase.PAUSED: {events.PauseRequested: ignore, events.ResumeRequested: resume},
    Phase.FAILED: {events.PauseRequested: ignore, events.ResumeRequested: resume},
    Phase.DONE: {events.PauseRequested: ignore},
    Phase.LEAVING: {
        events.Halted: worker_events.halted,
        events.WorkFailed: worker_events.fail_leaving,
        events.PauseRequested: ignore,
        events.StopRequested: ignore,
    },
    Phase.GONE: {
        **dict.fromkeys(IN_EVERY_PHASE, do_nothing),
    },
}

TRANSITIONS: Mapping[tuple[Phase, type[events.Event]], Handler] = {
    (Phase.NEW, events.Began): begin,
    **{(phase, kind): handler for phase in RUNNING for kind, handler in IN_EVERY_PHASE.items()},
    **{(phase, kind): handler for phase, handlers in BY_PHASE.items() for kind, handler in handlers.items()},
}
"""(phase, event type) -> what happens. An absent pair raises ``IllegalTransitionError``."""
