"""The law of the state machine: which event may occur in which phase, and what then happens.

Everything that a peer, a timer, an operator or a late result can cause has a row in every phase; where it does not
matter the row is ``ignore``, which journals why. A pair without a row can only be a bug of this program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from peer.core import commands, events, limits, stages, waiting
from peer.core.commands import Source
from peer.core.exchange import Want
from peer.core.facts import Unavailable
from peer.core.replay import body_of
from peer.core.site import BUSY, HALT_S, Phase, Site

Handler = Callable[[Site, Any], None]

BETWEEN = (Phase.PACING, Phase.ISOLATED)
WAITING = (Phase.EXCHANGE, Phase.HANDBACK)
ALL = tuple(phase for phase in Phase if phase != Phase.NEW)


def begin(site: Site, event: events.Began) -> None:
    """Start, or go on from the journal; what was published is served again first."""
    site.neighbours.began_s = site.since_s = site.now_s
    site.persist("began", site.memory.committed, {"generation": site.memory.generation})
    for (round, _), artifact in sorted(site.memory.published.items()):
        site.emit(commands.Publish(round, artifact))
    stages.go_on(site)


def pause(site: Site, event: events.PauseRequested) -> None:
    """Stop training, keep serving; peers are told before it takes effect."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    site.persist("paused", site.number)
    site.enter(Phase.PAUSED)
    if busy:
        site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def resume(site: Site, event: events.ResumeRequested) -> None:
    """Go on after a pause, or try again after a failure."""
    site.failure, site.failures = "", 0
    site.persist("resumed", site.number)
    stages.go_on(site)


def stop(site: Site, event: events.StopRequested) -> None:
    """Leave: tell the peers, let the worker write its checkpoint, then end."""
    busy = site.phase in BUSY
    site.cancel_exchange()
    if not busy:
        site.leave()
        return
    site.enter(Phase.LEAVING)
    site.emit(commands.Halt(site.memory.generation, site.next_attempt()))


def greet(site: Site, event: events.PeerGreeted) -> None:
    """A peer belongs to us. If it remembers more of this site than the site itself, a backup was restored here.

    Backups are restored before a start, so only a peer's first greeting can tell: a liar restarts our work once a run.
    """
    if event.site not in site.rules.peers:
        return
    seen, memory = event.greeting.seen, site.memory
    first = event.site not in site.greeted and site.phase not in (Phase.DONE, Phase.LEAVING)
    site.greeted.add(event.site)
    site.neighbours.hear(event.site, None, site.now_s)
    last = max((round for round, _ in memory.published), default=0)
    if first and seen is not None and (seen.generation, seen.round) > (memory.generation, last):
        if seen.generation - memory.generation <= limits.GENERATIONS_AHEAD_MAX:
            stages.regenerate(site, reported_by=event.site, seen=seen)
            return
        site.refuse(event.site, f"claims to know generation {seen.generation} of this site, now at {memory.generation}")
    look(site)


def hear(site: Site, event: events.PeerHeard) -> None:
    """A peer lives; what it does may end a wait."""
    if event.site in site.rules.peers:
        site.neighbours.hear(event.site, event.pulse, site.now_s)
        stages.compare(site, (event.site,))
        look(site)


def tick(site: Site, event: events.Ticked) -> None:
    """Time passed."""
    site.wake_s = None  # a clock that rang early must be set again
    if site.phase == Phase.LEAVING and site.now_s >= site.since_s + HALT_S:
        site.leave()
        return
    look(site)


def look(site: Site) -> None:
    """Whether what is known now ends what the site waits for."""
    if site.phase == Phase.GATHERING:
        stages.check_gathered(site)
    elif site.phase in BETWEEN:
        stages.set_pace(site)
    elif site.phase in WAITING:
        stages.review(site)
    elif site.phase == Phase.DONE:
        stages.check_done(site)


def shun(site: Site, event: events.PeerRefused) -> None:
    """A peer broke the protocol or is of another federation: name it once for each reason, go on without it."""
    known = site.shunned.setdefault(event.site, set())
    if event.reason not in known and len(known) < limits.REFUSALS_PER_PEER_MAX:
        known.add(event.reason)
        site.refuse(event.site, event.reason)


def ignore(site: Site, event: events.Event) -> None:
    """Too late, or meant for another phase: write down that it came, and no more."""
    site.persist("ignored", site.number, {"event": type(event).__name__, "phase": str(site.phase)})


def let_pass(site: Site, event: events.Event) -> None:
    """Nothing to do, and nothing worth a row."""


def arrive(site: Site, event: events.ArtifactArrived) -> None:
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
        body = {"source": body_of(wanted.came), "origin_generation": event.origin_generation}
        site.persist("arrived", event.round, body)
    stages.review(site)


def _problem(site: Site, wanted: Want, event: events.ArtifactArrived) -> str:
    """Why the artifact is not the one that was due; empty when it is. Only a circulating model may be an older copy."""
    artifact, kind = event.artifact, site.rules.plan.artifact
    older = site.exchange is not None and site.exchange.pattern == "circulate"
    key = (event.origin, event.origin_generation, event.true_round, artifact.owner)
    first = site.memory.first_digests.get(key, artifact.sha256)
    if first != artifact.sha256:
        digests = f"{artifact.sha256[:12]}, not {first[:12]}"
        return f"sent another artifact for round {event.true_round} than before ({digests})"
    if not (1 if older else event.round) <= event.true_round <= event.round:
        return f"sent the artifact of round {event.true_round} for round {event.round}"
    if artifact.owner != wanted.owner or artifact.kind != kind:
        return f"sent {artifact.owner}'s {artifact.kind} where {wanted.owner}'s {kind} was due"
    return ""


def discard(site: Site, event: events.ArtifactArrived) -> None:
    """What nobody waits for is deleted, unless something else needs the same bytes."""
    ignore(site, event)
    if event.artifact.sha256 not in site.memory.names():
        site.emit(commands.Discard(event.artifact.sha256))


def miss(site: Site, event: events.ArtifactUnavailable) -> None:
    """The origin will not have it: fall back at once. (Not yet is asked again by the one who fetches.)"""
    wanted = _wanted(site, event)
    if wanted is None or event.answer == Unavailable.NOT_YET:
        ignore(site, event)
        return
    wanted.dropped = str(event.answer)
    stages.review(site)


def refuse(site: Site, event: events.ArtifactRefused) -> None:
    """What came was not acceptable: that counts as silence, and the origin is named."""
    site.refuse(event.origin, event.reason)
    wanted = _wanted(site, event)
    if wanted is not None:
        wanted.dropped = "refused"
        stages.review(site)


def _wanted(site: Site, event: Any) -> Want | None:
    """The open want that the event answers; an answer to an earlier order has none."""
    current = site.exchange
    if current is None or (event.generation, event.round) != (site.memory.generation, current.round):
        return None
    wanted = current.wants.get(event.origin)
    return wanted if wanted is not None and wanted.open and wanted.attempt == event.attempt else None


def current(handler: Handler) -> Handler:
    """The handler for answers to the newest order only; others are ignored."""

    def guarded(site: Site, event: Any) -> None:
        (handler if _answers(site, event) else ignore)(site, event)

    return guarded


def _answers(site: Site, event: Any) -> bool:
    order = (site.memory.generation, site.number, site.attempt)
    return (event.generation, getattr(event, "round", site.number), event.attempt) == order


@current
def initialise(site: Site, event: events.Initialised) -> None:
    """The initial model exists: it is the artifact of round 1 where models travel at the commit."""
    site.failures = 0
    body = {
        "state": event.state,
        "artifact": body_of(event.artifact),
        "samples": dict(event.samples),
        "threads": event.threads,
        "device": event.device,
        "publish": 1 if site.rules.plan.published == "commit" else None,
    }
    site.persist("initialised", 0, body)
    stages.go_on(site)


def advance(site: Site, event: events.Progressed) -> None:
    """A stage moved; only shown."""
    if _answers(site, event):
        site.progress = event


@current
def train(site: Site, event: events.Trained) -> None:
    """A stage is over; publish after it where the plan says so."""
    site.failures = 0
    opened = site.opened
    body = {
        "position": opened.position,
        "stage": event.stage,
        "state": event.state,
        "artifact": body_of(event.artifact),
        "metrics": dict(event.metrics),
        "threads": event.threads,
        "duration_s": event.duration_s,
        "publish": opened.number if site.rules.plan.published == event.stage else None,
    }
    site.persist("trained", opened.number, body)
    site.publish_due()
    stages.next_phase(site)


@current
def aggregate(site: Site, event: events.Aggregated) -> None:
    """The shared module is the mean of its contributors."""
    site.failures = 0
    body = {
        "position": site.opened.position,
        "state": event.state,
        "sha256": event.sha256,
        "contributors": list(event.contributors),
    }
    site.persist("aggregated", site.opened.number, body)
    stages.next_phase(site)


@current
def evaluate(site: Site, event: events.Evaluated) -> None:
    """The metrics are in."""
    site.failures = 0
    site.persist("evaluated", event.round, {"metrics": dict(event.metrics)})
    stages.go_on(site)


@current
def adopt(site: Site, event: events.Adopted) -> None:
    """The own model is home."""
    site.failures = 0
    stages.come_home(site, event.state, event.artifact)


@current
def reject(site: Site, event: events.ArtifactRejected) -> None:
    """The worker found an artifact unusable: go on as if it had not come, and name its origin.

    An own artifact, or one that the order did not name, is no peer's fault: to go on without it could go on for ever.
    """
    used = {source.artifact.sha256: source.origin for source in site.opened.sources}
    if used.get(event.sha256, site.rules.site) == site.rules.site:
        _fail(site, "crash", f"the worker rejected {event.sha256[:12]}: {event.reason}")
        return
    waiting.leave_out(site, event.sha256, event.reason)
    stages.go_on(site)


@current
def reject_home(site: Site, event: events.ArtifactRejected) -> None:
    """The copy that came home is unusable: the owner goes on from its own newest one, or else as it is."""
    own = waiting.own_copy(site)
    site.persist("slot_lost", site.memory.committed)
    if own is None or event.sha256 == own.artifact.sha256:
        stages.come_home(site, "", None)
        return
    site.refuse(event.origin, event.reason)
    waiting.adopt(site, own)


@current
def fail(site: Site, event: events.WorkFailed) -> None:
    """A crash is tried again from the last checkpoint; what would only fail again stops the site's training."""
    _fail(site, event.fault, event.reason)


def _fail(site: Site, fault: str, reason: str) -> None:
    site.failures += 1
    site.persist("work_failed", site.number, {"fault": fault, "reason": reason, "count": site.failures})
    if fault == "crash" and site.failures <= limits.WORKER_RESTARTS_MAX:
        stages.go_on(site)
    elif site.phase == Phase.INITIALISING:
        site.leave(fault, reason)
    else:
        site.failure = f"{fault}: {reason}"
        site.enter(Phase.FAILED)


@current
def halted(site: Site, event: events.Halted) -> None:
    """The checkpoint is written: a leaving site may end now."""
    if site.phase == Phase.LEAVING:
        site.leave()


@current
def fail_leaving(site: Site, event: events.WorkFailed) -> None:
    """The worker died instead of halting; the journal is as good as after a kill."""
    site.leave()


FROM_OUTSIDE: Mapping[type[events.Event], Handler] = {
    events.Ticked: tick,
    events.PauseRequested: pause,
    events.ResumeRequested: ignore,
    events.StopRequested: stop,
    events.PeerGreeted: greet,
    events.PeerHeard: hear,
    events.PeerRefused: shun,
    events.ArtifactArrived: discard,
    events.ArtifactUnavailable: ignore,
    events.ArtifactRefused: refuse,
    events.Initialised: ignore,
    events.Progressed: let_pass,
    events.Trained: ignore,
    events.Aggregated: ignore,
    events.Adopted: ignore,
    events.Evaluated: ignore,
    events.Halted: let_pass,
    events.ArtifactRejected: ignore,
    events.WorkFailed: ignore,
}
"""What each event does unless a phase says otherwise."""

SPECIAL: Mapping[Phase, Mapping[type[events.Event], Handler]] = {
    Phase.INITIALISING: {events.Initialised: initialise, events.WorkFailed: fail},
    Phase.EXCHANGE: {events.ArtifactArrived: arrive, events.ArtifactUnavailable: miss},
    Phase.HANDBACK: {events.ArtifactArrived: arrive, events.ArtifactUnavailable: miss},
    Phase.TRAIN: {
        events.Progressed: advance,
        events.Trained: train,
        events.ArtifactRejected: reject,
        events.WorkFailed: fail,
    },
    Phase.AGGREGATE: {events.Aggregated: aggregate, events.ArtifactRejected: reject, events.WorkFailed: fail},
    Phase.EVALUATE: {events.Evaluated: evaluate, events.WorkFailed: fail},
    Phase.ADOPT: {events.Adopted: adopt, events.ArtifactRejected: reject_home, events.WorkFailed: fail},
    Phase.PAUSED: {events.PauseRequested: ignore, events.ResumeRequested: resume},
    Phase.FAILED: {events.PauseRequested: ignore, events.ResumeRequested: resume},
    Phase.DONE: {events.PauseRequested: ignore},
    Phase.LEAVING: {
        events.Halted: halted,
        events.WorkFailed: fail_leaving,
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
