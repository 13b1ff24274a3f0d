"""Build the networks that a site's configuration names, and check that a network fits the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

import models
from models import Network, Output
from peer.core.tasks import VECTORS
from peer.train.errors import UnusableConfigurationError
from peer.train.settings import TaskSettings, TrainingSettings
from peer.train.tensors import State
from peer.train.weights import read_weights, refuse_base


def local_spec(settings: TrainingSettings) -> dict[str, Any]:
    """Return the spec of the site's own model."""
    table = settings.model
    taps: dict[str, Any] = {key: table[key] for key in ("features", "head") if table.get(key)}
    return _spec(settings.task, table["name"], table.get("parameters", {}), taps | _learning(table))


def _learning(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a spec that say which parts of the network learn."""
    limits: dict[str, Any] = {}
    if table.get("adapters"):
        limits["adapters"] = dict(table["adapters"])
    elif table.get("freeze"):
        limits["frozen"] = list(table["freeze"])
    return limits | {"base": table["weights_sha256"]} if limits else {}


def shared_spec(settings: TrainingSettings) -> dict[str, Any] | None:
    """Return the spec of the network in ``[shared_model]``; ``None`` without that table."""
    if settings.shared_model is None:
        return None
    table = dict(settings.shared_model)
    name = table.pop("name")
    foreign = name not in models.MODELS
    taps: dict[str, Any] = {key: table.pop(key) for key in ("features", "head") if foreign and key in table}
    # If all sites train one network, [model] also says which parts of it learn.
    limits = _learning(settings.model) if settings.plan.shared != "beside" else {}
    return _spec(settings.task, name, table, taps | limits)


def _spec(task: TaskSettings, name: str, hyper: Mapping[str, Any], taps: Mapping[str, Any]) -> dict[str, Any]:
    sizes = {"spatial_dims": task.spatial_dims, "in_channels": task.in_channels, "classes": task.classes}
    return {"name": name, **sizes, "hyper": dict(hyper), **taps}


class BaseWeights:
    """The site's weights files by SHA-256; each is read once, at its first use."""

    def __init__(self, settings: TrainingSettings) -> None:
        self._files, self._own = settings.base_weights, settings.model.get("weights_sha256")
        self._read: dict[str, State] = {}

    def of(self, sha256: str) -> State:
        """Return the tensors of the file with this digest; raise ``ValueError`` if the site lacks that file."""
        if sha256 not in self._files:
            return refuse_base(sha256)
        if sha256 not in self._read:
            key = "[model] weights" if sha256 == self._own else f"[base_weights] {sha256[:12]}"
            self._read[sha256] = read_weights(self._files[sha256], sha256, key=key)
        return self._read[sha256]


def build_spec(spec: Mapping[str, Any], where: str) -> Network:
    """Build the network of a spec from this site's configuration, with weights from torch's global generator.

    Raise ``UnusableConfigurationError`` if it cannot be built; the message begins with the table ``where``.
    """
    try:
        return models.build(spec)
    except Exception as error:
        named = str(error) if str(error).startswith(spec["name"]) else f"{spec['name']}: {error}"
        raise UnusableConfigurationError(f"{where} {named}") from error


def probe(network: nn.Module, task: TaskSettings, input_size: tuple[int, ...], *, scale: int = 1) -> Output:
    """Return the output for an image of zeros; raise ``ValueError`` unless it is a prediction for this task."""
    network.eval()
    with torch.no_grad():
        output: Output = network(torch.zeros(1, task.in_channels, *input_size))
    space = () if task.objective in VECTORS else tuple(scale * side for side in input_size)
    check_prediction(output, (1, task.classes, *space))
    return output


def probe_head(head: nn.Module, own: Output) -> Output:
    """Return a head's output for this site's feature of zeros; raise ``ValueError`` unless it fits ``own``."""
    head.eval()
    feature = torch.zeros(1, models.head_width(head), *own.penultimate.shape[2:])
    with torch.no_grad():
        output = Output(head(feature), (), feature, feature)
    check_prediction(output, tuple(own.prediction.shape))
    return output


def check_prediction(output: Output, shape: tuple[int, ...]) -> None:
    """Raise ``ValueError`` unless the prediction has this shape and is finite."""
    if output.prediction.shape != shape:
        raise ValueError(f"predicts {tuple(output.prediction.shape)} for one image, not {shape}")
    if not torch.isfinite(output.prediction).all():
        raise ValueError("predicts a NaN or an infinity for an image of zeros")
