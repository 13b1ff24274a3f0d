"""The layers of a network with their output shapes, and a proposal of those to name in a configuration."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.foreign import MissingArgumentsError as MissingArgumentsError
from models.foreign import foreign_network, is_foreign
from models.network import WEIGHTED
from models.registry import build
from models.tap import Tapped, fits, fitting_sides

STAGES = 4
"""Number of stages to propose: as many as the papers' networks have."""


@dataclass(frozen=True, slots=True)
class Layer:
    """A layer as it ran in one forward pass.

    ``shape`` is that of its output for one sample, without the batch; empty if the output is not one
    tensor. ``tap`` says whether ``features`` may name it.
    """

    name: str
    kind: str
    parameters: int
    runs: int
    shape: tuple[int, ...]
    tap: bool


@dataclass(frozen=True, slots=True)
class LayerReport:
    """A network's layers in the order of construction, and the proposed names.

    ``features`` is empty and ``head`` none for a network with taps of its own, and where no layer
    qualifies; ``problem`` then says why.
    """

    layers: tuple[Layer, ...]
    features: tuple[str, ...]
    head: str | None
    problem: str | None


def list_layers(
    name: str,
    input_size: Sequence[int],
    *,
    in_channels: int,
    classes: int,
    hyper: Mapping[str, Any] | None = None,
) -> LayerReport:
    """Run a network on one image of zeros, and propose ``features`` and ``head``.

    Args:
        name: as in :func:`models.create_model`.
        input_size: the sides of the input.
        in_channels: of the input.
        classes: of the prediction.
        hyper: hyper-parameters.
    Raises:
        ValueError: the network does not exist, refuses its arguments, or does not take the input.
        ImportError: it needs a Python package that is not installed.
    Example:
        >>> report = list_layers("monai.networks.nets.DenseNet121", (64, 64), in_channels=1, classes=2)
        >>> report.head
        'class_layers.out'
    """
    sizes: dict[str, Any] = {"spatial_dims": len(input_size), "in_channels": in_channels, "classes": classes}
    foreign = is_foreign(name)
    network: nn.Module = (
        foreign_network(name, **sizes, hyper=hyper or {})
        if foreign
        else build({"name": name, **sizes, "hyper": dict(hyper or {})})
    )
    records, prediction = _run(network, torch.zeros(1, in_channels, *input_size), name)
    layers = tuple(_describe(layer, module, records, dims=len(input_size)) for layer, module in _layers(network))
    if not foreign:
        return LayerReport(layers, (), None, None)
    problem = _output_problem(network, prediction, torch.zeros(2, in_channels, *input_size))
    if problem is not None:
        return LayerReport(layers, (), None, problem)
    head = _propose_head(network, records, prediction)
    if head is None:
        problem = "no convolution or linear layer gives the prediction itself: something happens after the last one"
        return LayerReport(layers, (), None, problem)
    features = _propose_features(layers, records, head)
    try:
        tapped = Tapped(network, features=features, head=head, **sizes, name=name)
        with torch.no_grad():
            tapped.eval()(torch.zeros(1, in_channels, *input_size))
    except ValueError as error:
        return LayerReport(layers, (), None, str(error))
    return LayerReport(layers, features, head, None)


@dataclass(slots=True)
class _Run:
    """The first run of a layer: its order, its output, and the versions that reveal a later change in place."""

    order: int
    output: Any
    version: int
    inputs: tuple[Any, ...]
    input_versions: tuple[int, ...]
    runs: int = 1

    @property
    def unchanged(self) -> bool:
        return isinstance(self.output, Tensor) and self.output._version == self.version

    @property
    def input_unchanged(self) -> bool:
        (*inputs,) = (each for each in self.inputs if isinstance(each, Tensor))
        return len(inputs) == len(self.inputs) == 1 and inputs[0]._version == self.input_versions[0]


def _layers(network: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in network.named_modules() if name]


def _run(network: nn.Module, image: Tensor, name: str) -> tuple[dict[str, _Run], Any]:
    """Run the network; return the run of each layer by name, and the network's output."""
    records: dict[str, _Run] = {}
    counter = itertools.count()
    versions: dict[str, tuple[int, ...]] = {}

    def before(layer: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...]) -> None:
            versions[layer] = tuple(each._version if isinstance(each, Tensor) else 0 for each in args)

        return hook

    def after(layer: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if layer in records:
                records[layer].runs += 1
                return
            version = output._version if isinstance(output, Tensor) else 0
            records[layer] = _Run(next(counter), output, version, args, versions[layer])

        return hook

    handles = [module.register_forward_pre_hook(before(layer)) for layer, module in _layers(network)]
    handles += [module.register_forward_hook(after(layer)) for layer, module in _layers(network)]
    network.eval()
    try:
        with torch.no_grad():
            output = network(image)
    except ImportError:
        raise
    except Exception as error:  # a foreign network may raise anything
        fitting = fitting_sides(network, image)
        reason = f"it takes sides that are {fitting}" if fitting else error
        raise ValueError(f"{name} does not take an input of {tuple(image.shape[1:])}: {reason}") from error
    finally:
        for handle in handles:
            handle.remove()
    prediction = getattr(output, "prediction", output)
    if isinstance(prediction, list | tuple) and len(prediction) == 1:
        prediction = prediction[0]
    return records, prediction


def _output_problem(network: nn.Module, prediction: Any, images: Tensor) -> str | None:
    """Return why the network's output is no prediction for these images, in evaluation or in training; or None."""
    if not isinstance(prediction, Tensor):
        return f"the network returns {_kind(prediction)}, not one tensor: name one that returns the prediction alone"
    if not fits(prediction, images):
        sides, sides_in = ("x".join(map(str, tensor.shape[2:])) for tensor in (prediction, images))
        fitting = fitting_sides(network, images) or "sides that its strides divide"
        return f"the network predicts {sides} for an input of {sides_in}; take {fitting}"
    network.train()
    try:
        with torch.no_grad():
            output = network(images)
    except Exception:  # such as a normalisation that needs more cells: training reports it for the real batch
        return None
    finally:
        network.eval()
    trained = getattr(output, "prediction", output)
    if isinstance(trained, Tensor) or (isinstance(trained, list | tuple) and len(trained) == 1):
        return None
    return f"the network returns {_kind(trained)} while it trains, as with deep supervision: switch that off"


def _kind(output: Any) -> str:
    count = f" of {len(output)}" if isinstance(output, list | tuple | dict) else ""
    return f"a {type(output).__name__}{count}"


def _describe(name: str, module: nn.Module, records: Mapping[str, _Run], *, dims: int) -> Layer:
    record = records.get(name)
    output = record.output if record is not None else None
    shape = tuple(output.shape[1:]) if isinstance(output, Tensor) else ()
    tap = record is not None and record.runs == 1 and record.unchanged and len(shape) == dims + 1
    parameters = sum(parameter.numel() for parameter in module.parameters())
    return Layer(name, type(module).__name__, parameters, record.runs if record is not None else 0, shape, tap)


def _propose_head(network: nn.Module, records: Mapping[str, _Run], prediction: Any) -> str | None:
    """Choose the innermost layer with a convolution or matrix whose output is the prediction; None without one."""
    names = [
        name
        for name, module in _layers(network)
        if (record := records.get(name)) is not None
        and record.output is prediction
        and record.runs == 1
        and record.input_unchanged
        and any(isinstance(part, WEIGHTED) for part in module.modules())
    ]
    return max(names, key=lambda name: name.count("."), default=None)


def _propose_features(layers: Sequence[Layer], records: Mapping[str, _Run], head: str) -> tuple[str, ...]:
    """Choose the outermost last layer of each size of the grid, from the input's down to the smallest."""
    candidates = sorted(
        (layer for layer in layers if layer.tap and layer.parameters and not _overlap(layer.name, head)),
        key=lambda layer: records[layer.name].order,
    )
    largest_after = list(itertools.accumulate(map(_cells, reversed(candidates)), max))[::-1]
    # A gate of a squeeze-and-excitation block has one cell, and larger grids follow.
    candidates = [
        layer for layer, most in zip(candidates, largest_after, strict=True) if _cells(layer) > 1 or most == 1
    ]
    if not candidates:
        return ()
    smallest = min(_cells(layer) for layer in candidates)
    last = max(index for index, layer in enumerate(candidates) if _cells(layer) == smallest)
    stages: list[Layer] = []
    for _, run in itertools.groupby(candidates[: last + 1], key=lambda layer: layer.shape[1:]):
        same_size = list(run)
        depth = min(layer.name.count(".") for layer in same_size)
        outermost = [layer for layer in same_size if layer.name.count(".") == depth][-1]
        if not stages or _cells(outermost) < _cells(stages[-1]):
            stages.append(outermost)
    return tuple(layer.name for layer in stages[-STAGES:])


def _cells(layer: Layer) -> int:
    return int(torch.Size(layer.shape[1:]).numel())


def _overlap(layer: str, head: str) -> bool:
    return layer == head or head.startswith(f"{layer}.") or layer.startswith(f"{head}.")
