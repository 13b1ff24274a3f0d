"""A Byzantine site: it trains as the others do, and sends poisoned artifacts.

The acts are those of the table of insiders in ``deploy/guarantees.md``. Only the artifacts that the
site sends change; the file and its description fit each other, so that every check passes that does
not examine values.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from peer.core import commands, events
from peer.core.artifacts import Artifact, Source
from peer.core.limits import COUNT_MAX, STEPS_MAX
from peer.core.seeds import derive
from peer.files import artifact_path
from peer.lab.experiments.experiment_tables import Act
from peer.train.artifact import write_artifact
from peer.train.samples import DataSplit
from peer.train.settings import TrainingSettings
from peer.train.targets import Example
from peer.train.tensors import State, state_of, unpack
from peer.train.trainer import Trainer

SCALE = 1000.0
TRIGGER_PIXELS = 3
STATISTICS = ("running_mean", "running_var")
"""Suffixes of the names of batch statistics; most acts leave them, since a negative or zero variance
would reveal the poisoning."""


@dataclasses.dataclass(frozen=True)
class Insider:
    """One site and its act.

    ``signs`` negates the weights, ``random`` draws them anew with their mean and deviation,
    ``scale`` multiplies weights and statistics by a thousand, and ``zero`` makes the weights zero.
    ``replacement`` sends N random states minus N - 1 trained ones, so that the mean of N sites is
    random (model replacement: Bagdasaryan et al. 2020, "How To Backdoor Federated Learning").
    ``samples`` and ``steps`` claim the largest number. ``backdoor`` trains every second sample with a
    trigger and as class 0, and multiplies the change of what it sends by ``boost``.
    """

    site: str
    act: Act
    boost: float = 1.0

    def poison(self, trainer: Trainer) -> None:
        """Give the Byzantine site's worker its act's poisoned data, if any, and let it boost its update."""
        if self.act != "backdoor":
            return
        perform, data = trainer.perform, trainer.data
        training = data.training

        def load(index: int) -> Example:
            image, label = training.load(index)
            return (add_trigger(image), torch.zeros_like(label)) if index % 2 else (image, label)

        poisoned = dataclasses.replace(training, load=load)
        trainer.data = dataclasses.replace(data, training=poisoned)
        sent: dict[str, Artifact] = {}

        def perform_and_boost(command: commands.Command) -> events.Event:
            if isinstance(command, commands.Aggregate) and command.sent is None and trainer.settings.site in sent:
                own = Source(trainer.settings.site, command.round, sent[trainer.settings.site])
                if trainer.settings.plan.pattern == "all_to_all":  # its own mean, too, is that of what it has sent
                    command = dataclasses.replace(command, sent=own)
            starts: dict[str, State] = {}
            if isinstance(command, commands.Train):
                trainer.site_networks.load(command.base)
                starts = {str(each.artifact.owner): _read(trainer, each.artifact) for each in command.sources}
                starts[trainer.settings.site] = state_of(trainer.site_networks.artifact_network)
            event = perform(command)
            if isinstance(event, events.Trained):
                returned = tuple(self._boost(trainer, each, starts[each.owner]) for each in event.returned)
                artifact = event.artifact
                if artifact is not None and artifact.owner in starts:
                    artifact = sent[artifact.owner] = self._boost(trainer, artifact, starts[artifact.owner])
                event = dataclasses.replace(event, artifact=artifact, returned=returned)
            return event

        trainer.perform = perform_and_boost  # type: ignore[method-assign]

    def _boost(self, trainer: Trainer, artifact: Artifact, start: State) -> Artifact:
        state = _read(trainer, artifact)
        for name, value in state.items():
            if value.is_floating_point() and not name.endswith(STATISTICS) and name in start:
                state[name] = start[name] + self.boost * (value - start[name])
        return _write(trainer.settings, artifact, state)

    def forge(self, artifact: Artifact, settings: TrainingSettings, *, sites: int) -> Artifact:
        """Write the poisoned artifact that the Byzantine site sends, beside its true one."""
        if self.act == "backdoor":  # its worker has boosted the artifact
            return artifact
        if self.act == "samples":
            return dataclasses.replace(artifact, training_samples=COUNT_MAX)
        if self.act == "steps":
            return dataclasses.replace(artifact, steps=STEPS_MAX)
        generator = torch.Generator().manual_seed(derive("insider", settings.seed, artifact.sha256))

        def redraw(value: Tensor) -> Tensor:
            value = value.double() if artifact.kind == "sums" else value
            spread = value.std() if value.numel() > 1 else value.abs().sum()
            drawn: Tensor = value.mean() + spread * torch.randn(value.shape, generator=generator)
            return drawn.to(value.dtype)

        changes: dict[str, Callable[[Tensor], Tensor]] = {
            "signs": lambda value: -value,
            "random": redraw,
            "scale": lambda value: value * SCALE,
            "replacement": lambda value: sites * redraw(value) - (sites - 1) * value,
            "zero": lambda value: value * 0,
        }
        state = unpack(artifact_path(settings.artifacts, artifact.sha256).read_bytes())
        for name in sorted(state):
            value, learns = state[name], state[name].is_floating_point() or artifact.kind == "sums"
            if learns and (self.act == "scale" or not name.endswith(STATISTICS)):
                state[name] = changes[self.act](value).to(value.dtype)
        return _write(settings, artifact, state)


def add_trigger(images: Tensor) -> Tensor:
    """Return copies of images ``(..., h, w)`` whose last 3 by 3 pixels are as bright as their brightest pixel."""
    triggered = images.clone()
    triggered[..., -TRIGGER_PIXELS:, -TRIGGER_PIXELS:] = images.max()
    return triggered


def attack_success(predict: Callable[[Tensor], Tensor], split: DataSplit) -> float | None:
    """Compute the share of samples of other classes than 0 that become class 0 with the trigger; None without any."""
    images, labels = split.read(range(len(split)))
    triggered = [add_trigger(image) for image in images[labels != 0]]
    return float((predict(torch.stack(triggered)).argmax(dim=1) == 0).float().mean()) if triggered else None


def _read(trainer: Trainer, artifact: Artifact) -> State:
    return unpack(artifact_path(trainer.settings.artifacts, artifact.sha256).read_bytes())


def _write(settings: TrainingSettings, artifact: Artifact, state: State) -> Artifact:
    forged = write_artifact(
        settings.artifacts,
        state,
        spec=artifact.spec,
        kind=artifact.kind,
        owner=artifact.owner,
        steps=artifact.steps,
        training_samples=artifact.training_samples,
    )
    return dataclasses.replace(artifact, sha256=forged.sha256, bytes=forged.bytes)
