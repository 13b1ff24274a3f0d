"""Global Test (cross-site evaluation): at the end of a round a site lends its model, and evaluates its peers' models.

The lender serves and the borrower fetches, as for training. Evaluating other sites' models never delays a round. A
failed evaluation is recorded with its reason. Rows precede the orders that depend on them: ``give_up_overdue`` runs
before an event's handler and may write a row, ``order_due`` runs after it and only gives orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from peer.core import access, commands, events, limits, rows
from peer.core.artifacts import EvaluationResult, Source, Unmeasured
from peer.core.cross_evaluation_memory import FAILURES_MAX, BorrowedKey, BorrowedTask
from peer.core.liveness import AWAY
from peer.core.messages import Unavailable
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.state import SiteState

INACTIVE = frozenset({Phase.NEW, Phase.INITIALISING, Phase.PAUSED, Phase.FAILED, Phase.LEAVING, Phase.GONE})
"""Phases in which the site fetches and measures no lent model: data unchecked, or training stopped."""


def give_up_overdue(site: SiteState) -> None:
    """End a measurement that takes longer than ``MEASURE_S_MAX``, and a fetch after ``wait_max_s``."""
    fetching = site.evaluation_tasks.fetching
    while (oldest := next(iter(fetching.values()), None)) and site.now_s >= oldest.since_s + site.pace.wait_max_s:
        del fetching[oldest.key[0]]
        site.emit(commands.CancelFetch(oldest.key[0], "evaluate"))
        _settle(site, oldest.key, "slow")
    task = site.evaluation_tasks.measuring
    if task is not None and site.now_s >= task.since_s + limits.MEASURE_S_MAX:
        site.evaluation_tasks.measuring, site.evaluation_tasks.process_ordered = None, False
        _conclude(site, task.key, "failed")
        site.emit(commands.Dismiss())


def order_due(site: SiteState) -> None:
    """Order what is due: fetch lent models, measure one of them, send evaluations."""
    if site.rules.evaluation_denied is not None or site.phase in INACTIVE:
        _cancel_all(site)
        return
    tasks, evaluation = site.evaluation_tasks, site.memory.evaluation
    for origin in _changed(site):
        if not _reachable(site, origin):
            continue
        if origin not in tasks.fetching and (key := _next_to_fetch(site, origin)) is not None:
            task = tasks.fetching[origin] = BorrowedTask(key, tasks.next_attempt(), site.now_s)
            order = (site.memory.generation, key[2], task.attempt)
            site.emit(commands.Fetch(*order, origin, "model", "evaluate", origin, site.received_bytes_max))
        reports = [
            key for key in _newest_first(site, evaluation.open.get(origin, ())) if evaluation.borrowed[key].report
        ]
        if reports and origin not in tasks.reporting:
            _send_report(site, reports[0])
    _measure(site)


def _changed(site: SiteState) -> list[SiteName]:
    """List the peers, in roster order, for which an order may have become due by this event.

    These are the event's peer, and the owners of the borrowed models that it concerns. Time alone makes no order due.
    New rules do, and so does the end of a pause.
    """
    tasks, evaluation = site.evaluation_tasks, site.memory.evaluation
    changed, evaluation.changed = evaluation.changed, set()
    if tasks.looked_under != (under := (site.rules, site.pace)):
        tasks.looked_under = under
        return list(site.rules.others)
    return sorted(name for name in {*changed, SiteName(site.cause.peer)} if name in site.rules.peers)


def begin(site: SiteState) -> None:
    """Publish lent models again; if policy now forbids evaluation, delete the borrowed models."""
    evaluation = site.memory.evaluation
    if site.rules.evaluation_denied is None:
        for round, lent in sorted(evaluation.lent.items()):
            if lent.artifact is not None:
                site.emit(commands.Publish(round, lent.artifact, evaluation=True))
        return
    for key, model in list(evaluation.borrowed.items()):
        if model.source is not None:
            sha256 = model.source.artifact.sha256
            _settle(site, key, site.rules.evaluation_denied)
            _discard(site, sha256)


def drop_peer(site: SiteState, name: SiteName) -> None:
    """Stop fetching, measuring and evaluating the models of a site that is gone."""
    tasks = site.evaluation_tasks
    tasks.reporting.pop(name, None)
    fetch = tasks.fetching.pop(name, None)
    if fetch is not None:
        site.emit(commands.CancelFetch(name, "evaluate"))
        _settle(site, fetch.key, "gone")
    for key in _unsettled(site):
        if key[0] == name and (tasks.measuring is None or tasks.measuring.key != key):
            sha256 = site.memory.evaluation.borrowed[key].sha256
            _settle(site, key, "gone")
            if sha256 is not None:
                _discard(site, sha256)


def awaited(site: SiteState) -> list[SiteName]:
    """List reachable peers that still owe an evaluation of this site's model, or are owed one of theirs."""
    if site.rules.evaluation_denied is not None:
        return []
    fetching, unsettled = site.evaluation_tasks.fetching, {key[0] for key in _unsettled(site)}
    lent_models = [lent for lent in site.memory.evaluation.lent.values() if lent.artifact is not None]
    return [
        name
        for name in site.rules.others
        if _reachable(site, name)
        and (
            name in unsettled
            or name in fetching
            or _next_to_fetch(site, name) is not None
            or any(name not in lent.reports for lent in lent_models)
        )
    ]


def due_s(site: SiteState) -> list[float]:
    """Return the times of the next checks if no event comes first; monotonic seconds."""
    task = site.evaluation_tasks.measuring
    times = [] if task is None else [task.since_s + limits.MEASURE_S_MAX]
    oldest = next(iter(site.evaluation_tasks.fetching.values()), None)
    if oldest is not None:
        times.append(oldest.since_s + site.pace.wait_max_s)
    return times + [site.peers.silent_at_s(name) for name in awaited(site)] if site.phase == Phase.DONE else times


def arrive(site: SiteState, event: events.ArtifactArrived) -> None:
    """Record a lent model that is on disk; it is measured in its turn."""
    key, artifact = _finish_fetch(site, event), event.artifact
    if key is None:
        site.ignore(event, "this lent model is not waited for")
        _discard(site, artifact.sha256)
        return
    if (
        event.origin_generation != key[1]
    ):  # the origin restarted just now, and tells its generation with its next heartbeat
        _settle(site, key, f"of generation {event.origin_generation}")
        _discard(site, artifact.sha256)
        return
    problem = _problem(site, key, event)
    if problem:
        site.refuse(event.origin, problem)
        _conclude(site, key, "not_received", sha256=artifact.sha256)
        return
    source = Source(event.origin, key[2], artifact)
    site.persist(rows.GuestRow(key[2], origin=key[0], origin_generation=key[1], source=source))


def _problem(site: SiteState, key: BorrowedKey, event: events.ArtifactArrived) -> str:
    artifact, known = event.artifact, site.memory.evaluation.borrowed.get(key)
    if (artifact.kind, artifact.owner, event.true_round) != ("model", event.origin, key[2]):
        return f"lent {artifact.owner}'s {artifact.kind} of round {event.true_round}, not its model of round {key[2]}"
    if known is not None and known.sha256 not in (None, artifact.sha256):
        return f"lent another model of round {key[2]} than before"
    return ""


def miss(site: SiteState, event: events.ArtifactUnavailable) -> None:
    """Settle a model that its origin no longer lends, or never did. (The fetcher asks again on NOT_YET.)"""
    if event.answer == Unavailable.NOT_YET:
        site.ignore(event)
    elif (key := _finish_fetch(site, event)) is None:
        site.ignore(event, "this lent model is not waited for")
    else:
        _settle(site, key, str(event.answer))


def refuse(site: SiteState, event: events.ArtifactRefused) -> None:
    """Conclude a fetch whose file was unacceptable, or that the origin refused."""
    key = _finish_fetch(site, event)
    if key is None:
        site.ignore(event, "this lent model is not waited for")
        return
    if not event.blameless:
        site.refuse(event.origin, event.reason)
    _conclude(site, key, "not_received")


def take_measurement(site: SiteState, event: events.Measured) -> None:
    """Record the metrics of a lent model; withhold those of a small test split."""
    key = _finish_measurement(site, event)
    if key is None:
        site.ignore(event, "this lent model is not being measured")
    elif event.refused:
        site.refuse(key[0], event.refused)
        _conclude(site, key, "refused")
    else:
        samples = event.metrics.get("samples", 0.0)
        few = not site.rules.evaluation_samples_min <= samples <= limits.COUNT_MAX
        _conclude(site, key, "withheld") if few else _conclude(site, key, "", metrics=event.metrics)


def fail(site: SiteState, event: events.MeasurementFailed) -> None:
    """Handle a failed evaluation process: fetch the model once more, then report that it cannot be run."""
    key = _finish_measurement(site, event)
    if key is None:
        site.ignore(event, "this lent model is not being measured")
        return
    site.evaluation_tasks.process_ordered = False
    model = site.memory.evaluation.borrowed[key]
    sha256 = model.sha256
    row = rows.MislaidRow(key[2], origin=key[0], origin_generation=key[1], fault=event.fault, reason=event.reason)
    site.persist(row)
    if model.failures >= FAILURES_MAX:
        _conclude(site, key, "failed")
    elif sha256 is not None:
        _discard(site, sha256)


def answer(site: SiteState, event: events.ReportAnswered) -> None:
    """Settle a model whose evaluation the origin took or refused; without an answer, send it again."""
    task = site.evaluation_tasks.reporting.get(event.site)
    if task is None or task.attempt != event.attempt:
        site.ignore(event, "this report is not under way")
        return
    del site.evaluation_tasks.reporting[event.site]
    if event.answer == "none":
        site.evaluation_tasks.unanswered_reports[task.key] = (
            site.evaluation_tasks.unanswered_reports.get(task.key, 0) + 1
        )
    else:
        _settle(site, task.key, event.reason or event.answer)


def record_report(site: SiteState, event: events.ReportArrived) -> None:
    """Record a peer's evaluation of a model of this site.

    Its first metrics count; a repeated evaluation changes nothing.
    """
    report = event.report
    problem = access.unasked(site.rules, site.memory, caller=event.site, report=report)
    if problem is not None:
        site.ignore(event, problem)
        return
    known = site.memory.evaluation.lent[report.round].reports.get(event.site)
    if known is None or known.generation < report.generation or (known.unmeasured and not report.unmeasured):
        site.persist(rows.ReportRow(report.round, site=event.site, report=report))
    elif known != report:
        site.report_fault(event.site, f"reports otherwise on the model of round {report.round} than before")


def _reachable(site: SiteState, name: SiteName) -> bool:
    """Return whether a peer takes part in evaluation, is heard, and is not away."""
    pulse = site.peers.pulse(name)
    heard = pulse is not None and not site.peers.silent(name, site.now_s) and pulse.phase not in AWAY
    return heard and site.accepts_evaluation.get(name) is True


def _next_to_fetch(site: SiteState, origin: SiteName) -> BorrowedKey | None:
    """Return the newest lent model that this site has not had; ``None`` if there is none or one waits on disk."""
    pulse, evaluation = site.peers.pulse(origin), site.memory.evaluation
    if pulse is None:
        return None
    newest = min(pulse.committed_round, site.rules.rounds)
    for round in range(newest, max(0, newest - site.pace.artifact_rounds_max), -1):
        known = evaluation.borrowed.get(key := (origin, pulse.generation, round))
        if known is not None and known.source is not None:
            return None
        members = site.rules.members(round)
        if origin not in members or site.rules.site not in members:
            continue
        if not site.rules.lends(round) or (known is not None and (known.report is not None or known.settled)):
            continue
        if known is not None or evaluation.generations[origin, round] < limits.LENT_MODELS_PER_ROUND_MAX:
            return key
    return None


def _unsettled(site: SiteState) -> list[BorrowedKey]:
    """List borrowed models that are not yet measured or whose evaluation is not yet sent, newest rounds first."""
    return _newest_first(site, (key for keys in site.memory.evaluation.open.values() for key in keys))


def _newest_first(site: SiteState, keys: Iterable[BorrowedKey]) -> list[BorrowedKey]:
    """Sort the keys, without those whose evaluations got no answer too often."""
    tries = site.evaluation_tasks.unanswered_reports
    left = [key for key in keys if tries.get(key, 0) < limits.REPORT_TRIES_MAX]
    return sorted(left, key=lambda key: (-key[2], key[0], -key[1]))


def _measure(site: SiteState) -> None:
    """Order the measurement of the newest borrowed model, one at a time; end the process if there is none."""
    tasks, borrowed = site.evaluation_tasks, site.memory.evaluation.borrowed
    if tasks.measuring is not None:
        return
    for key in _unsettled(site):
        source = borrowed[key].source
        if source is not None:
            tasks.measuring, tasks.process_ordered = BorrowedTask(key, tasks.next_attempt(), site.now_s), True
            site.emit(commands.Measure(site.memory.generation, key[2], tasks.measuring.attempt, source))
            return
    if tasks.process_ordered and not tasks.fetching:
        tasks.process_ordered = False
        site.emit(commands.Dismiss())


def _send_report(site: SiteState, key: BorrowedKey) -> None:
    """Order the transfer of an evaluation to the model's origin."""
    tasks, report = site.evaluation_tasks, site.memory.evaluation.borrowed[key].report
    if report is not None:
        task = tasks.reporting[key[0]] = BorrowedTask(key, tasks.next_attempt(), site.now_s)
        site.emit(commands.SendReport(task.attempt, key[0], report))


def _cancel_all(site: SiteState) -> None:
    """Cancel the fetches and the measurement in progress."""
    tasks = site.evaluation_tasks
    if site.phase != Phase.GONE:  # there the daemon has ended them
        for origin in tasks.fetching:
            site.emit(commands.CancelFetch(origin, "evaluate"))
        if tasks.process_ordered:
            site.emit(commands.Dismiss())
    tasks.fetching, tasks.measuring, tasks.process_ordered = {}, None, False
    tasks.looked_under = None


def _finish_fetch(
    site: SiteState, event: events.ArtifactArrived | events.ArtifactUnavailable | events.ArtifactRefused
) -> BorrowedKey | None:
    """End the fetch that this event answers; return its model's key, or ``None`` if no fetch is open."""
    task = site.evaluation_tasks.fetching.get(event.origin)
    if task is None or (task.attempt, task.key[2]) != (event.attempt, event.round):
        return None
    del site.evaluation_tasks.fetching[event.origin]
    return task.key


def _finish_measurement(site: SiteState, event: events.Measured | events.MeasurementFailed) -> BorrowedKey | None:
    """End the measurement that this event answers; return its model's key, or ``None`` if outdated."""
    task = site.evaluation_tasks.measuring
    if task is None or task.attempt != event.attempt:
        return None
    site.evaluation_tasks.measuring = None
    return task.key


def _conclude(
    site: SiteState,
    key: BorrowedKey,
    unmeasured: Unmeasured,
    *,
    metrics: Mapping[str, float] | None = None,
    sha256: Sha256 | None = None,
) -> None:
    """Journal the evaluation of a borrowed model, and delete the model's file."""
    model = site.memory.evaluation.borrowed.get(key)
    sha256 = model.sha256 if model is not None and model.sha256 is not None else sha256
    metrics = metrics or {}
    samples = int(metrics.get("samples", 0))
    reported = {name: value for name, value in metrics.items() if name != "samples" and abs(value) <= limits.COUNT_MAX}
    report = EvaluationResult(key[1], key[2], sha256, samples, reported, unmeasured)
    site.persist(rows.MeasuredRow(key[2], origin=key[0], origin_generation=key[1], report=report))
    if sha256 is not None:
        _discard(site, sha256)


def _settle(site: SiteState, key: BorrowedKey, reason: str) -> None:
    site.persist(rows.SettledRow(key[2], origin=key[0], origin_generation=key[1], reason=reason))


def _discard(site: SiteState, sha256: Sha256) -> None:
    if sha256 not in site.memory.needed_digests():
        site.emit(commands.Discard(sha256))
