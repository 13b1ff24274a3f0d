"""State of the methods of this package beside the local model: the public images, predictions, coefficients."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn


class PublicImages(nn.Module):
    """The public images, which no checkpoint holds, and the position of the next one."""

    images: Tensor
    position: Tensor

    def __init__(self, images: Tensor) -> None:
        super().__init__()
        self.register_buffer("images", images, persistent=False)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64))

    def take(self, count: int) -> Tensor:
        """Return the indices of the next images, cyclically, and go past them."""
        indices = self.following(count)
        self.position.copy_((self.position + count) % len(self.images))
        return indices

    def following(self, count: int) -> Tensor:
        """Return the indices of the next images, cyclically."""
        return (self.position + torch.arange(count, device=self.position.device)) % len(self.images)


class PredictionTable(nn.Module):
    """Logits for each public image (in DS-pFL probabilities), and whether there are any.

    As a network it predicts their mean for every image: received tables are checked as networks are.
    """

    logits: Tensor
    taken: Tensor

    def __init__(self, *, classes: int, samples: int) -> None:
        super().__init__()
        self.register_buffer("logits", torch.zeros(samples, classes))
        self.register_buffer("taken", torch.zeros((), dtype=torch.int64))
        self.mean = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        prediction: Tensor = self.mean(self.logits.mean(0, keepdim=True).expand(len(x), -1))
        return prediction


class KnowledgeCoefficients(nn.Module):
    """This site's weight of learning from each site's predictions; the weights add up to 1."""

    shares: Tensor

    def __init__(self, sites: Collection[str]) -> None:
        super().__init__()
        self.sites = sorted(sites)
        self.register_buffer("shares", torch.full((len(self.sites),), 1 / len(self.sites)))
