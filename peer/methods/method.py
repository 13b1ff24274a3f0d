"""The declaration of a method. It runs no loop, opens no file and logs nothing: ``peer.train`` does.

A stage of a method is a function from a ``StageContext`` (the site's networks, the received ones,
the parameters) to a ``Stage`` (the networks that run, the optimiser steps on a batch, the losses).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from models import Network, Output
from peer.core.columns import TableColumn
from peer.core.plan import Plan
from peer.core.targets import CLASS, Label, Target

DAM, KTM, VISITOR = "dam", "ktm", "visitor"
"""Names of networks: the local model; FedSKD's received one; another site's visiting model."""


def visitor_name(origin: str) -> str:
    """Return a stage's name of the visiting model of this site."""
    return f"{VISITOR}-{origin}"


PROXY, MESSENGER, RECEIVER, TRANSMITTER, MIXTURE = "proxy", "messenger", "receiver", "transmitter", "mixture"
"""Names of the local networks beside the local model, by method."""

GLOBAL, TWIN, HEAD = "global", "twin", "head"
"""The averaged or the visiting model beside a personal one; the local model's head if it trains alone."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One minibatch on the device.

    ``images`` are ``(b, c, *space)``; ``targets`` are classes ``(b,)``, label maps ``(b, *space)``
    or images ``(b, c, *space)``; ``masks`` are regions: ``(r, *space)``, or ``(b, r, *space)``
    where the augmentation moved the images.
    """

    images: Tensor
    targets: Tensor
    masks: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One scalar of a loss and its weight; a term of weight 0 is reported and trains nothing."""

    value: Tensor
    weight: float = 1.0


Samples = Iterable[tuple[Tensor, Tensor]]
"""Images and targets, as in a batch."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the datalist says of one sample: the person, the values of a table's row, and the label.

    A number of the row is in its unit, a level its position, a flag 0 or 1, a missing value NaN.
    """

    person: str
    row: tuple[float, ...]
    label: Label | None


class Forward(Protocol):
    """Runs a network by name, under the stage's precision and with the step's own randomness for that network."""

    def __call__(self, network: str, *inputs: Any, part: str = "") -> Any:
        """Return the output of the network, or of its submodule ``part``, for these inputs."""


class NoiseOnSums(Protocol):
    """The noise that a site of a private federation adds to sums over its people.

    Attributes:
        bound: the L2 norm by which one person changes the sums at most, the plan's ``sensitivity``.
        multiplier: the standard deviation of the noise, in units of the bound.
    """

    @property
    def bound(self) -> float: ...

    @property
    def multiplier(self) -> float: ...

    def draw(self, sums: Sequence[Tensor], scales: Sequence[Tensor]) -> list[Tensor]:
        """Return for integer sums, int64, integers of normal distributions with these standard deviations.

        The scales have the sums' shapes. Equal sums of one stage have equal noise.
        """


Losses = Callable[[Batch, Forward], Mapping[str, Term]]
"""The terms of a batch by name, in float32; the loop minimises their weighted sum."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the optimisers of ``trains``: those networks are in train mode, all others are frozen.

    A frozen network is in evaluation mode, its parameters have no gradient and no optimiser.
    Gradients do pass through it to its inputs. A step that trains no network only measures.
    ``after_backward`` may change the gradients before the optimisers use them.
    """

    trains: tuple[str, ...]
    losses: Losses
    after_backward: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Stage:
    """A training stage, ready to run.

    Each network that a step trains has an Adam of its own over those of its parameters that require
    a gradient.

    Attributes:
        networks: by name, the local one as ``dam``.
        passes: each iterates over all batches, with these optimiser steps on every batch, in order.
        divides: each pass has an equal share of the batches instead of all; the first ones have one
            more if the shares are not whole.
        summary: further numbers from the stage's mean terms.
    """

    networks: Mapping[str, nn.Module]
    passes: tuple[tuple[Step, ...], ...]
    divides: bool = False
    summary: Callable[[Mapping[str, float]], Mapping[str, float]] = lambda means: {}

    @property
    def trains(self) -> tuple[str, ...]:
        """Every network that some step trains."""
        return tuple(dict.fromkeys(name for steps in self.passes for step in steps for name in step.trains))


def one_step_stage(networks: Mapping[str, nn.Module], trains: tuple[str, ...], losses: Losses, **summary: Any) -> Stage:
    """Build a stage of one pass with one optimiser step a batch."""
    return Stage(networks, ((Step(trains, losses),),), **summary)


@dataclass(frozen=True, slots=True)
class BuildContext:
    """The inputs from which a method builds its networks for one site.

    Attributes:
        site: this site's name.
        task: the task's kind.
        spatial_dims: of the images.
        in_channels: of the images.
        classes: of the predictions.
        parameters: the method's.
        output: the local model's, for one image of zeros; the networks must fit its shapes.
        shared_output: that of the network of ``[shared_model]``, or none without that table.
        sites: the roster.
        public_images: returns the images ``(n, c, *space)`` of the public set.
        build_shared: builds that network, with weights from torch's global generator.
        columns: of the table that the sites have agreed on, if samples are its rows.
        target: what the federation predicts of a sample.
        class_names: of the classes, as far as the sites have agreed on them.
        noised: whether what leaves has noise.
        noise_multiplier: of sums with noise: see ``NoiseOnSums``.
    """

    site: str
    task: str
    classes: int
    parameters: Mapping[str, Any]
    output: Output
    shared_output: Output | None
    build_shared: Callable[[], Network]
    spatial_dims: int = 1
    in_channels: int = 1
    sites: tuple[str, ...] = ()
    public_images: Callable[[], Tensor] = lambda: torch.empty(0)
    columns: tuple[TableColumn, ...] = ()
    target: Target = CLASS
    class_names: tuple[str, ...] = ()
    noised: bool = False
    noise_multiplier: float = 0.0


@dataclass(frozen=True, slots=True)
class Supervision:
    """What ``[training]`` sets of the cross-entropy with own labels.

    Attributes:
        class_weights: one number for each class; none where all weigh the same.
        label_smoothing: the share of a label's weight that is spread over all classes, in [0, 1).
    """

    class_weights: tuple[float, ...] = ()
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class StageContext:
    """The inputs of a stage or a prediction.

    Attributes:
        site: this site's name.
        task: the task's kind.
        parameters: the method's.
        networks: the local model as ``dam``, and the method's ``local_networks``.
        received: the sources' networks by origin in roster order, loaded, not yet frozen.
        round: of the stage; 0 in a prediction.
        classes_present: the classes of the site's training samples; none in a prediction.
        seed_torch: seeds torch's global generator before a stage builds layers; the arguments name
            the purpose.
        supervision: of the cross-entropy with own labels; without effect in a prediction.
        samples: yields the training samples once, in order and as prepared, without augmentation, as images
            ``(1, c, *space)`` and targets on the CPU; none in a prediction.
        validation_samples: the same of the validation samples.
        people: yields for each person of the training samples those of this person, like ``samples``.
        records: returns what the datalist says of every readable sample: training, validation and test.
        target: what the federation predicts of a sample.
        count_min: no count of fewer people may leave the site.
        noise: of the sums that leave a private federation's site; ``None`` elsewhere.
    """

    site: str
    task: str
    parameters: Mapping[str, Any]
    networks: Mapping[str, Any]
    received: Mapping[str, nn.Module]
    seed_torch: Callable[..., object] = lambda *purpose: None
    round: int = 0
    classes_present: Collection[int] = ()
    supervision: Supervision = Supervision()
    samples: Callable[[], Samples] = tuple
    validation_samples: Callable[[], Samples] = tuple
    people: Callable[[], Iterable[Samples]] = tuple
    records: Callable[[], Sequence[Record]] = tuple
    target: Target = CLASS
    count_min: int = 1
    noise: NoiseOnSums | None = None

    @property
    def dam(self) -> Network:
        """The local model."""
        dam: Network = self.networks[DAM]
        return dam


def build_shared_network(context: BuildContext, networks: Mapping[str, Any]) -> Network:
    """Build the network of ``[shared_model]``."""
    return context.build_shared()


def accept_any_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Accept any networks of the site."""
    return None


def accept_any_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """Accept any received network."""
    return None


def accept_any_state(state: Mapping[str, Tensor], network: Network, sites: int = 1) -> str | None:
    """Accept any state that has the right form."""
    return None


def all_tensors(network: nn.Module, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of every parameter and buffer."""
    return list(network.state_dict())


def head_tensors(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of the head's parameters and buffers."""
    return [name for name in network.state_dict() if name.startswith(f"{network.head_name}.")]


def predict_locally(context: StageContext, images: Tensor) -> Tensor:
    """Return the local model's prediction."""
    prediction: Tensor = context.dam(images).prediction
    return prediction


@dataclass(frozen=True, slots=True)
class AveragedNetwork:
    """A local network that a site sends whole beside its head; receivers average it with their own.

    Attributes:
        name: of the network; its tensors' names in the artifact begin with it.
        build_received: builds the network that another site sends, given this site's build context,
            the other site's name, its head and the names of the network's state; raises
            ``ValueError`` with the reason if it cannot.
        join: joins a head and the network received with it in one module.
    """

    name: str
    build_received: Callable[[BuildContext, str, nn.Module, Collection[str]], nn.Module]
    join: Callable[[nn.Module, Any], nn.Module]


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part of the artifact that receivers keep for each site; they average the rest.

    Attributes:
        prefix: given the network whose state is the artifact, returns how the names of the part's tensors begin.
        keep: puts the other contributors' parts into the site's networks; its arguments are these networks, the own
            part as it was sent, empty if it was not, the others' by site, all without that prefix, and the parameters.
        bounded: whether the federation's bounds hold for the parts; a part beyond them is not kept.
    """

    prefix: Callable[[Network], str]
    keep: Callable[
        [Mapping[str, Any], Mapping[str, Tensor], Mapping[str, Mapping[str, Tensor]], Mapping[str, Any]], None
    ]
    bounded: bool = False


@dataclass(frozen=True)
class Method:
    """A method: the stages that its plan names, a site's networks and artifacts, and the prediction.

    Attributes:
        stages: by the plan's stage name.
        local_networks: builds each network that a site has beside its local model, by name, given
            the networks built before it.
        artifact_network: the name of the local network whose state is the artifact.
        artifact_tensors: the names in that network's state that the site sends, and averages where
            the plan averages.
        averaged_with_head: the network that travels with the head, or none.
        sent_beside: the names of the local networks whose states travel with that of
            ``artifact_network`` and are averaged like it; each has the same tensors at all sites.
        kept: the part of all that which is not averaged, but kept by site, or none.
        predict: the prediction for images ``(b, c, *space)``; every network is in evaluation mode.
        one_network: for an export, builds from the site's networks and the parameters the one network
            that predicts as ``predict`` does; none if that is the local model, or takes several.
        check_local: given outputs of the local and of the shared model, the parameters and whether
            there are region masks, returns why the method cannot work here, or None.
        check_received: given outputs of the local and of the received model (of a received head:
            for a feature of zeros) and the parameters, returns why the method cannot use it, or None.
        check_state: given a received state and this site's network of that form, returns why the state must not
            enter the aggregate, or None. Of tables of sums, it also gets the total, and as a third argument of how many
            sites it is.
        bounded: whether the federation's bounds hold for the aggregate; not where honest states may be equal, or of
            any size.
        describe_aggregate: of a method without a model, returns from the site's networks what the aggregate says.
    """

    stages: Mapping[str, Callable[[StageContext], Stage]]
    local_networks: Mapping[str, Callable[[BuildContext, Mapping[str, Any]], nn.Module]] = field(default_factory=dict)
    artifact_network: str = DAM
    artifact_tensors: Callable[[Network, Mapping[str, Any]], Collection[str]] = all_tensors
    averaged_with_head: AveragedNetwork | None = None
    sent_beside: tuple[str, ...] = ()
    kept: KeptPart | None = None
    predict: Callable[[StageContext, Tensor], Tensor] = predict_locally
    one_network: Callable[[Mapping[str, Any], Mapping[str, Any]], Network] | None = None
    check_local: Callable[..., str | None] = accept_any_local
    check_received: Callable[[Output, Output, Mapping[str, Any]], str | None] = accept_any_received
    check_state: Callable[..., str | None] = accept_any_state
    bounded: bool = True
    describe_aggregate: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.sent_beside, str):  # by a package of version 0.3.0, which has one at most
            object.__setattr__(self, "sent_beside", (self.sent_beside,))

    @property
    def sends(self) -> set[str]:
        """The names of the networks whose states are in the artifact, whole or in part."""
        beside = () if self.averaged_with_head is None else (self.averaged_with_head.name,)
        return {self.artifact_network, *self.sent_beside, *beside}

    @classmethod
    def of(cls, plan: Plan) -> Method:
        """Import the implementation that a plan names.

        Raises:
            ValueError: there is none with the plan's stages, or it sends a network that the plan's ``travels`` lacks.
        """
        module, _, name = plan.implementation.partition(":")
        method = getattr(importlib.import_module(module), name, None)
        if not isinstance(method, cls) or method.stages.keys() != plan.stages.keys():
            raise ValueError(f"{plan.implementation} is no Method with the plan's stages {', '.join(plan.stages)}")
        if plan.learning and (undeclared := method.sends - set(plan.travels)):
            raise ValueError(f"{plan.implementation} sends {min(undeclared)!r}, which the plan's travels does not name")
        return method
