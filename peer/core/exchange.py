"""One exchange of one round: what a site waits for, when it stops waiting, and what it goes on with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from peer.core import liveness
from peer.core.commands import Source
from peer.core.liveness import Peers
from peer.core.messages import Purpose, Unavailable
from peer.core.plan import Pattern
from peer.core.roster import SiteName
from peer.core.rules import Rules

ABSENT = "absent"
"""The reason where the operator named the peer with `start --without`: nobody misses it."""
MISSING_REASONS = (
    ABSENT,
    "silent",
    "slow",
    *sorted(liveness.AWAY),
    str(Unavailable.RETIRED),
    str(Unavailable.SKIPPED),
    "refused",
)
"""Why a site may be missing from a round: every word in ``Exchange.missing`` and in the rows of a round."""


@dataclass(slots=True)
class Want:
    """One artifact that a site waits for: whom it asks, and whose model that is. Times are monotonic seconds."""

    origin: SiteName
    owner: SiteName
    attempt: int
    since_s: float
    came: Source | None = None
    dropped: str = ""

    @property
    def open(self) -> bool:
        """Still waited for."""
        return self.came is None and not self.dropped


@dataclass(slots=True)
class Exchange:
    """The wants of one exchange, by origin. It decides; fetching and journalling are commands of the round."""

    round: int
    pattern: Pattern
    purpose: Purpose
    opened_s: float
    slow_s: float
    wants: dict[SiteName, Want] = field(default_factory=dict)

    def settled(self) -> bool:
        """Nothing is waited for any more."""
        return not any(want.open for want in self.wants.values())

    def due_s(self, neighbours: Peers, rules: Rules) -> list[float]:
        """When to look again if nothing happens; monotonic seconds."""
        waiting = [neighbours.silent_at_s(want.origin) for want in self.wants.values() if want.open]
        return [*waiting, self.opened_s + self.slow_s, self.opened_s + rules.pace.wait_max_s] if waiting else []

    def give_up(self, neighbours: Peers, rules: Rules, now_s: float) -> list[Want]:
        """Drop whatever there is no point in waiting for; returns what was dropped now.

        A silent or absent peer is dropped at once, a slow one at the deadline. Where all peers' artifacts are wanted,
        the deadline counts only once a quorum is in; ``wait_max_s`` always does.
        """
        came = sum(want.came is not None for want in self.wants.values())
        slow = now_s >= self.opened_s + self.slow_s and (self.pattern != "all_to_all" or came >= rules.quorum_others)
        late = now_s >= self.opened_s + rules.pace.wait_max_s
        dropped = []
        for want in self.wants.values():
            if not want.open:
                continue
            pulse = neighbours.pulse(want.origin)
            if neighbours.silent(want.origin, now_s):
                want.dropped = "silent"
            elif pulse is not None and pulse.phase in liveness.AWAY and pulse.published_round < self.round:
                want.dropped = pulse.phase
            elif slow or late:
                want.dropped = "slow"
            if want.dropped:
                dropped.append(want)
        return dropped

    def sources(self) -> tuple[Source, ...]:
        """What came, in roster order."""
        return tuple(want.came for _, want in sorted(self.wants.items()) if want.came is not None)

    def missing(self) -> dict[str, str]:
        """Who did not contribute, and why."""
        return {origin: want.dropped for origin, want in sorted(self.wants.items()) if want.dropped}


def fallback(rules: Rules, *, round: int, owner: SiteName, held: Sequence[Source]) -> tuple[Source, ...]:
    """What a permutation or circulating round goes on with when its artifact did not come.

    Args:
        rules: ``fallback`` is ``self`` (nothing: consolidate alone) or ``stale``.
        round: the round that waits.
        owner: whose model it waits for.
        held: every artifact this site still holds, received or its own.
    """
    copies = [source for source in held if source.artifact.owner == owner and source.round < round]
    if rules.pattern(round) == "circulate":
        newest = max(copies, key=lambda source: (source.artifact.steps, source.round), default=None)
        return () if newest is None else (stale(newest),)
    if rules.fallback == "stale":
        sent = [source for source in copies if source.origin == owner]
        fresh = [source for source in sent if round - source.round <= rules.staleness_rounds_max]
        newest = max(fresh, key=lambda source: source.round, default=None)
        return () if newest is None else (stale(newest),)
    return ()


def last_received(rules: Rules, *, came: Iterable[Source], held: Iterable[Source]) -> tuple[Source, ...]:
    """Of every peer its newest artifact: the one that came, or the last that was received."""
    newest: dict[SiteName, Source] = {}
    for source in sorted(held, key=lambda source: source.round):
        if source.origin != rules.site and source.origin in rules.roster:
            newest[source.origin] = stale(source)
    newest.update({source.origin: source for source in came})
    return tuple(newest[origin] for origin in sorted(newest))


def best_copy(copies: Mapping[SiteName, Source], rules: Rules) -> Source:
    """The copy that an owner takes home: most optimiser steps, on a tie the holder with the lowest index."""
    return max(copies.values(), key=lambda source: (source.artifact.steps, -rules.roster.index(source.origin)))


def stale(source: Source) -> Source:
    """The same source, marked as older than its round."""
    return Source(source.origin, source.round, source.artifact, "stale")
