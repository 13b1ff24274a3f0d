"""Features of any network by layer name, so that nobody has to rewrite a network to take part."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.network import Network, Output
from models.spec import suggestion


class Tapped(Network):
    """Any network, with the outputs of named layers as taps and a named last layer as head.

    Source: forward hooks, which PyTorch provides for this.
    Differs: the hooks exist only during a forward pass and see only the thread that runs it. Between passes ``network``
        is as it came: it can be copied, pickled, saved and exported, and its parameters are named as before under
        ``network.``.
    Shapes: ``x (b, in_channels, *space)``; taps as the layers give them; penultimate as the head takes it; prediction
        ``(b, classes)`` or ``(b, classes, *space)``, a tensor or the only one in a list. Bottleneck is penultimate for
        a vector prediction, else the last tap (name the layers of an encoder down to its bottleneck).
    Gradient flow: as in the network; nothing is detached.
    Raises:
        ValueError: a layer does not exist (the message has close ones); in the forward pass: the input does not fit, a
            layer does not run exactly once or gives no tensor, a later layer overwrites it in place, or the prediction
            is not what the head returns or has another number of classes.
    Example:
        >>> network = nn.Sequential(nn.Conv1d(1, 4, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(4, 2))
        >>> model = Tapped(network, features=["0"], head="3", spatial_dims=1, in_channels=1, classes=2)
        >>> output = model(torch.zeros(3, 1, 8))
        >>> output.taps[0].shape, output.penultimate.shape
        (torch.Size([3, 4, 6]), torch.Size([3, 4]))
        >>> torch.equal(model.head(output.penultimate), output.prediction)
        True
    """

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
        self._verified = False

    def forward(self, x: Tensor) -> Output:
        """All of :class:`models.network.Output` for one batch."""
        self.check_input(x)
        features, head = self.spec["features"], self.spec["head"]
        with _recording(self.network, features, head) as (given, taken):
            prediction = self.network(x)
        if isinstance(prediction, list | tuple) and len(prediction) == 1:
            prediction = prediction[0]
        taps = tuple(_intact(layer, given[layer]) for layer in features)
        penultimate = _intact(head, taken)
        if not self._verified:
            self._verify(prediction, given[head][-1].value)
        bottleneck = penultimate if prediction.ndim == 2 or not taps else taps[-1]
        return Output(prediction, taps, bottleneck, penultimate)

    def _verify(self, prediction: object, from_head: object) -> None:
        """That the head comes last and the classes agree: a property of the code, so once is enough."""
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


def layer_names(network: nn.Module) -> list[str]:
    """The names that ``features`` and ``head`` may use, in the order in which the layers were made."""
    return [name for name, _ in network.named_modules() if name]


def _no_layer(network: nn.Module, layer: str) -> str:
    names = layer_names(network)
    hint = suggestion(layer, names) or f"; at its top are {', '.join(name for name, _ in network.named_children())}"
    listing = f"models.layer_names(network) lists all {len(names)}"
    return f"{type(network).__name__} has no layer {layer!r}{hint} ({listing})"


class _Seen(NamedTuple):
    """A value as it was when a hook saw it."""

    value: Any
    version: int


@contextmanager
def _recording(
    network: nn.Module, features: Sequence[str], head: str
) -> Iterator[tuple[dict[str, list[_Seen]], list[_Seen]]]:
    """What each layer gives, and what the head takes, inside the block and in this thread."""
    thread = threading.get_ident()
    given: dict[str, list[_Seen]] = {layer: [] for layer in (*features, head)}
    taken: list[_Seen] = []

    def giving(layer: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], result: Any) -> None:
            if threading.get_ident() == thread:
                given[layer].append(_Seen(result, _version(result)))

        return hook

    def taking(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            arguments = (*args, *kwargs.values())
            value = arguments[0] if len(arguments) == 1 else arguments
            taken.append(_Seen(value, _version(value)))

    handles = [network.get_submodule(layer).register_forward_hook(giving(layer)) for layer in given]
    handles.append(network.get_submodule(head).register_forward_pre_hook(taking, with_kwargs=True))
    try:
        yield given, taken
    finally:
        for handle in handles:
            handle.remove()


def _intact(layer: str, seen: Sequence[_Seen]) -> Tensor:
    """The one tensor that was seen at this layer, if it is still what it was."""
    if len(seen) != 1:
        raise ValueError(f"layer {layer!r} ran {len(seen)} times in one forward pass; name one that runs exactly once")
    value, version = seen[0]
    if not isinstance(value, Tensor):
        raise ValueError(
            f"layer {layer!r} must take and give one tensor, not {type(value).__name__}; name another layer"
        )
    if _version(value) != version:
        raise ValueError(
            f"the tensor at layer {layer!r} is overwritten in place later on; name the layer that overwrites it, for a "
            "head the one after it, or set its inplace to False"
        )
    return value


def _version(value: object) -> int:
    """How often a tensor was written to; inference tensors do not count."""
    return value._version if isinstance(value, Tensor) and not value.is_inference() else 0
