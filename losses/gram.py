r"""Row-normalised similarity, the common kernel of FedSKD's batch, position and region terms.

Layout: a network's features are a matrix ``X = Hᵀ`` of shape ``(d, n)``, one *column* an item (a
sample, a position, a region). Feature maps have this memory layout: the position term copies none.
``G = XᵀX`` are the similarities between items, ``g_i`` is row i of G, and

.. math:: \frac{1}{n^2}\lVert \mathcal S(H_D) - \mathcal S(H_K)\rVert_F^2
          = \frac1n\sum_i \lVert u_i - v_i\rVert^2 = \frac1n \sum_i (a_i + b_i - 2\cos_i)

with :math:`u_i = g_i/\lVert g_i\rVert` of the DAM, :math:`v_i` the same of the KTM, and :math:`a_i,
b_i` 1 where that row is alive and 0 where it is zero. The *direct* form builds both n×n matrices;
the *linear* form needs d×d ones only, since :math:`\langle g_i^D, g_i^K\rangle = x_i^\top (XY^\top)
y_i` and :math:`\lVert g_i^D\rVert^2 = x_i^\top (XX^\top) x_i`.

The gradient is in closed form; the forward pass computes it with the value and keeps nothing else
for the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Form = Literal["auto", "direct", "linear"]
FORMS: tuple[Form, ...] = ("auto", "direct", "linear")

# Norm below which a row of G is dead, for features of rms 1: the clamp of the literal form, with gradient 0
# instead of one divided by the clamp.
DEAD_ROW_NORM = 1e-12

BLOCK_ROWS = 128
"""Rows of a symmetric product in one block; fewer skip more of it, but multiply slower."""

ONEDNN: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
ONEDNN_SIDE_MIN = 64
"""Shortest side of a matrix at which oneDNN is the faster library, measured on two cores."""


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Compute matrix products at their operands' full precision: no autocast, no TF32, no bfloat16 for float32.

    The cosines are within 1e-2 to 1e-5 of 1, so that the 8 to 10 mantissa bits of the shortcuts
    would leave noise. PyTorch has no thread-local switch for them. Where the process-wide switch is
    on, the block turns it off and restores it afterwards, also after an exception; where it is off
    (the default), the block does not touch it.
    """
    matmul = getattr(torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda, "matmul", None)
    switch, exact = ("fp32_precision", "ieee") if hasattr(matmul, "fp32_precision") else ("allow_tf32", False)
    before = getattr(matmul, switch, exact)
    shortcut = before not in (exact, "none")
    with torch.autocast(device.type, enabled=False):
        if shortcut:
            setattr(matmul, switch, exact)
        try:
            yield
        finally:
            if shortcut:
                setattr(matmul, switch, before)


class ExactProduct(torch.autograd.Function):
    """``features @ weights`` of ``(b, c, s)`` and constant ``(b or 1, s, r)``, exact both ways."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(weights)
        with exact_products(features.device):
            return features @ weights

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (weights,) = ctx.saved_tensors
        with exact_products(grad.device):
            return grad @ weights.mT, None


class _Dissimilarity(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dam: Tensor, ktm: Tensor, form: Form, dtype: torch.dtype) -> Tensor:
        needs_gradient = any(ctx.needs_input_grad)
        ctx.dtypes = dam.dtype, ktm.dtype
        with exact_products(dam.device):
            dam, dam_scale = _unit_rms(dam, dtype)
            ktm, ktm_scale = _unit_rms(ktm, dtype)
            value, gradients = (_linear if form == "linear" else _direct)(dam, ktm, needs_gradient)
        if gradients:
            ctx.save_for_backward(gradients[0].mul_(dam_scale), gradients[1].mul_(ktm_scale))
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        dam_gradient, ktm_gradient = ctx.saved_tensors
        dam_dtype, ktm_dtype = ctx.dtypes
        return (grad * dam_gradient).to(dam_dtype), (grad * ktm_gradient).to(ktm_dtype), None, None


def dissimilarity(dam: Tensor, ktm: Tensor, *, form: Form, dtype: torch.dtype) -> Tensor:
    """Compute the mean over items of ``a + b - 2 cos``, a scalar of ``dtype``; gradient flows into both.

    ``dam`` is ``(d_dam, n)`` and ``ktm`` ``(d_ktm, n)``; the widths may differ. Both are divided by
    their own rms first, which keeps every norm in range and does not change the value. Once
    differentiable.
    """
    if form == "auto":
        form = cheaper_form(dam.shape[1], dam.shape[0], ktm.shape[0])
    value: Tensor = _Dissimilarity.apply(dam, ktm, form, dtype)  # type: ignore[no-untyped-call]
    return value


def cheaper_form(items: int, dam_width: int, ktm_width: int) -> Form:
    """Choose the form with fewer multiplications: two n×n matrices, or three d×d ones with products."""
    direct = items * (dam_width + ktm_width)
    linear = 2 * (dam_width**2 + ktm_width**2 + dam_width * ktm_width)
    return "direct" if direct <= linear else "linear"


def _unit_rms(features: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    features = features.to(dtype, copy=True)
    norm = torch.linalg.vector_norm(features)
    scale = torch.where(norm == 0, 1.0, math.sqrt(features.numel()) / norm)
    return features.mul_(scale), scale


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """Compute ``left @ right``, on a CPU by the faster of PyTorch's two libraries.

    PyTorch multiplies float32 matrices with MKL, which leaves AVX-512 unused on AMD processors;
    oneDNN, which computes PyTorch's convolutions, takes less than half the time there. It is slower if
    a side is short, a thousand times slower if a matrix is part of another one, and lacks float64.
    """
    dense = all(matrix.is_contiguous() or matrix.mT.is_contiguous() for matrix in (left, right))
    suited = ONEDNN and dense and left.device.type == "cpu" and left.dtype == torch.float32
    if not suited or min(*left.shape, right.shape[1]) < ONEDNN_SIDE_MIN:
        return left @ right
    product: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.mT, None, "none", [], "")
    return product


def _gram(left: Tensor, right: Tensor) -> Tensor:
    """Compute a symmetric ``left @ right.mT``; large ones on a CPU in blocks of rows from the diagonal on, mirrored."""
    rows = len(left)
    if left.device.type != "cpu" or rows < 2 * BLOCK_ROWS:
        return multiply(left, right.mT)
    left, right, gram = left.contiguous(), right.contiguous(), left.new_empty(rows, rows)
    for first in range(0, rows, BLOCK_ROWS):
        last = first + BLOCK_ROWS
        gram[first:last, first:] = multiply(left[first:last], right[first:].mT)
        gram[last:, first:last] = gram[first:last, last:].mT
    return gram


def _inverse_norms(squares: Tensor) -> tuple[Tensor, Tensor]:
    """Compute ``(1/norm, alive)`` of rows with these squared norms, both 0 for a dead row."""
    alive = squares > DEAD_ROW_NORM**2
    return torch.where(alive, squares, 1.0).sqrt().reciprocal().mul_(alive), alive


def _direct(dam: Tensor, ktm: Tensor, needs_gradient: bool) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    items = dam.shape[1]
    dam_unit, ktm_unit = _gram(dam.mT, dam.mT), _gram(ktm.mT, ktm.mT)
    dam_inverse, _ = _inverse_norms(dam_unit.square().sum(1))
    ktm_inverse, _ = _inverse_norms(ktm_unit.square().sum(1))
    dam_unit *= dam_inverse[:, None]
    ktm_unit *= ktm_inverse[:, None]
    # The difference comes before the square: 1 - cos would cancel where the networks nearly agree.
    gap = dam_unit - ktm_unit
    value = gap.square().sum() / items
    if not needs_gradient:
        return value, None
    gap *= 2 / items
    return value, (
        _through_rows(dam, dam_unit, dam_inverse, gap),
        _through_rows(ktm, ktm_unit, ktm_inverse, gap.neg_()),
    )


def _through_rows(features: Tensor, unit: Tensor, inverse: Tensor, grad_unit: Tensor) -> Tensor:
    """Compute the gradient through ``unit = rownorm(featuresᵀ features)``; overwrites ``unit``."""
    along = (unit * grad_unit).sum(1, keepdim=True)
    grad_gram = unit.mul_(along).neg_().add_(grad_unit).mul_(inverse[:, None])
    symmetric = grad_gram + grad_gram.mT
    if features.is_contiguous():
        return multiply(features, symmetric)
    return multiply(symmetric, features.mT).mT  # the gradient has the memory layout of the features


def _linear(dam: Tensor, ktm: Tensor, needs_gradient: bool) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    items = dam.shape[1]
    cross = multiply(dam, ktm.mT)
    dam_image = multiply(_gram(dam, dam), dam)
    ktm_image = multiply(_gram(ktm, ktm), ktm)
    cross_image = multiply(cross, ktm)
    dam_inverse, dam_alive = _inverse_norms((dam_image * dam).sum(0))
    ktm_inverse, ktm_alive = _inverse_norms((ktm_image * ktm).sum(0))
    both = dam_inverse * ktm_inverse
    cosine = (cross_image * dam).sum(0) * both
    value = (dam_alive.to(cosine.dtype) + ktm_alive - 2 * cosine).sum() / items
    if not needs_gradient:
        return value, None
    by_cross = both * (-2 / items)
    by_dam = cosine * dam_inverse.square() * (2 / items)
    by_ktm = cosine * ktm_inverse.square() * (2 / items)
    weighted = multiply(dam * by_cross, ktm.mT)
    dam_gradient = dam_image.mul_(by_dam).add_(cross_image.mul_(by_cross))
    dam_gradient.add_(multiply(weighted, ktm)).add_(multiply(_gram(dam * by_dam, dam), dam))
    ktm_gradient = ktm_image.mul_(by_ktm).add_(multiply(cross.mT, dam).mul_(by_cross))
    ktm_gradient.add_(multiply(weighted.mT, dam)).add_(multiply(_gram(ktm * by_ktm, ktm), ktm))
    return value, (dam_gradient, ktm_gradient)
