"""What a method declares. It runs no loop, opens no file and logs nothing: that is ``peer.training``'s, for all alike.

A stage of a method is a function from a ``Scene`` (the local model, what came, the parameters) to a ``Stage`` (which
networks run, what steps them, the loss of a batch).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from models import Network, Output

DAM, KTM, VISITOR = "dam", "ktm", "visitor"
"""Names of networks: the local model; FedSKD's received one; another site's model that only passes through."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch on the device.

    ``images`` are ``(b, c, *space)``, ``targets`` are classes ``(b,)``, ``masks`` are regions: ``(r, *space)``, or
    ``(b, r, *space)`` where the images were moved.
    """

    images: Tensor
    targets: Tensor
    masks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One scalar of a loss and its weight; a weight of 0 makes it a number to report that trains nothing."""

    value: Tensor
    weight: float = 1.0


class Forward(Protocol):
    """Runs a network by name, under the stage's precision and with the step's own randomness for that network."""

    def __call__(self, network: str, images: Tensor) -> Output:
        """The network's output for these images."""


@dataclass(frozen=True)
class Stage:
    """A training stage, ready to run.

    Every network is in train mode; one with ``requires_grad`` parameters has an Adam of its own over exactly those.

    Attributes:
        networks: by name, the local one as ``dam``.
        losses: the terms of a batch by name, computed in float32 outside autocast; their weighted sum is minimised.
        summary: further numbers from the stage's mean terms.
    """

    networks: Mapping[str, nn.Module]
    losses: Callable[[Batch, Forward], Mapping[str, Term]]
    summary: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda means: {}


@dataclass(frozen=True)
class Scene:
    """What a stage starts from; ``received`` holds the sources' networks in roster order, loaded, not yet frozen."""

    task: str
    parameters: Mapping[str, Any]
    dam: Network
    received: tuple[Network, ...] = ()


def any_local(output: Output, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """No demands on the local model."""
    return None


def any_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """No demands on a received model."""
    return None


@dataclass(frozen=True)
class Method:
    """A method: its stages under the names of its plan, how it predicts, and what it needs of the networks.

    Attributes:
        stages: by the plan's stage name.
        predict: the prediction of the networks that the site keeps, by name, for images ``(b, c, *space)``.
        unfit: given an output of the local model, the parameters and whether there are region masks: why the method
            cannot work here, or nothing.
        mismatch: given outputs of the local and of a received model for the same image: why the method cannot use
            what came, or nothing.
    """

    stages: Mapping[str, Callable[[Scene], Stage]]
    predict: Callable[[Mapping[str, nn.Module], Tensor], Tensor]
    unfit: Callable[..., str | None] = any_local
    mismatch: Callable[[Output, Output, Mapping[str, Any]], str | None] = any_received
