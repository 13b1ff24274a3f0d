"""The failure detector: which peers are alive, how far they are, and how long to wait for them.

It uses this site's own monotonic clock alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from peer.core import limits
from peer.core.messages import Heartbeat, LastHeard
from peer.core.roster import SiteName
from peer.core.rules import PaceRules

AWAY = frozenset({"paused", "leaving", "failed", "gone"})
"""Phases in which a peer publishes nothing more for now."""
NOT_READY = AWAY | {"new", "initialising"}
"""Phases in which a peer cannot begin round 1."""
FINISHED = frozenset({"done", "leaving", "gone"})


@dataclass(slots=True)
class Peers:
    """When each peer was heard last, and its state. Times are seconds of the monotonic clock."""

    silence_s: float
    began_s: float = 0.0
    heard: dict[SiteName, LastHeard] = field(default_factory=dict)
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
        """Note when the site's round grew last, and when it last did more of its work.

        A round that the site was in before is no growth: claims that go back and forth would last for
        ever.
        """
        at = (pulse.round, min(pulse.committed_round, pulse.round))
        if before is None or at > self.furthest.get(site, (-1, -1)):
            self.furthest[site] = at
            self.round_began_s[site] = self.moved_s[site] = now_s
        elif pulse.phase != before.phase or pulse.progress > before.progress:
            self.moved_s[site] = now_s

    def stalled(self, site: SiteName, now_s: float, *, patience_s: float) -> bool:
        """Whether the site is heard, and does not get on.

        Words cost nothing: a site that only claims to work is stalled after ``PACING_WAITS_MAX``
        times the patience in one round, a site that does not even claim it after the patience.
        """
        moved_s, began_s = self.moved_s.get(site, now_s), self.round_began_s.get(site, now_s)
        return now_s >= min(moved_s + patience_s, began_s + limits.PACING_WAITS_MAX * patience_s)

    def prove(self, site: SiteName, round: int) -> None:
        """Record that the site has signed a manifest or a statement of this round."""
        before = self.heard.get(site, LastHeard())
        self.heard[site] = replace(before, proven_round=max(before.proven_round, round))

    def pulse(self, site: SiteName) -> Heartbeat | None:
        """The newest known state of the site, however old."""
        return self.heard[site].pulse if site in self.heard else None

    def ready(self, site: SiteName) -> bool:
        """Whether the site did not say that it cannot begin round 1."""
        pulse = self.pulse(site)
        return pulse is None or pulse.phase not in NOT_READY

    def done(self, site: SiteName, rounds: int) -> bool:
        """Whether the site said that its last round is over; one that left earlier may come back."""
        pulse = self.pulse(site)
        return pulse is not None and pulse.phase in FINISHED and pulse.committed_round >= rounds

    def silent_at_s(self, site: SiteName) -> float:
        """When the site counts as silent unless it is heard before: ``silence_s`` after this start or later."""
        last_s = self.heard[site].last_s if site in self.heard else self.began_s
        return max(last_s, self.began_s) + self.silence_s

    def silent(self, site: SiteName, now_s: float) -> bool:
        """Whether no authenticated byte has arrived for ``silence_s``."""
        return now_s >= self.silent_at_s(site)

    def present(self, sites: Iterable[SiteName], now_s: float) -> list[SiteName]:
        """The sites that were heard within ``silence_s``."""
        return [site for site in sites if site in self.heard and not self.silent(site, now_s)]

    def rounds(
        self,
        sites: Iterable[SiteName],
        now_s: float,
        *,
        patience_s: Callable[[SiteName], float],
        unproven_max: int,
    ) -> dict[SiteName, int]:
        """The rounds of the sites that are present, not away and not stalled.

        A claim beyond ``unproven_max`` counts up to the round after the newest proven one: a site
        publishes for a round before that round, or in it.
        """
        rounds = {}
        for site in self.present(sites, now_s):
            pulse = self.pulse(site)
            if pulse is None or pulse.phase in AWAY or self.stalled(site, now_s, patience_s=patience_s(site)):
                continue
            rounds[site] = min(pulse.round, max(unproven_max, self.heard[site].proven_round + 1))
        return rounds


def patience_s(*, in_vain_s: float, trained_s: float, pace: PaceRules) -> float:
    """How long to wait for an artifact of a living peer, after so much waiting for it in vain.

    A wait takes at most half of what is left of the peer's allowance. So the waits grow shorter
    geometrically, and their sum over the run stays under the allowance, whatever the peer answers.
    The allowance grows with the time that this site trained, not with deliveries: a peer that
    delivers every other time would otherwise cost without bound.

    Args:
        in_vain_s: the waits for the peer that ended without its artifact, in this run.
        trained_s: how long this site trained in this run.
        pace: the federation's waiting times.
    """
    allowance_s = limits.WAITS_IN_VAIN_MAX * pace.wait_max_s + limits.WAIT_IN_VAIN_SHARE * trained_s
    return min(pace.wait_max_s, max(0.0, allowance_s - in_vain_s) / 2)


def lower_median(rounds: Sequence[int]) -> int | None:
    """The lower median of ascending numbers; ``None`` of an empty sequence."""
    return rounds[(len(rounds) - 1) // 2] if rounds else None


def slow_after_s(waits_s: Sequence[float], pace: PaceRules) -> float:
    """How long to wait for a living peer: median + 4 MAD of the recent waits, within its bounds.

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
