"""Sizes of networks, without their weights."""

from collections.abc import Callable
from typing import Any

import torch

from models import create_model


def count_parameters(*models: torch.nn.Module) -> int:
    return sum(parameter.numel() for model in models for parameter in model.parameters())


def meta_network(
    make: str | Callable[..., torch.nn.Module], dims: int = 2, channels: int = 3, classes: int = 8, **hyper: Any
):
    """A network by its name or constructor, without weights."""
    sizes = {"spatial_dims": dims, "in_channels": channels, "classes": classes, **hyper}
    with torch.device("meta"):
        return create_model(make, **sizes) if isinstance(make, str) else make(**sizes)
