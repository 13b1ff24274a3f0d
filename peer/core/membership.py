"""Membership changes: the immediate effects of an amendment or a leaving site's notice.

An amendment is a rule for the rounds from its ``from_round`` on. Three effects do not wait for that round: an expelled
or leaving site counts as gone, unused artifacts of an expelled site are dropped, and a round that has not chosen its
sources follows its new epoch.
"""

from __future__ import annotations

from peer.core import commands, cross_evaluation, events, exchange, retention, rounds, rows
from peer.core.phases import Phase
from peer.core.roster import SiteName
from peer.core.state import SiteState


def learn(site: SiteState, event: events.EpochsLearned) -> None:
    """Follow the new epochs; restart the exchange of a round that has not chosen its sources."""
    before, epochs = site.rules.epochs, event.epochs
    if epochs == before:
        return
    site.rules = site.rules.amended(epochs)
    reopens = _reopens(site)
    departs = site.rules.site in epochs.gone
    _persist(site, gone=epochs.gone - before.gone, reopens=reopens, departs=departs)
    site.cancel_early()  # the next exchange may ask other sites now; its fetches begin again after this event
    _take_effect(site)
    if site.phase == Phase.LEAVING:
        return
    if departs:
        rounds.depart(site)
    elif site.phase in (Phase.PAUSED, Phase.FAILED):
        return
    elif site.phase == Phase.DONE or (reopens and site.phase == Phase.EXCHANGE):
        rounds.go_on(site)


def begin(site: SiteState) -> None:
    """Follow the present chain at a start, as ``learn`` does."""
    departs = site.rules.site in site.rules.epochs.gone
    reopens = not departs and _reopens(site)
    if reopens or (departs and site.memory.open is not None):
        _persist(site, gone=frozenset(), reopens=reopens, departs=departs)
    _take_effect(site)
    rounds.go_on(site)


def _take_effect(site: SiteState) -> None:
    """Stop waiting for sites that are gone, and drop artifacts of expelled sites."""
    gone = site.rules.epochs.gone
    for name in gone:
        cross_evaluation.drop_peer(site, name)
    if site.exchange is not None:
        for want in site.exchange.wants.values():
            if want.open and want.origin in gone:
                want.drop(exchange.GONE, site.now_s)
                site.emit(commands.CancelFetch(want.origin, site.exchange.purpose))
            elif want.received is not None and want.origin in site.rules.epochs.head.expelled:
                want.received, want.dropped = None, exchange.GONE
    retention.drop_expelled(site)


def _persist(site: SiteState, *, gone: frozenset[SiteName], reopens: bool, departs: bool) -> None:
    head = site.rules.epochs.head
    row = rows.AmendedRow(
        site.number,
        number=head.number,
        digest=head.digest,
        from_round=head.from_round,
        gone=tuple(sorted(gone)),
        reopened=reopens,
        epoch=site.rules.epoch(site.number).digest if reopens else None,
        departs=departs or None,
    )
    site.persist(row)


def _reopens(site: SiteState) -> bool:
    """Return whether the open round has another epoch now and has not chosen its sources.

    A round after the last one of that epoch continues unchanged: the other sites have none to serve.
    """
    current = site.memory.open
    if current is None or site.rules.epoch(current.number).digest == current.epoch:
        return False
    if current.number in site.memory.sums:  # a second sum of the same inputs would tell one of them
        return False
    if current.number > site.rules.rounds:
        return False
    phases = site.lived_rules.phases(current.number)
    if phases != site.rules.phases(current.number) or "exchange" not in phases:
        return False
    return current.position <= phases.index("exchange") and site.rules.site in site.rules.members(current.number)
