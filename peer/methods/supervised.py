"""The supervised loss of each kind of task, and the stage that minimises nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from losses import dice_ce_loss, dice_loss
from peer.methods.method import Batch, Forward, Stage, StageContext, Term, one_move


class Supervised(NamedTuple):
    """A task's loss of ``(prediction, targets)``, a mean over the batch, and its short name in reports."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]


SUPERVISED: dict[str, Supervised] = {
    "classification": Supervised("ce", F.cross_entropy),
    "time_series": Supervised("ce", F.cross_entropy),
    "segmentation": Supervised("dice_ce", dice_ce_loss),
    "super_resolution": Supervised("l1", F.l1_loss),
}
"""By task kind; of segmentation the one that a method takes unless it says otherwise."""

SEGMENTATION_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dice_ce": dice_ce_loss,
    "dice": dice_loss,
    "ce": F.cross_entropy,
}
"""The losses of segmentation among which a method chooses, by the name that its parameter has."""


def supervised(task: str, segmentation: str = "dice_ce") -> Supervised:
    """The task's loss; ``segmentation``, a key of ``SEGMENTATION_LOSSES``, matters to segmentation alone."""
    if task == "segmentation":
        return Supervised(segmentation, SEGMENTATION_LOSSES[segmentation])
    return SUPERVISED[task]


def scene_loss(context: StageContext) -> Supervised:
    """The loss of the scene's task, of segmentation the one that its parameters choose."""
    return supervised(context.task, context.parameters["segmentation_loss"])


def supervised_stage(context: StageContext, name: str, network: nn.Module) -> Stage:
    """Train one network on the labels alone, all of its parameters."""
    loss = scene_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(name, batch.images).prediction
        return {f"{loss.name}_{name}": Term(loss.loss(prediction.float(), batch.targets))}

    return one_move({name: network}, (name,), losses)
