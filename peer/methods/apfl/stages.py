r"""APFL: on the same batches, every site trains the global model :math:`w` as in FedAvg, and a
personal model :math:`v` through the mixture with which it predicts.

.. math:: \bar v = \alpha\,v + (1 - \alpha)\,w, \qquad L_w = \ell(w(x), y), \qquad
          L_v = \ell(\bar v(x), y), \qquad
          \frac{\partial L_v}{\partial \alpha} = \langle \nabla \ell(\bar v), v - w \rangle

Parameters are mixed; :math:`\bar v` uses the personal model's buffers. In :math:`L_v`, :math:`w` is a
constant.

Source: Deng et al. 2020 (APFL), algorithm 1.
Differs: there is no server: every site averages, by default with equal weights. All steps are
Adam's, and :math:`\alpha` takes one a batch; it stays within 0 and 1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from models import Network, Output
from peer.methods.method import (
    DAM,
    GLOBAL,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    build_shared_network,
    one_step_stage,
)
from peer.methods.supervised import stage_loss

MIXED, SHARE = "mixed", "share"
"""The mixture as a network in a stage; and the personal model's share in it."""


class MixtureShare(nn.Module):
    """The share of the personal model; a parameter if it is learned."""

    def __init__(self, alpha: float, *, learned: bool) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha), requires_grad=learned)


class MixedModel(nn.Module):
    """Two networks of one architecture that run as one with mixed parameters.

    Gradients flow into the personal network and the share, not into the other one. No submodule is
    registered: the stage holds all three as separate networks.
    """

    def __init__(self, personal: Network, other: nn.Module, share: MixtureShare) -> None:
        super().__init__()
        self._parts = (personal, other, share)

    def forward(self, x: Tensor) -> Output:
        personal, other, share = self._parts
        with torch.no_grad():
            share.alpha.clamp_(0, 1)
        alpha, others = share.alpha, dict(other.named_parameters())
        mixed = {
            name: alpha * parameter + (1 - alpha) * others[name].detach()
            for name, parameter in personal.named_parameters()
        }
        output: Output = functional_call(personal, mixed, (x,))
        return output


def train(context: StageContext) -> Stage:
    """Train the global model, and the personal one and its share through the mixture."""
    loss, networks = stage_loss(context), {name: context.networks[name] for name in (DAM, GLOBAL, SHARE)}
    alpha = networks[SHARE].alpha

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        terms = {
            f"{loss.name}_{name}": Term(loss.loss(forward(name, batch.images).prediction.float(), batch.targets))
            for name in (MIXED, GLOBAL)
        }
        return terms | {"alpha": Term(alpha.detach().clone(), 0.0)}

    return one_step_stage({**networks, MIXED: _mix(context)}, (DAM, GLOBAL, SHARE), losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return the mixture's prediction."""
    prediction: Tensor = _mix(context)(images).prediction
    return prediction


def mixed_network(networks: Mapping[str, Any], parameters: Mapping[str, Any]) -> Network:
    """Build the mixture as a separate network."""
    mixed: Network = copy.deepcopy(networks[DAM])
    others, alpha = dict(networks[GLOBAL].named_parameters()), networks[SHARE].alpha.clamp(0, 1)
    with torch.no_grad():
        for name, parameter in mixed.named_parameters():
            parameter.copy_(alpha * parameter + (1 - alpha) * others[name])
    return mixed


def build_share(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the share at its initial value."""
    return MixtureShare(float(context.parameters["alpha"]), learned=bool(context.parameters["adaptive"]))


def _mix(context: StageContext) -> MixedModel:
    return MixedModel(context.dam, context.networks[GLOBAL], context.networks[SHARE])


APFL = Method(
    stages={"train": train},
    local_networks={GLOBAL: build_shared_network, SHARE: build_share},
    artifact_network=GLOBAL,
    predict=predict,
    one_network=mixed_network,
)
