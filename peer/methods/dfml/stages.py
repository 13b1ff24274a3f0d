r"""DFML: all models at a site, own and visiting, learn from its labels and each other; visitors then return.

.. math:: L_i = (1 - \alpha_t)\,\mathrm{CE}'(M_i(x), y)
          + \alpha_t \sum_{j \ne i} \frac{s_j}{\sum_{k \ne i} s_k}\,\mathrm{KL}(q_j \Vert q_i), \qquad
          \alpha_t = \alpha_{min} + (\alpha_{max} - \alpha_{min})\,
          \tfrac12\left(1 - \cos\frac{2\pi(t - 1)}{T_c}\right)

with :math:`s_j` the number of parameters of model j, :math:`T_c` the cycle's rounds, and CE' the
cross-entropy over the classes that the site has.

Source: Khalil et al. 2024 (DFML, arXiv 2402.01863), from its abstract and summaries.
Every rule is a reading, unchecked against the paper's text and code.
Differs: every site receives and sends in every round, along FedVisit's orders; in DFML a round has
one receiver. A returned copy replaces the model that stayed, as there: several are averaged, and
without any the model that stayed is kept. The cycle is a cosine. The re-weighted softmax leaves
absent classes out and weighs the others alike. Teachers are constants. A site alone learns from
its labels with weight 1.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from losses import forward_kl
from models import Network
from peer.methods.method import (
    DAM,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    one_step_stage,
    visitor_name,
)
from peer.methods.supervised import class_logits, stage_loss

PEAK = "peak"
"""The local model's state after the last round with the largest weight."""
LEAST = -1e9
"""The logit of an absent class."""


class PeakModel(nn.Module):
    """A copy of the local model, and whether it was taken."""

    taken: Tensor

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = copy.deepcopy(network).cpu()
        self.register_buffer("taken", torch.zeros((), dtype=torch.bool))

    def take(self, network: Network) -> None:
        """Copy the state of the network."""
        self.network.load_state_dict(network.state_dict())
        self.taken.fill_(True)


def train(context: StageContext) -> Stage:
    """Train all models at this site on the labels and on each other's predictions."""
    parameters, loss = context.parameters, stage_loss(context)
    if context.round > 1 and is_peak(context.round - 1, parameters):
        context.networks[PEAK].take(context.dam)
    models = {DAM: context.dam, **{visitor_name(origin): each for origin, each in context.received.items()}}
    alpha = weight(context.round, parameters) if context.received else 0.0
    sizes = {name: sum(parameter.numel() for parameter in each.parameters()) for name, each in models.items()}
    present = sorted(context.classes_present) if parameters["absent_classes"] == "left_out" else []

    classes = partial(class_logits, context.task)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        predictions = {name: forward(name, batch.images).prediction.float() for name in models}
        terms = {}
        for name, prediction in predictions.items():
            supervised = loss.loss(leave_out(prediction, present), batch.targets)
            terms[f"{loss.name}_{name}"] = Term(supervised, 1 - alpha)
            others = [other for other in models if other != name]
            total = sum(sizes[other] for other in others)
            for other in others:
                divergence = forward_kl(classes(predictions[other]), classes(prediction))
                terms[f"kl_{name}_from_{other}"] = Term(divergence, alpha * sizes[other] / total)
        return terms

    return one_step_stage(models, tuple(models), losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return the prediction of the local model, or of the one of the last peak."""
    prediction: Tensor = chosen_network(context.networks, context.parameters)(images).prediction
    return prediction


def chosen_network(networks: Mapping[str, Any], parameters: Mapping[str, Any]) -> Network:
    """Return the network that predicts."""
    peak: PeakModel = networks[PEAK]
    chosen: Network = peak.network if parameters["predict"] == "peak" and bool(peak.taken) else networks[DAM]
    return chosen


def weight(round: int, parameters: Mapping[str, Any]) -> float:
    """Compute the weight of learning from the other models in a round."""
    least, most = float(parameters["alpha_min"]), float(parameters["alpha_max"])
    return least + (most - least) * (1 - math.cos(2 * math.pi * (round - 1) / int(parameters["cycle"]))) / 2


def is_peak(round: int, parameters: Mapping[str, Any]) -> bool:
    """Return whether no round of the cycle has a larger weight; of two such rounds, the first."""
    cycle = int(parameters["cycle"])
    return (round - 1) % cycle == cycle // 2


def leave_out(prediction: Tensor, present: list[int]) -> Tensor:
    """Mask the logits of absent classes, if the present ones are known."""
    if not present:
        return prediction
    kept = torch.zeros(prediction.shape[1], dtype=torch.bool, device=prediction.device)
    kept[present] = True
    return torch.where(kept.view(1, -1, *(1 for _ in prediction.shape[2:])), prediction, LEAST)


def build_peak(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the copy of the local model."""
    return PeakModel(networks[DAM])


DFML = Method(
    stages={"train": train},
    local_networks={PEAK: build_peak},
    predict=predict,
    one_network=chosen_network,
)
