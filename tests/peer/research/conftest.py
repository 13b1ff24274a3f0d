"""A tiny experiment on synthetic images, and a worker that trains nothing."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peer.core import commands, events
from peer.core.messages import Artifact
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.methods.registry import PLANS
from peer.research.simulated_network import Perform

TEXT = """
name = "trial"
title = "Synthetic squares"
rounds = 2
seeds = [0]
test_share = 0.25

[task]
kind = "classification"
spatial_dims = 2
in_channels = 1
classes = 2

[data]
pool = "pool/pool.json"
input_size = [8, 8]

[training]
device = "cpu"
batch_size = 4

[budget]
steps = 2
minor_steps = 1

[partitions.even]
kind = "equal"
sites = ["africa", "asia", "europe"]

[models.mixed]
africa = {name = "resnet10", width = 4, max_pool = false}
asia = {name = "resnet10", width = 5, max_pool = false}
europe = {name = "resnet10", width = 6, max_pool = false}

[proxy]
name = "resnet10"
width = 4
max_pool = false

[messenger]
name = "messenger_classification"
width = 4
"""
METHODS = "[methods.local]\n[methods.fedskd]\n"


def write_pool(folder: Path, *, count: int = 48) -> None:
    """Write synthetic images; those of class 1 have a brighter square."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    entries = []
    for index in range(count):
        image = random.random((8, 8), dtype=np.float32)
        image[2:6, 2:6] += 0.5 * (index % 2)
        np.save(folder / f"images/{index}.npy", image)
        entries.append(
            {"image": f"images/{index}.npy", "label": index % 2, "subject": f"s{index}", "sex": "fm"[index // 2 % 2]}
        )
    (folder / "pool.json").write_text(json.dumps({"training": entries, "test": []}))


@pytest.fixture
def experiment(tmp_path: Path) -> Callable[..., Path]:
    """Write the experiment; each change replaces a text that is in it."""

    def write(methods: str = METHODS, **changes: str) -> Path:
        if not (tmp_path / "pool").exists():
            write_pool(tmp_path / "pool")
        text = TEXT + methods
        for before, after in changes.pop("replace", {}).items():  # type: ignore[attr-defined]
            assert before in text, before
            text = text.replace(before, after)
        assert not changes
        path = tmp_path / "experiment.toml"
        path.write_text(text)
        return path

    return write


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


@pytest.fixture
def worker() -> Callable[[Rules], Perform]:
    """Build a worker that trains nothing."""
    return worker_without_training


@pytest.fixture
def journal() -> type[MemoryJournal]:
    """The class of a journal in memory."""
    return MemoryJournal


@pytest.fixture
def rules_of() -> Callable[..., dict[SiteName, Rules]]:
    """Build every site's rules: ``rules_of(names, **changes)``."""

    def make(names: Sequence[str], **changes: Any) -> dict[SiteName, Rules]:
        roster = Roster.of(names)
        fields: dict[str, Any] = {"roster": roster, "federation": Sha256("fe" * 32), "method": "fedskd", "rounds": 4}
        fields |= {"round_key": RoundKey(bytes(range(32))), **changes}
        fields["plan"] = PLANS[fields["method"]]
        return {name: Rules(site=name, **fields) for name in roster}

    return make
