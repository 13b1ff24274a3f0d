"""Global Test between real sites: at the end of a round a site lends its model, and measures those of others.

Origins serve and visited sites fetch, as for training. What a guest costs is borne beside the rounds: no wait of a
round depends on it, and whatever fails ends in a cell with a reason. Rows precede what depends on them: ``watch`` runs
before an event's handler and may write one, ``look`` runs after it and only gives orders.
"""

from __future__ import annotations

from collections.abc import Mapping

from peer.core import access, commands, events, limits, rows
from peer.core.commands import Source
from peer.core.global_test_memory import FAILURES_MAX, GuestKey, GuestTask
from peer.core.liveness import AWAY
from peer.core.messages import EvaluationResult, Unavailable, Unmeasured
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.state import SiteState

RESTING = frozenset({Phase.NEW, Phase.INITIALISING, Phase.PAUSED, Phase.FAILED, Phase.LEAVING, Phase.GONE})
"""Phases in which no guest is fetched or measured: the data is not checked yet, or the operator wants quiet."""


def watch(site: SiteState) -> None:
    """Give up a guest that takes for ever."""
    busy = site.hosting.measuring
    if busy is not None and site.now_s >= busy.since_s + limits.MEASURE_S_MAX:
        site.hosting.measuring, site.hosting.hired = None, False
        _conclude(site, busy.key, "failed")
        site.emit(commands.Dismiss())


def look(site: SiteState) -> None:
    """Order what can be done now: fetch guests, measure one of them, send reports."""
    if site.rules.evaluation_denied is not None or site.phase in RESTING:
        _rest(site)
        return
    for origin in site.rules.others:
        if not _at_hand(site, origin):
            continue
        key = _due(site, origin)
        if key is not None and origin not in site.hosting.fetching:
            task = site.hosting.fetching[origin] = GuestTask(key, site.hosting.next_attempt(), site.now_s)
            order = (site.memory.generation, key[2], task.attempt)
            site.emit(commands.Fetch(*order, origin, "model", "evaluate", origin))
        _send_report(site, origin)
    _measure(site)


def begin(site: SiteState) -> None:
    """Lend again what was lent; if that is not permitted any more, delete the guests that are here."""
    evaluation = site.memory.evaluation
    if site.rules.evaluation_denied is None:
        for round, one in sorted(evaluation.lent.items()):
            if one.artifact is not None:
                site.emit(commands.Publish(round, one.artifact, evaluation=True))
        return
    for key, guest in list(evaluation.guests.items()):
        if guest.source is not None:
            sha256 = guest.source.artifact.sha256
            _settle(site, key, site.rules.evaluation_denied)
            _discard(site, sha256)


def awaited(site: SiteState) -> list[SiteName]:
    """Peers at hand that still have to measure a model of this site, or to be told how theirs did."""
    if site.rules.evaluation_denied is not None:
        return []
    busy, open_ends = site.hosting, {key[0] for key in _guests(site)}
    if busy.measuring is not None:
        open_ends.add(busy.measuring.key[0])
    lent = [one for one in site.memory.evaluation.lent.values() if one.artifact is not None]
    return [
        name
        for name in site.rules.others
        if _at_hand(site, name)
        and (
            name in open_ends
            or name in busy.fetching
            or _due(site, name) is not None
            or any(name not in one.reports for one in lent)
        )
    ]


def due_s(site: SiteState) -> list[float]:
    """When to look again if nothing happens; monotonic seconds."""
    busy = site.hosting.measuring
    times = [] if busy is None else [busy.since_s + limits.MEASURE_S_MAX]
    return times + [site.peers.silent_at_s(name) for name in awaited(site)] if site.phase == Phase.DONE else times


def arrive(site: SiteState, event: events.ArtifactArrived) -> None:
    """A guest is on disk: it is measured when its turn comes."""
    key, artifact = _fetched(site, event), event.artifact
    if key is None:
        site.ignore(event, "this guest is not waited for")
        _discard(site, artifact.sha256)
        return
    if event.origin_generation != key[1]:  # it was restarted just now, and says so with its next beat
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


def _problem(site: SiteState, key: GuestKey, event: events.ArtifactArrived) -> str:
    artifact, guest = event.artifact, site.memory.evaluation.guests.get(key)
    if (artifact.kind, artifact.owner, event.true_round) != ("model", event.origin, key[2]):
        return f"lent {artifact.owner}'s {artifact.kind} of round {event.true_round}, not its model of round {key[2]}"
    if guest is not None and guest.sha256 not in (None, artifact.sha256):
        return f"lent another model of round {key[2]} than before"
    return ""


def miss(site: SiteState, event: events.ArtifactUnavailable) -> None:
    """The origin does not lend it any more, or never did. (Not yet is asked again by the one who fetches.)"""
    if event.answer == Unavailable.NOT_YET:
        site.ignore(event)
    elif (key := _fetched(site, event)) is None:
        site.ignore(event, "this guest is not waited for")
    else:
        _settle(site, key, str(event.answer))


def refuse(site: SiteState, event: events.ArtifactRefused) -> None:
    """What came was not acceptable, or the origin said no."""
    key = _fetched(site, event)
    if key is None:
        site.ignore(event, "this guest is not waited for")
        return
    site.refuse(event.origin, event.reason)
    _conclude(site, key, "not_received")


def measured(site: SiteState, event: events.Measured) -> None:
    """The figures are in; of a small split they are withheld."""
    key = _measured_key(site, event)
    if key is None:
        site.ignore(event, "this guest is not being measured")
    elif event.refused:
        site.refuse(key[0], event.refused)
        _conclude(site, key, "refused")
    else:
        samples = event.metrics.get("samples", 0.0)
        few = not site.rules.evaluation_samples_min <= samples <= limits.COUNT_MAX
        _conclude(site, key, "withheld") if few else _conclude(site, key, "", metrics=event.metrics)


def fail(site: SiteState, event: events.MeasurementFailed) -> None:
    """The process that measures died or gave up: fetch the guest once more, then say that it cannot be run."""
    key = _measured_key(site, event)
    if key is None:
        site.ignore(event, "this guest is not being measured")
        return
    site.hosting.hired = False
    guest = site.memory.evaluation.guests[key]
    sha256 = guest.sha256
    row = rows.MislaidRow(key[2], origin=key[0], origin_generation=key[1], fault=event.fault, reason=event.reason)
    site.persist(row)
    if guest.failures >= FAILURES_MAX:
        _conclude(site, key, "failed")
    elif sha256 is not None:
        _discard(site, sha256)


def answer(site: SiteState, event: events.ReportAnswered) -> None:
    """A report was taken or refused, which settles the guest; without an answer it is sent again."""
    task = site.hosting.reporting.get(event.site)
    if task is None or task.attempt != event.attempt:
        site.ignore(event, "this report is not under way")
        return
    del site.hosting.reporting[event.site]
    if event.answer == "none":
        site.hosting.tries[task.key] = site.hosting.tries.get(task.key, 0) + 1
    else:
        _settle(site, task.key, event.reason or event.answer)


def note(site: SiteState, event: events.ReportArrived) -> None:
    """A site says how a model of this site did there. The first figures count; a repetition is nothing new."""
    report = event.report
    problem = access.unasked(site.rules, site.memory, caller=event.site, report=report)
    if problem is not None:
        site.ignore(event, problem)
        return
    known = site.memory.evaluation.lent[report.round].reports.get(event.site)
    if known is None or known.generation < report.generation or (known.unmeasured and not report.unmeasured):
        site.persist(rows.ReportRow(report.round, site=event.site, report=report))
    elif known != report:
        site.complain(event.site, f"reports otherwise on the model of round {report.round} than before")


# What follows from memory.


def _at_hand(site: SiteState, name: SiteName) -> bool:
    """Whether a peer takes part, is heard, and is not about to leave."""
    pulse = site.peers.pulse(name)
    heard = pulse is not None and not site.peers.silent(name, site.now_s) and pulse.phase not in AWAY
    return heard and site.accepts_evaluation.get(name) is True


def _due(site: SiteState, origin: SiteName) -> GuestKey | None:
    """The newest model that the origin lends and this site has not had; one at a time, so that files do not pile up."""
    pulse = site.peers.pulse(origin)
    guests = site.memory.evaluation.guests
    if pulse is None:
        return None
    newest = min(pulse.committed_round, site.rules.rounds)
    for round in range(newest, max(0, newest - site.rules.pace.artifact_rounds_max), -1):
        guest = guests.get(key := (origin, pulse.generation, round))
        if guest is not None and guest.source is not None:
            return None
        if not site.rules.lends(round) or (guest is not None and (guest.report is not None or guest.settled)):
            continue
        if guest is not None or sum((origin, round) == (of, at) for of, _, at in guests) < limits.GUESTS_PER_ROUND_MAX:
            return key
    return None


def _guests(site: SiteState) -> list[GuestKey]:
    """Guests about whom something is left to do here, the newest rounds first."""
    tries = site.hosting.tries
    found = [
        key
        for key, guest in site.memory.evaluation.guests.items()
        if not guest.settled and (guest.source is not None or guest.report is not None)
        if tries.get(key, 0) < limits.REPORT_TRIES_MAX
    ]
    return sorted(found, key=lambda key: (-key[2], key[0], -key[1]))


def _measure(site: SiteState) -> None:
    """Measure the newest guest, one at a time; without any guest the process may go."""
    busy, guests = site.hosting, site.memory.evaluation.guests
    if busy.measuring is not None:
        return
    for key in _guests(site):
        source = guests[key].source
        if source is not None:
            busy.measuring, busy.hired = GuestTask(key, site.hosting.next_attempt(), site.now_s), True
            site.emit(commands.Measure(site.memory.generation, key[2], busy.measuring.attempt, source))
            return
    if busy.hired and not busy.fetching:
        busy.hired = False
        site.emit(commands.Dismiss())


def _send_report(site: SiteState, origin: SiteName) -> None:
    """Tell the origin how its model did; one report at a time."""
    if origin in site.hosting.reporting:
        return
    for key in _guests(site):
        report = site.memory.evaluation.guests[key].report
        if key[0] == origin and report is not None:
            task = site.hosting.reporting[origin] = GuestTask(key, site.hosting.next_attempt(), site.now_s)
            site.emit(commands.SendReport(task.attempt, origin, report))
            return


def _rest(site: SiteState) -> None:
    """Break off what is under way."""
    busy = site.hosting
    if site.phase != Phase.GONE:  # the daemon has ended all of it
        for origin in busy.fetching:
            site.emit(commands.CancelFetch(origin, "evaluate"))
        if busy.hired:
            site.emit(commands.Dismiss())
    busy.fetching, busy.measuring, busy.hired = {}, None, False


def _fetched(
    site: SiteState, event: events.ArtifactArrived | events.ArtifactUnavailable | events.ArtifactRefused
) -> GuestKey | None:
    """The guest whose errand this event ends."""
    task = site.hosting.fetching.get(event.origin)
    if task is None or (task.attempt, task.key[2]) != (event.attempt, event.round):
        return None
    del site.hosting.fetching[event.origin]
    return task.key


def _measured_key(site: SiteState, event: events.Measured | events.MeasurementFailed) -> GuestKey | None:
    """The guest whose measurement this event ends."""
    task = site.hosting.measuring
    if task is None or task.attempt != event.attempt:
        return None
    site.hosting.measuring = None
    return task.key


def _conclude(
    site: SiteState,
    key: GuestKey,
    unmeasured: Unmeasured,
    *,
    metrics: Mapping[str, float] | None = None,
    sha256: Sha256 | None = None,
) -> None:
    """Settle what is told of a guest, durably, and delete the copy."""
    guest = site.memory.evaluation.guests.get(key)
    sha256 = guest.sha256 if guest is not None and guest.sha256 is not None else sha256
    found = metrics or {}
    told = {name: value for name, value in found.items() if name != "samples" and abs(value) <= limits.COUNT_MAX}
    report = EvaluationResult(key[1], key[2], sha256, int(found.get("samples", 0)), told, unmeasured)
    site.persist(rows.MeasuredRow(key[2], origin=key[0], origin_generation=key[1], report=report))
    if sha256 is not None:
        _discard(site, sha256)


def _settle(site: SiteState, key: GuestKey, reason: str) -> None:
    site.persist(rows.SettledRow(key[2], origin=key[0], origin_generation=key[1], reason=reason))


def _discard(site: SiteState, sha256: Sha256) -> None:
    if sha256 not in site.memory.names():
        site.emit(commands.Discard(sha256))
