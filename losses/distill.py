r"""Distillation: one network (the student) learns the predictions of another, fixed one (the teacher).

The losses compare predictions directly: the local model teaches the messenger in MH-pFLID and,
through :mod:`losses.mutual`, the private model teaches the proxy in FedDAL. Predictions have their
classes on dim 1; further dimensions are pixels, each of them a sample of its own. The arithmetic is
float32 or wider; autocast narrows none of its operations again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def distillation_kl(local_logits: Tensor, messenger_logits: Tensor) -> Tensor:
    r"""KL divergence of the messenger's class distribution from that of the local model, the teacher.

    .. math:: L = \frac1{|b|}\sum_b \mathrm{KL}(\mathrm{softmax}(y^l_b) \,\Vert\, \mathrm{softmax}(y^m_b))

    Source: MH-pFLID, eq. 5 (its second term) and eq. 15.
    Differs: eq. 15 prints the difference of two entropies, which the messenger could lower without
        coming nearer to the local model; the text describes the divergence. A mean over samples and
        pixels replaces the sum.
    Args:
        local_logits: the teacher's, ``(b, classes, *space)``; no gradient.
        messenger_logits: the student's, of the same shape; gradient flows.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, non-negative up to rounding; 0
        when the distributions agree.
    Raises:
        ValueError: the logits are not ``(b, classes, *space)`` of floats with at least 2 classes,
            or differ in shape.
    Example:
        >>> distillation_kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[0.0, 0.0]]))
        tensor(0.)
        >>> distillation_kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.1201)
    """
    local, messenger = match_logits(local=local_logits, messenger=messenger_logits)
    return divergence(local.detach(), messenger)


def distillation_l1(local_images: Tensor, messenger_images: Tensor) -> Tensor:
    """Mean absolute difference of the messenger's image from that of the local model, the teacher.

    Source: MH-pFLID, replacing the second term of its eq. 5 where the output is an image
        (super-resolution).
    Differs: the paper has no such task; an image has no class distribution for the divergence to
        compare.
    Args:
        local_images: the teacher's, ``(b, c, *space)``; no gradient.
        messenger_images: the student's, of the same shape; gradient flows.
    Returns:
        Scalar ``()``, float32 (float64 for float64 images), in the images' own unit of intensity,
        non-negative; 0 when the images agree.
    Raises:
        ValueError: the images are not ``(b, c, *space)`` of floats, or differ in shape.
    Example:
        >>> distillation_l1(torch.zeros(1, 1, 2), torch.tensor([[[0.5, -1.0]]]))
        tensor(0.7500)
    """
    local, messenger = _match("images", local=local_images, messenger=messenger_images)
    return F.l1_loss(messenger, local.detach())


def distillation_mse(local_numbers: Tensor, messenger_numbers: Tensor) -> Tensor:
    """Mean squared difference of the messenger's numbers from those of the local model, the teacher.

    Source: MH-pFLID, replacing the second term of its eq. 5 where the output is a number: of two normal distributions
        of one variance, the KL divergence is this difference over twice the variance, and so is the loss of labels
        whose log-likelihood is the squared error.
    Differs: the paper has no such task.
    Args:
        local_numbers: the teacher's, ``(b, c)``; no gradient.
        messenger_numbers: the student's, of the same shape; gradient flows.
    Returns:
        Scalar ``()``, float32 (float64 for float64 numbers), in the square of the numbers' unit,
        non-negative; 0 when the numbers agree.
    Raises:
        ValueError: the numbers are not ``(b, c)`` of floats, or differ in shape.
    Example:
        >>> distillation_mse(torch.zeros(1, 2), torch.tensor([[0.5, -1.0]]))
        tensor(0.6250)
    """
    local, messenger = _match("numbers", local=local_numbers, messenger=messenger_numbers)
    return F.mse_loss(messenger, local.detach())


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Compute the KL divergence of two logits' softmax over dim 1, averaged over the rest; gradient flows into both."""
    teacher, student = teacher.log_softmax(1), student.log_softmax(1)
    return (teacher.exp() * (teacher - student)).sum(1).mean()


def match_logits(**logits: Tensor) -> tuple[Tensor, ...]:
    """Check two networks' logits, named by owner; return them in one dtype, float32 or wider."""
    matched = _match("logits", **logits)
    if matched[0].shape[1] < 2:
        raise ValueError(
            f"the logits {tuple(matched[0].shape)} have one class on dim 1, whose softmax is always 1; give each class "
            "a channel, the background too"
        )
    return matched


def _match(kind: str, **predictions: Tensor) -> tuple[Tensor, ...]:
    dtype = torch.float32
    for owner, values in predictions.items():
        if not (values.ndim > 1 and values.is_floating_point() and values.numel()):
            raise ValueError(
                f"the {owner} {kind} must be a non-empty (b, channels, *space) of floats, not {tuple(values.shape)} of "
                f"{values.dtype}"
            )
        dtype = torch.promote_types(dtype, values.dtype)
    if len({values.shape for values in predictions.values()}) > 1:
        shapes = " and ".join(f"{owner} {tuple(values.shape)}" for owner, values in predictions.items())
        raise ValueError(
            f"the {kind} differ in shape: {shapes}; both networks must answer for the same samples, channels and grid"
        )
    return tuple(values.to(dtype) for values in predictions.values())
