"""The supervised loss of each objective, what predictions are compared by, and the stage of this loss alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from losses import dice_ce_loss, dice_loss, distillation_l1, distillation_mse, label_loss, survival_loss
from peer.core.tasks import ANSWERS
from peer.methods.method import Batch, Forward, Stage, StageContext, Supervision, Term, one_step_stage

PLAIN = Supervision()


class Supervised(NamedTuple):
    """A task's loss of ``(prediction, targets)``, a mean over the batch, and its short name in reports."""

    name: str
    loss: Callable[[Tensor, Tensor], Tensor]


SUPERVISED: dict[str, Supervised] = {
    "classification": Supervised("ce", F.cross_entropy),
    "time_series": Supervised("ce", F.cross_entropy),
    "tabular": Supervised("ce", F.cross_entropy),
    "segmentation": Supervised("dice_ce", dice_ce_loss),
    "super_resolution": Supervised("l1", F.l1_loss),
    "labels": Supervised("bce", label_loss),
    "number": Supervised("mse", F.mse_loss),
    "survival": Supervised("hazard", survival_loss),
}
"""By objective; for segmentation the default of the methods' parameter ``segmentation_loss``."""

DISTANCES: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "super_resolution": ("l1", distillation_l1),
    "number": ("mse", distillation_mse),
}
"""By objective without classes: the distance of a student's prediction from a teacher's, of the form of the loss of
labels, so that both weigh alike; before it its name.
"""

SEGMENTATION_LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dice_ce": dice_ce_loss,
    "dice": dice_loss,
    "ce": F.cross_entropy,
}
"""By value of the methods' parameter ``segmentation_loss``."""


WITH_CROSS_ENTROPY = ("ce", "dice_ce", "bce")
"""The losses that take class weights and label smoothing."""


def supervised_loss(task: str, segmentation: str = "dice_ce", supervision: Supervision = PLAIN) -> Supervised:
    """Return the task's loss.

    Args:
        segmentation: a key of ``SEGMENTATION_LOSSES``.
        supervision: class weights and label smoothing, as ``torch.nn.functional.cross_entropy`` applies them: a
            mean is one over the weights of the samples. Of several labels, as ``losses.label_loss`` applies them.

    Raises:
        ValueError: class weights or label smoothing for a loss without cross-entropy.
    """
    chosen = Supervised(segmentation, SEGMENTATION_LOSSES[segmentation]) if task == "segmentation" else SUPERVISED[task]
    if supervision == PLAIN:
        return chosen
    if chosen.name not in WITH_CROSS_ENTROPY:
        raise ValueError(f"{chosen.name} has no cross-entropy, which class weights and label smoothing are for")
    loss: Callable[..., Tensor] = chosen.loss

    def supervised(prediction: Tensor, targets: Tensor) -> Tensor:
        weight = prediction.new_tensor(supervision.class_weights) if supervision.class_weights else None
        return loss(prediction, targets, weight=weight, label_smoothing=supervision.label_smoothing)

    return Supervised(chosen.name, supervised)


def stage_loss(context: StageContext) -> Supervised:
    """Return the loss of the context's task with its supervision and, for segmentation, of its parameters."""
    return supervised_loss(context.task, context.parameters["segmentation_loss"], context.supervision)


def has_classes(task: str) -> bool:
    """Return whether predictions of this objective say what is likely; others are images or numbers."""
    return task not in DISTANCES


def class_logits(task: str, prediction: Tensor) -> Tensor:
    """Return a prediction as logits of classes on dimension 1, by which two networks are compared.

    Each label, and each interval of survival, is a place with two classes: ``(b, n)`` becomes ``(b, 2, n)``.
    """
    return torch.stack([torch.zeros_like(prediction), prediction], 1) if task in ANSWERS else prediction


def class_weights(chosen: str | Sequence[float] | None, counts: Mapping[int, int], classes: int) -> tuple[float, ...]:
    """Return ``[training] class_weights`` as one number for each class; none where all weigh the same.

    Args:
        chosen: the numbers themselves, or ``balanced``: one over the class's count, so scaled that the mean of the
            classes that occur is 1. A class that does not occur weighs 1, for label smoothing.
        counts: of the targets of the training samples, by class.
    """
    if not isinstance(chosen, str):
        return tuple(chosen or ())
    inverse = {label: 1 / count for label, count in counts.items()}
    mean = sum(inverse.values()) / len(inverse)
    return tuple(inverse.get(label, mean) / mean for label in range(classes))


def label_weights(chosen: str | Sequence[float] | None, counts: Sequence[tuple[int, int]]) -> tuple[float, ...]:
    """Return ``[training] class_weights`` of several labels as the weight of each label's positives; none where all 1.

    Args:
        chosen: the numbers themselves, or ``balanced``: a label's negatives over its positives, so that both weigh
            alike; 1 where one of them does not occur.
        counts: negatives and positives of each label among the training samples.
    """
    if not isinstance(chosen, str):
        return tuple(chosen or ())
    return tuple(negatives / positives if negatives and positives else 1.0 for negatives, positives in counts)


def supervised_stage(context: StageContext, name: str, network: nn.Module) -> Stage:
    """Train all parameters of one network on the labels alone."""
    loss = stage_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(name, batch.images).prediction
        return {f"{loss.name}_{name}": Term(loss.loss(prediction.float(), batch.targets))}

    return one_step_stage({name: network}, (name,), losses)
