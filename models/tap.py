"""Features of any network by layer name, so that a site need not rewrite its network."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.network import Network, Output
from models.spec import suggestion

MULTIPLES = (2, 4, 8, 16, 32, 64)
"""Products of the strides of encoders with up to six halvings."""


class Tapped(Network):
    """Any network, with the outputs of named layers as taps and a named last layer as head.

    Source: forward hooks, which PyTorch provides for this.
    Differs: the hooks exist only during a forward pass and record only the thread that runs it.
        Between passes ``network`` is unchanged: it can be copied, pickled, saved and exported, and
        its parameters keep their names under ``network.``.
    Shapes: ``x (b, in_channels, *space)``; taps are the layers' outputs; penultimate is the head's
        input; prediction ``(b, classes)`` or ``(b, classes, *space)``, a tensor or the only one
        in a list. Bottleneck is penultimate for a vector prediction, else the last tap (name the
        layers of an encoder down to its bottleneck).
    Gradient flow: as in the network; nothing is detached.
    Raises:
        ValueError: a layer does not exist (the message has close ones); in the forward pass: the
            input does not fit, a layer does not run exactly once or gives no tensor, a later layer
            overwrites it in place, or the prediction is not what the head returns or has another
            number of classes.
    Example:
        >>> network = nn.Sequential(nn.Conv1d(1, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
        >>> model = Tapped(network, features=["0"], head="3", spatial_dims=1, in_channels=1, classes=2)
        >>> output = model(torch.zeros(3, 1, 8))
        >>> output.taps[0].shape, output.penultimate.shape
        (torch.Size([3, 4, 6]), torch.Size([3, 4]))
        >>> torch.equal(model.head(output.penultimate), output.prediction)
        True
    """

    layer_prefix = "network."

    def __init__(
        self,
        network: nn.Module,
        *,
        features: Sequence[str],
        head: str,
        spatial_dims: int,
        in_channels: int,
        classes: int,
        name: str | None = None,
        hyper: Mapping[str, Any] | None = None,
    ) -> None:
        kind = type(network)
        super().__init__(
            name=name or f"{kind.__module__}:{kind.__qualname__}",
            spatial_dims=spatial_dims,
            in_channels=in_channels,
            classes=classes,
            hyper=hyper or {},
            features=list(features),
            head=head,
        )
        if len(set(features)) < len(features):
            raise ValueError(f"features {list(features)} name a layer twice")
        names = set(layer_names(network))
        for layer in (*features, head):
            if layer not in names:
                raise ValueError(_no_layer(network, layer))
        self.network = network
        self.head_name = f"network.{head}"
        if features:
            self.bottleneck_layer = f"network.{features[-1]}"
        self._verified = False

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        features, head = self.spec["features"], self.spec["head"]
        with _recording(self.network, features, head) as (outputs, head_inputs):
            try:
                prediction = self.network(x)
            except RuntimeError as error:
                if (misfit := self._misfit(x)) is None:
                    raise
                raise misfit from error
        if isinstance(prediction, list | tuple) and len(prediction) == 1:
            prediction = prediction[0]
        taps = tuple(_check_unchanged(layer, outputs[layer]) for layer in features)
        penultimate = _check_unchanged(head, head_inputs, is_head=True)
        if not self._verified:
            if not fits(prediction, x) and (misfit := self._misfit(x)) is not None:
                raise misfit
            self._verify(prediction, outputs[head][-1].value)
        bottleneck = penultimate if prediction.ndim == 2 or not taps else taps[-1]
        return Output(prediction, taps, bottleneck, penultimate)

    def _misfit(self, x: Tensor) -> ValueError | None:
        fitting, own = fitting_sides(self.network, x), "x".join(map(str, x.shape[2:]))
        text = f"{self.spec['name']} does not take sides of {own}; it takes {fitting}: resize or pad the input"
        return ValueError(text) if fitting else None

    def _verify(self, prediction: object, from_head: object) -> None:
        """Check, once, that the head comes last and that the numbers of classes agree."""
        name, head = self.spec["name"], self.spec["head"]
        if not isinstance(prediction, Tensor):
            raise ValueError(f"{name} must return one tensor, not {type(prediction).__name__}")
        if not (prediction is from_head or (isinstance(from_head, Tensor) and torch.equal(prediction, from_head))):
            raise ValueError(
                f"the prediction of {name} is not what its head {head!r} returns; name as head the layer after which "
                "nothing happens"
            )
        if prediction.ndim < 2 or prediction.shape[1] != self.spec["classes"]:
            raise ValueError(
                f"{name} predicts {tuple(prediction.shape)}, which is not {self.spec['classes']} classes in dimension 1"
            )
        self._verified = True


def fits(prediction: object, images: Tensor) -> bool:
    """Return whether a map that a network predicts has the sides of the images, or a multiple of them."""
    space = prediction.shape[2:] if isinstance(prediction, Tensor) else ()
    own = images.shape[2:]
    return len(space) != len(own) or not any(there % here for there, here in zip(space, own, strict=True))


def fitting_sides(network: nn.Module, images: Tensor) -> str:
    """Describe sides near those of the images that a network takes; empty if it takes these, or none of the others."""

    def takes(sides: Sequence[int]) -> bool:
        image = images.new_zeros(1, images.shape[1], *sides)
        try:
            with torch.no_grad():
                output = network(image)
        except Exception as error:  # a foreign network may raise anything
            return isinstance(error, torch.OutOfMemoryError)
        return fits(getattr(output, "prediction", output), image)

    own, training = images.shape[2:], [module for module in network.modules() if module.training]
    network.eval()
    try:
        for multiple in () if takes(own) else MULTIPLES:
            below = tuple(multiple * max(side // multiple, 1) for side in own)
            above = tuple(multiple * math.ceil(side / multiple) for side in own)
            if takes(above) and takes(below):
                examples = " and ".join("x".join(map(str, sides)) for sides in sorted({below, above}))
                return f"multiples of {multiple}, such as {examples}"
        return ""
    finally:
        for module in training:
            module.training = True


def layer_names(network: nn.Module) -> list[str]:
    """Return the names that ``features`` and ``head`` may use, in the order of construction."""
    return [name for name, _ in network.named_modules() if name]


def _no_layer(network: nn.Module, layer: str) -> str:
    names = layer_names(network)
    hint = suggestion(layer, names) or f"; at its top are {', '.join(name for name, _ in network.named_children())}"
    listing = f"`mhfl-peer models --layers` lists all {len(names)}"
    return f"{type(network).__name__} has no layer {layer!r}{hint} ({listing})"


class _Recorded(NamedTuple):
    """A value that a hook recorded, and its version."""

    value: Any
    version: int


@contextmanager
def _recording(
    network: nn.Module, features: Sequence[str], head: str
) -> Iterator[tuple[dict[str, list[_Recorded]], list[_Recorded]]]:
    """Record the layers' outputs and the head's inputs, inside the block and in this thread."""
    thread = threading.get_ident()
    outputs: dict[str, list[_Recorded]] = {layer: [] for layer in (*features, head)}
    head_inputs: list[_Recorded] = []

    def record_output(layer: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if threading.get_ident() == thread:
                outputs[layer].append(_Recorded(result, _version(result)))

        return hook

    def record_head_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            arguments = (*args, *kwargs.values())
            value = arguments[0] if len(arguments) == 1 else arguments
            head_inputs.append(_Recorded(value, _version(value)))

    handles = [network.get_submodule(layer).register_forward_hook(record_output(layer)) for layer in outputs]
    handles.append(network.get_submodule(head).register_forward_pre_hook(record_head_input, with_kwargs=True))
    try:
        yield outputs, head_inputs
    finally:
        for handle in handles:
            handle.remove()


def _check_unchanged(layer: str, records: Sequence[_Recorded], *, is_head: bool = False) -> Tensor:
    """Return the one tensor recorded at this layer (of a head: its input) unless a later layer has overwritten it."""
    if len(records) != 1:
        raise ValueError(
            f"layer {layer!r} ran {len(records)} times in one forward pass; name one that runs exactly once"
        )
    value, version = records[0]
    if not isinstance(value, Tensor):
        raise ValueError(
            f"layer {layer!r} must take and give one tensor, not {type(value).__name__}; name another layer"
        )
    if _version(value) != version and is_head:
        raise ValueError(
            f"head {layer!r} overwrites its own input in place; name the last layer inside it, or set inplace to False"
        )
    if _version(value) != version:
        raise ValueError(
            f"the tensor at layer {layer!r} is overwritten in place later on; name the layer that overwrites it, or "
            "set its inplace to False"
        )
    return value


def _version(value: object) -> int:
    """Return the number of writes to a tensor; PyTorch does not count them for inference tensors."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
