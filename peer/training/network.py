"""The local model as the site's configuration has it, and the proof that a network fits the task."""

from __future__ import annotations

import torch
from torch import nn

import models
from models import Network, Output
from peer.training.fault import ConfigurationError
from peer.training.recipe import Recipe, Task


def build_local(recipe: Recipe, *, seed: int) -> Network:
    """The site's own model with the weights that the seed gives; ``ConfigurationError`` names what is wrong with it."""
    given, task = recipe.model, recipe.task
    spec = {
        "name": given["name"],
        "spatial_dims": task.spatial_dims,
        "in_channels": task.in_channels,
        "classes": task.classes,
        "hyper": dict(given.get("parameters", {})),
    } | {key: given[key] for key in ("features", "head") if given.get(key)}
    torch.manual_seed(seed)
    try:
        return models.build(spec)
    except Exception as error:
        raise ConfigurationError(f"[model] {given['name']}: {error}") from error


def probe(network: nn.Module, task: Task, input_size: tuple[int, ...]) -> Output:
    """The network's output for one image of zeros; ``ValueError`` unless it is a prediction of this task."""
    network.eval()
    with torch.no_grad():
        output: Output = network(torch.zeros(1, task.in_channels, *input_size))
    if output.prediction.shape != (1, task.classes):
        raise ValueError(f"predicts {tuple(output.prediction.shape)} for one image, not {(1, task.classes)}")
    if not torch.isfinite(output.prediction).all():
        raise ValueError("predicts a NaN or an infinity for an image of zeros")
    return output
