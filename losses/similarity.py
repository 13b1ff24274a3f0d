r"""Similarity-based knowledge distillation of FedSKD, between a local model (DAM) and a received one (KTM).

Networks of different architecture have no common feature to compare, but they see the same samples.
Each term compares the two networks' similarities between items (samples of a batch, positions of
the grid, regions of an atlas), so that channels are contracted and never need to match. The kernel,
its identity and its gradient are in :mod:`losses.gram`.

For every function here:

* Taps come shallow to deep. Where the networks have different numbers of them, they are matched from the deepest one
  backwards; that is outside the paper.
* Nothing is detached: gradient flows into both networks. The gradient itself cannot be differentiated again.
* The arithmetic is float32 (or wider, if the taps are), outside autocast and without TF32, regardless of the
  caller's settings; see :func:`losses.gram.exact_products`.
* Each value is dimensionless and invariant to the scale of either network's features.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from losses.gram import FORMS, ExactProduct, Form, dissimilarity

TERMS = ("batch", "position", "region")

# In cells of a tap's grid. The mean feature of a smaller region is noise.
REGION_MASS_MIN = 1e-3

Pairs = Sequence[tuple[Tensor, Tensor]]


def batch_similarity_loss(dam_taps: Sequence[Tensor], ktm_taps: Sequence[Tensor]) -> Tensor:
    r"""Batch-wise similarity distillation: both networks see the same samples as alike.

    .. math:: L_B = \frac{1}{|\mathbb L|}\sum_\ell \frac{1}{b^2} \lVert B^\ell_{DAM}-B^\ell_{KTM} \rVert_F^2,
              \quad B = \sqrt b\,\mathrm{rownorm}(HH^\top),\; H \in \mathbb R^{b\times cS}

    Source: FedSKD, eqs. 4-6.
    Differs: a batch of one has no pair of samples and gives 0; a sample whose features are all zero
        takes part with a zero row and no gradient of its own, where a clamped norm would give it an
        enormous one.
    Args:
        dam_taps: stage features, shallow to deep, each ``(b, c, *space)``; gradient flows.
        ktm_taps: the same of the other network; channels and space may differ; gradient flows.
    Returns:
        Scalar ``()``, float32 (float64 for float64 taps), dimensionless, in [0, 4], for
        non-negative features in [0, 2]; 0 when the similarity patterns agree.
    Raises:
        ValueError: there is no tap, a tap is not ``(b, c, *space)`` of floats, or the batch sizes
            differ.
    Example:
        >>> dam = [torch.tensor([[[1.0]], [[0.0]]])]
        >>> batch_similarity_loss(dam, dam)
        tensor(0.)
        >>> batch_similarity_loss(dam, [torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])])
        tensor(0.5000)
    """
    return _batch(_match(dam_taps, ktm_taps))


def position_similarity_loss(
    dam_taps: Sequence[Tensor],
    ktm_taps: Sequence[Tensor],
    *,
    form: Form = "auto",
    accumulate: torch.dtype = torch.float32,
) -> Tensor:
    r"""Position-wise similarity distillation: both networks see the same places of the image as alike.

    .. math:: L_P = \frac{1}{|\mathbb L|}\sum_\ell \frac{1}{S^2} \lVert P^\ell_{DAM}-P^\ell_{KTM} \rVert_F^2,
              \quad P = \sqrt S\,\mathrm{rownorm}(HH^\top),\; H \in \mathbb R^{S\times bc}

    Source: FedSKD, eqs. 7-9, with ``1/hw²`` read as ``1/(hw)²``.
    Differs: never builds the S×S matrices where d×d ones are cheaper (d = bc; the same number,
        memory linear in S); grids of different size are both resized to the element-wise smaller
        one, by linear interpolation of the features where the paper aligns P: interpolating a
        similarity matrix along both axes is just that. A position that is zero in every channel of
        every sample takes part with a zero row and no gradient of its own.
    Args:
        dam_taps: stage features, shallow to deep, each ``(b, c, *space)``; gradient flows.
        ktm_taps: the same of the other network; channels and grid may differ; gradient flows.
        form: ``direct`` (S×S), ``linear`` (d×d) or ``auto``, at each tap the one with fewer
            multiplications.
        accumulate: dtype of the arithmetic. ``torch.float32`` has an absolute error of some 1e-8,
            which matters in the linear form once the loss is below 1e-6; ``torch.float64`` has none
            and takes twice the time on a CPU.
    Returns:
        Scalar ``()``, float32 (float64 for float64 taps), dimensionless, in [0, 4], for
        non-negative features in [0, 2]; 0 when the similarity patterns agree (in float32: to some
        1e-8, of either sign).
    Raises:
        ValueError: there is no tap, a tap is not ``(b, c, *space)`` of floats, the batch sizes or
            the numbers of spatial dimensions differ, or ``form`` or ``accumulate`` is none of the
            above.
    Example:
        >>> dam = [torch.tensor([[[1.0, 0.0]]])]
        >>> position_similarity_loss(dam, dam)
        tensor(0.)
        >>> position_similarity_loss(dam, [torch.tensor([[[1.0, 1.0]]])], form="linear")
        tensor(0.7929)
    """
    return _position(_match(dam_taps, ktm_taps), form, accumulate)


def region_similarity_loss(dam_taps: Sequence[Tensor], ktm_taps: Sequence[Tensor], *, masks: Tensor) -> Tensor:
    r"""Region-wise similarity distillation: both networks see the same regions, of an atlas say, as alike.

    .. math:: L_R = \frac{1}{|\mathbb L|}\sum_\ell \frac{1}{r^2} \lVert R^\ell_{DAM}-R^\ell_{KTM} \rVert_F^2,
              \quad R = \sqrt r\,\mathrm{rownorm}(HH^\top),\; H_k = \frac{\sum_p m_{kp} F_p}{\sum_p m_{kp}}

    Source: FedSKD, eqs. 10-14.
    Differs: masks are soft and area-averaged to each network's own grid (a nearest label would lose
        most regions of an atlas on a grid of 3³); regions with less than 1e-3 of a cell left on
        either grid are dropped for both networks, and r counts the others. Where masks differ
        between samples, a region is left out of the samples that lack it, and dropped if all do. A
        tap without any region gives 0.
    Args:
        dam_taps: stage features, shallow to deep, each ``(b, c, *space)``; gradient flows.
        ktm_taps: the same of the other network; channels and grid may differ; gradient flows.
        masks: region weights, non-negative, ``(r, *space)`` for all samples or ``(b, r, *space)``,
            at any grid; no gradient.
    Returns:
        Scalar ``()``, float32 (float64 for float64 taps), dimensionless, in [0, 4], for
        non-negative features in [0, 2]; 0 when the similarity patterns agree.
    Raises:
        ValueError: there is no tap, a tap is not ``(b, c, *space)`` of floats, the batch sizes or
            the numbers of spatial dimensions differ, or the masks have another shape or no region.
    Example:
        >>> dam = [torch.tensor([[[1.0, 0.0]]])]
        >>> region_similarity_loss(dam, [torch.tensor([[[1.0, 1.0]]])], masks=torch.eye(2))
        tensor(0.7929)
    """
    return _region(_match(dam_taps, ktm_taps), masks)


def similarity_terms(
    dam_taps: Sequence[Tensor],
    ktm_taps: Sequence[Tensor],
    *,
    masks: Tensor | None = None,
    terms: Sequence[str] = TERMS,
    taps: Sequence[int] | None = None,
    form: Form = "auto",
    accumulate: torch.dtype = torch.float32,
) -> dict[str, Tensor]:
    """Terms of the similarity distillation, to log them separately; their sum is the loss.

    Source: FedSKD, eqs. 4-15 and its ablations.
    Differs: as the three terms do.
    Args:
        dam_taps: stage features, shallow to deep, each ``(b, c, *space)``; gradient flows.
        ktm_taps: the same of the other network; channels and grid may differ; gradient flows.
        masks: regions as :func:`region_similarity_loss` takes them; without them there is no region
            term.
        terms: which of ``batch``, ``position`` and ``region``.
        taps: which of the matched taps, counted from 1 (the shallowest); None takes all.
        form: of the position term, as :func:`position_similarity_loss` takes it.
        accumulate: of the position term.
    Returns:
        Each term's scalar ``()`` under its name, in the order of ``terms``.
    Raises:
        ValueError: as the three terms; or an unknown or repeated term or tap, or no term left.
    Example:
        >>> dam, ktm = [torch.eye(2).reshape(2, 1, 2)], [torch.ones(2, 3, 2)]
        >>> similarity_terms(dam, ktm)
        {'batch': tensor(0.5858), 'position': tensor(0.5858)}
    """
    unknown = [term for term in terms if term not in TERMS]
    if unknown or len(set(terms)) < len(terms):
        raise ValueError(f"terms {tuple(terms)} must be distinct and among {TERMS}")
    pairs = _match(dam_taps, ktm_taps)
    if taps is not None:
        pairs = _choose(pairs, taps)
    losses = {"batch": partial(_batch, pairs), "position": partial(_position, pairs, form, accumulate)}
    if masks is not None:
        losses["region"] = partial(_region, pairs, masks)
    present = {term: losses[term]() for term in terms if term in losses}
    if not present:
        raise ValueError(f"terms {tuple(terms)} leave nothing to compute without masks; give masks or another term")
    return present


def similarity_distillation_loss(
    dam_taps: Sequence[Tensor],
    ktm_taps: Sequence[Tensor],
    *,
    masks: Tensor | None = None,
    terms: Sequence[str] = TERMS,
    taps: Sequence[int] | None = None,
    form: Form = "auto",
    accumulate: torch.dtype = torch.float32,
) -> Tensor:
    """Similarity-based knowledge distillation ``L_SKD = L_B + L_P + L_R``, unweighted; without masks ``L_B + L_P``.

    Source: FedSKD, eq. 15.
    Differs: as the three terms do.
    Args:
        dam_taps: stage features, shallow to deep, each ``(b, c, *space)``; gradient flows.
        ktm_taps: the same of the other network; channels and grid may differ; gradient flows.
        masks: regions as :func:`region_similarity_loss` takes them; without them there is no region
            term.
        terms: which of ``batch``, ``position`` and ``region``.
        taps: which of the matched taps, counted from 1 (the shallowest); None takes all.
        form: of the position term, as :func:`position_similarity_loss` takes it.
        accumulate: of the position term.
    Returns:
        Scalar ``()``, float32 (float64 for float64 taps), dimensionless, at most 4 a term; 0 when
        all patterns agree.
    Raises:
        ValueError: as :func:`similarity_terms`.
    Example:
        >>> dam, ktm = [torch.eye(2).reshape(2, 1, 2)], [torch.ones(2, 3, 2)]
        >>> similarity_distillation_loss(dam, ktm)
        tensor(1.1716)
    """
    present = similarity_terms(
        dam_taps, ktm_taps, masks=masks, terms=terms, taps=taps, form=form, accumulate=accumulate
    )
    return torch.stack(list(present.values())).sum()


def _match(dam_taps: Sequence[Tensor], ktm_taps: Sequence[Tensor]) -> Pairs:
    """Pair the taps, shallow to deep, matched from the deepest one backwards."""
    count = min(len(dam_taps), len(ktm_taps))
    if count == 0:
        raise ValueError(f"there is no tap to compare: {len(dam_taps)} of the DAM, {len(ktm_taps)} of the KTM")
    pairs = list(zip(dam_taps[-count:], ktm_taps[-count:], strict=True))
    for number, (dam, ktm) in enumerate(pairs, start=1):
        for owner, tap in (("DAM", dam), ("KTM", ktm)):
            if not (3 <= tap.ndim <= 5 and tap.is_floating_point() and tap.numel()):
                raise ValueError(
                    f"{owner} tap {number} of {count} must be a non-empty (b, c, *space) of floats with 1 to 3 spatial "
                    f"dimensions, not {tuple(tap.shape)} of {tap.dtype}"
                )
        if dam.shape[0] != ktm.shape[0]:
            raise ValueError(
                f"tap {number} of {count}: the DAM saw a batch of {dam.shape[0]}, the KTM one of {ktm.shape[0]}; "
                "both must see the same samples"
            )
    return pairs


def _choose(pairs: Pairs, taps: Sequence[int]) -> Pairs:
    if not taps or len(set(taps)) < len(taps) or not all(1 <= tap <= len(pairs) for tap in taps):
        raise ValueError(
            f"taps {tuple(taps)} must be distinct and among 1 to {len(pairs)}, of which there is at least one"
        )
    return [pairs[tap - 1] for tap in taps]


def _batch(pairs: Pairs) -> Tensor:
    return _mean([_batch_at(dam, ktm) for dam, ktm in pairs])


def _batch_at(dam: Tensor, ktm: Tensor) -> Tensor:
    dtype = _dtype(dam, ktm)
    if dam.shape[0] < 2:
        # The sum of no element: zero, also for non-finite features, and still a node of both
        # networks' graphs.
        return dam.flatten()[:0].sum(dtype=dtype) + ktm.flatten()[:0].sum(dtype=dtype)
    return dissimilarity(dam.flatten(1).mT, ktm.flatten(1).mT, form="direct", dtype=dtype)


def _position(pairs: Pairs, form: Form, accumulate: torch.dtype) -> Tensor:
    if form not in FORMS:
        raise ValueError(f"form {form!r} must be one of {', '.join(FORMS)}")
    if accumulate not in (torch.float32, torch.float64):
        raise ValueError(f"accumulate must be torch.float32 or torch.float64, not {accumulate}")
    return _mean([_position_at(dam, ktm, form, accumulate) for dam, ktm in pairs])


def _position_at(dam: Tensor, ktm: Tensor, form: Form, accumulate: torch.dtype) -> Tensor:
    _same_dimensions(dam, ktm)
    dtype = _dtype(dam, ktm)
    grid = tuple(map(min, dam.shape[2:], ktm.shape[2:]))
    dam, ktm = (_interpolate(tap, grid, dtype).flatten(2).flatten(0, 1) for tap in (dam, ktm))
    return dissimilarity(dam, ktm, form=form, dtype=torch.promote_types(dtype, accumulate)).to(dtype)


def _interpolate(tap: Tensor, grid: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if tap.shape[2:] == grid:
        return tap
    mode = ("linear", "bilinear", "trilinear")[len(grid) - 1]
    return F.interpolate(tap.to(dtype), size=grid, mode=mode, align_corners=False)


def _region(pairs: Pairs, masks: Tensor) -> Tensor:
    return _mean([_region_at(dam, ktm, masks) for dam, ktm in pairs])


def _region_at(dam: Tensor, ktm: Tensor, masks: Tensor) -> Tensor:
    _same_dimensions(dam, ktm)
    shared = masks.ndim == dam.ndim - 1
    if not (shared or (masks.ndim == dam.ndim and masks.shape[0] == dam.shape[0])) or not masks.numel():
        raise ValueError(
            f"masks must be a non-empty (r, *space), or (b, r, *space) with b = {dam.shape[0]}, and {dam.ndim - 2} "
            f"spatial dimensions, not {tuple(masks.shape)}"
        )
    dtype = _dtype(dam, ktm)
    masks = (masks[None] if shared else masks).detach().to(dam.device, dtype)
    dam_weights, dam_mass = _weights(masks, dam.shape[2:])
    ktm_weights, ktm_mass = _weights(masks, ktm.shape[2:])
    present = (dam_mass >= REGION_MASS_MIN) & (ktm_mass >= REGION_MASS_MIN)
    dam_means = _region_means(dam.to(dtype), dam_weights * present)
    ktm_means = _region_means(ktm.to(dtype), ktm_weights * present)
    # A dropped region is a zero column of both networks and adds nothing to the sum; the mean is
    # over the others.
    regions = present.any(0).sum()
    value = dissimilarity(dam_means, ktm_means, form="direct", dtype=dtype)
    return value * (masks.shape[1] / regions.clamp(min=1))


def _weights(masks: Tensor, grid: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Compute the positions' weights in their regions' means, and the regions' masses."""
    cells = F.interpolate(masks, size=list(grid), mode="area").flatten(2)
    mass = cells.sum(2, keepdim=True)
    return cells / mass.clamp(min=REGION_MASS_MIN), mass


def _region_means(tap: Tensor, weights: Tensor) -> Tensor:
    means: Tensor = ExactProduct.apply(tap.flatten(2), weights.mT)  # type: ignore[no-untyped-call]
    return means.flatten(0, 1)


def _same_dimensions(dam: Tensor, ktm: Tensor) -> None:
    if dam.ndim != ktm.ndim:
        raise ValueError(
            f"the DAM's taps have {dam.ndim - 2} spatial dimensions, the KTM's {ktm.ndim - 2}; use L_B alone"
        )


def _dtype(dam: Tensor, ktm: Tensor) -> torch.dtype:
    return torch.promote_types(torch.promote_types(dam.dtype, ktm.dtype), torch.float32)


def _mean(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean()
