r"""MH-pFLID: small messengers, alike at all sites, carry what each site learnt; the local model never leaves.

.. math:: L_{inj} = 0.9\,\ell(y^l, y) + 0.1\,\ell(y^m, y), \qquad
          L_{dis} = 0.9\,\ell(y^m, y) + 0.1\,\mathrm{KL}(y^l \Vert y^m)

Injection trains the local model and the receiver, through which the frozen messenger speaks; distillation trains the
messenger and the transmitter on the frozen local model.

Source: MH-pFLID (ICML 2024), eqs. 3 to 11.
Differs: there is no server, every site averages the messengers. Receiver and transmitter have weights of their own and
the transmitter is trained in distillation, as the equations and the ablations say; the authors' code has one module for
both roles (``tie``). For super-resolution the L1 distance stands for the divergence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from losses import distillation_kl, distillation_l1
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
    one_move,
)
from peer.methods.supervised import scene_loss


def inject(context: StageContext) -> Stage:
    """The local model and the receiver learn; the messenger is frozen, its batch statistics too."""
    loss = scene_loss(context)
    weight, warmth = float(context.parameters["injection"]), _warmth(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        local: Output = forward(DAM, batch.images)
        with torch.no_grad():
            carried = forward(MESSENGER, batch.images).penultimate
        received = forward(RECEIVER, carried, local.bottleneck)
        spoken = forward(MESSENGER, received, part=context.networks[MESSENGER].head_name)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(local.prediction.float() / warmth, batch.targets), weight),
            f"{loss.name}_{MESSENGER}": Term(loss.loss(spoken.float() / warmth, batch.targets), 1 - weight),
        }

    return one_move(_networks(context, RECEIVER), (DAM, RECEIVER), losses)


def distill(context: StageContext) -> Stage:
    """The messenger and the transmitter learn; the local model is frozen and a constant."""
    loss = scene_loss(context)
    weight, warmth = float(context.parameters["distillation"]), _warmth(context)
    follow = distillation_l1 if context.task == "super_resolution" else distillation_kl

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            local: Output = forward(DAM, batch.images)
        with _unmoved(context.networks[MESSENGER].head):
            carried = forward(MESSENGER, batch.images).penultimate
        sent = forward(TRANSMITTER, carried, local.bottleneck)
        spoken = forward(MESSENGER, sent, part=context.networks[MESSENGER].head_name)
        return {
            f"{loss.name}_{MESSENGER}": Term(loss.loss(spoken.float() / warmth, batch.targets), weight),
            "distillation": Term(follow(local.prediction, spoken), 1 - weight),
        }

    return one_move(_networks(context, TRANSMITTER), (MESSENGER, TRANSMITTER), losses)


def messenger(place: BuildContext, made: Mapping[str, nn.Module]) -> nn.Module:
    """The network of ``[shared_model]``."""
    return place.make_shared()


def receiver(place: BuildContext, made: Mapping[str, nn.Module]) -> nn.Module:
    """The receiver between the local model's bottleneck and the messenger's."""
    return Receiver(*_widths(place), spatial_dims=_dims(place), form=place.parameters["receiver"])


def transmitter(place: BuildContext, made: Mapping[str, Any]) -> nn.Module:
    """The transmitter; with ``tie`` it is the receiver's weights in the other role."""
    tied = made[RECEIVER] if place.parameters["tie"] else None
    form = place.parameters["transmitter"]
    return Transmitter(*_widths(place), spatial_dims=_dims(place), form=form, tied=tied)


def sent(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """The messenger's state; with ``average`` its body or its head alone, and the other part stays at the site."""
    names, head = list(network.state_dict()), f"{network.head_name}."
    if parameters["average"] == "both":
        return names
    return [name for name in names if name.startswith(head) == (parameters["average"] == "head")]


def unfit(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """A messenger that carries maps cannot be fed with vectors; one module for both roles has one form."""
    if parameters["tie"] and parameters["receiver"] != parameters["transmitter"]:
        return "[method] tie = true is one module for both roles: receiver and transmitter must have the same form"
    if shared is not None and own.bottleneck.ndim < shared.penultimate.ndim:
        return "the messenger carries maps, but the local model's bottleneck is a vector; choose another [shared_model]"
    return None


def _warmth(context: StageContext) -> float:
    """What outputs are divided by in the supervised losses; an image has no temperature."""
    return 1.0 if context.task == "super_resolution" else float(context.parameters["temperature"])


@contextmanager
def _unmoved(head: nn.Module) -> Iterator[None]:
    """A pass whose prediction nobody uses: the head's batch statistics are those of what it is given afterwards."""
    training = head.training
    head.eval()
    try:
        yield
    finally:
        head.train(training)


def _networks(context: StageContext, adapter: str) -> dict[str, Any]:
    return {name: context.networks[name] for name in (DAM, MESSENGER, adapter)}


def _widths(place: BuildContext) -> tuple[int, int]:
    return place.output.bottleneck.shape[1], _carried(place).shape[1]


def _dims(place: BuildContext) -> int:
    """0 where the messenger carries vectors."""
    return _carried(place).ndim - 2


def _carried(place: BuildContext) -> Tensor:
    assert place.shared_output is not None
    return place.shared_output.penultimate


MH_PFLID = Method(
    stages={"inject": inject, "distill": distill},
    keeps={MESSENGER: messenger, RECEIVER: receiver, TRANSMITTER: transmitter},
    sends=MESSENGER,
    sent=sent,
    unfit=unfit,
)
