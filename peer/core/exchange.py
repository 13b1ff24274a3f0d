"""One exchange of a round: which artifacts a site waits for, for how long, and the fallback for each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from peer.core import liveness
from peer.core.artifacts import Artifact, Purpose, Source
from peer.core.kinds import Kind
from peer.core.liveness import Peers
from peer.core.messages import Heartbeat, Unavailable
from peer.core.plan import Pattern
from peer.core.roster import SiteName
from peer.core.rows import ABSENT
from peer.core.rules import Rules

GONE = "gone"
"""The reason if the peer left or was expelled, and also if it says that it is gone."""
EQUAL = "sent the same artifact as "
"""How the refusal of both origins of one artifact begins; it accuses neither, since neither digest shows who copied."""
MISSING_REASONS = (
    ABSENT,
    "silent",
    "slow",
    *sorted(liveness.AWAY),
    str(Unavailable.RETIRED),
    str(Unavailable.SKIPPED),
    "refused",
    "declined",
    "lost",
    "unused",
)
"""Every reason why a site may be missing from a round, here and in journal rows."""


SLOW_FACTOR = 2.0
"""A wait that ended at the deadline counts double, so that the next deadline is later."""


@dataclass(slots=True)
class Want:
    """One artifact that a site waits for; the site asks ``origin`` for the model of ``owner``.

    ``dropped`` is the reason why the site stopped waiting, ``in_vain_s`` how long it had waited then. Times are
    monotonic seconds.
    """

    origin: SiteName
    owner: SiteName
    attempt: int
    since_s: float
    patience_s: float
    received: Source | None = None
    received_s: float = 0.0
    dropped: str = ""
    in_vain_s: float = 0.0

    @property
    def open(self) -> bool:
        """Whether the site still waits for it."""
        return self.received is None and not self.dropped

    def arrive(self, source: Source, now_s: float) -> None:
        """Record that the artifact is on disk."""
        self.received, self.received_s = source, now_s

    def drop(self, reason: str, now_s: float) -> None:
        """Stop waiting."""
        self.dropped, self.in_vain_s = reason, now_s - self.since_s


@dataclass(slots=True)
class Exchange:
    """The wants of one exchange, by origin; all artifacts are of one kind.

    It only decides; ``peer.core.rounds`` orders the fetches and rows. With ``for_comparison``, it fetches an earlier
    copy of a model that is already here.

    A peer's event concerns only its own want, so the exchange checks only the wants of ``heard`` peers, and from
    ``check_s`` on all of them: before that no want ends by time alone.
    """

    round: int
    pattern: Pattern
    purpose: Purpose
    opened_s: float
    slow_s: float
    wants: dict[SiteName, Want] = field(default_factory=dict)
    kind: Kind = "model"
    for_comparison: bool = False
    heard: set[SiteName] = field(default_factory=set)
    check_s: float = -math.inf
    _oldest_open: int = 0

    def add(self, want: Want) -> Want:
        """Wait for one more artifact."""
        self.wants[want.origin] = want
        self.check_s, self._oldest_open = -math.inf, 0
        return want

    def settled(self) -> bool:
        """Return whether no want is open. A want that ended stays so: the search continues where it stopped."""
        for want in itertools.islice(self.wants.values(), self._oldest_open, None):
            if want.open:
                return False
            self._oldest_open += 1
        return True

    def due_s(self, peers: Peers, rules: Rules, now_s: float) -> list[float]:
        """Return when to check the wants again if no event comes first, in monotonic seconds; empty once settled."""
        if self.settled():
            return []
        if self.check_s <= now_s:
            waiting = [want for want in self.wants.values() if want.open]
            ends = [peers.silent_at_s(want.origin) for want in waiting]
            ends += [want.since_s + want.patience_s for want in waiting]
            ends += [self.opened_s + self.slow_s, self.opened_s + rules.epoch(self.round).pace.wait_max_s]
            self.check_s = min((end_s for end_s in ends if end_s > now_s), default=math.inf)
        return [self.check_s]

    def give_up(self, peers: Peers, rules: Rules, now_s: float) -> list[Want]:
        """Drop the wants of peers that are silent, away or too slow; return those dropped now.

        A silent peer, or one that publishes nothing more, is dropped at once, a slow one at the deadline, or earlier if
        its want has less patience left. In an all-to-all exchange, the adaptive deadline applies only once a quorum has
        arrived; ``wait_max_s`` and the patience always apply.
        """
        epoch = rules.epoch(self.round)
        slow = now_s >= self.opened_s + self.slow_s and (
            self.pattern != "all_to_all"
            or sum(want.received is not None for want in self.wants.values()) >= epoch.quorum_others
        )
        late = now_s >= self.opened_s + epoch.pace.wait_max_s
        all_due = slow or late or now_s >= self.check_s
        origins = self.wants if all_due else sorted(self.heard & self.wants.keys())
        self.heard = set()
        dropped = []
        for want in map(self.wants.__getitem__, list(origins)):
            if not want.open:
                continue
            pulse = peers.pulse(want.origin)
            if peers.silent(want.origin, now_s):
                want.drop("silent", now_s)
            elif pulse is not None and pulse.phase in liveness.AWAY and self._awaits(pulse):
                want.drop(pulse.phase, now_s)
            elif slow or late or now_s >= want.since_s + want.patience_s:
                want.drop("slow", now_s)
            if want.dropped:
                dropped.append(want)
        return dropped

    def _awaits(self, pulse: Heartbeat) -> bool:
        """Return whether the peer has not published the artifact yet, by its heartbeat.

        The published round does not cover returns, which the peer makes later.
        """
        return (pulse.committed_round if self.purpose == "return" else pulse.published_round) < self.round

    def waited_s(self, now_s: float, *, wait_max_s: float) -> float | None:
        """Return how long the peers took, for the next deadline; ``None`` if the wait is no measure of that.

        A wait that ended at the deadline counts ``SLOW_FACTOR`` times. One that silence or lost patience ended does not
        count.
        """
        deadline_s = min(self.slow_s, wait_max_s)
        if any(want.dropped == "slow" and want.patience_s >= deadline_s for want in self.wants.values()):
            return (now_s - self.opened_s) * SLOW_FACTOR
        return max((want.received_s - self.opened_s for want in self.wants.values() if want.received), default=None)

    def in_vain_s(self) -> dict[SiteName, float]:
        """Return how long the site waited for each peer that did not deliver."""
        return {origin: want.in_vain_s for origin, want in sorted(self.wants.items()) if want.in_vain_s > 0}

    def sources(self) -> tuple[Source, ...]:
        """Return the received artifacts, in roster order."""
        return tuple(want.received for _, want in sorted(self.wants.items()) if want.received is not None)

    def missing(self) -> dict[str, str]:
        """Return the peers that did not contribute, each with the reason."""
        return {origin: want.dropped for origin, want in sorted(self.wants.items()) if want.dropped}


def scheduled(rules: Rules, published: Container[tuple[int, SiteName]], round: int) -> list[tuple[SiteName, SiteName]]:
    """List the artifacts that a round's exchange requests: the origin of each, and the owner of the model.

    ``published`` has the rounds and owners of this site's own artifacts: a circulating model that should be here but is
    not among them is requested from its owner.
    """
    pattern = rules.pattern(round)
    if pattern == "all_to_all":
        return [(origin, origin) for origin in rules.members(round).others(rules.site)]
    if pattern == "visit":
        return [(visitor, visitor) for visitor in rules.visitors(round)]
    slot = rules.turn(round)
    origin = rules.holder(round, slot) if pattern == "circulate" else slot
    if origin == rules.site and (round, slot) not in published:
        origin = slot  # this site should hold the model, but had no copy to train in the round before
    return [(origin, slot)] if origin != rules.site else []


def fallback(rules: Rules, *, round: int, owner: SiteName, on_disk: Sequence[Source]) -> tuple[Source, ...]:
    """Choose the sources of a permutation or circulating round whose artifact did not arrive.

    Args:
        rules: ``fallback`` is ``self`` (no source: the site consolidates alone) or ``stale``.
        round: the round in progress.
        owner: the site whose model was due.
        on_disk: every artifact that this site still has, received or its own.
    """
    copies = [source for source in on_disk if source.artifact.owner == owner and source.round < round]
    if rules.pattern(round) == "circulate":
        newest = max(copies, key=lambda source: trained(source, rules), default=None)
        return () if newest is None else (stale(newest),)
    epoch = rules.epoch(round)
    if epoch.fallback == "stale":
        from_owner = [source for source in copies if source.origin == owner]
        recent = [source for source in from_owner if round - source.round <= epoch.staleness_rounds_max]
        newest = max(recent, key=lambda source: source.round, default=None)
        return () if newest is None else (stale(newest),)
    return ()


def last_received(
    rules: Rules, *, round: int, fresh: Iterable[Source], earlier: Iterable[Source]
) -> tuple[Source, ...]:
    """Return each peer's newest artifact: of this round, or the last one received for an earlier round."""
    newest: dict[SiteName, Source] = {}
    members = frozenset(rules.members(round)) - rules.epochs.head.expelled
    for source in sorted(earlier, key=lambda source: source.round):
        if source.round < round and source.origin != rules.site and source.origin in members:
            newest[source.origin] = stale(source)
    newest.update({source.origin: source for source in fresh})
    return tuple(newest[origin] for origin in sorted(newest))


def find_equals(sources: Iterable[Source], own: Artifact | None, site: SiteName) -> dict[SiteName, SiteName]:
    """Map each origin whose trained artifact another origin has signed, too, to that one, whose artifact counts.

    The site's ``own`` artifact counts before others, then the one of the earlier round, then the first by name.
    Untrained artifacts of one seed may be equal.
    """
    first_of = {} if own is None else {own.sha256: Source(site, 0, own)}
    equals = {}
    for source in sorted(sources, key=lambda source: (source.round, source.origin)):
        first = first_of.setdefault(source.artifact.sha256, source)
        if first.origin != source.origin and (first.artifact.steps or source.artifact.steps):
            equals[source.origin] = first.origin
    return equals


def best_copy(copies: Iterable[Source], rules: Rules) -> Source:
    """Choose the copy that its owner adopts: the one trained most; on a tie, that of the lowest holder."""
    lowest_first = {name: -index for index, name in enumerate(sorted(rules.epochs.names))}
    return max(copies, key=lambda source: (*trained(source, rules), lowest_first[source.origin]))


def holder_before(source: Source, rules: Rules) -> tuple[int, SiteName] | None:
    """Return round and holder of the copy that a circulating copy's origin was to train.

    Rounds in which the origin had the model, too, are skipped: its own earlier copy proves nothing. Returns ``None`` if
    no such copy is kept.
    """
    last = max(0, source.round - 1 - rules.epoch(source.round).pace.artifact_rounds_max)
    for round in range(source.round - 1, last, -1):
        holder = rules.holder(round, source.artifact.owner)
        if holder != source.origin:
            return round, holder
    return None


def trained(source: Source, rules: Rules) -> tuple[int, int]:
    """Return a key that orders copies of one circulating model by their training: steps, then round.

    Steps are the origin's claim. They count only if the receiver could check them on arrival; otherwise only the round
    counts, for which the schedule gives the model to one site.
    """
    return (0 if rules.round_steps is None else source.artifact.steps), source.round


def stale(source: Source) -> Source:
    """Return the same source, marked as older than its round."""
    return Source(source.origin, source.round, source.artifact, "stale")
