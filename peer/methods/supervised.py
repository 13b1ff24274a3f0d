"""The supervised loss of each kind of task, and the stage that minimises only this loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from losses import dice_ce_loss, dice_loss
from peer.methods.method import Batch, Forward, Stage, StageContext, Term, one_step_stage


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
"""By task kind; for segmentation the default of the methods' parameter ``segmentation_loss``."""

SEGMENTATION_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dice_ce": dice_ce_loss,
    "dice": dice_loss,
    "ce": F.cross_entropy,
}
"""By value of the methods' parameter ``segmentation_loss``."""


def supervised_loss(task: str, segmentation: str = "dice_ce") -> Supervised:
    """Return the task's loss; ``segmentation`` is a key of ``SEGMENTATION_LOSSES``."""
    if task == "segmentation":
        return Supervised(segmentation, SEGMENTATION_LOSSES[segmentation])
    return SUPERVISED[task]


def stage_loss(context: StageContext) -> Supervised:
    """Return the loss of the context's task and, for segmentation, of its parameters."""
    return supervised_loss(context.task, context.parameters["segmentation_loss"])


def supervised_stage(context: StageContext, name: str, network: nn.Module) -> Stage:
    """Train all parameters of one network on the labels alone."""
    loss = stage_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(name, batch.images).prediction
        return {f"{loss.name}_{name}": Term(loss.loss(prediction.float(), batch.targets))}

    return one_step_stage({name: network}, (name,), losses)
