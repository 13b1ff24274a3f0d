"""The interface of every network: its prediction, its stages, and the cut between body and head."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypedDict

from torch import Tensor, nn

from models.blocks import replace_batch_norms
from models.spec import HYPER, hyper_problem, spec_problem

WEIGHTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
"""The layers with a matrix or a convolution."""


class Output(NamedTuple):
    """The result of a forward pass.

    Attributes:
        prediction: logits ``(b, classes)`` or ``(b, classes, *space)``, or the image of
            super-resolution.
        taps: stage features, shallow to deep, each ``(b, c, *space)``; FedSKD compares them.
        bottleneck: the deepest feature; MH-pFLID's adapters take it. For classification it is
            penultimate.
        penultimate: the input of the head: ``model.head(penultimate)`` is the prediction.
    """

    prediction: Tensor
    taps: tuple[Tensor, ...]
    bottleneck: Tensor
    penultimate: Tensor


class Sizes(TypedDict):
    """The arguments that every network of ``models.MODELS`` takes.

    ``name`` is its name there. ``spatial_dims`` is 1, 2 or 3, of a time series 1. ``in_channels``
    are those of the input, and ``classes`` those of the prediction, which super-resolution takes as
    the channels of its image.
    """

    name: str
    spatial_dims: int
    in_channels: int
    classes: int


class Network(nn.Module):
    """A network with taps and a detachable head. Subclasses set ``head_name`` and return :class:`Output`.

    Attributes:
        spec: JSON values from which :func:`models.build` builds the same network (with other
            weights).
        head_name: the name of the head among the submodules: its state-dict keys start with
            ``head_name + "."``.
        smallest: the shortest side of an input.
        multiple: each side of an input must be a multiple of it.
        lone_side: the longest side of which some batch norm sees one cell only, which it cannot
            train on; infinite where a batch norm follows the mean over space, and 0
            without batch norms.
        layer_prefix: the prefix of a layer's configured name among the submodules.
        bottleneck_layer: the name of the submodule whose output is the bottleneck, if there is one;
            LC-Fed selects channels there.
        frozen_tensors: the names in the state of frozen tensors (:mod:`models.learning`). A layer
            with frozen statistics stays in evaluation mode.
    """

    spec: dict[str, Any]
    head_name: str
    smallest: int = 1
    multiple: int = 1
    lone_side: float = 0
    layer_prefix: str = ""
    bottleneck_layer: str = ""
    frozen_tensors: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        name: str,
        spatial_dims: int,
        in_channels: int,
        classes: int,
        hyper: Mapping[str, Any],
        norm: str = "batch",
        **taps: object,
    ) -> None:
        super().__init__()
        # The spec leaves out batch norm, so that it is the one that sites without this choice write.
        hyper = dict(hyper) if norm == "batch" else {**hyper, "norm": norm}
        spec = {
            "name": name,
            "spatial_dims": spatial_dims,
            "in_channels": in_channels,
            "classes": classes,
            "hyper": hyper,
            **taps,
        }
        problem = spec_problem(spec)
        if problem is not None:
            raise ValueError(f"model {name!r}: {problem}")
        # Through JSON, so that the spec equals a receiver's parsed one, and shares no list with the caller.
        self.spec = json.loads(json.dumps(spec))
        problem = hyper_problem(name, hyper) if name in HYPER else None
        if problem is not None:
            raise ValueError(f"{name}: {problem}")

    @property
    def head(self) -> nn.Module:
        """The part after the penultimate feature: dFLMoE shares it, FedSKD freezes it."""
        return self.get_submodule(self.head_name)

    def set_norm(self, *, lone_side: float) -> None:
        """Replace the batch norms by group norms if the spec says so; else set ``lone_side``. Constructors end so.

        Raise ``ValueError`` if a layer has too few channels for a group norm.
        """
        if self.spec["hyper"].get("norm") != "group":
            self.lone_side = lone_side
            return
        try:
            replace_batch_norms(self)
        except ValueError as error:
            raise ValueError(f"{self.spec['name']}: {error}") from error

    def train(self, mode: bool = True) -> Self:
        """Set the mode of all layers but those with frozen statistics, which would change in training mode."""
        super().train(mode)
        if self.frozen_tensors:
            for name, module in self.named_modules():
                if any(f"{name}.{buffer}" in self.frozen_tensors for buffer, _ in module.named_buffers(recurse=False)):
                    module.eval()
        return self

    def check_input(self, x: Tensor) -> None:
        """Raise ``ValueError`` unless ``x`` is ``(b, in_channels, *space)`` of a size that fits."""
        name, dims, channels = self.spec["name"], self.spec["spatial_dims"], self.spec["in_channels"]
        if x.ndim != dims + 2 or x.shape[1] != channels or not x.numel():
            raise ValueError(
                f"{name} takes a non-empty (b, {channels}, *space) with {dims} spatial dimensions, not {tuple(x.shape)}"
            )
        space = tuple(x.shape[2:])
        if min(space) < self.smallest:
            raise ValueError(f"{name} takes sides of at least {self.smallest}, not {space}; resize or pad the input")
        if any(side % self.multiple for side in space):
            raise ValueError(
                f"{name} takes sides that are multiples of {self.multiple}, not {space}; resize or pad the input"
            )
        if self.training and x.shape[0] == 1 and max(space) <= self.lone_side:
            larger = f", or a side of at least {self.lone_side + 1}" if math.isfinite(self.lone_side) else ""
            raise ValueError(
                f"{name} cannot train on one sample of {space}: batch norm needs a batch of at least 2{larger}"
            )


def head_width(head: nn.Module) -> int:
    """Return the number of features that a head takes: the input width of its first layer.

    Raises:
        ValueError: its first layer with parameters has no known input width.
    Example:
        >>> head_width(nn.Sequential(nn.ReLU(), nn.Linear(5, 2)))
        5
    """
    for layer in head.modules():
        for name in ("in_features", "in_channels", "num_features", "num_channels"):
            if isinstance(width := getattr(layer, name, None), int):
                return width
        if next(layer.parameters(recurse=False), None) is not None:
            break
    raise ValueError(f"the head {type(head).__name__} does not say how many features it takes")
