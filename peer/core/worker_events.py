"""Handlers of the worker's answers to its orders.

An answer to an older order is journalled and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from peer.core import commands, events, exchange, fetches, limits, rounds, rows
from peer.core.artifacts import Artifact, Source
from peer.core.metrics import validation_loss, validation_metric
from peer.core.phases import Phase
from peer.core.roster import Sha256
from peer.core.state import SiteState

Handler = Callable[[SiteState, Any], None]

RESTARTS_MAX = {
    "crash": limits.WORKER_RESTARTS_MAX,
    "hang": limits.HANG_RESTARTS_MAX,
    "disk": limits.LOST_FILES_MAX,
}
"""Faults that a new worker may repair, with the maximum of consecutive restarts."""


def current(handler: Handler) -> Handler:
    """Make a handler ignore answers to earlier orders."""

    def guarded(site: SiteState, event: Any) -> None:
        (handler if _answers(site, event) else SiteState.ignore)(site, event)

    return guarded


def _answers(site: SiteState, event: Any) -> bool:
    order = (site.memory.generation, site.number, site.ordered)
    return (event.generation, getattr(event, "round", site.number), event.attempt) == order


@current
def initialise(site: SiteState, event: events.Initialised) -> None:
    """Record the initial model; it serves round 1 if the plan publishes at the commit."""
    site.failures = 0
    row = rows.InitialisedRow(
        0,
        state=event.state,
        artifact=event.artifact,
        samples=event.samples,
        threads=event.threads,
        device=event.device,
        weights=event.weights,
        publish=site.publish_from(1) if site.rules.plan.published == "commit" and site.rules.first_round == 1 else None,
    )
    site.persist(row)
    rounds.go_on(site)


def advance(site: SiteState, event: events.Progressed) -> None:
    """Record a stage's progress for ``status``."""
    if _answers(site, event):
        site.progress = event


@current
def queue(site: SiteState, event: events.Queued) -> None:
    """Record whether the worker waits for the GPU."""
    site.queued = event.ahead > 0


@current
def train(site: SiteState, event: events.Trained) -> None:
    """Record the end of the ordered stage, whatever stage the answer names; publish its artifact if it is due."""
    site.failures = 0
    opened = site.opened
    rules = site.lived_rules
    stage = rules.phases(opened.number)[opened.position].removeprefix("train:")
    publishes = rules.plan.published == stage and not rules.sums_in(opened.number)  # a sum's artifact leaves masked
    row = rows.TrainedRow(
        opened.number,
        position=opened.position,
        stage=stage,
        state=event.state or opened.state,
        artifact=event.artifact,
        metrics=event.metrics,
        threads=event.threads,
        duration_s=event.duration_s,
        publish=site.publish_from(opened.number) if publishes else None,
        returned=_returned(site, event) or None,
        cohort=event.cohort,
    )
    site.persist(row)
    site.publish_due()
    rounds.next_phase(site)


def _returned(site: SiteState, event: events.Trained) -> tuple[Artifact, ...]:
    """Return the visiting models that the stage trained, of the sites whose models visit in this round."""
    if site.lived_rules.plan.pattern != "visit":
        return ()
    visitors = {source.artifact.owner for source in site.opened.sources}
    return tuple(artifact for artifact in event.returned if artifact.owner in visitors and artifact.kind == "return")


@current
def aggregate(site: SiteState, event: events.Aggregated) -> None:
    """Record that the shared module is the mean of its contributors."""
    site.failures = 0
    row = rows.AggregatedRow(
        site.opened.number,
        position=site.opened.position,
        state=event.state or site.opened.state,
        sha256=event.sha256,
        contributors=event.contributors,
        cut=event.cut or None,
        artifact=event.artifact,
    )
    site.persist(row)
    for name, reason in event.cut.items():
        if name not in event.contributors and name != site.lived_rules.site:
            site.refuse(name, f"left out of the mean: {reason}")
    rounds.next_phase(site)


@current
def evaluate(site: SiteState, event: events.Evaluated) -> None:
    """Record the local model's evaluation; lend the model from now on if that is permitted."""
    site.failures = 0
    lent = event.artifact if site.lived_rules.lends(event.round) else None
    denied = (site.lived_rules.evaluation_denied or "") if lent is None and site.lived_rules.global_test else None
    memory, needed_before = site.memory, site.memory.needed_digests()
    metric = validation_metric(event.metrics)
    if metric is not None and memory.best is not None:
        loss = validation_loss(event.metrics)
        metric = metric if memory.best.is_beaten(event.round, event.metrics[metric], loss) else None
    keeps_received = metric is not None and memory.open is not None and site.lived_rules.plan.keeps_last_received
    row = rows.EvaluatedRow(
        event.round,
        metrics=event.metrics,
        artifact=lent,
        evaluation_denied=denied,
        best_by=metric,
        received=tuple(source.artifact.sha256 for source in site.opened.sources) if keeps_received else None,
    )
    site.persist(row)
    for digest in sorted(needed_before - memory.needed_digests()):  # heads of the former best round
        site.emit(commands.Discard(digest))
    if lent is not None:
        site.emit(commands.Publish(event.round, lent, evaluation=True))
    rounds.go_on(site)


@current
def adopt(site: SiteState, event: events.Adopted) -> None:
    """Record that the site's own model is back."""
    site.failures = 0
    rounds.come_home(site, event.state, event.artifact)


@current
def reject(site: SiteState, event: events.ArtifactRejected) -> None:
    """Continue without an artifact that the worker found unusable, and name its origin.

    The site's own artifact, or one that the order did not name, is no peer's fault: it counts as a crash, since
    continuing without it could repeat for ever. A circulating model that was trained here is still another site's: the
    round idles without it.
    """
    total = site.opened.total
    if total is not None and total.sha256 == event.sha256:
        _add_up_again(site, event)
        return
    used = {source.artifact.sha256: source for source in site.sources_in_use()}
    source = used.get(event.sha256)
    visited = source is not None and source.artifact.owner != site.lived_rules.site
    if source is None or (source.origin == site.lived_rules.site and not visited):
        _fail(site, "crash", f"the worker rejected {event.sha256[:12]}: {event.reason}", suspect=None)
        return
    if event.lost and source.origin != site.lived_rules.site:
        _fetch_again(site, event.sha256)
        return
    if event.short and source.origin != site.lived_rules.site:
        rounds.leave_out(site, event.sha256, missing_as="unused")
        rounds.go_on(site)
        return
    if source.origin != site.lived_rules.site and fetches.ask_earlier(site, source):
        rounds.review(site)
        return
    rounds.leave_out(site, event.sha256, event.reason)
    rounds.go_on(site)


def _add_up_again(site: SiteState, event: events.ArtifactRejected) -> None:
    """Add up once more if the total's file is gone; go on without a total that is no mean of this site's networks."""
    if not (event.lost and _forget_lost(site, event.sha256)):
        site.persist(rows.WorkFailedRow(site.number, fault="data", reason=f"the sum is not used: {event.reason}"))
        rounds.leave_out(site, event.sha256)
    rounds.go_on(site)


def _forget_lost(site: SiteState, sha256: Sha256) -> bool:
    """Discard a received artifact whose file is gone or damaged, so that it is fetched again.

    Returns False if the round has lost ``LOST_FILES_MAX`` files already.
    """
    site.losses[site.number] += 1
    if site.losses[site.number] > limits.LOST_FILES_MAX:
        return False
    site.persist(rows.DiscardedRow(site.number, sha256=sha256, lost=True))
    site.emit(commands.Discard(sha256))
    return True


def _fetch_again(site: SiteState, sha256: Sha256) -> None:
    """Return to the exchange of a received artifact whose file is gone; nobody is named.

    If no exchange fetches it any more, or files are lost repeatedly, the round continues without it.
    """
    _forget_lost(site, sha256)
    if sha256 in {source.artifact.sha256 for source in site.sources_in_use()}:
        rounds.leave_out(site, sha256, missing_as="lost")
    rounds.go_on(site)


@current
def reject_home(site: SiteState, event: events.ArtifactRejected) -> None:
    """Adopt the best other copy in place of an unusable handed-back one, or continue unchanged.

    The copy from which it was trained is fetched first.
    """
    name = site.lived_rules.site
    copies = {copy.artifact.sha256: copy for copy in site.artifacts_on_disk() if copy.artifact.owner == name}
    rejected = copies.pop(event.sha256, None)
    if rejected is not None and rejected.origin != name:
        if event.lost and _forget_lost(site, event.sha256):
            rounds.go_on(site)
            return
        if fetches.ask_earlier(site, rejected):
            rounds.review(site)
            return
        if not (event.lost or event.short):
            site.refuse(event.origin, event.reason)
        site.persist(rows.DiscardedRow(site.memory.committed, sha256=event.sha256))
        site.emit(commands.Discard(event.sha256))
    best = exchange.best_copy(copies.values(), site.lived_rules) if copies and event.origin != name else None
    if best is None or best.origin == name:
        site.persist(rows.SlotLostRow(site.memory.committed))
    if best is None:
        rounds.come_home(site)
    else:
        rounds.adopt(site, best if best.origin == name else exchange.stale(best))


@current
def fail(site: SiteState, event: events.WorkFailed) -> None:
    """Try again after a crash, from the last checkpoint; after another fault, stop the training.

    On a lack of memory, or a crash or hang that retries do not repair, the round first leaves out a peer's artifact if
    one was in use, the largest of several. Nobody is named for it: only a check shows whose fault it is, and this site
    may have less memory than others. If training diverges without any such artifact, the site goes back to the state
    before peers last contributed to it. Only a failure after that is the site's own.
    """
    _fail(site, event.fault, event.reason, suspect=_largest_received(site), detail=event.detail)


def _fail(site: SiteState, fault: str, reason: str, *, suspect: Source | None, detail: str = "") -> None:
    site.failures += 1
    site.persist(rows.WorkFailedRow(site.number, fault=fault, reason=reason, count=site.failures))
    if site.failures <= RESTARTS_MAX.get(fault, 0):
        rounds.go_on(site)
    elif fault in ("crash", "hang", "memory") and suspect is not None:
        site.failures = 0
        rounds.leave_out(site, suspect.artifact.sha256, missing_as="unused")
        rounds.go_on(site)
    elif fault == "divergence" and site.phase == Phase.TRAIN and rounds.revert(site, reason):
        site.failures = 0
        rounds.go_on(site)
    elif site.phase == Phase.INITIALISING:
        site.leave(fault, reason)
    else:
        site.failure = f"{fault}: {detail or reason}"
        site.enter(Phase.FAILED)


def _largest_received(site: SiteState) -> Source | None:
    """Return a peer's largest artifact among those that the present stage uses, or None."""
    if site.phase not in (Phase.TRAIN, Phase.AGGREGATE):
        return None
    received = [source for source in site.sources_in_use() if source.origin != site.lived_rules.site]
    return max(received, key=lambda source: source.artifact.bytes, default=None)


@current
def halted(site: SiteState, event: events.Halted) -> None:
    """Leave, if the site is leaving: the worker's checkpoint is on disk."""
    if site.phase == Phase.LEAVING:
        site.leave()


@current
def fail_leaving(site: SiteState, event: events.WorkFailed) -> None:
    """Leave without the checkpoint of a worker that died instead of halting; the journal is complete."""
    site.leave()
