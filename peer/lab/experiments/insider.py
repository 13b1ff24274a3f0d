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

from peer.core.limits import COUNT_MAX, STEPS_MAX
from peer.core.messages import Artifact
from peer.core.seeds import derive
from peer.files import artifact_path
from peer.lab.experiments.experiment import Act
from peer.train.artifact import write_artifact
from peer.train.settings import TrainingSettings
from peer.train.tensors import unpack

SCALE = 1000.0
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
    ``samples`` and ``steps`` claim the largest number.
    """

    site: str
    act: Act

    def forge(self, artifact: Artifact, settings: TrainingSettings, *, sites: int) -> Artifact:
        """Write the poisoned artifact that the Byzantine site sends, beside its true one."""
        if self.act == "samples":
            return dataclasses.replace(artifact, training_samples=COUNT_MAX)
        if self.act == "steps":
            return dataclasses.replace(artifact, steps=STEPS_MAX)
        generator = torch.Generator().manual_seed(derive("insider", settings.seed, artifact.sha256))

        def redraw(value: Tensor) -> Tensor:
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
            if state[name].is_floating_point() and (self.act == "scale" or not name.endswith(STATISTICS)):
                state[name] = changes[self.act](state[name])
        forged = write_artifact(
            settings.artifacts,
            state,
            spec=artifact.spec,
            kind=artifact.kind,
            owner=artifact.owner,
            steps=artifact.steps,
            training_samples=artifact.training_samples,
        )
        return dataclasses.replace(artifact, sha256=forged.sha256, bytes=forged.bytes, tensors=forged.tensors)
