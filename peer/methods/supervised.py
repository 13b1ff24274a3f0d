"""The supervised loss of each kind of task, and the stage that minimises nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from peer.methods.method import Batch, Forward, Stage, Term


class Supervised(NamedTuple):
    """A task's loss of ``(prediction, targets)``, a mean over the batch, and its short name in reports."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]


SUPERVISED: dict[str, Supervised] = {
    "classification": Supervised("ce", F.cross_entropy),
    "time_series": Supervised("ce", F.cross_entropy),
}


def supervised_stage(network: str, module: nn.Module, *, task: str) -> Stage:
    """Train one network on the labels alone, all of its parameters."""
    supervised = SUPERVISED[task]

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(network, batch.images).prediction
        return {f"{supervised.name}_{network}": Term(supervised.loss(prediction.float(), batch.targets))}

    return Stage(networks={network: module}, losses=losses)
