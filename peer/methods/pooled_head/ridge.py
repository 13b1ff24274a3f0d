r"""Ridge regression on sums of samples, which sites add up in whole numbers.

.. math:: G = \sum z z^\top, \quad V = \sum z y^\top, \quad W = (G + \lambda I)^{-1} V

Each sample's contribution is rounded to multiples of :math:`2^{-24}` before it is added, so that the sums of any
division of the samples among sites have the same bits. One rounding moves an entry by :math:`2^{-25}` at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.methods.method import NoiseOnSums

UNIT = 1 << 24
"""One, in the fixed-point numbers of the sums: finer than float32 resolves the features, whose norm is 1 at most."""
COUNT_MAX = 1 << 29
"""Samples of a site: their sums are below 2^53, which float64 holds exactly, and a thousand sites stay below 2^63."""
PRODUCTS_AT_ONCE_MAX = 4 << 20
"""Products of features that are in memory together: 64 MB with their rounded copies."""


class SumTable(nn.Module):
    """Sums over samples, as the state that a site sends: int64, in units of ``1 / UNIT``.

    Shapes: ``gram (features * (features + 1) / 2)``, the upper triangle of G by rows; ``moments (features, classes)``,
    V; ``count ()``. As a network it predicts 0 for every class.

    Args:
        features: of a sample, the constant 1 included.
        encoder: the SHA-256 of the body that computes them; tables of different bodies do not add up.
        noised: whether each site's sums have noise. Then they are of people, not of samples, and ``count`` is the
            number of sites.

    Attributes:
        differences: by key of a spec, what it means that another site's table differs in it.
    """

    differences: ClassVar[Mapping[str, str]] = {
        "hyper.encoder": "its sums are over the features of another body; give [shared_model] and the [model] of all "
        "sites the same name, parameters and file of weights"
    }
    gram: Tensor
    moments: Tensor
    count: Tensor

    def __init__(self, *, classes: int, features: int, encoder: str, noised: bool = False) -> None:
        super().__init__()
        self.encoder, self.noised = encoder, noised
        self.register_buffer("gram", torch.zeros(features * (features + 1) // 2, dtype=torch.int64))
        self.register_buffer("moments", torch.zeros(features, classes, dtype=torch.int64))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.zeros = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        zeros: Tensor = self.zeros(x.new_zeros(len(x), self.moments.shape[1]))
        return zeros

    def clear(self) -> None:
        """Forget all samples."""
        for sums in (self.gram, self.moments, self.count):
            sums.zero_()

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add samples with scaled features ``(b, features)`` of norm 1 at most and targets ``(b, classes)``."""
        rows, columns = torch.triu_indices(features.shape[1], features.shape[1])
        size = max(1, PRODUCTS_AT_ONCE_MAX // max(len(rows), targets.shape[1] * features.shape[1]))
        for first in range(0, len(features), size):
            z, y = (values[first : first + size].double().cpu() for values in (features, targets))
            self.gram += _rounded_sum(z[:, rows] * z[:, columns]).to(self.gram.device)
            self.moments += _rounded_sum(z[:, :, None] * y[:, None, :]).to(self.moments.device)
        self.count += len(features)

    def add_person(self, features: Tensor, targets: Tensor) -> None:
        """Add the mean of one person's samples, rounded once; arguments as of ``add``, targets of norm 1 at most.

        A sample that is not finite counts as zero: an error would tell that somebody's is.
        """
        z, y = features.double().cpu(), targets.double().cpu()
        finite = (z.isfinite().all(1) & y.isfinite().all(1))[:, None]
        z, y = z.where(finite, 0.0), y.where(finite, 0.0)
        rows, columns = torch.triu_indices(z.shape[1], z.shape[1])
        self.gram += _units((z.T @ z)[rows, columns] / len(z)).to(self.gram.device)
        self.moments += _units(z.T @ y / len(z)).to(self.moments.device)
        self.count += 1

    def add_noise(self, noise: NoiseOnSums) -> None:
        r"""Add noise to all sums but the count, which becomes 1: this site.

        On the diagonal of G, and on V, its standard deviation is the multiplier times the bound; off the
        diagonal, where an entry stands for two, it is smaller by :math:`\sqrt2`. Rounding d entries of G's matrix and V
        moves a person's part by :math:`\sqrt d / 2` units at most.
        """
        features, classes = self.moments.shape
        scale = noise.multiplier * (noise.bound * UNIT + math.sqrt(features * (features + classes)) / 2)
        rows, columns = torch.triu_indices(features, features)
        of_gram = torch.where(rows == columns, scale, scale / math.sqrt(2)).double()
        of_moments = torch.full((features, classes), scale, dtype=torch.float64)
        drawn = noise.draw([self.gram, self.moments], [of_gram, of_moments])
        for sums, each in zip((self.gram, self.moments), drawn, strict=True):
            sums += each.to(sums.device)
        self.count.fill_(1)

    def sums(self) -> tuple[Tensor, Tensor]:
        """Return G ``(features, features)`` and V ``(features, classes)`` in float64, on the CPU."""
        return square(self.gram, len(self.moments)), self.moments.cpu().double() / UNIT


def scale_features(features: Tensor, bound: float) -> Tensor:
    """Append the constant 1 to features ``(b, c)`` and divide by the bound; shorten what is then longer than 1.

    Returns:
        ``(b, c + 1)``, float64.
    """
    scaled = F.pad(features.double(), (0, 1), value=1.0) / bound
    norms: Tensor = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
    return scaled / norms.clamp(min=1.0)


def encode_targets(task: str, targets: Tensor, classes: int) -> Tensor:
    """Return the regression's targets ``(b, classes)``, float64.

    A class is one-hot less 1 / classes; a label is 1/2 or -1/2, and 0 if unknown; a number stays, within -1 and 1.
    """
    if task == "number":
        return targets.double().clamp(-1, 1)
    if task == "labels":
        return (targets.double() - 0.5).nan_to_num(0.0)
    return F.one_hot(targets, classes).double() - 1 / classes


def target_norm(task: str, classes: int) -> float:
    """Return the largest length of a target that ``encode_targets`` returns."""
    if task == "number":
        return math.sqrt(classes)
    return math.sqrt(classes) / 2 if task == "labels" else math.sqrt(1 - 1 / classes)


def solve_ridge(gram: Tensor, moments: Tensor, ridge: float) -> Tensor:
    """Return W ``(features, classes)`` of G ``(features, features)`` and V ``(features, classes)``, float64."""
    weights: Tensor = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), moments)
    return weights


def square(gram: Tensor, features: int) -> Tensor:
    """Return the symmetric matrix ``(features, features)``, float64, of an upper triangle in units."""
    matrix = torch.zeros(features, features, dtype=torch.float64)
    rows, columns = torch.triu_indices(features, features)
    matrix[rows, columns] = matrix[columns, rows] = gram.cpu().double() / UNIT
    return matrix


def find_impossible(state: Mapping[str, Tensor], network: object = None, sites: int = 1) -> str | None:
    """Return why no samples of so many sites have the sums of a table; ``None`` if some may have.

    Rounding moves an entry by half a unit for each sample.
    """
    gram, moments, count = (next(state[name] for name in state if name.endswith(end)) for end in PARTS)
    samples = int(count)
    if getattr(getattr(network, "network", None), "noised", False):  # noise may take any entry beyond what people can
        if samples != sites:
            return f"it claims {samples} sites, and is of {sites}"
        most_units = max(abs(int(value)) for sums in (gram, moments) for value in (sums.min(), sums.max()))
        return None if most_units <= sites * COUNT_MAX * UNIT else f"an entry has {most_units} units"
    if not 0 <= samples <= sites * COUNT_MAX:
        return f"it claims {samples} samples; a table has 0 to {sites * COUNT_MAX}"
    most, slack = float(samples), samples / UNIT
    if float(gram.double().abs().max()) / UNIT > most + slack:
        return f"a product in its gram is larger than those of {samples} samples of norm 1"
    matrix = square(gram, len(moments))
    squares = matrix.diagonal()
    if float(squares.min()) < 0:
        return f"its sum of squares of feature {int(squares.argmin())} is negative"
    if float(squares.sum()) > most + len(squares) * slack:
        return f"its sums of squares add up to {float(squares.sum()):.6g}, above those of {samples} samples of norm 1"
    if float(moments.double().abs().max()) / UNIT > most + slack:
        return f"a product in its moments is larger than those of {samples} samples"
    least = float(torch.linalg.eigvalsh(matrix)[0])
    if least < -len(squares) * slack - EIGENVALUE_ERROR * most:
        return f"its gram has the eigenvalue {least:.3g}, and a sum of squares has no negative one"
    return None


PARTS = ("gram", "moments", "count")
"""The tensors of a table; in an artifact their names end so."""
EIGENVALUE_ERROR = 1e-10
"""Error of an eigenvalue in float64, as a share of the trace: a hundred thousand times the unit roundoff."""


def default_bound(features: int) -> float:
    """Return the bound of features within -1 and 1, the constant 1 among them: the root of their number."""
    return math.sqrt(features)


def _rounded_sum(contributions: Tensor) -> Tensor:
    """Sum contributions ``(b, ...)`` over the samples in units, each rounded to the nearest."""
    return _units(contributions).sum(0)


def _units(values: Tensor) -> Tensor:
    """Round values to units."""
    return (values * UNIT).round().long()
