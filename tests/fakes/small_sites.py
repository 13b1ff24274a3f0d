"""Small networks and batches of a site, for the tests of methods."""

from __future__ import annotations

import torch

import models
from peer.methods.method import Batch

DRAW = torch.Generator().manual_seed(0)
BATCH = Batch(torch.randn(5, 2, 40, generator=DRAW), torch.tensor([0, 1, 2, 0, 1]))
EXACT = Batch(BATCH.images.double(), BATCH.targets)
MAPS = Batch(torch.randn(2, 1, 16, 16, generator=DRAW), torch.randint(0, 3, (2, 16, 16), generator=DRAW))


def resnet(seed: int, width: int = 4, classes: int = 3) -> models.Network:
    """A classifier of ``BATCH``."""
    torch.manual_seed(seed)
    return models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=classes, width=width)


def u_net(seed: int, depth: int = 1) -> models.Network:
    """A network that segments ``MAPS``."""
    torch.manual_seed(seed)
    return models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=2, depth=depth)
