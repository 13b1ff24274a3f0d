"""The federation as a site's state machine sees it: fixed for the life of the daemon, free of I/O."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from peer.core import limits, schedule
from peer.core.plan import Pattern, Plan, Value, circulating, visits
from peer.core.roster import Roster, RoundKey, Sha256, SiteName


@dataclass(frozen=True, slots=True)
class PaceRules:
    """Waiting times in seconds, and how far sites may drift apart in rounds (see ``peer.core.limits`` for reasons)."""

    wait_max_s: float = limits.WAIT_MAX_S
    deadline_floor_s: float = limits.DEADLINE_FLOOR_S
    gather_s: float | None = None
    silence_s: float = limits.SILENCE_S
    lead_rounds_max: int = 2
    lag_rounds_max: int = 2
    isolated_s: float = 86_400.0
    linger_s: float = 3_600.0
    artifact_rounds_max: int = limits.ARTIFACT_ROUNDS_MAX


@dataclass(frozen=True)
class Rules:
    """The federation as one site sees it.

    ``round_steps`` is the number of optimiser steps of a round, or ``None`` where a stage counts
    epochs, whose length is each site's own.

    ``global_test`` is the federation's setting that sites measure each other's models;
    ``evaluation_permitted``, ``evaluation_samples_min`` and ``received_ratio_max`` are this site's
    policy.
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
    without: frozenset[SiteName] = frozenset()
    stay: bool = False

    @functools.cached_property
    def circulating(self) -> int:
        """The last round in which models circulate; 0 where none does."""
        return circulating(self.plan, rounds=self.rounds, parameters=self.parameters)

    @functools.cached_property
    def visits(self) -> int:
        """How many sites train a copy of each model in a round; 0 where no model visits."""
        return visits(self.plan, sites=len(self.roster), parameters=self.parameters)

    @functools.cached_property
    def index(self) -> int:
        return self.roster.index(self.site)

    @functools.cached_property
    def others(self) -> tuple[SiteName, ...]:
        """The peers that take part, in roster order."""
        return tuple(name for name in self.roster.others(self.site) if name not in self.without)

    @functools.cached_property
    def peers(self) -> frozenset[SiteName]:
        """``others`` as a set: every event is checked against it."""
        return frozenset(self.others)

    @property
    def quorum_others(self) -> int:
        """How many artifacts are enough at the adaptive deadline; by default half, rounded up."""
        return self.quorum if self.quorum is not None else half_rounded_up(len(self.roster) - 1)

    @property
    def witnesses_of_a_start(self) -> int:
        """How many peers must have begun the rounds before this site begins without a missing peer.

        Two, where there are two beside the missing one, so that no single site can start a
        federation early.
        """
        return min(2, half_rounded_up(len(self.others)))

    def pattern(self, round: int) -> Pattern:
        if self._is_at_home(round):
            return "none"
        return "circulate" if round <= self.circulating else self.plan.pattern

    def phases(self, round: int) -> tuple[str, ...]:
        return self.plan.last_round if self._is_at_home(round) else self.plan.phases

    def _is_at_home(self, round: int) -> bool:
        """Whether every site only trains at home: in the last round of a plan that ends so."""
        return round == self.rounds and bool(self.plan.last_round)

    @property
    def drawn_kind(self) -> str:
        """How the order of a round is drawn: visits are always along a ring."""
        return "ring" if self.plan.pattern == "visit" else self.schedule_kind

    def order(self, round: int) -> tuple[int, ...]:
        return _order(self.round_key, self.federation, round, len(self.roster), self.drawn_kind)

    def visiting_orders(self, round: int) -> tuple[tuple[int, ...], ...]:
        """For each visit of a round, the order that says whose model visits which site."""
        return schedule.visiting_orders(self.order(round), self.visits)

    def visitors(self, round: int, site: SiteName | None = None) -> tuple[SiteName, ...]:
        """The sites whose models visit a site, by default this one, in the order of the visits."""
        index = self.index if site is None else self.roster.index(site)
        return tuple(self.roster.names[order[index]] for order in self.visiting_orders(round))

    def hosts(self, round: int) -> tuple[SiteName, ...]:
        """The sites that this site's model visits, in the order of the visits."""
        orders = self.visiting_orders(round)
        return tuple(self.roster.names[schedule.receiver(order, self.index)] for order in orders)

    def turn(self, round: int) -> SiteName:
        """The site whose artifact this site receives; its own name means self-consolidation."""
        return self.roster.names[self.order(round)[self.index]]

    def holder(self, round: int, slot: SiteName) -> SiteName:
        """The site that holds a circulating slot when a round begins; in round 1, its owner."""
        if round <= 1:
            return slot
        return self.roster.names[schedule.receiver(self.order(round - 1), self.roster.index(slot))]

    def unproven_round_max(self, committed: int) -> int:
        """The highest round of a peer that a site believes without a signature; a jump needs more."""
        return committed + 1 + self.pace.lag_rounds_max

    def steps_max(self, round: int) -> int | None:
        """The most steps that a model which circulates for a round can have; ``None`` if unknown."""
        return None if self.round_steps is None else (round - 1) * self.round_steps

    def evaluates(self, round: int) -> bool:
        """Whether the local model is measured at the end of a round."""
        return round == self.rounds or (self.evaluation_every > 0 and round % self.evaluation_every == 0)

    @property
    def evaluation_denied(self) -> str | None:
        """Why this site neither lends nor borrows models for evaluation; ``None`` where it does."""
        if not self.global_test:
            return "federation.toml does not have global_test = true"
        if self.plan.evaluation_denied is not None:
            return f"not permitted: {self.plan.evaluation_denied}"
        return None if self.evaluation_permitted else f"not permitted by {self.site}: its [egress] evaluate is false"

    def lends(self, round: int) -> bool:
        """Whether the site lends its model after a round; before the hand-back its model is away."""
        within = max(1, self.circulating) <= round <= self.rounds
        return within and self.evaluates(round) and self.evaluation_denied is None


def half_rounded_up(peers: int) -> int:
    """A quorum of so many peers: at least half of them."""
    return (peers + 1) // 2


@functools.lru_cache(maxsize=64)
def _order(round_key: RoundKey, federation: Sha256, round: int, sites: int, kind: str) -> tuple[int, ...]:
    return schedule.order(round_key=round_key, federation_digest=federation, round=round, sites=sites, kind=kind)
