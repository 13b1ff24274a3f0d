r"""The loss of a survival model with discrete hazards, and its survival curves.

The network has one logit for each of K agreed intervals of time. The hazard :math:`h_k = \sigma(f_k)` is the
probability of the event in interval k for a person without it before. The arithmetic is float32 or wider; autocast
narrows none of its operations again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def survival_loss(logits: Tensor, targets: Tensor) -> Tensor:
    r"""Negative log-likelihood of discrete hazards, averaged over the persons.

    .. math:: L = -\frac1b\sum_i \Bigl[\sum_{k<\kappa_i} \log(1-h_{ik})
              + e_i \log h_{i\kappa_i} + (1-e_i) \log(1-h_{i\kappa_i})\Bigr],
              \qquad \kappa_i = \max(\lceil s_i\rceil - 1, 0)

    Interval k, counted from 0, holds the positions s in (k, k+1]; interval 0 also holds 0. Each term depends on one
    person alone, unlike Cox' partial likelihood, so that its gradient can be clipped and noised.

    Source: Brown 1975; Gensheimer and Narasimhan 2019; Kvamme and Borgan 2021, the loss of Logistic-Hazard.
    Differs: Gensheimer and Narasimhan count a censored person's last interval only from its middle on; here, as in
        Kvamme and Borgan, it counts as survived.
    Args:
        logits: ``(b, K)``; gradient flows, 0 for the intervals after a person's own.
        targets: floats ``(b, 2)``: the position s in [0, K], the time in units of the intervals, and 1 for the event or
            0 for a censored person; no gradient. :func:`peer.survival.interval_position` computes positions.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, non-negative.
    Raises:
        ValueError: the logits are not ``(b, K)`` or the targets not ``(b, 2)`` of floats; a position is not in [0, K],
            or an event neither 0 nor 1.
    Example:
        >>> survival_loss(torch.zeros(1, 3), torch.tensor([[1.5, 1.0]]))  # 2 log 2: one interval survived, not the next
        tensor(1.3863)
    """
    logits = _check_logits(logits)
    if targets.shape != (len(logits), 2) or not targets.is_floating_point():
        raise ValueError(
            f"the targets must be floats ({len(logits)}, 2), position and event, not {tuple(targets.shape)} of "
            f"{targets.dtype}"
        )
    positions, events = targets[:, :1], targets[:, 1:]
    intervals = logits.shape[1]
    if not ((positions >= 0) & (positions <= intervals)).all():
        raise ValueError(f"the positions must be in [0, {intervals}], the number of intervals")
    if not ((events == 0) | (events == 1)).all():
        raise ValueError("the events must be 0 or 1")
    last = (positions.ceil() - 1).clamp(min=0)
    interval = torch.arange(intervals, device=logits.device)
    ended = ((interval == last) & (events == 1)).to(logits.dtype)
    costs = F.binary_cross_entropy_with_logits(logits, ended, reduction="none")
    return costs.where(interval <= last, 0).sum(1).mean()


def survival_curves(logits: Tensor) -> Tensor:
    r"""Probability of surviving each interval, :math:`S_k = \prod_{j\le k} (1-h_j)`.

    Source: as :func:`survival_loss`.
    Differs: none; the product is a sum of logarithms, which does not underflow.
    Args:
        logits: ``(b, K)``; gradient flows.
    Returns:
        Survival at the end of each interval ``(b, K)``, float32 (float64 for float64 logits), dimensionless, in [0, 1],
        not increasing.
    Raises:
        ValueError: the logits are not ``(b, K)`` of floats.
    Example:
        >>> survival_curves(torch.zeros(1, 3))
        tensor([[0.5000, 0.2500, 0.1250]])
    """
    return F.logsigmoid(-_check_logits(logits)).cumsum(1).exp()


def _check_logits(logits: Tensor) -> Tensor:
    """Return the logits in float32 or wider."""
    if not (logits.ndim == 2 and logits.is_floating_point() and logits.numel()):
        raise ValueError(
            f"the logits must be a non-empty (b, K) of floats, not {tuple(logits.shape)} of {logits.dtype}"
        )
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
