"""Sites of a simulated federation: their rules, a worker that trains nothing, and a journal in memory."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from peer.core import commands, events
from peer.core.messages import Artifact
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.methods.registry import PLANS
from peer.research.simulated_network import Perform, SimulatedSite, restore_site


class MemoryJournal(list[tuple[str, int, Any]]):
    """A journal in memory."""

    def append(self, kind: str, round: int, body: Any, cause: Any = None) -> None:  # type: ignore[override]
        super().append((kind, round, json.loads(json.dumps(body))))


def worker_without_training(rules: Rules) -> Perform:
    """A worker whose results are digests of its inputs."""

    def artifact_of(text: str, owner: str | None = None) -> Artifact:
        digest = Sha256(hashlib.sha256(text.encode()).hexdigest())
        return Artifact(rules.plan.artifact or "model", SiteName(owner or rules.site), digest, len(text), 0, {}, ())

    def perform(command: commands.Command) -> events.Event:
        match command:
            case commands.Initialise(generation, attempt):
                initial = artifact_of(f"initial {rules.site}") if rules.plan.published == "commit" else None
                return events.Initialised(generation, attempt, f"initial {rules.site}", initial, {}, 1, "cpu")
            case commands.Train(generation, round, attempt, stage, base, sources, slot):
                used = "+".join(source.artifact.sha256 for source in sources)
                text = f"{rules.site} {round} {stage} {slot} {base} {used}"
                state = hashlib.sha256(text.encode()).hexdigest()
                return events.Trained(generation, round, attempt, stage, state, artifact_of(text, slot), {}, 1, 1.0)
            case commands.Aggregate(generation, round, attempt, base, sources):
                own = () if command.shadow else (rules.site,)
                names = tuple(sorted({*own, *(source.origin for source in sources)}))
                mean = Sha256(hashlib.sha256(f"{round} {names}".encode()).hexdigest())
                return events.Aggregated(generation, round, attempt, f"mean {base}", mean, names)
            case commands.Evaluate(generation, round, attempt):
                return events.Evaluated(generation, round, attempt, {})
            case commands.Adopt(generation, round, attempt, _, source):
                return events.Adopted(generation, round, attempt, f"home {source.artifact.sha256}", source.artifact)
        raise AssertionError(f"no worker is told {command}")

    return perform


def rules_of(names: Sequence[str], **changes: Any) -> dict[SiteName, Rules]:
    """Every site's rules."""
    roster = Roster.of(names)
    fields: dict[str, Any] = {"roster": roster, "federation": Sha256("fe" * 32), "method": "fedskd", "rounds": 4}
    fields |= {"round_key": RoundKey(bytes(range(32))), **changes}
    fields["plan"] = PLANS[fields["method"]]
    return {name: Rules(site=name, **fields) for name in roster}


def restore_sites(
    rules: Mapping[SiteName, Rules],
    rows: Mapping[SiteName, MemoryJournal],
    worker: Callable[[Rules], Perform] = worker_without_training,
) -> dict[SiteName, SimulatedSite]:
    """Start every site where its journal ends."""
    return {name: restore_site(own, tuple(rows[name]), worker(own), rows[name], None) for name, own in rules.items()}
