"""The peers' progress, for the waits between rounds: who is there, who is ahead, who is not done.

Every event needs it, so the functions read the counts of ``peer.core.liveness`` instead of each peer. Only the
functions that name peers read each peer.
"""

from __future__ import annotations

from collections.abc import Iterable

from peer.core import rows
from peer.core.roster import SiteName
from peer.core.state import SiteState


def is_there(site: SiteState, name: SiteName) -> bool:
    """Return whether a peer can take part in round 1 now: it has greeted, is heard, and is ready.

    A peer that greeted may have ended since. The site waits at most ``wait_max_s`` for a peer that says that it is not
    ready, since it may say so for ever.
    """
    if name not in site.greeted or site.peers.silent(name, site.now_s):
        return False
    return site.peers.ready(name) or site.now_s >= site.since_s + site.pace.wait_max_s


def all_there(site: SiteState) -> bool:
    """Return whether ``is_there`` is true for every peer of round 1."""
    if site.rules.members_change:
        return all(is_there(site, name) for name in site.rules.others_in(1))
    if len(site.greeted) < site.rules.others_count:
        return False
    waited = site.now_s >= site.since_s + site.pace.wait_max_s
    there = sum(count for standing, count in site.count_peers() if standing.present and (standing.ready or waited))
    return there >= site.rules.others_count


def ahead(site: SiteState, round: int) -> dict[SiteName, int]:
    """Return the peers of the next round or of this one that are in this round or a later one, each with its round."""
    rounds = site.peers.rounds(
        dict.fromkeys((*site.rules.others_in(site.memory.committed + 1), *site.rules.others_in(round))),
        site.now_s,
        patience_s=site.patience_s,
        unproven_max=site.rules.unproven_round_max(site.memory.committed),
    )
    return {name: theirs for name, theirs in rounds.items() if theirs >= round}


def any_told(site: SiteState, round: int) -> bool:
    """Return whether a peer of the round that is heard has stated its progress."""
    return any(map(site.peers.pulse, site.peers.present(site.rules.others_in(round), site.now_s)))


def unfinished(site: SiteState) -> list[SiteName]:
    """List the peers that may still need this site: those that have not said that they are done."""
    rules = site.lived_rules
    if rules.plan.pattern == "none":
        return []
    return [name for name in rules.others if not site.peers.done(name, rules.rounds)]


def any_unfinished(site: SiteState) -> bool:
    """Return whether ``unfinished`` is not empty."""
    rules = site.lived_rules
    finished = sum(count for standing, count in site.count_peers() if (standing.finished_round or 0) >= rules.rounds)
    return rules.plan.pattern != "none" and finished < rules.others_count


def compare_means(site: SiteState, names: Iterable[SiteName]) -> None:
    """Journal which peers ended the last committed round with this site's mean, and which did not.

    A peer with other contributors has another mean, which is no fault. A peer that has not learnt of the round's
    amendment ran it in another epoch, and its mean is not compared.
    """
    memory, own = site.memory, site.told_aggregate
    if own is None:
        return
    number = site.rules.epoch(memory.committed).number
    for name in names:
        pulse = site.peers.pulse(name)
        if pulse is None or name in memory.compared or pulse.aggregate is None:
            continue
        knows_epoch = number <= (pulse.head.number if pulse.head is not None else 0)
        if pulse.committed_round == memory.committed and knows_epoch:
            agrees = pulse.aggregate == own
            site.persist(rows.ComparedRow(memory.committed, site=name, sha256=pulse.aggregate, agrees=agrees))
