"""Duration of the simulator without training: state machines, rows and the schedule."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from row import Row, below

from peer.core import commands, events
from peer.core.messages import Artifact
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.methods.registry import PLANS
from peer.research.simulated_network import Perform, SimulatedNetwork, restore_site

ROUNDS = 10
SITES, SITES_QUICK = 1000, 200
LIMIT_S = 60


class Rows(list[Any]):
    """A journal in memory."""

    def append(self, kind: str, round: int, body: Any, cause: Any = None) -> None:  # type: ignore[override]
        super().append((kind, round, body))


def measure(*, quick: bool) -> list[Row]:
    """The seconds from the first event to the end of the last site."""
    sites = SITES_QUICK if quick else SITES
    roster = Roster.of([f"site-{number:04d}" for number in range(sites)])
    simulated_sites = {}
    for name in roster:
        rules = Rules(
            site=name,
            roster=roster,
            federation=Sha256("fe" * 32),
            round_key=RoundKey(bytes(32)),
            method="fedskd",
            plan=PLANS["fedskd"],
            rounds=ROUNDS,
        )
        simulated_sites[name] = restore_site(rules, (), _untrained(rules), Rows(), None)
    began_s = time.perf_counter()
    SimulatedNetwork(simulated_sites).run()
    took_s = time.perf_counter() - began_s
    committed = {site.machine.memory.committed for site in simulated_sites.values()}
    if committed != {ROUNDS}:
        raise RuntimeError(f"sites stopped after rounds {sorted(committed)}")
    return [below(f"simulator: {sites} sites x {ROUNDS} rounds, no training", took_s, "s", LIMIT_S)]


def _untrained(rules: Rules) -> Perform:
    """A worker that trains nothing and answers at once."""

    def artifact(round: int) -> Artifact:
        digest = Sha256(hashlib.sha256(f"{rules.site} {round}".encode()).hexdigest())
        return Artifact("model", SiteName(rules.site), digest, 1, round, {}, ())

    def perform(command: commands.Command) -> events.Event:
        match command:
            case commands.Initialise(generation, attempt):
                return events.Initialised(generation, attempt, "initial", artifact(0), {}, 1, "cpu")
            case commands.Train(generation, round, attempt, stage):
                return events.Trained(generation, round, attempt, stage, f"{round}", artifact(round), {}, 1, 0.0)
            case commands.Evaluate(generation, round, attempt):
                return events.Evaluated(generation, round, attempt, {})
        raise ValueError(f"{type(command).__name__} does not occur in a measured round")

    return perform
