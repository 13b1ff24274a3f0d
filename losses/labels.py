"""The loss of several labels that may hold at once, some of them not known.

The arithmetic is float32 or wider; autocast narrows none of its operations again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def label_loss(
    logits: Tensor, targets: Tensor, *, weight: Tensor | None = None, label_smoothing: float = 0.0
) -> Tensor:
    r"""Binary cross-entropy, averaged over a sample's known labels, then over the samples that have one.

    .. math:: L = -\frac1{|B|}\sum_{i\in B} \frac1{|K_i|}\sum_{l\in K_i}
              \bigl[w_l\, y_{il}\log\sigma(f_{il}) + (1-y_{il})\log(1-\sigma(f_{il}))\bigr]

    with K_i the known labels of sample i and B the samples of the batch with a known label. Each of these samples
    counts alike, however many of its labels are known. Smoothing makes y of 1 and 0 into 1 - s/2 and s/2, as torch's
    cross-entropy does with two classes.

    Source: binary cross-entropy of the sigmoid, as torch computes it.
    Differs: labels that are not known have no cost, and the mean leaves them out.
    Args:
        logits: ``(b, labels)``; gradient flows, 0 for a label that is not known.
        targets: floats ``(b, labels)`` of 0, 1, or NaN where the label is not known; no gradient.
        weight: of each label's positives ``(labels,)``, all 1 without it.
        label_smoothing: the share s of a label's weight that is spread over yes and no, in [0, 1).
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, non-negative; 0 when no label of the batch is
        known.
    Raises:
        ValueError: logits and targets are not floats ``(b, labels)``, the weight is not ``(labels,)``, the smoothing
            not in [0, 1), or a target neither 0, 1 nor NaN.
    Example:
        >>> label_loss(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, torch.nan]]))  # log 2
        tensor(0.6931)
    """
    if not (logits.ndim == 2 and logits.is_floating_point() and logits.numel()) or logits.shape != targets.shape:
        raise ValueError(
            f"logits and targets must be non-empty (b, labels), not {tuple(logits.shape)} of {logits.dtype} and "
            f"{tuple(targets.shape)}"
        )
    if weight is not None and weight.shape != logits.shape[1:]:
        raise ValueError(f"the weight must be ({logits.shape[1]},), one for each label, not {tuple(weight.shape)}")
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"the label smoothing must be in [0, 1), not {label_smoothing}")
    known = ~targets.isnan()
    if not ((targets == 0) | (targets == 1) | ~known).all():
        raise ValueError("the targets must be 0, 1, or NaN where the label is not known")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    answers = targets.where(known, 0).to(logits.dtype) * (1 - label_smoothing) + label_smoothing / 2
    costs = F.binary_cross_entropy_with_logits(logits, answers, pos_weight=weight, reduction="none")
    per_sample = costs.where(known, 0).sum(1) / known.sum(1).clamp(min=1)
    return per_sample.sum() / known.any(1).sum().clamp(min=1)
