r"""FedProto: a site's features of a class are drawn to that class's prototype, the mean over all sites.

.. math:: L = \mathrm{CE}(M(x), y) + \lambda \sum_{c} \lVert \bar f_c - \bar P_c \rVert^2,
          \qquad \bar P_c = \sum_i n_{ic} P_{ic} \Big/ \sum_i n_{ic}

with :math:`\bar f_c` the mean feature of class c in the batch. After training, a site takes the mean
feature of each of its classes over its training samples, :math:`P_{ic}`, and sends only these.

Source: Tan et al. 2022 (FedProto), unchecked against its code.
Differs: every site averages. :math:`n_{ic}` is 1 for every class that a site has, unless the sites
weigh by samples: the counts reveal the frequency of each class. Features of different widths are
averaged over neighbouring channels to one width, as TsingZ0/HtFLlib does: a learned projection could
make all features equal. Prototypes are taken in evaluation mode, on augmented samples. A class
absent from all sites has no effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
from models import Output
from peer.methods.method import DAM, Batch, BuildContext, Forward, Method, Stage, StageContext, Term, one_step_stage
from peer.methods.supervised import stage_loss

PROTOTYPES = "prototypes"
"""The name of the network that holds the prototypes, and of the stage that computes them."""


def train(context: StageContext) -> Stage:
    """Train the local model on the labels, with its features near the prototypes."""
    loss, weight, width = stage_loss(context), float(context.parameters["lambda"]), int(context.parameters["width"])
    table = context.networks[PROTOTYPES].network

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        output: Output = forward(DAM, batch.images)
        features = pool(output.penultimate.float(), width)
        members = F.one_hot(batch.targets, len(table.counts)).to(features)
        sizes = members.sum(0)
        means = members.T @ features / sizes.clamp(min=1)[:, None]
        drawn = (sizes > 0) & (table.counts > 0)
        distances = (means - table.prototypes).square().sum(1)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(output.prediction.float(), batch.targets)),
            "prototype_distance": Term(torch.where(drawn, distances, 0.0).sum(), weight),
        }

    return one_step_stage({DAM: context.dam, PROTOTYPES: context.networks[PROTOTYPES]}, (DAM,), losses)


def prototypes(context: StageContext) -> Stage:
    """Compute the prototypes of this site's classes; nothing is trained."""
    width, table = int(context.parameters["width"]), context.networks[PROTOTYPES].network
    table.clear()

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            features = pool(forward(DAM, batch.images).penultimate.float(), width)
            table.add(features, batch.targets)
            spread = (features - table.prototypes[batch.targets]).square().sum(1).mean()
        return {"prototype_spread": Term(spread)}

    return one_step_stage({DAM: context.dam, PROTOTYPES: context.networks[PROTOTYPES]}, (), losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return the local model's prediction, or the nearness of the prototypes as logits."""
    output: Output = context.dam(images)
    if context.parameters["predict"] == "model":
        return output.prediction
    nearness: Tensor = context.networks[PROTOTYPES].network(
        pool(output.penultimate.float(), int(context.parameters["width"]))
    )
    return nearness


def pool(features: Tensor, width: int) -> Tensor:
    """Pool features ``(b, c)`` to ``(b, width)``: each is the mean of neighbouring ones."""
    channels = features.shape[1]
    if channels == width:
        return features
    means = F.adaptive_avg_pool1d(torch.eye(channels), width)  # a product of matrices has the same bits on a GPU
    return features @ means.to(features)


def build_table(
    context: BuildContext, networks: Mapping[str, Any], *, name: str = "peer.methods.fedproto.table:PrototypeTable"
) -> nn.Module:
    """Build an empty table of prototypes, as a network that has a spec."""
    spec = {
        "name": name,
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": context.classes,
        "hyper": {"width": int(context.parameters["width"])},
        "head": "nearest",
    }
    return models.build(spec)


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand a feature vector before the head."""
    if own.penultimate.ndim == 2:
        return None
    return f"the model's head takes features of shape {tuple(own.penultimate.shape[1:])}; a prototype is one vector"


FEDPROTO = Method(
    stages={"train": train, PROTOTYPES: prototypes},
    local_networks={PROTOTYPES: build_table},
    artifact_network=PROTOTYPES,
    predict=predict,
    check_local=check_local,
)
