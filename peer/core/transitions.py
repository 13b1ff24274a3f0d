"""The law of the state machine: which event may occur in which phase, and what then happens.

Everything that a peer, a timer, an operator or a late result can cause has a row in every phase; where it does not
matter the row is ``ignore``, which journals why. A pair without a row can only be a bug of this program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peer.core import commands, events, global_test, limits, rounds, rows, worker_events
from peer.core.commands import Source
from peer.core.exchange import Want
from peer.core.messages import Unavailable
from peer.core.phases import BUSY, Phase
from peer.core.state import HALT_S, SiteState

Handler = Callable[[SiteState, Any], None]

BETWEEN = (Phase.PACING, Phase.ISOLATED)
WAITING = (Phase.EXCHANGE, Phase.HANDBACK)
ALL = tuple(phase for phase in Phase if phase != Phase.NEW)


def begin(site: SiteState, event: events.Began) -> None:
    """Start, or go on from the journal; what was published is served again first."""
    site.peers.began_s = site.since_s = site.now_s
    site.persist(rows.BeganRow(site.memory.committed, generation=site.memory.generation))
    for (round, _), artifact in sorted(site.memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    global_test.begin(site)
    rounds.go_on(site)


def pause(site: SiteState, event: events.PauseRequested) -> None:
    """Stop training, keep serving; peers are told before it takes effect."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    site.persist(rows.PausedRow(site.number))
    site.enter(Phase.PAUSED)
    if busy:
        site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def resume(site: SiteState, event: events.ResumeRequested) -> None:
    """Go on after a pause, or try again after a failure."""
    site.failure, site.failures = "", 0
    site.persist(rows.ResumedRow(site.number))
    rounds.go_on(site)


def stop(site: SiteState, event: events.StopRequested) -> None:
    """Leave: tell the peers, let the worker write its checkpoint, then end."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    if not busy:
        site.leave()
        return
    site.enter(Phase.LEAVING)
    site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def greet(site: SiteState, event: events.PeerGreeted) -> None:
    """A peer belongs to us. If it remembers more of this site than the site itself, a backup was restored here.

    Backups are restored before a start, so only a peer's first greeting can tell: a liar restarts our work once a run.
    """
    if event.site not in site.rules.peers:
        return
    seen, memory = event.greeting.seen, site.memory
    first = event.site not in site.greeted and site.phase not in (Phase.DONE, Phase.LEAVING)
    site.greeted.add(event.site)
    site.accepts_evaluation[event.site] = event.greeting.evaluates
    site.peers.hear(event.site, None, site.now_s)
    last = max((round for round, _ in memory.published), default=0)
    if first and seen is not None and (seen.generation, seen.round) > (memory.generation, last):
        if seen.generation - memory.generation <= limits.GENERATIONS_AHEAD_MAX:
            rounds.regenerate(site, reported_by=event.site, seen=seen)
            return
        site.refuse(event.site, f"claims to know generation {seen.generation} of this site, now at {memory.generation}")
    look(site)


def hear(site: SiteState, event: events.PeerHeard) -> None:
    """A peer lives; what it does may end a wait."""
    if event.site in site.rules.peers:
        pulse = event.pulse
        if pulse is not None and max(pulse.round, pulse.committed_round, pulse.published_round) > site.rules.rounds:
            site.complain(event.site, f"claims a round after the last one ({site.rules.rounds})")
            pulse = None  # the peer lives, and its claim counts for nothing
        site.peers.hear(event.site, pulse, site.now_s)
        rounds.compare(site, (event.site,))
        look(site)


def tick(site: SiteState, event: events.Ticked) -> None:
    """Time passed."""
    site.wake_s = None  # a clock that rang early must be set again
    if site.phase == Phase.LEAVING and site.now_s >= site.since_s + HALT_S:
        site.leave()
        return
    look(site)


def look(site: SiteState) -> None:
    """Whether what is known now ends what the site waits for."""
    if site.phase == Phase.GATHERING:
        rounds.check_gathered(site)
    elif site.phase in BETWEEN:
        rounds.set_pace(site)
    elif site.phase in WAITING:
        rounds.review(site)
    elif site.phase == Phase.DONE:
        rounds.check_done(site)


def shun(site: SiteState, event: events.PeerRefused) -> None:
    """A peer broke the protocol or is of another federation: name it once for each reason, go on without it."""
    site.complain(event.site, event.reason)


def ignore(site: SiteState, event: events.Event) -> None:
    """Too late, or meant for another phase: write down that it came, and no more."""
    site.ignore(event)


def let_pass(site: SiteState, event: events.Event) -> None:
    """Nothing to do, and nothing worth a row."""


def arrive(site: SiteState, event: events.ArtifactArrived) -> None:
    """An artifact is on disk: remember it first, then see whether that was the last one."""
    wanted = _wanted(site, event)
    if wanted is None:
        discard(site, event)
        return
    problem = _problem(site, wanted, event)
    if problem:
        wanted.dropped = "refused"
        site.refuse(event.origin, problem)
        discard(site, event)
    else:
        late = "" if event.true_round == event.round else "stale"
        wanted.came = Source(event.origin, event.true_round, event.artifact, late)
        row = rows.ArrivedRow(event.round, source=wanted.came, origin_generation=event.origin_generation)
        site.persist(row)
    rounds.review(site)


def _problem(site: SiteState, wanted: Want, event: events.ArtifactArrived) -> str:
    """Why the artifact is not the one that was due; empty when it is. Only a circulating model may be an older copy."""
    artifact, kind = event.artifact, site.rules.plan.artifact
    older = site.exchange is not None and site.exchange.pattern == "circulate"
    key = (event.origin_generation, event.true_round, artifact.owner)
    first = site.memory.first_digests.get(event.origin, {}).get(key, artifact.sha256)
    if first != artifact.sha256:
        digests = f"{artifact.sha256[:12]}, not {first[:12]}"
        return f"sent another artifact for round {event.true_round} than before ({digests})"
    if not (1 if older else event.round) <= event.true_round <= event.round:
        return f"sent the artifact of round {event.true_round} for round {event.round}"
    if artifact.owner != wanted.owner or artifact.kind != kind:
        return f"sent {artifact.owner}'s {artifact.kind} where {wanted.owner}'s {kind} was due"
    return ""


def discard(site: SiteState, event: events.ArtifactArrived) -> None:
    """What nobody waits for is deleted, unless something else needs the same bytes."""
    ignore(site, event)
    if event.artifact.sha256 not in site.memory.names():
        site.emit(commands.Discard(event.artifact.sha256))


def miss(site: SiteState, event: events.ArtifactUnavailable) -> None:
    """The origin will not have it: fall back at once. (Not yet is asked again by the one who fetches.)"""
    wanted = _wanted(site, event)
    if wanted is None or event.answer == Unavailable.NOT_YET:
        ignore(site, event)
        return
    wanted.dropped = str(event.answer)
    rounds.review(site)


def refuse(site: SiteState, event: events.ArtifactRefused) -> None:
    """What came was not acceptable: that counts as silence, and the origin is named."""
    site.refuse(event.origin, event.reason)
    wanted = _wanted(site, event)
    if wanted is not None:
        wanted.dropped = "refused"
        rounds.review(site)


def _wanted(site: SiteState, event: Any) -> Want | None:
    """The open want that the event answers; an answer to an earlier order has none."""
    current = site.exchange
    if current is None or (event.generation, event.round) != (site.memory.generation, current.round):
        return None
    wanted = current.wants.get(event.origin)
    return wanted if wanted is not None and wanted.open and wanted.attempt == event.attempt else None


def of_purpose(guest: Handler, artifact: Handler) -> Handler:
    """The handler of a fetch's end: a guest's is the same in every phase, and none of the round's business."""

    def routed(site: SiteState, event: Any) -> None:
        (guest if event.purpose == "evaluate" else artifact)(site, event)

    return routed


FROM_OUTSIDE: Mapping[type[events.Event], Handler] = {
    events.Ticked: tick,
    events.PauseRequested: pause,
    events.ResumeRequested: ignore,
    events.StopRequested: stop,
    events.PeerGreeted: greet,
    events.PeerHeard: hear,
    events.PeerRefused: shun,
    events.ArtifactArrived: of_purpose(global_test.arrive, discard),
    events.ArtifactUnavailable: of_purpose(global_test.miss, ignore),
    events.ArtifactRefused: of_purpose(global_test.refuse, refuse),
    events.Initialised: ignore,
    events.Progressed: let_pass,
    events.Trained: ignore,
    events.Aggregated: ignore,
    events.Adopted: ignore,
    events.Evaluated: ignore,
    events.Rehearsed: ignore,
    events.Halted: let_pass,
    events.ArtifactRejected: ignore,
    events.WorkFailed: ignore,
    events.Measured: global_test.measured,
    events.MeasurementFailed: global_test.fail,
    events.ReportArrived: global_test.note,
    events.ReportAnswered: global_test.answer,
}
"""What each event does unless a phase says otherwise."""

EXCHANGING: Mapping[type[events.Event], Handler] = {
    events.ArtifactArrived: of_purpose(global_test.arrive, arrive),
    events.ArtifactUnavailable: of_purpose(global_test.miss, miss),
}
SPECIAL: Mapping[Phase, Mapping[type[events.Event], Handler]] = {
    Phase.INITIALISING: {events.Initialised: worker_events.initialise, events.WorkFailed: worker_events.fail},
    Phase.EXCHANGE: EXCHANGING,
    Phase.HANDBACK: EXCHANGING,
    Phase.TRAIN: {
        events.Progressed: worker_events.advance,
        events.Trained: worker_events.train,
        events.ArtifactRejected: worker_events.reject,
        events.WorkFailed: worker_events.fail,
    },
    Phase.AGGREGATE: {
        events.Aggregated: worker_events.aggregate,
        events.ArtifactRejected: worker_events.reject,
        events.WorkFailed: worker_events.fail,
    },
    Phase.EVALUATE: {events.Evaluated: worker_events.evaluate, events.WorkFailed: worker_events.fail},
    Phase.ADOPT: {
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
        **dict.fromkeys(FROM_OUTSIDE, let_pass),
    },
}

TRANSITIONS: Mapping[tuple[Phase, type[events.Event]], Handler] = {
    (Phase.NEW, events.Began): begin,
    **{(phase, kind): handler for phase in ALL for kind, handler in FROM_OUTSIDE.items()},
    **{(phase, kind): handler for phase, rows in SPECIAL.items() for kind, handler in rows.items()},
}
"""(phase, event type) -> what happens. An absent pair raises ``IllegalTransitionError``."""
