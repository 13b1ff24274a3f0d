"""The prototypes of the classes, as a module whose state is FedProto's artifact."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PrototypeTable(nn.Module):
    """The prototype of each class, and its number of samples; a class without samples has none.

    Shapes: ``x (b, width)``; the result ``(b, classes)`` is the negative squared distance to each
    prototype, and for a class without one the least of a sample's, less 1.
    """

    prototypes: Tensor
    counts: Tensor

    def __init__(self, *, classes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("prototypes", torch.zeros(classes, width))
        self.register_buffer("counts", torch.zeros(classes))
        self.nearest = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        negative = -(x[:, None] - self.prototypes).square().sum(2)
        least = negative.min(1, keepdim=True).values - 1
        nearest: Tensor = self.nearest(torch.where(self.counts > 0, negative, least))
        return nearest

    def clear(self) -> None:
        """Forget all prototypes."""
        self.prototypes.zero_()
        self.counts.zero_()

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add the samples' features ``(b, width)`` to the means of their classes ``(b,)``."""
        members = F.one_hot(targets, len(self.counts)).to(features)
        self.counts += members.sum(0)
        gaps = members.T @ features - members.sum(0)[:, None] * self.prototypes
        self.prototypes += gaps / self.counts.clamp(min=1)[:, None]
