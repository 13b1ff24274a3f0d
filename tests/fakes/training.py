"""Real trainers at work: their answers, their files, and an artifact on its way to another site."""

import dataclasses
import hashlib
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.roster import Sha256
from peer.core.worker_protocol import WorkerSetting
from peer.train.artifact import read_tensors
from peer.train.errors import WorkInterrupted
from peer.train.trainer import Trainer

ANSWERS: dict[type, type] = {
    commands.Initialise: events.Initialised, commands.Train: events.Trained, commands.Aggregate: events.Aggregated,
    commands.Adopt: events.Adopted, commands.Evaluate: events.Evaluated,
}  # fmt: skip


def perform(trainer: Trainer, command: commands.Command) -> Any:
    """The event of a command that succeeds."""
    event = trainer.perform(command)
    assert isinstance(event, ANSWERS[type(command)]), event
    return event


def initialise(trainer: Trainer) -> events.Initialised:
    return perform(trainer, commands.Initialise(1, 1))


def train(
    trainer: Trainer, base: str, *sources: Source, round: int = 1, stage: str = "train", attempt: int = 2, **more: Any
) -> events.Trained:
    return perform(trainer, commands.Train(1, round, attempt, stage, base, sources, **more))


def artifact_path(setting: WorkerSetting, artifact: Artifact) -> Path:
    return Path(setting.home) / "artifacts" / f"{artifact.sha256}.safetensors"


def tensor_names(setting: WorkerSetting, artifact: Artifact) -> set[str]:
    """The names of the tensors in an artifact's file."""
    return {spec.name for spec in read_tensors(artifact_path(setting, artifact).parent, artifact)}


def copy_artifact(sender: WorkerSetting, receiver: WorkerSetting, source: Source) -> Source:
    """The source, its file copied as the daemons do."""
    target = artifact_path(receiver, source.artifact)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(artifact_path(sender, source.artifact), target)
    return source


def checkpoint_files(setting: WorkerSetting, state: str) -> dict[str, bytes]:
    """The tensors of a checkpoint, as bytes."""
    folder = Path(setting.home) / "checkpoints" / state
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.safetensors"))}


def interrupt(setting: WorkerSetting, command: commands.Train, *, after: int) -> None:
    """Halt a trainer after a step; it leaves a partial checkpoint."""
    steps: list[int] = []
    seconds = itertools.count(1.0)
    report, halted = (lambda event: steps.append(event.step)), (lambda: after in steps)
    with pytest.raises(WorkInterrupted):
        Trainer(setting, report=report, halted=halted, clock=lambda: next(seconds)).perform(command)
    assert steps[-1] == after
    assert (Path(setting.home) / "checkpoints" / "partial" / f"step-{after:08d}").exists()


def spoil(setting: WorkerSetting, source: Source, value: float) -> Source:
    """The source with the weights of one layer replaced, under the digest of that."""
    tensors = safetensors.torch.load_file(artifact_path(setting, source.artifact))
    tensors["layer1.0.conv1.weight"].fill_(value)
    content = safetensors.torch.save(tensors)
    artifact = dataclasses.replace(source.artifact, sha256=Sha256(hashlib.sha256(content).hexdigest()))
    artifact_path(setting, artifact).write_bytes(content)
    return dataclasses.replace(source, artifact=artifact)
