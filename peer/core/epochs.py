"""The epochs of a federation: its members and settings in each round.

The genesis ``federation.toml`` is epoch 0. Each amendment of the chain makes the next one. ``peer.site.membership``
builds the epochs from the genesis and the chain. The epoch of a round is a pure function of both, so sites with the
same chain agree on every order. Across epochs sites match by name; a name that left is never used again.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peer.core import limits
from peer.core.plan import Value
from peer.core.roster import RoundKey, Sha256, SiteName

SECONDS = {"ge": limits.SECONDS_CONFIGURED_MIN, "le": limits.NUMBER_CONFIGURED_MAX}
NOT_NEGATIVE = {"ge": 0, "le": limits.NUMBER_CONFIGURED_MAX}
COUNT = {"ge": 1, "le": limits.NUMBER_CONFIGURED_MAX}


@dataclass(frozen=True, slots=True)
class PaceRules:
    """``[pace]``: how long sites wait for each other, and how far they may drift apart in rounds.

    The reasons are in ``peer.core.limits``. ``peer.site.config.schema`` makes the table from these fields: their
    metadata are the bounds of the keys.
    """

    wait_max_s: float = field(default=limits.WAIT_MAX_S, metadata=SECONDS)
    """The longest wait for a slow but living peer, in seconds."""
    deadline_floor_s: float = field(default=limits.DEADLINE_FLOOR_S, metadata=NOT_NEGATIVE)
    """The shortest deadline that the adaptive one may come to."""
    gather_s: float | None = field(default=None, metadata=SECONDS)
    """Start round 1 without the sites that did not come within this time; left out: wait for all."""
    silence_s: float = field(default=limits.SILENCE_S, metadata=SECONDS)
    """A peer without an authenticated byte for so long is silent: fall back now. Above 15 s, a dial, a call and a
    stream may take as much longer, too: for slow lines, and for many sites on one machine."""
    beat_s: float | None = field(default=None, metadata=SECONDS)
    """How often a site beats; left out: 3, above 32 sites 5."""
    lead_rounds_max: int = field(default=2, metadata=COUNT)
    """How many rounds a site may be ahead of the middle of the others."""
    lag_rounds_max: int = field(default=2, metadata=COUNT)
    """How many it may be behind before it jumps."""
    isolated_s: float = field(default=86_400.0, metadata=SECONDS)
    """How long a site that hears nobody waits before it goes on alone."""
    linger_s: float = field(default=3_600.0, metadata=NOT_NEGATIVE)
    """How long a finished site goes on serving those that are not."""
    artifact_rounds_max: int = field(default=limits.ARTIFACT_ROUNDS_MAX, metadata=COUNT)
    """For how many rounds a published artifact stays for receivers that lag."""
    members_min: int = field(default=1, metadata=COUNT)
    """Open no round while fewer members, this site included, are heard; 1: never hold. Not `[aggregate] members_min`,
    which says how many contributors a secure sum needs, and protects them."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """Members and settings from a round on, until the next epoch's first round.

    Attributes:
        number: the amendment's number; 0 is the genesis.
        digest: the SHA-256 of the amendment's body; ``None`` for the genesis, whose digest on the wire is empty.
        from_round: the epoch's first round; 1 for the genesis. A later epoch may have the same one: then the earlier
            epoch applies to no round.
        members: the sites, sorted by name: a site's index, N and the order follow from them.
        round_key: the key of the orders; ``None`` if this site does not have it (it was added later and never got it,
            or it was expelled).
        hold: no site opens a round of this epoch.
        newcomers: the members that the epoch before did not have.
        expelled: every site that this amendment or an earlier one has expelled.
        left: every site that left by a notice, in this amendment or an earlier one.
    """

    number: int
    digest: Sha256 | None
    from_round: int
    members: tuple[SiteName, ...]
    round_key: RoundKey | None = field(repr=False)
    rounds: int
    round_steps: int | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    pace: PaceRules = field(default_factory=PaceRules)
    quorum: int | None = None
    fallback: str = "self"
    staleness_rounds_max: int = 1
    hold: bool = False
    newcomers: frozenset[SiteName] = frozenset()
    expelled: frozenset[SiteName] = frozenset()
    left: frozenset[SiteName] = frozenset()

    @property
    def quorum_others(self) -> int:
        """The artifacts that suffice at the adaptive deadline; by default half, rounded up."""
        return self.quorum if self.quorum is not None else default_quorum(len(self.members) - 1)


@dataclass(frozen=True)
class Epochs:
    """All epochs, by number; ``from_round`` never falls.

    ``leaving`` names the sites whose notice this site has, before an amendment removes them. ``pinned`` is a round with
    its fixed epoch, whatever the chain says by now.

    ``ValueError`` without a genesis, or if numbers or rounds do not follow each other.
    """

    all: tuple[Epoch, ...]
    leaving: frozenset[SiteName] = frozenset()
    pinned: tuple[int, Epoch] | None = None

    def __post_init__(self) -> None:
        if not self.all:
            raise ValueError("epochs begin with the genesis")
        if [epoch.number for epoch in self.all] != list(range(len(self.all))):
            raise ValueError("epochs are numbered from 0 without a gap")
        first_rounds = [epoch.from_round for epoch in self.all]
        if first_rounds[0] != 1 or first_rounds != sorted(first_rounds):
            raise ValueError("the genesis holds from round 1, and no epoch begins before the one before it")

    def at(self, round: int) -> Epoch:
        """Return the epoch of a round: the highest number whose ``from_round`` is not above it."""
        if self.pinned is not None and self.pinned[0] == round:
            return self.pinned[1]
        if len(self.all) == 1:  # every event asks several times, and most federations are never amended
            return self.all[0]
        return self.all[max(0, bisect.bisect_right(self.all, round, key=lambda epoch: epoch.from_round) - 1)]

    def pin(self, round: int, digest: Sha256 | None) -> Epochs:
        """Return epochs in which a round keeps the epoch of this digest; unchanged if that epoch is unknown."""
        if self.at(round).digest == digest:
            return self
        known = next((epoch for epoch in self.all if epoch.digest == digest), None)
        return self if known is None else replace(self, pinned=(round, known))

    @property
    def head(self) -> Epoch:
        """The newest epoch, which may begin in a future round."""
        return self.all[-1]

    @property
    def genesis(self) -> Epoch:
        return self.all[0]

    @property
    def names(self) -> frozenset[SiteName]:
        """Every site that is or was a member in some epoch."""
        return frozenset(name for epoch in self.all for name in epoch.members)

    @functools.cached_property
    def gone(self) -> frozenset[SiteName]:
        """The sites that count as gone at once: expelled, removed, or with a notice. Cached: every event reads it."""
        taken_out = self.names - frozenset(self.head.members) if len(self.all) > 1 else frozenset[SiteName]()
        return taken_out | self.head.expelled | self.leaving

    def expelled_by(self, site: SiteName) -> int | None:
        """Return the number of the amendment that expels the site; ``None`` if none does."""
        return next((epoch.number for epoch in self.all if site in epoch.expelled), None)

    def first_round(self, site: SiteName) -> int | None:
        """Return the first round in which the site is a member; ``None`` for a stranger."""
        return next((epoch.from_round for epoch in self.all if site in epoch.members), None)


def default_quorum(peers: int) -> int:
    """Return ceil(peers / 2)."""
    return (peers + 1) // 2
