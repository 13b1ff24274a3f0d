r"""Server-free FedAvg, FedProx, FedBN, LG-FedAvg: every site trains its model and averages all artifacts.

.. math:: L = \ell(M(x), y) + \frac{\mu}{2}\,\lVert\theta - \theta^{t-1}\rVert^2

with :math:`\theta^{t-1}` the mean that the round began with; :math:`\mu = 0` is FedAvg.

LG-FedAvg sends and averages only heads, and so may have another body at every site. dFLMoE's table 9
also averages heads in place of its mixture ("aggregated head").

Source: McMahan et al. 2017 (FedAvg), Li et al. 2020 (FedProx), Li et al. 2021 (FedBN), Liang et al.
2020 (LG-FedAvg).
Differs: there is no server: every site averages, by default with equal weights. In LG-FedAvg, body
and head share an Adam, which begins anew in each round. FedBN's paper keeps batch norms at home; here
every normalisation layer stays, so that group and layer norms keep their weights and biases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from models import Network
from peer.methods.method import DAM, Batch, Forward, Method, Stage, StageContext, Term, head_tensors, one_step_stage
from peer.methods.supervised import stage_loss, supervised_stage

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
"""The types of normalisation layers; in most networks their names do not reveal them."""


def train(context: StageContext) -> Stage:
    """Train the local model on the site's own labels."""
    return supervised_stage(context, DAM, context.dam)


def train_near(context: StageContext) -> Stage:
    """Train on the labels, with a pull towards the mean that the round began with."""
    loss = stage_loss(context)
    mu = float(context.parameters["mu"])
    anchor = {name: parameter.detach().clone() for name, parameter in context.dam.named_parameters()}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(DAM, batch.images).prediction
        terms = {f"{loss.name}_{DAM}": Term(loss.loss(prediction.float(), batch.targets))}
        return terms | {"proximal": Term(squared_distance(context.dam, anchor), mu / 2)}

    return one_step_stage({DAM: context.dam}, (DAM,), losses)


def all_but_norms(network: nn.Module, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of the state without those of normalisation layers."""
    norms = tuple(f"{name}." for name, module in network.named_modules() if isinstance(module, NORMS))
    return [name for name in network.state_dict() if not name.startswith(norms)]


def squared_distance(network: Network, anchor: dict[str, Tensor]) -> Tensor:
    """Compute the squared distance to the anchor, whose tensors move to the network's device."""
    gaps = []
    for name, parameter in network.named_parameters():
        anchor[name] = anchor[name].to(parameter.device)
        gaps.append((parameter - anchor[name]).square().sum())
    return torch.stack(gaps).sum()


FEDAVG = Method(stages={"train": train})
FEDPROX = Method(stages={"train": train_near})
FEDBN = Method(stages={"train": train}, artifact_tensors=all_but_norms)
LG_FEDAVG = Method(stages={"train": train}, artifact_tensors=head_tensors)
