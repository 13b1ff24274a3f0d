"""The exchange of a round as a secure sum: the site adds up what it may not see, or goes on without a sum.

``peer.core.secure_sum`` decides what is shown, committed to and opened; this module orders what that needs, decides how
long the site waits, and journals each step. A round that has begun its sum keeps its epoch: a second sum of the same
inputs with other members would tell one site's input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peer.core import commands, events, exchange, fetches, liveness, rows
from peer.core.artifacts import Artifact, Source
from peer.core.exchange import SLOW_FACTOR
from peer.core.phases import Phase
from peer.core.roster import Sha256, SiteName
from peer.core.rules import Rules
from peer.core.secure_sum import FORGETFUL, OTHER_SEED, TAKES_NO_PART, SecureSum
from peer.core.state import SiteState
from peer.core.sum_messages import (
    MaskInput,
    NamePeer,
    PersistSum,
    SendOpening,
    SendSum,
    SumCommit,
    SumDecision,
    SumKey,
    SumKeyed,
    SumMasked,
    SumMasking,
    SumReady,
    SumSet,
    SumStatements,
)
from peer.core.sum_rows import SumRow
from peer.core.sum_wait import SumWait

FAILED = "this site's daemon could not add up: "


@dataclass(frozen=True, slots=True)
class SumOutcome:
    """How a sum ended: with the contributors' masked artifacts and their ``total``, or without any."""

    sources: tuple[Source, ...]
    missing: dict[str, str]
    waited_s: float | None
    in_vain_s: dict[SiteName, float]
    total: Artifact | None


def machine_of(site: SiteState, round: int) -> SecureSum:
    """Return the sum of a round, rebuilt from the journal where this process has not begun it."""
    if round not in site.sums:
        records = site.memory.sums.get(round, [])
        current = site.memory.open
        rules = site.lived_rules if current is not None and current.number == round else site.rules
        keyed = any(isinstance(record, SumKeyed) for record in records)
        forgot = round <= site.memory.restored_round or (keyed and round not in site.sum_rounds)
        forgot = forgot or any(round <= first for first in site.first_told.values() if site.memory.generation > 1)
        own = current.artifact if current is not None and current.number == round else None
        if own is not None and own.spent is not None and own.spent.exceeded and not records:
            forgot = True  # what its people may lose is spent: it takes no part, as one that may have committed
        site.sums[round] = SecureSum.rebuild(
            rules.site,
            rules.members(round),
            rules.colluders,
            records,
            restored=forgot,
            contributors_min=rules.sum_members_min,
        )
    return site.sums[round]


def epoch_of(site: SiteState, round: int) -> Sha256 | None:
    """Return the digest of the epoch that this site's sum of a round is of; ``None`` is the genesis."""
    memory, current = site.memory, site.memory.open
    if current is not None and current.number == round and round in memory.sums:
        return current.epoch
    if round == memory.committed and round in memory.sums:
        return memory.aggregate_epoch
    return site.rules.epoch(round).digest


def rules_of(site: SiteState, round: int) -> Rules:
    """Return the rules of a round for its callers; a sum that has begun keeps its epoch."""
    return site.rules.pinned(round, epoch_of(site, round)) if round in site.memory.sums else site.rules


def shown_to(site: SiteState, round: int, caller: SiteName) -> tuple[SumStatements, tuple[SiteName, ...] | None] | None:
    """Return what this site shows a member of the sum of a round.

    Returns:
        The statements without the opening, and whose pairs' seeds the opening to this caller must have, ``None``:
        nothing is opened to it; or ``None`` if this site has no such sum any more.
    """
    if round not in site.memory.sums:
        return None if round <= site.memory.committed else (SumStatements(), None)
    key = shown = commit = dropped = None
    for decision in machine_of(site, round).repeat(caller):
        if isinstance(decision, SendOpening):
            dropped = decision.dropped
        elif isinstance(decision, SendSum) and isinstance(decision.message, SumKey):
            key = decision.message.key
        elif isinstance(decision, SendSum) and isinstance(decision.message, SumSet):
            shown = decision.message.contributions
        elif isinstance(decision, SendSum) and isinstance(decision.message, SumCommit):
            commit = decision.message.contributions
    return SumStatements(key, shown, commit), dropped


def begin(site: SiteState) -> None:
    """Begin the sum of the open round, or continue it from the journal."""
    round, rules, memory = site.opened.number, site.lived_rules, site.memory
    site.sums.pop(round, None)  # what it had heard is heard again
    site.enter(Phase.EXCHANGE)
    slow_s = liveness.slow_after_s(memory.waits_s, site.pace)
    machine = machine_of(site, round)
    site.sum_wait = wait = SumWait(round, machine, site.next_attempt(), site.now_s, slow_s, site.now_s)
    others = [name for name in rules.members(round).others(rules.site) if _takes_part(site, name)]
    epoch = site.opened.epoch
    if machine.own_key is None and machine.result is None and not machine.restored:
        wait.order = site.next_attempt()
        site.emit(commands.DrawSumKey(memory.generation, round, wait.order))
    else:
        _carry_out(site, wait, machine.resume())
        _follow_artifacts(site, wait)
    if not wait.over:
        site.emit(commands.HearSum(memory.generation, round, wait.attempt, epoch, tuple(others)))


def settle(site: SiteState, wait: SumWait) -> SumOutcome | None:
    """Drop who is not worth a longer wait; return the outcome once there is one."""
    while not wait.over:
        _follow_artifacts(site, wait)
        awaited = wait.follow(site.now_s)
        if wait.step == "artifact":
            if site.exchange is None or not site.exchange.settled() or not awaited:
                break
            for name in awaited:
                wait.missing.setdefault(name, site.exchange.wants[name].dropped)
        elif not awaited or not _is_over(site, wait, awaited):
            break
        wait.step = ""  # the others get as long for the next step, also where it has the same name
        _carry_out(site, wait, wait.machine.give_up())
    return _end(site, wait) if wait.over else None


def _is_over(site: SiteState, wait: SumWait, awaited: tuple[SiteName, ...]) -> bool:
    """Return whether the site waits no longer for these members; note each with the reason."""
    late = site.now_s >= site.sum_deadline_s(wait)
    reasons = {
        name: wait.hopeless(name, site.peers, site.now_s, site.patience_s(name))
        if _takes_part(site, name)
        else rows.ABSENT
        if name in site.rules.without
        else exchange.GONE
        for name in awaited
    }
    if not late and not all(reasons.values()):
        return False
    if wait.step == "key" and late:
        wait.keys_s = (site.now_s - wait.opened_s) * SLOW_FACTOR
    for name, reason in reasons.items():
        wait.missing.setdefault(name, reason or "slow")
    return True


def _takes_part(site: SiteState, name: SiteName) -> bool:
    return site.rules.has_peer(name) and name not in site.rules.epochs.gone


def _follow_artifacts(site: SiteState, wait: SumWait) -> None:
    """Fetch the masked artifacts that are missing, and give the sum those that have arrived."""
    machine = wait.machine
    if not machine.used or machine.result is not None:
        return
    if site.exchange is None:
        fetches.open_masked(site, wait.round, sorted(machine.bound or machine.used))
    current = site.exchange
    if current is None:
        return
    _, awaited = machine.awaited()
    idle = [want for want in current.wants.values() if want.open and want.origin not in awaited]
    for want in idle:
        want.drop("declined", site.now_s)
    for want in (*idle, *current.give_up(site.peers, site.lived_rules, site.now_s)):
        site.emit(commands.CancelFetch(want.origin, current.purpose))
    for source in current.sources():
        if source.origin not in machine.masked and machine.result is None and _is_meant(machine, source):
            _carry_out(site, wait, machine.receive(source.origin, _statement(source.artifact)))


def _is_meant(machine: SecureSum, source: Source) -> bool:
    """Return whether a set that this site has committed to names this artifact, or it has committed to none."""
    return machine.bound is None or machine.bound.get(source.origin) == _statement(source.artifact).digest


def _statement(artifact: Artifact) -> SumMasked:
    return SumMasked(artifact.sha256, dict(artifact.commitments or {}))


def _carry_out(site: SiteState, wait: SumWait, decisions: Iterable[SumDecision]) -> None:
    shows = False
    for decision in decisions:
        match decision:
            case PersistSum(record):
                clipped = wait.clipped if isinstance(record, SumMasking) else None
                site.persist(SumRow.of(wait.round, record, clipped=clipped))
            case SendSum() | SendOpening():
                shows = True
            case MaskInput(keys):
                _order_masking(site, wait, keys)
            case NamePeer(name, reason, guilty):
                guilty = guilty and (reason != OTHER_SEED or _was_earlier(site, name, wait.round))
                if guilty:
                    site.report_fault(name, reason)
                away = "declined" if reason == TAKES_NO_PART else "unused"
                wait.missing.setdefault(name, "refused" if guilty else away)
            case SumReady():
                _order_total(site, wait, decision)
    if shows:
        site.emit(commands.ShowSum())


def _order_masking(site: SiteState, wait: SumWait, keys: Mapping[SiteName, bytes]) -> None:
    rules, current = site.lived_rules, site.opened
    if any(not _follows(site, name, wait.round) for name in keys):
        _carry_out(site, wait, wait.machine.abandon(FORGETFUL))
        return
    if current.artifact is None:
        _carry_out(site, wait, wait.machine.abandon("this site has no artifact in this round"))
        return
    wait.order = site.next_attempt()
    weight = site.memory.samples.get("training", 1)
    order = (site.memory.generation, wait.round, wait.order)
    ring = rules.ring(wait.round)
    site.emit(commands.MaskArtifact(*order, current.artifact, keys, ring, weight, current.epoch))


def _follows(site: SiteState, name: SiteName, round: int) -> bool:
    """Return whether this site knows that a member was not in the round before this process began.

    Only a later generation must ask: an earlier one may have committed with that member to another set.
    """
    return site.memory.generation == 1 or _was_earlier(site, name, round)


def _was_earlier(site: SiteState, name: SiteName, round: int) -> bool:
    """Return whether a member has told an earlier round since this process began: it knows no older key of this one."""
    return site.first_told.get(name, round) < round


def _order_total(site: SiteState, wait: SumWait, ready: SumReady) -> None:
    rules, current = site.lived_rules, site.opened
    own = site.memory.published.get((wait.round, rules.site))
    sources = _contributors(site, wait.round, ready)
    if own is None or current.artifact is None or len(sources) + 1 < len(ready.contributions):
        wait.failed = "an artifact of the sum is gone"
        return
    wait.order = site.next_attempt()
    order = (site.memory.generation, wait.round, wait.order)
    ring, openings = rules.ring(wait.round), ready.openings
    site.emit(commands.AddMasked(*order, sources, own, current.artifact, openings, ring))


def _contributors(site: SiteState, round: int, ready: SumReady) -> tuple[Source, ...]:
    """Return the masked artifacts of the other contributors, in roster order."""
    meant = {(name, digest) for name, digest in ready.contributions.items()}
    received = [source for source in site.memory.received.values() if source.round == round]
    chosen = [each for each in received if (each.origin, _statement(each.artifact).digest) in meant]
    return tuple(sorted(chosen, key=lambda source: source.origin))


def _end(site: SiteState, wait: SumWait) -> SumOutcome:
    """Stop asking; say whose artifacts are in the total, and who is missing."""
    result, members = wait.machine.result, wait.machine.members
    if wait.failed:
        site.persist(rows.WorkFailedRow(wait.round, fault="disk", reason=FAILED + wait.failed))
    sources: tuple[Source, ...] = ()
    if isinstance(result, SumReady) and wait.total is not None:
        sources = _contributors(site, wait.round, result)
    contributors = {source.origin for source in sources}
    others = [name for name in members.others(wait.machine.site) if name not in contributors]
    missing: dict[str, str] = {name: wait.missing.get(name, "unused") for name in others}
    in_vain_s = {name: site.now_s - wait.opened_s for name in others if wait.missing.get(name) in ("silent", "slow")}
    site.cancel_exchange()
    return SumOutcome(sources, missing, wait.keys_s, in_vain_s, wait.total)


# --- events -----------------------------------------------------------------------------------------------------------
def take_key(site: SiteState, event: events.SumKeyDrawn) -> bool:
    """Begin with this site's own key; return whether the event answers the present order."""
    wait = _answered(site, event)
    if wait is None:
        return False
    site.sum_rounds |= {event.round}
    _carry_out(site, wait, wait.machine.begin(event.key))
    return True


def take_masked(site: SiteState, event: events.ArtifactMasked) -> bool:
    """Publish this site's masked artifact; return whether the event answers the present order."""
    wait = _answered(site, event)
    if wait is None:
        return False
    wait.clipped = event.clipped
    keys = {name: key for name, key in wait.machine.keys.items() if name in (event.artifact.commitments or {})}
    _carry_out(site, wait, wait.machine.complete_masking(keys, _statement(event.artifact)))
    site.persist(rows.PublishedRow(event.round, artifact=event.artifact))
    site.emit(commands.Publish(event.round, event.artifact))
    return True


def take_total(site: SiteState, event: events.MaskedAdded) -> bool:
    """Take the sum; return whether the event answers the present order."""
    wait = _answered(site, event)
    if wait is not None:
        wait.total = event.artifact
    return wait is not None


def take_failure(site: SiteState, event: events.SumFailed) -> bool:
    """Go on without a sum; return whether the event answers the present order."""
    wait = _answered(site, event)
    if wait is None:
        return False
    wait.failed = event.reason
    _carry_out(site, wait, wait.machine.abandon(FAILED + event.reason))
    return True


def take_statements(site: SiteState, event: events.SumShown) -> bool:
    """Take all that a member shows; return whether the event answers the present order."""
    wait = site.sum_wait
    if wait is None or (event.generation, event.round, event.attempt) != (
        site.memory.generation,
        wait.round,
        wait.attempt,
    ):
        return False
    site.peers.hear(event.site, None, site.now_s)
    shown = event.statements
    messages = [
        *([SumKey(shown.key)] if shown.key is not None else []),
        *([SumSet(dict(shown.shown))] if shown.shown is not None else []),
        *([SumCommit(dict(shown.commit))] if shown.commit is not None else []),
        *([shown.opening] if shown.opening is not None else []),
        *([SumSet({})] if event.over else []),
    ]
    for message in messages:
        _carry_out(site, wait, wait.machine.receive(event.site, message))
    return True


def _answered(site: SiteState, event: Any) -> SumWait | None:
    """Return the sum under way if the event answers its newest order to the daemon."""
    wait, order = site.sum_wait, (event.generation, event.round, event.attempt)
    if wait is None or order != (site.memory.generation, wait.round, wait.order):
        return None
    wait.order = 0
    return wait
