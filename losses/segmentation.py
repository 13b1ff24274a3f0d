r"""Losses of a segmentation against its label map: soft Dice, and Dice with cross-entropy.

Channel 0 is the background. The arithmetic is float32 or wider; autocast narrows none of its
operations again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Pixels. Added to numerator and denominator, so that a class absent from target and prediction costs 0,
# not 0/0. The code of FedDAL's authors adds 1.
SMOOTH = 1.0


def dice_loss(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Soft Dice: one minus the overlap of predicted and true extent, averaged over the foreground classes.

    .. math:: L = 1 - \frac{1}{b\,(C-1)}\sum_{b,\,c>0}
              \frac{2\sum_p \pi_{bcp}\, g_{bcp} + 1}{\sum_p \pi_{bcp} + \sum_p g_{bcp} + 1}

    with π the softmax of the logits, g the one-hot targets and p the pixels of one image.

    Source: MH-pFLID, section 4.2, and dFLMoE, which name Dice as their loss of segmentation.
    Differs: the papers print the union as the denominator, which is not Dice; here it is the sum of
        both extents.
    Args:
        logits: ``(b, classes, *space)``, background first; gradient flows.
        targets: classes ``(b, *space)``, integers in [0, classes); no gradient.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), dimensionless, in [0, 1); 0 when they
        agree.
    Raises:
        ValueError: the logits are not ``(b, classes, *space)`` of floats with at least 2 classes
            and 1 spatial dimension; the targets are not integers, have another shape or a class
            that does not exist.
    Example:
        >>> confident = torch.tensor([[[20.0, -20.0, 20.0], [-20.0, 20.0, -20.0]]])
        >>> dice_loss(confident, torch.tensor([[0, 1, 0]]))
        tensor(0.)
        >>> dice_loss(confident, torch.tensor([[1, 0, 0]]))  # 1 - 1/3
        tensor(0.6667)
    """
    return _dice(*_match(logits, targets))


def dice_ce_loss(
    logits: Tensor, targets: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    """Sum of soft Dice and the mean cross-entropy of the pixels.

    Source: dFLMoE, its loss of segmentation.
    Differs: as :func:`dice_loss` does; the paper gives no weights, so both count alike.
    Args:
        logits: ``(b, classes, *space)``, background first; gradient flows.
        targets: classes ``(b, *space)``, integers in [0, classes); no gradient.
        weight: of each class in the cross-entropy ``(classes,)``, of the logits' type in float32 or
            wider; Dice counts all classes alike.
        label_smoothing: of the cross-entropy, in [0, 1).
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), dimensionless plus nats, non-negative;
        0 when they agree without label smoothing.
    Raises:
        ValueError: what :func:`dice_loss` raises.
    Example:
        >>> undecided = torch.zeros(1, 2, 3)
        >>> dice_ce_loss(undecided, torch.tensor([[0, 1, 0]]))  # 1 - 2/3.5 + log 2
        tensor(1.1217)
    """
    logits, targets = _match(logits, targets)
    return _dice(logits, targets) + F.cross_entropy(logits, targets, weight=weight, label_smoothing=label_smoothing)


def _dice(logits: Tensor, targets: Tensor) -> Tensor:
    predicted = logits.softmax(1)[:, 1:].flatten(2)
    foreground = torch.arange(1, logits.shape[1], device=logits.device)
    true = targets.flatten(1)[:, None] == foreground[:, None]
    overlap = (predicted * true).sum(2)
    dice = (2 * overlap + SMOOTH) / (predicted.sum(2) + true.sum(2) + SMOOTH)
    return 1 - dice.mean()


def _match(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Check logits and targets; return the logits in float32 or wider, the targets in int64."""
    if not (logits.ndim > 2 and logits.is_floating_point() and logits.numel() and logits.shape[1] > 1):
        raise ValueError(
            "the logits must be a non-empty (b, classes, *space) of floats with at least 2 classes, the background one "
            f"of them, not {tuple(logits.shape)} of {logits.dtype}"
        )
    expected = logits[:, 0].shape
    if targets.shape != expected or targets.is_floating_point():
        raise ValueError(
            f"the targets must be classes (b, *space), here {tuple(expected)} of integers, not {tuple(targets.shape)} "
            f"of {targets.dtype}"
        )
    lowest, highest = (int(bound) for bound in targets.aminmax())
    if lowest < 0 or highest >= logits.shape[1]:
        raise ValueError(
            f"the targets hold classes {lowest} to {highest}, the logits 0 to {logits.shape[1] - 1}; map the labels to "
            "those or give the network more classes"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32)), targets.long()
