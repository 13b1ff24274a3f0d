"""What a method declares. It runs no loop, opens no file and logs nothing: that is ``peer.training``'s, for all alike.

A stage of a method is a function from a ``StageContext`` (the site's networks, what came, the parameters) to a
``Stage`` (which networks run, what steps them, the losses of a batch).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from models import Network, Output
from peer.core.plan import Plan

DAM, KTM, VISITOR = "dam", "ktm", "visitor"
"""Names of networks: the local model; FedSKD's received one; another site's model that only passes through."""

PROXY, MESSENGER, RECEIVER, TRANSMITTER, MIXTURE = "proxy", "messenger", "receiver", "transmitter", "mixture"
"""Names of what a site keeps beside its local model, by method."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch on the device.

    ``images`` are ``(b, c, *space)``; ``targets`` are classes ``(b,)``, label maps ``(b, *space)`` or images
    ``(b, c, *space)``; ``masks`` are regions: ``(r, *space)``, or ``(b, r, *space)`` where the images were moved.
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

    def __call__(self, network: str, *inputs: Any, part: str = "") -> Any:
        """The output of the network, or of its submodule ``part``, for these inputs."""


Losses = Callable[[Batch, Forward], Mapping[str, Term]]
"""The terms of a batch by name, computed in float32 outside autocast; their weighted sum is minimised."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the optimisers of ``trains``: those networks are in train mode, all others are frozen.

    Frozen is: evaluation mode, no gradient to its parameters, no optimiser. Gradients do pass through to its inputs.
    A move that trains none only measures.
    """

    trains: tuple[str, ...]
    losses: Losses


@dataclass(frozen=True)
class Stage:
    """A training stage, ready to run.

    Each network that a move trains has an Adam of its own over those of its parameters that require a gradient.

    Attributes:
        networks: by name, the local one as ``dam``.
        passes: what is done with each batch, in order; the batches are gone through once for each pass.
        summary: further numbers from the stage's mean terms.
    """

    networks: Mapping[str, nn.Module]
    passes: tuple[tuple[Step, ...], ...]
    summary: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda means: {}

    @property
    def trains(self) -> tuple[str, ...]:
        """Every network that some move trains."""
        return tuple(dict.fromkeys(name for moves in self.passes for move in moves for name in move.trains))


def one_move(networks: Mapping[str, nn.Module], trains: tuple[str, ...], losses: Losses, **summary: Any) -> Stage:
    """A stage of one pass with one step a batch."""
    return Stage(networks, ((Step(trains, losses),),), **summary)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Where the networks that a method keeps are made.

    Attributes:
        site: this site's name.
        task: the task's kind.
        classes: of the predictions.
        parameters: the method's.
        output: the local model's, for one image of zeros: its shapes are what the others must fit.
        shared_output: that of the network of ``[shared_model]``, where there is one.
        make_shared: makes that network, with weights from torch's global generator.
    """

    site: str
    task: str
    classes: int
    parameters: Mapping[str, Any]
    output: Output
    shared_output: Output | None
    make_shared: Callable[[], Network]


@dataclass(frozen=True)
class StageContext:
    """What a stage or a prediction starts from.

    Attributes:
        site: this site's name.
        task: the task's kind.
        parameters: the method's.
        networks: what the site keeps: the local model as ``dam``, and what the method's ``keeps`` made.
        received: the sources' networks by origin in roster order, loaded, not yet frozen.
        seeded: gives torch's global generator the seed for something that is made on the way, by what it is for.
    """

    site: str
    task: str
    parameters: Mapping[str, Any]
    networks: Mapping[str, Any]
    received: Mapping[str, nn.Module]
    seeded: Callable[..., None] = lambda *purpose: None

    @property
    def dam(self) -> Network:
        """The local model."""
        dam: Network = self.networks[DAM]
        return dam


def any_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """No demands on the networks."""
    return None


def any_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """No demands on what came."""
    return None


def whole(network: nn.Module, parameters: Mapping[str, Any]) -> list[str]:
    """Every parameter and buffer."""
    return list(network.state_dict())


def head(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """The head's parameters and buffers."""
    return [name for name in network.state_dict() if name.startswith(f"{network.head_name}.")]


def predict_locally(context: StageContext, images: Tensor) -> Tensor:
    """The local model's prediction."""
    prediction: Tensor = context.dam(images).prediction
    return prediction


@dataclass(frozen=True, slots=True)
class Companion:
    """A kept network that a site sends whole beside its head, for receivers to average with their own.

    Attributes:
        name: of the network, and what its tensors' names in the artifact begin with.
        theirs: makes the one that another site sends, given the place here, that site's name, its head and the names of
            its state; ``ValueError`` says why there can be none.
        join: makes one module of a head and the network that came with it.
    """

    name: str
    theirs: Callable[[BuildContext, str, nn.Module, Collection[str]], nn.Module]
    join: Callable[[nn.Module, Any], nn.Module]


@dataclass(frozen=True)
class Method:
    """A method: its stages under the names of its plan, what a site keeps and sends, and how it predicts.

    Attributes:
        stages: by the plan's stage name.
        keeps: how each network that a site keeps beside its local model is made, by name; a maker is given those
            made before it.
        sends: the name of the kept network whose state is the artifact.
        sent: the names in that network's state that are sent (and averaged where the plan averages).
        companion: what goes with the head, if anything does.
        predict: the prediction for images ``(b, c, *space)``; every network is in evaluation mode.
        unfit: given outputs of the local and of the shared model, the parameters and whether there are region masks:
            why the method cannot work here, or nothing.
        mismatch: given outputs of the local model and of what came (of a head: for a feature of zeros): why the method
            cannot use it, or nothing.
    """

    stages: Mapping[str, Callable[[StageContext], Stage]]
    keeps: Mapping[str, Callable[[BuildContext, Mapping[str, Any]], nn.Module]] = field(default_factory=dict)
    sends: str = DAM
    sent: Callable[[Network, Mapping[str, Any]], Collection[str]] = whole
    companion: Companion | None = None
    predict: Callable[[StageContext, Tensor], Tensor] = predict_locally
    unfit: Callable[..., str | None] = any_local
    mismatch: Callable[[Output, Output, Mapping[str, Any]], str | None] = any_received

    @classmethod
    def of(cls, plan: Plan) -> Method:
        """The method that a plan names as its implementation; ``ValueError`` where there is none with its stages."""
        module, _, name = plan.implementation.partition(":")
        method = getattr(importlib.import_module(module), name, None)
        if not isinstance(method, cls) or method.stages.keys() != plan.stages.keys():
            raise ValueError(f"{plan.implementation} is no Method with the plan's stages {', '.join(plan.stages)}")
        return method
