r"""Partial training of a network: frozen layers, and low-rank adapters on layers with frozen weights.

An adapter adds a learned matrix of low rank to a frozen weight :math:`W`, flattened to a matrix of
output channels:

.. math:: W + \frac{\alpha}{r}\, B A, \qquad B \in \mathbb R^{out \times r},\ A \in \mathbb R^{r \times in}

with :math:`B` at first zero, so that training begins with the pretrained network.

Source: Hu et al. 2021 (LoRA, arXiv 2106.09685), by ``torch.nn.utils.parametrize``.
Differs: the matrix also adapts convolutions, including grouped and transposed ones; there is no
dropout on the adapter's input. With adapters, the whole head trains, and all else is frozen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from models.network import WEIGHTED, Network
from models.spec import LEARNING_KEYS, suggestion

ORIGINAL = ".parametrizations.weight.original"
"""Suffix of an adapted weight's name in the state, in place of ``.weight``."""
COUNTER = "num_batches_tracked"
"""Name of a counter of torch's batch normalisations, which older files lack and evaluation ignores."""


class LowRank(nn.Module):
    """The parametrization of a weight: the frozen one plus a learned matrix of low rank.

    Source: LoRA, eq. 3.
    Shapes: as the weight, ``(out, ...)``.
    Gradient flow: into the two factors; into the weight, unless it is frozen.
    Example:
        >>> layer = nn.Linear(3, 2)
        >>> adapter = LowRank(layer.weight, rank=1, scale=2.0)
        >>> torch.equal(adapter(layer.weight), layer.weight)
        True
    """

    def __init__(self, weight: Tensor, *, rank: int, scale: float) -> None:
        super().__init__()
        outputs = weight.shape[0]
        inputs = weight[0].numel()
        self.scale = scale
        self.down = nn.Parameter(torch.empty(rank, inputs, dtype=weight.dtype, device=weight.device))
        self.up = nn.Parameter(torch.zeros(outputs, rank, dtype=weight.dtype, device=weight.device))
        nn.init.kaiming_uniform_(self.down, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the adapted weight."""
        return weight + (self.scale * (self.up @ self.down)).view_as(weight)


def limit_learning(network: Network, limits: Mapping[str, Any]) -> None:
    """Freeze layers of a network, or adapt some and freeze all others but the head, in place.

    Args:
        network: as built, with its spec.
        limits: ``frozen``, ``adapters`` and ``base`` of a spec; they become keys of the network's.
    Raises:
        ValueError: a layer does not exist, is in the head, or has no weight to adapt.
    """
    if "adapters" in limits:
        network.frozen_tensors = frozenset(_adapt(network, **limits["adapters"]))
    else:
        network.frozen_tensors = frozenset(_frozen(network, limits.get("frozen", ())))
    for name, parameter in network.named_parameters():
        if name in network.frozen_tensors:
            parameter.requires_grad_(False)
    network.spec = {**network.spec, **{key: limits[key] for key in LEARNING_KEYS if key in limits}}
    network.train(network.training)


def base_tensors(network: Network) -> frozenset[str]:
    """Return the names in the state that no artifact holds, as every receiver has them in the spec's base."""
    return network.frozen_tensors if "base" in network.spec else frozenset()


def name_in_file(network: Network, name: str) -> str | None:
    """Return a tensor's usual name in the file of pretrained weights; None for a part of an adapter."""
    name = name.removeprefix(network.layer_prefix)
    if name.endswith(ORIGINAL):
        return name.removesuffix(ORIGINAL) + ".weight"
    return None if ".parametrizations." in name else name


def merged_state(network: Network) -> dict[str, Tensor]:
    """Return the state under the names of the network without adapters, which are merged into the weights."""
    state = {}
    for name, tensor in network.state_dict().items():
        if name.endswith(ORIGINAL):
            layer = name.removesuffix(ORIGINAL)
            weight = network.get_submodule(layer).weight
            assert isinstance(weight, Tensor)
            state[f"{layer}.weight"] = weight.detach()
        elif not _is_adapter(name):
            state[name] = tensor
    return state


def _frozen(network: Network, layers: Sequence[str]) -> Iterator[str]:
    """Yield the names in the state of the named layers. Raise ``ValueError`` for a missing one, or one of the head."""
    for layer in layers:
        module = _find_layer(network, layer)
        prefix = f"{network.layer_prefix}{layer}."
        if _overlaps_head(network, prefix):
            raise ValueError(f"layer {layer!r} holds or is in the head {network.head_name!r}, which has to learn")
        yield from (prefix + name for name in module.state_dict())


def _adapt(network: Network, *, layers: Sequence[str], rank: int, alpha: float) -> Collection[str]:
    """Put adapters on the named layers and those in them; return the names of all frozen tensors."""
    for layer in layers:
        root = _find_layer(network, layer)
        adapted = 0
        for name, module in list(root.named_modules(prefix=f"{network.layer_prefix}{layer}")):
            if not isinstance(module, WEIGHTED) or _overlaps_head(network, f"{name}."):
                continue
            adapted += 1
            if not parametrize.is_parametrized(module, "weight"):
                full = min(module.weight.shape[0], module.weight[0].numel())
                adapter = LowRank(module.weight, rank=min(rank, full), scale=alpha / rank)
                parametrize.register_parametrization(module, "weight", adapter)
        if not adapted:
            raise ValueError(f"layer {layer!r} has no linear or convolution layer to adapt outside of the head")
    head = f"{network.head_name}."
    return [name for name in network.state_dict() if not name.startswith(head) and not _is_adapter(name)]


def _is_adapter(name: str) -> bool:
    return ".parametrizations.weight." in name and not name.endswith(ORIGINAL)


def _find_layer(network: Network, layer: str) -> nn.Module:
    root = network.get_submodule(network.layer_prefix.removesuffix(".")) if network.layer_prefix else network
    names = [name for name, _ in root.named_modules() if name]
    if layer not in names:
        hint = suggestion(layer, names) or f"; at its top are {', '.join(name for name, _ in root.named_children())}"
        raise ValueError(f"there is no layer {layer!r}{hint} (`mhfl-peer models --layers` lists all)")
    return root.get_submodule(layer)


def _overlaps_head(network: Network, prefix: str) -> bool:
    head = f"{network.head_name}."
    return head.startswith(prefix) or prefix.startswith(head)
