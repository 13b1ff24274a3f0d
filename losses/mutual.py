r"""Asymmetrical mutual learning of FedDAL, between a site's private model (w) and its exchanged proxy (p).

The private model passes its whole distribution to the proxy. The proxy, which is weaker but has
learnt at all sites, passes back its ``top`` most likely classes (the paper's v), weighted by the
agreement of both. Classes are on dim 1; further dimensions are pixels, each of them a sample of its
own. The arithmetic is float32 or wider; autocast narrows none of its operations again.

Classes are ranked by their logits, which softmax keeps in order; of equal ones the lower index
comes first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from losses.distill import divergence, match_logits


def consensus(private_logits: Tensor, proxy_logits: Tensor, *, top: int) -> Tensor:
    r"""Agreement of the two models on each sample's most likely classes: the Jaccard index of their top sets.

    .. math:: \lambda = \frac{|S \cap Z|}{|S \cup Z|}

    with S the ``top`` most likely classes of the private model and Z those of the proxy.

    Source: FedDAL, eq. 3.
    Differs: none; ties, which the paper leaves open, go to the lower class index.
    Args:
        private_logits: of the private model, ``(b, classes, *space)``; no gradient.
        proxy_logits: of the proxy, of the same shape; no gradient.
        top: number of classes in a set, at least 1 and fewer than there are.
    Returns:
        λ, ``(b, *space)``, float32 (float64 for float64 logits), dimensionless, one of k / (2 top -
        k) for the k classes in common: 0 or 1 for ``top`` 1; 0, 1/3 or 1 for ``top`` 2.
    Raises:
        ValueError: the logits are not ``(b, classes, *space)`` of floats with at least 2 classes,
            or differ in shape; ``top`` is out of range.
    Example:
        >>> private, proxy = torch.tensor([[3.0, 2.0, 1.0]]), torch.tensor([[3.0, 1.0, 2.0]])
        >>> consensus(private, proxy, top=1), consensus(private, proxy, top=2)
        (tensor([1.]), tensor([0.3333]))
    """
    private, proxy = match_logits(private=private_logits, proxy=proxy_logits)
    common = top_classes(private, top).unsqueeze(1) == top_classes(proxy, top).unsqueeze(2)
    shared = common.sum((1, 2)).to(private.dtype)
    return shared / (2 * top - shared)


def feeding_loss(
    private_logits: Tensor, proxy_logits: Tensor, *, top: int, weights: Tensor | float | None = None
) -> Tensor:
    r"""Backward knowledge feeding: raises the proxy's most likely classes in the private model, in any order.

    .. math:: L = \frac1{|b|}\sum_b \lambda_b \sum_{c \in Z_b} -\log \mathrm{softmax}(w(x_b))_c

    The probabilities of Z are raised jointly (their product): at the minimum each has 1 / ``top``.

    Source: FedDAL, eq. 2; its Ω, summed over Z and its complement, is the denominator of the full
        softmax.
    Differs: the minus sign, which the paper leaves out: as printed, descent would push the classes
        of Z down. A mean over samples and pixels replaces the sum.
    Args:
        private_logits: of the private model, ``(b, classes, *space)``; gradient flows.
        proxy_logits: of the proxy, of the same shape; no gradient.
        top: how many classes Z has, at least 1 and fewer than there are.
        weights: λ, ``(b, *space)``, or one number for all, 1 for the paper's ablation; no gradient.
            None takes the :func:`consensus`.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, non-negative; 0 when no sample
        has consensus.
    Raises:
        ValueError: what :func:`consensus` raises; the weights have another shape.
    Example:
        >>> private, proxy = torch.zeros(1, 4), torch.tensor([[2.0, 1.0, 0.0, 0.0]])
        >>> feeding_loss(private, proxy, top=2)  # 2 log 4
        tensor(2.7726)
    """
    private, proxy = match_logits(private=private_logits, proxy=proxy_logits)
    # Differs: the minus sign, see above.
    unlikeliness = -private.log_softmax(1).gather(1, top_classes(proxy, top)).sum(1)
    return (_weights(weights, private, proxy, top) * unlikeliness).mean()


def transfer_loss(
    private_logits: Tensor, proxy_logits: Tensor, *, top: int, weights: Tensor | float | None = None
) -> Tensor:
    r"""Ablation without ranking: the private model learns the proxy's probabilities of its likeliest classes.

    .. math:: L = \frac1{|b|}\sum_b \lambda_b \sum_{c \in Z_b} \mathrm{softmax}(p(x_b))_c
              \log \frac{\mathrm{softmax}(p(x_b))_c}{\mathrm{softmax}(w(x_b))_c}

    Source: FedDAL, section 3.3, the variant FedDAL_v.
    Differs: the paper gives no formula; this one changes nothing but the target, so λ stays. The
        probabilities are those of all classes: a softmax over Z alone would make the target 1 with
        ``top`` 1, and the loss :func:`feeding_loss` itself.
    Args:
        private_logits: of the private model, ``(b, classes, *space)``; gradient flows.
        proxy_logits: of the proxy, of the same shape; no gradient.
        top: how many classes Z has, at least 1 and fewer than there are.
        weights: λ, ``(b, *space)``, or one number for all; no gradient. None takes the
            :func:`consensus`.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, at least -1/e; 0 when the
        models agree, or no sample has consensus.
    Raises:
        ValueError: what :func:`consensus` raises; the weights have another shape.
    Example:
        >>> private, proxy = torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])
        >>> transfer_loss(private, proxy, top=2)  # both have e / (2e + 2), the private model 1/4
        tensor(0.2777)
    """
    private, proxy = match_logits(private=private_logits, proxy=proxy_logits)
    chosen = top_classes(proxy, top)
    target = proxy.detach().log_softmax(1).gather(1, chosen)
    gap = target - private.log_softmax(1).gather(1, chosen)
    return (_weights(weights, private, proxy, top) * (target.exp() * gap).sum(1)).mean()


def forward_kl(private_logits: Tensor, proxy_logits: Tensor, *, updates_private: bool = False) -> Tensor:
    r"""Forward knowledge passing: the proxy learns the private model's class distribution.

    .. math:: L = \frac1{|b|}\sum_b \mathrm{KL}(\mathrm{softmax}(w(x_b)) \,\Vert\, \mathrm{softmax}(p(x_b)))

    Source: FedDAL, eq. 1.
    Differs: the private model is a constant unless ``updates_private``, which is the composite loss
        of section 2.4 as printed: there the term would teach the private model from the proxy, what
        section 2.2.2 argues against. A mean over samples and pixels replaces the sum.
    Args:
        private_logits: of the private model, ``(b, classes, *space)``; gradient flows only with
            ``updates_private``.
        proxy_logits: of the proxy, of the same shape; gradient flows.
        updates_private: let gradient flow into the private model too.
    Returns:
        Scalar ``()``, float32 (float64 for float64 logits), in nats, non-negative up to rounding; 0
        when the distributions agree.
    Raises:
        ValueError: the logits are not ``(b, classes, *space)`` of floats with at least 2 classes,
            or differ in shape.
    Example:
        >>> forward_kl(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]))
        tensor(0.1201)
    """
    private, proxy = match_logits(private=private_logits, proxy=proxy_logits)
    return divergence(private if updates_private else private.detach(), proxy)


def top_classes(logits: Tensor, top: int) -> Tensor:
    """Return the indices of the ``top`` highest logits, ``(b, top, *space)``, best first."""
    classes = logits.shape[1]
    if not 1 <= top < classes:
        raise ValueError(f"top is {top}, but must be at least 1 and less than the {classes} classes; lower top")
    # Not topk: it promises no order among equals.
    return torch.sort(logits.detach(), dim=1, descending=True, stable=True).indices[:, :top]


def _weights(weights: Tensor | float | None, private: Tensor, proxy: Tensor, top: int) -> Tensor | float:
    if weights is None:
        return consensus(private, proxy, top=top)
    if not isinstance(weights, Tensor):
        return weights
    samples = private[:, 0].shape
    if weights.shape != samples:
        raise ValueError(
            f"weights must be (b, *space), here {tuple(samples)}, or one number, not {tuple(weights.shape)}; give one "
            "for each sample and pixel, as consensus does"
        )
    return weights.detach().to(private.dtype)
