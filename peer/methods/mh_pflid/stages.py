r"""MH-pFLID: small messengers, alike at all sites, carry each site's knowledge; the local model never leaves.

.. math:: L_{inj} = 0.9\,\ell(y^l, y) + 0.1\,\ell(y^m, y), \qquad
          L_{dis} = 0.9\,\ell(y^m, y) + 0.1\,\mathrm{KL}(y^l \Vert y^m)

Injection trains the local model and the receiver, which feeds the frozen messenger's feature into
the loss. Distillation trains the messenger and the transmitter on the frozen local model.

Source: MH-pFLID (ICML 2024), eqs. 3 to 11.
Differs: there is no server, every site averages the messengers. Receiver and transmitter have
weights of their own and distillation trains the transmitter, as the equations and the ablations
say; the authors' code has one module for both roles (``tie``). For super-resolution the L1 distance
replaces the divergence. ``tokens = "spatial"`` is a second reading of the attention, over positions
of the maps before their means; the messenger that travels is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from losses import distillation_kl
from models import Network, Output
from models.attention import Receiver, Transmitter
from peer.methods.method import (
    DAM,
    MESSENGER,
    RECEIVER,
    TRANSMITTER,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    one_step_stage,
)
from peer.methods.supervised import DISTANCES, class_logits, has_classes, stage_loss


def inject(context: StageContext) -> Stage:
    """Train the local model and the receiver; the messenger is frozen, its batch statistics too."""
    loss = stage_loss(context)
    weight, temperature = float(context.parameters["injection"]), _temperature(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        local: Output = forward(DAM, batch.images)
        with torch.no_grad():
            messenger: Output = forward(MESSENGER, batch.images)
        adapted = forward(RECEIVER, *_features(context, RECEIVER, messenger, local))
        messenger_prediction = forward(MESSENGER, adapted, part=context.networks[MESSENGER].head_name)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(local.prediction.float() / temperature, batch.targets), weight),
            f"{loss.name}_{MESSENGER}": Term(
                loss.loss(messenger_prediction.float() / temperature, batch.targets), 1 - weight
            ),
        }

    return one_step_stage(_networks(context, RECEIVER), (DAM, RECEIVER), losses)


def distill(context: StageContext) -> Stage:
    """Train the messenger and the transmitter; the local model is frozen and a constant."""
    loss = stage_loss(context)
    weight, temperature = float(context.parameters["distillation"]), _temperature(context)
    divergence = distillation_kl if has_classes(context.task) else DISTANCES[context.task][1]
    classes = partial(class_logits, context.task)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            local: Output = forward(DAM, batch.images)
        with _frozen_statistics(context.networks[MESSENGER].head):
            messenger: Output = forward(MESSENGER, batch.images)
        adapted = forward(TRANSMITTER, *_features(context, TRANSMITTER, messenger, local))
        messenger_prediction = forward(MESSENGER, adapted, part=context.networks[MESSENGER].head_name)
        return {
            f"{loss.name}_{MESSENGER}": Term(
                loss.loss(messenger_prediction.float() / temperature, batch.targets), weight
            ),
            "distillation": Term(divergence(classes(local.prediction), classes(messenger_prediction)), 1 - weight),
        }

    return one_step_stage(_networks(context, TRANSMITTER), (MESSENGER, TRANSMITTER), losses)


def build_messenger(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the network of ``[shared_model]``."""
    return context.build_shared()


def build_receiver(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the receiver between the local model's bottleneck and the messenger's."""
    return Receiver(*_widths(context, RECEIVER), **_kind(context, RECEIVER))


def build_transmitter(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the transmitter; with ``tie`` it uses the receiver's weights."""
    tied = networks[RECEIVER] if context.parameters["tie"] else None
    return Transmitter(*_widths(context, TRANSMITTER), **_kind(context, TRANSMITTER), tied=tied)


def artifact_tensors(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names in the messenger's state that the site sends, as ``average`` chooses."""
    names, head = list(network.state_dict()), f"{network.head_name}."
    if parameters["average"] == "both":
        return names
    return [name for name in names if name.startswith(head) == (parameters["average"] == "head")]


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Refuse vectors for a messenger of maps, two forms for one module in both roles, attention over one position."""
    if parameters["tie"] and parameters["receiver"] != parameters["transmitter"]:
        return "[method] tie = true is one module for both roles: receiver and transmitter must have the same form"
    if shared is not None and own.bottleneck.ndim < shared.penultimate.ndim:
        return "the messenger carries maps, but the local model's bottleneck is a vector; choose another [shared_model]"
    if shared is not None and any(_takes_positions(parameters, adapter) for adapter in (RECEIVER, TRANSMITTER)):
        return _problem_of_positions(_before_mean(own, own.bottleneck), shared)
    return None


def _problem_of_positions(own: Tensor, shared: Output) -> str | None:
    """Return why the attention cannot run over the positions of these features, or None."""
    feature = _before_mean(shared, shared.penultimate)
    remedy = 'use larger images, another network, or tokens = "channel"'
    for whose, grid in (("the local model's", own.shape[2:]), ("the messenger's", feature.shape[2:])):
        if grid.numel() < 2:
            return f'[method] tokens = "spatial" needs two positions, but {whose} deepest map has one; {remedy}'
    if feature.shape[1] != shared.penultimate.shape[1]:
        return (
            f'[method] tokens = "spatial": the head takes {shared.penultimate.shape[1]} features, but the messenger '
            f"has a deepest map of {feature.shape[1]} channels; choose another [shared_model]"
        )
    return None


def _temperature(context: StageContext) -> float:
    """Return the divisor of outputs in the supervised losses; 1 for images and numbers."""
    return float(context.parameters["temperature"]) if has_classes(context.task) else 1.0


@contextmanager
def _frozen_statistics(head: nn.Module) -> Iterator[None]:
    """Keep the head's batch statistics during a forward pass whose prediction is not used."""
    training = head.training
    head.eval()
    try:
        yield
    finally:
        head.train(training)


def _networks(context: StageContext, adapter: str) -> dict[str, Any]:
    return {name: context.networks[name] for name in (DAM, MESSENGER, adapter)}


def _takes_positions(parameters: Mapping[str, Any], adapter: str) -> bool:
    """Return whether the receiver or transmitter attends over positions, for which it needs maps."""
    return bool(parameters["tokens"] == "spatial" and parameters[adapter] == "attention")


def _features(
    context: StageContext | BuildContext, adapter: str, messenger: Output, local: Output
) -> tuple[Tensor, Tensor]:
    """Return the messenger's and the local feature for this adapter."""
    if _takes_positions(context.parameters, adapter):
        return _before_mean(messenger, messenger.penultimate), _before_mean(local, local.bottleneck)
    return messenger.penultimate, local.bottleneck


def _before_mean(output: Output, feature: Tensor) -> Tensor:
    """Return the feature if it is a map; otherwise the deepest map, of which it is the mean."""
    return feature if feature.ndim > 2 or not output.taps else output.taps[-1]


def _widths(context: BuildContext, adapter: str) -> tuple[int, int]:
    assert context.shared_output is not None
    messenger, local = _features(context, adapter, context.shared_output, context.output)
    return local.shape[1], messenger.shape[1]


def _kind(context: BuildContext, adapter: str) -> dict[str, Any]:
    """Return the adapter's options: no spatial dimensions if the messenger's feature is a vector."""
    assert context.shared_output is not None
    return {
        "spatial_dims": context.shared_output.penultimate.ndim - 2,
        "form": context.parameters[adapter],
        "tokens": context.parameters["tokens"],
    }


MH_PFLID = Method(
    stages={"inject": inject, "distill": distill},
    local_networks={MESSENGER: build_messenger, RECEIVER: build_receiver, TRANSMITTER: build_transmitter},
    artifact_network=MESSENGER,
    artifact_tensors=artifact_tensors,
    check_local=check_local,
)
