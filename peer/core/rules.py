"""The federation as a site's state machine sees it: plain values, free of I/O.

They change only by an amendment, for the rounds that follow it: ``Rules.amended``.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peer.core import limits, schedule
from peer.core.epochs import Epoch, Epochs, default_quorum
from peer.core.epochs import PaceRules as PaceRules
from peer.core.plan import Pattern, Plan, Value, circulating, visits
from peer.core.ring import Ring
from peer.core.roster import Roster, RoundKey, Sha256, SiteName


@dataclass(frozen=True)
class Rules:
    """The federation as one site sees it.

    ``round_steps`` is the number of optimiser steps of a round, or ``None`` if a stage counts passes over the data,
    whose length differs by site.

    ``staleness`` is by how many rounds the artifacts are older than in the plan.

    ``global_test`` is the federation's setting that sites measure each other's models; ``evaluation_permitted``,
    ``evaluation_samples_min`` and ``received_ratio_max`` are this site's policy.

    ``secure`` is whether sites add up under masks, of which so many ``colluders`` undo none; a sum then needs
    ``sum_members_min`` contributors, and more where the protocol does. ``sum_clip`` is the bound on a coordinate,
    and ``weighted`` whether samples weight a mean.

    The other fields are those of the genesis; ``chain`` has the amendments, or is ``None`` without any.
    """

    site: SiteName
    roster: Roster
    federation: Sha256
    round_key: RoundKey = field(repr=False)
    method: str
    plan: Plan
    rounds: int
    round_steps: int | None = None
    schedule_kind: str = "permutation"
    staleness: int = 0
    parameters: Mapping[str, Value] = field(default_factory=dict)
    pace: PaceRules = field(default_factory=PaceRules)
    fallback: str = "self"
    staleness_rounds_max: int = 1
    quorum: int | None = None
    evaluation_every: int = 0
    global_test: bool = False
    evaluation_permitted: bool = False
    evaluation_samples_min: int = limits.EVALUATION_SAMPLES_MIN
    received_ratio_max: float = limits.RECEIVED_RATIO_MAX
    secure: bool = False
    colluders: int = 1
    sum_members_min: int = 0
    sum_clip: float = 64.0
    weighted: bool = False
    without: frozenset[SiteName] = frozenset()
    stay: bool = False
    chain: Epochs | None = None

    @functools.cached_property
    def epochs(self) -> Epochs:
        """The genesis and every amendment that the site knows."""
        return self.chain if self.chain is not None else Epochs((self.genesis,))

    @functools.cached_property
    def genesis(self) -> Epoch:
        """Epoch 0, from ``federation.toml``."""
        return Epoch(
            number=0,
            digest=None,
            from_round=1,
            members=self.roster.names,
            round_key=self.round_key,
            rounds=self.rounds,
            pace=self.pace,
            quorum=self.quorum,
            fallback=self.fallback,
            staleness_rounds_max=self.staleness_rounds_max,
            parameters=self.parameters,
            round_steps=self.round_steps,
        )

    def amended(self, epochs: Epochs) -> Rules:
        """Return the rules with these epochs; the newest determines the number of rounds."""
        return replace(self, chain=epochs, rounds=epochs.head.rounds)

    def pinned(self, round: int, digest: Sha256 | None) -> Rules:
        """Return the rules in which a round keeps the epoch of this digest."""
        epochs = self.epochs.pin(round, digest)
        return self if epochs is self.epochs else replace(self, chain=epochs)

    def epoch(self, round: int) -> Epoch:
        """Return the members and the settings of a round."""
        return self.epochs.at(round)

    def members(self, round: int) -> Roster:
        """Return the sites of a round; a site's index in its order is its position here."""
        return _roster(self.epochs.at(round).members) if self.members_change else self.roster

    @functools.cached_property
    def circulating(self) -> int:
        """The last round in which models circulate; 0 if none does.

        A share of the rounds counts the genesis' rounds, unless it is all of them.
        """
        genesis = self.epochs.genesis
        first = circulating(self.plan, rounds=genesis.rounds, parameters=genesis.parameters)
        whole = self.plan.pattern == "circulate" or first == genesis.rounds
        return (
            circulating(self.plan, rounds=self.rounds, parameters=genesis.parameters)
            if whole
            else min(first, self.rounds)
        )

    @functools.cached_property
    def visits(self) -> int:
        """The maximum number of sites that train a copy of each model in a round; 0 if no model visits."""
        return max(self.visits_in(epoch.from_round) for epoch in self.epochs.all)

    def visits_in(self, round: int) -> int:
        """Return how many sites train a copy of each model in this round."""
        epoch = self.epoch(round)
        return visits(self.plan, sites=len(epoch.members), parameters=epoch.parameters)

    @functools.cached_property
    def known(self) -> tuple[SiteName, ...]:
        """The other sites that are members in some round from now on, in roster order."""
        return tuple(sorted(self.epochs.names - self.epochs.gone - {self.site}))

    @functools.cached_property
    def others(self) -> tuple[SiteName, ...]:
        """The sites in ``known`` that take part, in roster order."""
        return tuple(name for name in self.known if name not in self.without)

    @functools.cached_property
    def members_change(self) -> bool:
        """Whether there is more than the genesis; if not, the roster suffices, however many sites there are."""
        return len(self.epochs.all) > 1 or bool(self.epochs.leaving)

    @functools.cached_property
    def peers(self) -> frozenset[SiteName]:
        """``others`` as a set."""
        return frozenset(self.others)

    @property
    def others_count(self) -> int:
        """The number of ``others``."""
        return len(self.others) if self.members_change else len(self.roster) - 1 - len(self.without)

    def others_count_in(self, round: int) -> int:
        """Return how many peers take part in a round."""
        return len(self.others_in(round)) if self.members_change else self.others_count

    def has_peer(self, name: str) -> bool:
        """Return whether a site is one of ``others``, without a copy of the roster at each simulated site."""
        if self.members_change:
            return name in self.peers
        return name in self.roster and name != self.site and name not in self.without

    def has_known(self, name: str) -> bool:
        """Return whether a site is or was a member in some epoch."""
        return name in (self.epochs.names if self.members_change else self.roster)

    def others_in(self, round: int) -> tuple[SiteName, ...]:
        """Return the peers that take part in a round, in roster order."""
        if not self.members_change:
            return self.others
        return tuple(name for name in self.members(round) if name in self.peers)

    @functools.cached_property
    def first_round(self) -> int:
        """The first round in which this site is a member: 1 unless it joined later."""
        return self.epochs.first_round(self.site) or 1

    @property
    def witnesses_of_a_start(self) -> int:
        """The number of peers that must have begun the rounds before this site begins without a missing peer.

        Two, if there are two beside the missing one, so that no single site can start a federation early.
        """
        return min(2, default_quorum(self.others_count_in(1)))

    def pattern(self, round: int) -> Pattern:
        if self._is_at_home(round):
            return "none"
        return "circulate" if round <= self.circulating else self.plan.pattern

    def phases(self, round: int) -> tuple[str, ...]:
        phases = self.plan.last_round if self._is_at_home(round) else self.plan.phases
        return tuple(name for name in phases if not name.startswith("train")) if self.shadows(round) else phases

    def newest_member(self, round: int) -> int:
        """Return the first round of the member of this round that joined last."""
        return max(self.epochs.first_round(name) or 1 for name in self.members(round))

    def sums_in(self, round: int) -> bool:
        """Return whether the round's exchange is a secure sum."""
        return self.secure and self.pattern(round) == "all_to_all" and "aggregate" in self.plan.phases

    def ring(self, round: int) -> Ring:
        """Return how the members of a round turn values into words of a secure sum."""
        whole, members = self.plan.artifact == "sums", len(self.members(round))
        return Ring.of(members=members, clip=self.sum_clip, weighted=self.weighted and not whole, whole=whole)

    def _is_at_home(self, round: int) -> bool:
        """Return whether every site only trains at home: in the last round of a plan that ends so."""
        return bool(self.plan.last_round) and round == self.epoch(round).rounds

    def shadows(self, round: int) -> bool:
        """Return whether this site only receives in the round before its first one, to begin from the mean.

        A sum under masks is told to its contributors alone.
        """
        return round == self.first_round - 1 > 0 and self.pattern(round) == "all_to_all" and not self.secure

    @property
    def drawn_kind(self) -> str:
        """The kind of order that is drawn for a round: visits always follow a ring."""
        return "ring" if self.plan.pattern == "visit" else self.schedule_kind

    def made_in(self, round: int) -> int:
        """Return the round whose training the artifacts of a round hold; 0 for the initial models.

        With artifacts one round older, the first two rounds use the same ones.
        """
        delay = 1 if self.plan.published == "commit" else 0
        return max(1 - delay, round - delay - self.staleness)

    def lacks_order(self, round: int) -> bool:
        """Return whether this site needs the order of a round but has no key for it."""
        return self.epoch(round).round_key is None and self.pattern(round) not in ("all_to_all", "none")

    def order(self, round: int) -> tuple[int, ...]:
        """Return the order of a round; raise ``ValueError`` if this site has no key for it."""
        return _order(self._drawn(round))

    def _drawn(self, round: int) -> Drawn:
        epoch = self.epoch(round)
        if epoch.round_key is None:
            raise ValueError(f"{self.site} has no round key for round {round}")
        sites = len(epoch.members)
        return epoch.round_key, self.federation, round, sites, self.drawn_kind if sites > 1 else "permutation"

    def visiting_orders(self, round: int) -> tuple[tuple[int, ...], ...]:
        """Return for each visit of a round the order of whose model visits which site."""
        return _visiting_orders(self._drawn(round), self.visits_in(round))

    def visitors(self, round: int, site: SiteName | None = None) -> tuple[SiteName, ...]:
        """Return the sites whose models visit a site, by default this one, in the order of the visits."""
        members = self.members(round)
        index = members.index(self.site if site is None else site)
        return tuple(members.names[order[index]] for order in self.visiting_orders(round))

    def hosts(self, round: int) -> tuple[SiteName, ...]:
        """Return the sites that this site's model visits, in the order of the visits."""
        members, receivers = self.members(round), _receivers(self._drawn(round), self.visits_in(round))
        index = members.index(self.site)
        return tuple(members.names[each[index]] for each in receivers)

    def turn(self, round: int, site: SiteName | None = None) -> SiteName:
        """Return the site whose artifact a site, by default this one, receives; its own name: self-consolidation."""
        members = self.members(round)
        return members.names[self.order(round)[members.index(self.site if site is None else site)]]

    def holder(self, round: int, slot: SiteName) -> SiteName:
        """Return the site that has a circulating slot when a round begins; in round 1, its owner.

        The owner serves its own newest copy if the site that trained the slot last is no member any more, and if the
        owner itself is new.
        """
        trained_at = self.trained_at(round, slot)
        return slot if trained_at is None or trained_at not in self.members(round) else trained_at

    def trained_at(self, round: int, slot: SiteName) -> SiteName | None:
        """Return the site that trained a circulating slot in the round before, by the order; in round 1, its owner.
        ``None`` if the owner was no member then, or this site lacks that round's key.
        """
        if round <= 1:
            return slot
        before = self.members(round - 1)
        if slot not in before or self.epoch(round - 1).round_key is None:
            return None
        (receivers,) = _receivers(self._drawn(round - 1), 1)
        return before.names[receivers[before.index(slot)]]

    def knows_holder(self, round: int, slot: SiteName) -> bool:
        """Return whether this site can tell a slot's holder: it has the key of the round before, or needs none."""
        return round <= 1 or self.epoch(round - 1).round_key is not None or slot not in self.members(round - 1)

    def follows_order(self, round: int, slot: SiteName) -> bool:
        """Return whether this site's copy of a circulating slot is the one that the chain's order gives it for a round:
        a site that learnt late of an amendment trained another slot.
        """
        return len(self.epochs.all) == 1 or self.holder(round, slot) == self.site

    def unproven_round_max(self, committed: int) -> int:
        """Return the highest round of a peer that a site believes without a signature; a jump needs more."""
        return committed + 1 + self.epoch(committed + 1).pace.lag_rounds_max

    def steps_max(self, round: int) -> int | None:
        """Return the upper bound on the steps of a model that circulates for a round; ``None`` if unknown."""
        if len(self.epochs.all) == 1:
            return None if self.round_steps is None else (round - 1) * self.round_steps
        steps = [self.epoch(earlier).round_steps for earlier in range(1, round)]
        return None if None in steps else sum(each for each in steps if each is not None)

    def evaluates(self, round: int) -> bool:
        """Return whether the local model is measured at the end of a round."""
        return round == self.rounds or (self.evaluation_every > 0 and round % self.evaluation_every == 0)

    @property
    def evaluation_denied(self) -> str | None:
        """Why this site neither lends nor borrows models for evaluation; ``None`` if it does."""
        if not self.global_test:
            return "federation.toml does not have global_test = true"
        if self.plan.evaluation_denied is not None:
            return f"not permitted: {self.plan.evaluation_denied}"
        return None if self.evaluation_permitted else f"not permitted by {self.site}: its [egress] evaluate is false"

    def lends(self, round: int) -> bool:
        """Return whether the site lends its model after a round; before the hand-back its model is away."""
        within = max(1, self.circulating) <= round <= self.rounds
        return within and self.evaluates(round) and self.evaluation_denied is None


Drawn = tuple[RoundKey, Sha256, int, int, str]
"""The inputs of a round's order: round key, federation, round, number of sites, kind."""
# The caches use these inputs as keys: hashing an order of a thousand sites takes longer than a look-up.


@functools.lru_cache(maxsize=64)
def _roster(names: tuple[SiteName, ...]) -> Roster:
    return Roster(names)


@functools.lru_cache(maxsize=64)
def _order(drawn: Drawn) -> tuple[int, ...]:
    round_key, federation, round, sites, kind = drawn
    return schedule.order(round_key=round_key, federation_digest=federation, round=round, sites=sites, kind=kind)


@functools.lru_cache(maxsize=64)
def _visiting_orders(drawn: Drawn, visits: int) -> tuple[tuple[int, ...], ...]:
    return schedule.visiting_orders(_order(drawn), visits)


@functools.lru_cache(maxsize=64)
def _receivers(drawn: Drawn, visits: int) -> tuple[tuple[int, ...], ...]:
    """Return for each visit the index of the site that receives each artifact; a permutation has one visit."""
    return tuple(schedule.receivers(order) for order in _visiting_orders(drawn, visits))
