"""Sites of a simulated federation: their rules, a worker that trains nothing, and a journal in memory."""

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fakes.core_site import carry_out, make_rules
from peer.core.epochs import PaceRules
from peer.core.roster import SiteName
from peer.core.rules import Rules
from peer.lab.experiments.simulated_network import Perform, SimulatedSite, restore_site


class MemoryJournal(list[tuple[str, int, Any]]):
    """A journal in memory."""

    def append(self, kind: str, round: int, body: Any, cause: Any = None) -> None:  # type: ignore[override]
        super().append((kind, round, json.loads(json.dumps(body))))


def worker_without_training(rules: Rules) -> Perform:
    """A worker whose results are digests of its inputs."""
    return lambda command: carry_out(command, rules)


def rules_of(names: Sequence[str], **changes: Any) -> dict[SiteName, Rules]:
    """Every site's rules."""
    rules = make_rules(names[0], names, **{"pace": PaceRules(), **changes})
    return {name: dataclasses.replace(rules, site=name) for name in rules.roster}


def restore_sites(
    rules: Mapping[SiteName, Rules],
    rows: Mapping[SiteName, MemoryJournal],
    worker: Callable[[Rules], Perform] = worker_without_training,
) -> dict[SiteName, SimulatedSite]:
    """Start every site where its journal ends."""
    return {name: restore_site(own, tuple(rows[name]), worker(own), rows[name], None) for name, own in rules.items()}
