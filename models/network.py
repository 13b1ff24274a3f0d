"""What every network here shows of itself: its prediction, its stages, and the cut between body and head."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.spec import spec_problem


class Output(NamedTuple):
    """What a forward pass gives.

    Attributes:
        prediction: logits ``(b, classes)`` or ``(b, classes, *space)``, or the image of super-resolution.
        taps: stage features, shallow to deep, each ``(b, c, *space)``; what FedSKD compares.
        bottleneck: the deepest feature, where MH-pFLID attaches; for classification the same as penultimate.
        penultimate: the input of the head: ``model.head(penultimate)`` is the prediction.
    """

    prediction: Tensor
    taps: tuple[Tensor, ...]
    bottleneck: Tensor
    penultimate: Tensor


class Network(nn.Module):
    """A network with taps and a head that can be cut off. Subclasses set ``head_name`` and return :class:`Output`.

    Attributes:
        spec: JSON values from which :func:`models.build` makes the same network again (with other weights).
        head_name: the name of the head among the submodules: its state-dict keys start with ``head_name + "."``.
    """

    spec: dict[str, Any]
    head_name: str

    def __init__(
        self,
        *,
        name: str,
        spatial_dims: int,
        in_channels: int,
        classes: int,
        hyper: Mapping[str, Any],
        **taps: object,
    ) -> None:
        super().__init__()
        spec = {
            "name": name,
            "spatial_dims": spatial_dims,
            "in_channels": in_channels,
            "classes": classes,
            "hyper": dict(hyper),
            **taps,
        }
        problem = spec_problem(spec)
        if problem is not None:
            raise ValueError(f"model {name!r}: {problem}")
        # Through JSON, so that the spec is equal to what a receiver parses and shares no list with the caller.
        self.spec = json.loads(json.dumps(spec))

    @property
    def head(self) -> nn.Module:
        """The part from the penultimate feature to the prediction: dFLMoE shares it, FedSKD freezes it."""
        return self.get_submodule(self.head_name)

    def feature_shape(self, input_size: Sequence[int]) -> tuple[int, ...]:
        """The shape of the penultimate feature of one sample of this spatial size: ``(c,)`` or ``(c, *space)``.

        Runs one forward pass of zeros in evaluation mode; the state and the mode of every module stay as they are.
        """
        like = next(self.parameters())
        zeros = torch.zeros(1, self.spec["in_channels"], *input_size, device=like.device, dtype=like.dtype)
        modes = [(module, module.training) for module in self.modules()]
        self.eval()
        try:
            with torch.no_grad():
                output: Output = self(zeros)
        finally:
            for module, training in modes:
                module.training = training
        return tuple(output.penultimate.shape[1:])

    def check_input(self, x: Tensor) -> None:
        """``ValueError`` unless ``x`` is a non-empty ``(b, in_channels, *space)`` with this network's dimensions."""
        dims, channels = self.spec["spatial_dims"], self.spec["in_channels"]
        if x.ndim != dims + 2 or x.shape[1] != channels or not x.numel():
            raise ValueError(
                f"{self.spec['name']} takes a non-empty (b, {channels}, *space) with {dims} spatial dimensions, "
                f"not {tuple(x.shape)}"
            )
