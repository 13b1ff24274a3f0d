"""The cost of a network before it runs: parameters, operations, shapes, bytes on the wire."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from models.network import Network, Output
from models.registry import build, create_model

MESSENGER = "messenger_"
"""Prefix of the names of the networks that can be sent as an artifact of kind ``messenger``."""


def describe(
    model: str | Mapping[str, Any], input_size: Sequence[int] | None = None, *, in_channels: int = 1, classes: int = 2
) -> dict[str, Any]:
    """Describe the network's cost for one sample of this spatial size; allocates no weights or features.

    Args:
        model: a name in ``models.MODELS``, with default hyper-parameters and as many dimensions as
            the size has; or a spec.
        input_size: the sides of the input; without them, facts that depend on the size are None.
        in_channels: of the input, where ``model`` is a name.
        classes: of the prediction, where ``model`` is a name.
    Returns:
        JSON values: ``spec``, ``parameters``, ``state_values`` (parameters and buffers, the numbers
        of an artifact), ``multiply_accumulates`` of convolutions and matrix products in one forward
        pass, the shapes of one sample's ``prediction``, ``taps``, ``bottleneck`` and
        ``penultimate``, and ``bytes``, the size of an artifact's tensors for each kind of artifact
        that the network can be, without the file's header of some 100 bytes a tensor.
    Raises:
        ValueError: the network does not exist, or the input does not fit.
    Example:
        >>> described = describe("resnet10", (64, 64), in_channels=3, classes=8)
        >>> described["parameters"], described["multiply_accumulates"], described["taps"][-1]
        (4909896, 72552448, [512, 2, 2])
        >>> described["bytes"]
        {'model': 19662720, 'proxy': 19662720, 'head': 16416}
    """
    with torch.device("meta"):
        if not isinstance(model, str):
            network = build(model)
        elif input_size is None:
            raise ValueError(f"{model!r} alone does not say how many dimensions; give an input size, or a spec")
        else:
            dims = len(input_size)
            network = create_model(model, spatial_dims=dims, in_channels=in_channels, classes=classes)
    whole = _bytes(network)
    kinds = {"model": whole, "proxy": whole, "head": _bytes(network.head)}
    if network.spec["name"].startswith(MESSENGER):
        kinds["messenger"] = whole
    return {
        "spec": network.spec,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "state_values": sum(tensor.numel() for tensor in network.state_dict().values()),
        **_forward(network, input_size),
        "bytes": kinds,
    }


def _forward(network: Network, input_size: Sequence[int] | None) -> dict[str, Any]:
    """Count the operations of one forward pass, and return its shapes; all None without an input size."""
    if input_size is None:
        return dict.fromkeys(("multiply_accumulates", "prediction", "taps", "bottleneck", "penultimate"))
    operations, output = count_operations(network, input_size)
    return {
        "multiply_accumulates": operations,
        "prediction": _shape(output.prediction),
        "taps": [_shape(tap) for tap in output.taps],
        "bottleneck": _shape(output.bottleneck),
        "penultimate": _shape(output.penultimate),
    }


def count_operations(network: Network, input_size: Sequence[int]) -> tuple[int, Output]:
    """Count a forward pass' multiply-accumulates for one sample on the meta device; return them and the output.

    Only convolutions and matrix products count.
    """
    network.eval()
    x = torch.empty(1, network.spec["in_channels"], *input_size, device="meta")
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        output: Output = network(x)
    return counter.get_total_flops() // 2, output


def padding_share(network: nn.Module, x: Tensor) -> float:
    """Return the share of the network's weights that this input multiplies only with padding zeros.

    A kernel of 3x3x3 on a map of one cell has 26 taps that always lie on padding. No gradient
    reaches them, and an artifact carries their initial values. Layers with padding
    "same" are not counted.

    Example:
        >>> padding_share(nn.Conv2d(1, 1, 3, padding=1, bias=False), torch.ones(1, 1, 1, 1)) == 8 / 9
        True
    """
    idle = 0.0

    def count(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        nonlocal idle
        assert isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        if layer.padding_mode != "zeros" or isinstance(layer.padding, str):
            return
        sides = zip(inputs[0].shape[2:], layer.kernel_size, layer.stride, layer.padding, layer.dilation, strict=True)
        idle += layer.weight.numel() * (1 - math.prod(_share_of_taps(*side) for side in sides))

    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d)]
    hooks = [layer.register_forward_pre_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            network(x)
    finally:
        for hook in hooks:
            hook.remove()
    return idle / max(1, sum(parameter.numel() for parameter in network.parameters()))


def _share_of_taps(side: int, taps: int, stride: int, padding: int, dilation: int) -> float:
    """Return the share of a kernel's taps along one side that lie on the map at some position."""
    starts = range(-padding, side + padding - dilation * (taps - 1), stride)
    return sum(any(0 <= start + dilation * tap < side for start in starts) for tap in range(taps)) / taps


def _shape(feature: Tensor) -> list[int]:
    return list(feature.shape[1:])


def _bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())
