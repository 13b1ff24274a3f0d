"""The failure detector: which peers are alive, how far they are, and how long to wait for them.

It uses only this site's own monotonic clock.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from peer.core import limits
from peer.core.epochs import PaceRules
from peer.core.messages import Heartbeat, LastHeard
from peer.core.phases import QUEUED
from peer.core.roster import SiteName

AWAY = frozenset({"paused", "held", "leaving", "failed", "gone"})
"""Phases in which a peer publishes nothing more for now."""
NOT_READY = AWAY | {"new", "initialising"}
"""Phases in which a peer cannot begin round 1."""
FINISHED = frozenset({"done", "leaving", "gone"})


class Standing(NamedTuple):
    """One peer's state, as far as a site's waits depend on it.

    ``round`` is the round in which the peer sets the pace, ``None`` if it sets none. ``finished_round`` is the last
    committed round of a peer that is done or has left.
    """

    present: bool
    ready: bool
    round: int | None
    finished_round: int | None


class HeardPeers(dict[SiteName, LastHeard]):
    """The time and state with which each peer was last heard, and the number of peers by standing.

    An event changes the standing of one peer, so reading the counts costs one step per standing, however many peers
    there are. The simulator's sites share one table: there, no peer is silent or stalled.

    Attributes:
        standings: by peer, as it was counted.
        counts: number of peers by standing.
        changed: peers that were heard since they were counted.
        recount_s: when the first of the counted peers may turn silent or stalled, on the clock of ``Peers``; no later
            than it does.
    """

    def __init__(self) -> None:
        super().__init__()
        self.standings: dict[SiteName, Standing] = {}
        self.counts: Counter[Standing] = Counter()
        self.changed: set[SiteName] = set()
        self.recount_s = math.inf

    def __setitem__(self, name: SiteName, heard: LastHeard) -> None:
        super().__setitem__(name, heard)
        self.changed.add(name)

    def count(self, name: SiteName, standing: Standing) -> None:
        """Count a peer with this standing, and no longer with its former one."""
        before = self.standings.get(name)
        if before is not None:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        self.standings[name] = standing
        self.counts[standing] += 1

    def counts_without(self, site: SiteName) -> Iterator[tuple[Standing, int]]:
        """Yield the counts of all peers but one: the simulator's table has the site itself, too."""
        own = self.standings.get(site)
        for standing, count in self.counts.items():
            if others := count - (standing == own):
                yield standing, others


@dataclass(slots=True)
class Peers:
    """The time and state with which each peer was last heard. Times are seconds of the monotonic clock."""

    silence_s: float
    began_s: float = 0.0
    heard: HeardPeers = field(default_factory=HeardPeers)
    begun: set[SiteName] = field(default_factory=set)
    round_began_s: dict[SiteName, float] = field(default_factory=dict)
    moved_s: dict[SiteName, float] = field(default_factory=dict)
    furthest: dict[SiteName, tuple[int, int]] = field(default_factory=dict)

    def hear(self, site: SiteName, pulse: Heartbeat | None, now_s: float) -> None:
        """Record an authenticated byte from the site, and its state if it came with a heartbeat."""
        before = self.heard.get(site, LastHeard())
        self.heard[site] = LastHeard(pulse if pulse is not None else before.pulse, now_s, before.proven_round)
        if pulse is not None and pulse.round >= 1:
            self.begun.add(site)
        if pulse is not None:
            self._follow(site, before.pulse, pulse, now_s)

    def _follow(self, site: SiteName, before: Heartbeat | None, pulse: Heartbeat, now_s: float) -> None:
        """Record when the site's round last grew, and when it last made progress.

        A round that the site was in before is no growth: claims that go back and forth would last for ever.
        """
        at = (pulse.round, min(pulse.committed_round, pulse.round))
        if before is None or at > self.furthest.get(site, (-1, -1)):
            self.furthest[site] = at
            self.round_began_s[site] = self.moved_s[site] = now_s
        elif pulse.phase != before.phase or pulse.progress > before.progress or pulse.phase == QUEUED:
            self.moved_s[site] = now_s

    def stalled(self, site: SiteName, now_s: float, *, patience_s: float) -> bool:
        """Return whether the site is heard but makes no progress.

        Claims cost nothing: a site that only claims to work is stalled after ``PACING_WAITS_MAX`` times the patience in
        one round, a site that does not even claim it after the patience.
        """
        return now_s >= self.stalled_at_s(site, patience_s=patience_s)

    def stalled_at_s(self, site: SiteName, *, patience_s: float) -> float:
        """Return when the site counts as stalled unless it makes progress before."""
        if site not in self.moved_s:
            return math.inf
        ends_s = self.moved_s[site] + patience_s, self.round_began_s[site] + limits.PACING_WAITS_MAX * patience_s
        return min(ends_s)

    def prove(self, site: SiteName, round: int) -> None:
        """Record that the site has signed a manifest or a statement of this round."""
        before = self.heard.get(site, LastHeard())
        self.heard[site] = replace(before, proven_round=max(before.proven_round, round))

    def pulse(self, site: SiteName) -> Heartbeat | None:
        """Return the newest known heartbeat of the site, however old, or None."""
        return self.heard[site].pulse if site in self.heard else None

    def ready(self, site: SiteName) -> bool:
        """Return whether the site has not said that it cannot begin round 1."""
        pulse = self.pulse(site)
        return pulse is None or pulse.phase not in NOT_READY

    def done(self, site: SiteName, rounds: int) -> bool:
        """Return whether the site said that its last round is over; one that left earlier may come back."""
        pulse = self.pulse(site)
        return pulse is not None and pulse.phase in FINISHED and pulse.committed_round >= rounds

    def silent_at_s(self, site: SiteName) -> float:
        """Return when the site becomes silent unless it is heard: at the earliest ``silence_s`` after this start."""
        last_s = self.heard[site].last_s if site in self.heard else self.began_s
        return max(last_s, self.began_s) + self.silence_s

    def silent(self, site: SiteName, now_s: float) -> bool:
        """Return whether no authenticated byte has arrived for ``silence_s``."""
        return now_s >= self.silent_at_s(site)

    def present(self, sites: Iterable[SiteName], now_s: float) -> list[SiteName]:
        """List the sites that were heard within ``silence_s``."""
        return [site for site in sites if site in self.heard and not self.silent(site, now_s)]

    def rounds(
        self,
        sites: Iterable[SiteName],
        now_s: float,
        *,
        patience_s: Callable[[SiteName], float],
        unproven_max: int,
    ) -> dict[SiteName, int]:
        """Return the rounds of the sites that are present, not away and not stalled.

        A claim beyond ``unproven_max`` counts up to the round after the newest proven one: a site publishes for a round
        before that round, or in it.
        """
        rounds = {}
        for site in self.present(sites, now_s):
            pulse = self.pulse(site)
            if pulse is None or pulse.phase in AWAY or self.stalled(site, now_s, patience_s=patience_s(site)):
                continue
            rounds[site] = self._credible_round(site, pulse, unproven_max)
        return rounds

    def recount(self, now_s: float, *, patience_s: Callable[[SiteName], float], unproven_max: int) -> HeardPeers:
        """Count every peer as it stands now, and return the table.

        Args:
            now_s: seconds of the monotonic clock.
            patience_s: returns how long to wait for a peer; on a change, ``HeardPeers.recount_s`` is set to the past.
            unproven_max: as for ``rounds``; it never falls.
        """
        heard = self.heard
        names: Iterable[SiteName] = heard.changed
        if now_s >= heard.recount_s:
            names, heard.recount_s = list(heard), math.inf
        beyond = set()
        for name in names:
            pulse = heard[name].pulse
            silent_at_s, stalled_at_s = self.silent_at_s(name), math.inf
            present, round = not self.silent(name, now_s), None
            if present and pulse is not None and pulse.phase not in AWAY:
                patience = patience_s(name)
                if not self.stalled(name, now_s, patience_s=patience):
                    stalled_at_s = self.stalled_at_s(name, patience_s=patience)
                    round = self._credible_round(name, pulse, unproven_max)
                    if round < pulse.round:
                        beyond.add(name)  # its claim counts more once this site has progressed
            finished_round = pulse.committed_round if pulse is not None and pulse.phase in FINISHED else None
            heard.count(name, Standing(present, self.ready(name), round, finished_round))
            if present:
                heard.recount_s = min(heard.recount_s, silent_at_s, stalled_at_s)
        heard.changed = beyond
        return heard

    def _credible_round(self, site: SiteName, pulse: Heartbeat, unproven_max: int) -> int:
        return min(pulse.round, max(unproven_max, self.heard[site].proven_round + 1))


def patience_s(*, in_vain_s: float, trained_s: float, pace: PaceRules) -> float:
    """Return how long to wait for an artifact of a live peer after these waits in vain.

    A wait takes at most half of the rest of the peer's allowance. So the waits shrink geometrically, and their sum over
    the run stays under the allowance, whatever the peer answers. The allowance grows with the time that this site
    trained, not with deliveries: otherwise a peer that delivers every other time would cost without an upper bound.

    Args:
        in_vain_s: the waits for the peer that ended without its artifact, in this run.
        trained_s: how long this site trained in this run.
        pace: the federation's waiting times.
    """
    allowance_s = limits.WAITS_IN_VAIN_MAX * pace.wait_max_s + limits.WAIT_IN_VAIN_SHARE * trained_s
    return min(pace.wait_max_s, max(0.0, allowance_s - in_vain_s) / 2)


def lower_median(counts: Mapping[int, int]) -> int | None:
    """Return the lower median of numbers with these counts; ``None`` if there are none."""
    left = (sum(counts.values()) + 1) // 2
    for number in sorted(counts):
        left -= counts[number]
        if left <= 0:
            return number
    return None


def slow_after_s(waits_s: Sequence[float], pace: PaceRules) -> float:
    """Return the adaptive deadline for a live peer: median + 4 MAD of the recent waits, within its bounds.

    Args:
        waits_s: how long this site waited in its last rounds, seconds, newest last.
        pace: ``wait_max_s`` is the upper bound, and the result until three waits are known.
    """
    recent = list(waits_s)[-limits.DEADLINE_HISTORY :]
    if len(recent) < limits.DEADLINE_ROUNDS_MIN:
        return pace.wait_max_s
    middle = statistics.median(recent)
    spread = statistics.median(abs(wait - middle) for wait in recent)
    return min(pace.wait_max_s, max(pace.deadline_floor_s, middle + limits.DEADLINE_MADS * spread))
