"""What the worker's answers to its orders change; an answer to an older order is written down and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peer.core import commands, events, limits, rounds, rows
from peer.core.phases import Phase
from peer.core.state import SiteState

Handler = Callable[[SiteState, Any], None]


def current(handler: Handler) -> Handler:
    """The handler for answers to the newest order only; others are ignored."""

    def guarded(site: SiteState, event: Any) -> None:
        (handler if _answers(site, event) else SiteState.ignore)(site, event)

    return guarded


def _answers(site: SiteState, event: Any) -> bool:
    order = (site.memory.generation, site.number, site.attempt)
    return (event.generation, getattr(event, "round", site.number), event.attempt) == order


@current
def initialise(site: SiteState, event: events.Initialised) -> None:
    """The initial model exists: it is the artifact of round 1 where models travel at the commit."""
    site.failures = 0
    row = rows.InitialisedRow(
        0,
        state=event.state,
        artifact=event.artifact,
        samples=event.samples,
        threads=event.threads,
        device=event.device,
        publish=1 if site.rules.plan.published == "commit" else None,
    )
    site.persist(row)
    rounds.go_on(site)


def advance(site: SiteState, event: events.Progressed) -> None:
    """A stage moved; only shown."""
    if _answers(site, event):
        site.progress = event


@current
def train(site: SiteState, event: events.Trained) -> None:
    """A stage is over; publish after it where the plan says so."""
    site.failures = 0
    opened = site.opened
    row = rows.TrainedRow(
        opened.number,
        position=opened.position,
        stage=event.stage,
        state=event.state,
        artifact=event.artifact,
        metrics=event.metrics,
        threads=event.threads,
        duration_s=event.duration_s,
        publish=opened.number if site.rules.plan.published == event.stage else None,
    )
    site.persist(row)
    site.publish_due()
    rounds.next_phase(site)


@current
def aggregate(site: SiteState, event: events.Aggregated) -> None:
    """The shared module is the mean of its contributors."""
    site.failures = 0
    row = rows.AggregatedRow(
        site.opened.number,
        position=site.opened.position,
        state=event.state,
        sha256=event.sha256,
        contributors=event.contributors,
    )
    site.persist(row)
    rounds.next_phase(site)


@current
def evaluate(site: SiteState, event: events.Evaluated) -> None:
    """The metrics are in; what others may measure is lent from now on."""
    site.failures = 0
    lent = event.artifact if site.rules.lends(event.round) else None
    denied = (site.rules.evaluation_denied or "") if lent is None and site.rules.global_test else None
    row = rows.EvaluatedRow(event.round, metrics=event.metrics, artifact=lent, evaluation_denied=denied)
    site.persist(row)
    if lent is not None:
        site.emit(commands.Publish(event.round, lent, evaluation=True))
    rounds.go_on(site)


@current
def adopt(site: SiteState, event: events.Adopted) -> None:
    """The own model is home."""
    site.failures = 0
    rounds.come_home(site, event.state, event.artifact)


@current
def reject(site: SiteState, event: events.ArtifactRejected) -> None:
    """The worker found an artifact unusable: go on as if it had not come, and name its origin.

    An own artifact, or one that the order did not name, is no peer's fault: to go on without it could go on for ever.
    """
    used = {source.artifact.sha256: source.origin for source in site.opened.sources}
    if used.get(event.sha256, site.rules.site) == site.rules.site:
        _fail(site, "crash", f"the worker rejected {event.sha256[:12]}: {event.reason}")
        return
    rounds.leave_out(site, event.sha256, event.reason)
    rounds.go_on(site)


@current
def reject_home(site: SiteState, event: events.ArtifactRejected) -> None:
    """The copy that came home is unusable: the owner goes on from its own newest one, or else as it is."""
    own = rounds.own_copy(site)
    site.persist(rows.SlotLostRow(site.memory.committed))
    if own is None or event.sha256 == own.artifact.sha256:
        rounds.come_home(site)
        return
    site.refuse(event.origin, event.reason)
    rounds.adopt(site, own)


@current
def fail(site: SiteState, event: events.WorkFailed) -> None:
    """A crash is tried again from the last checkpoint; what would only fail again stops the site's training."""
    _fail(site, event.fault, event.reason)


def _fail(site: SiteState, fault: str, reason: str) -> None:
    site.failures += 1
    site.persist(rows.WorkFailedRow(site.number, fault=fault, reason=reason, count=site.failures))
    if fault == "crash" and site.failures <= limits.WORKER_RESTARTS_MAX:
        rounds.go_on(site)
    elif site.phase == Phase.INITIALISING:
        site.leave(fault, reason)
    else:
        site.failure = f"{fault}: {reason}"
        site.enter(Phase.FAILED)


@current
def halted(site: SiteState, event: events.Halted) -> None:
    """The checkpoint is written: a leaving site may end now."""
    if site.phase == Phase.LEAVING:
        site.leave()


@current
def fail_leaving(site: SiteState, event: events.WorkFailed) -> None:
    """The worker died instead of halting; the journal is as good as after a kill."""
    site.leave()
