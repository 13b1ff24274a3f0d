r"""FedTGP: as in FedProto, sites send the mean feature of each of their classes, :math:`P_{ic}`. On these, one
prototype of each class, :math:`\hat P_c = g(e_c)`, is trained with a margin that keeps classes apart.

.. math:: L_g = \sum_{i,c} -\log \frac{e^{-(d(P_{ic}, \hat P_c) + \delta)}}
          {e^{-(d(P_{ic}, \hat P_c) + \delta)} + \sum_{c' \ne c} e^{-d(P_{ic}, \hat P_{c'})}},
          \qquad \delta = \min\bigl(\max_{c \ne c'} d(\bar P_c, \bar P_{c'}),\ \tau\bigr)

.. math:: L = \mathrm{CE}(M(x), y) + \lambda\, \mathrm{mean}\, (f - \hat P_y)^2

with d the Euclidean distance, :math:`\bar P_c` the mean of the sites' prototypes of class c, e an embedding, g a
perceptron with one hidden layer, and f a sample's feature.

Source: Zhang et al. 2024 (FedTGP, AAAI, arXiv 2401.03230), unchecked against its code.
Differs: there is no server: every site trains :math:`\hat P` of its own on the prototypes of all, from first weights
of its own, so that those of two sites differ a little. A round trains for a fixed number of steps on all prototypes
at once, with Adam; there, SGD takes 1,000 epochs. The mean over samples and channels of the distance is that of the
samples whose class has a prototype at some site. Features of different widths are averaged over neighbouring channels
to one width, as in FedProto here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peer.methods.fedproto.stages import PROTOTYPES, build_table, check_local, pool, prototypes
from peer.methods.fedproto.table import PrototypeTable
from peer.methods.method import DAM, Batch, BuildContext, Forward, Method, Stage, StageContext, Term, one_step_stage
from peer.methods.supervised import stage_loss

TRAINED = "trained"
"""The name of the network that makes the trained prototypes."""


class TrainedPrototypes(nn.Module):
    """An embedding of each class, and the perceptron that makes its prototype; the result is ``(classes, width)``.

    Attributes:
        known: 1 for each class of which some site had samples when the prototypes were last trained.
    """

    known: Tensor

    def __init__(self, *, classes: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(classes, width))
        self.generator = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.register_buffer("known", torch.zeros(classes))

    def forward(self) -> Tensor:
        prototypes: Tensor = self.generator(self.embedding)
        return prototypes


def train(context: StageContext) -> Stage:
    """Train the local model on the labels, with its features near the trained prototypes of their classes."""
    loss, weight, width = stage_loss(context), float(context.parameters["lambda"]), int(context.parameters["width"])
    known = context.networks[TRAINED].known

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        output = forward(DAM, batch.images)
        with torch.no_grad():
            near = forward(TRAINED).float()[batch.targets]
        drawn = known[batch.targets]
        distances = (pool(output.penultimate.float(), width) - near).square().mean(1)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(output.prediction.float(), batch.targets)),
            "prototype_distance": Term((drawn * distances).sum() / drawn.sum().clamp(min=1), weight),
        }

    return one_step_stage({DAM: context.dam, TRAINED: context.networks[TRAINED]}, (DAM,), losses)


def refine(context: StageContext) -> Stage:
    """Train the prototypes on those of all sites."""
    tables = {context.site: context.networks[PROTOTYPES], **context.received}
    features, classes = gather(tables[site].network for site in sorted(tables))
    trained: TrainedPrototypes = context.networks[TRAINED]
    trained.known.zero_()
    trained.known[classes] = 1.0
    margin = min(separation(features, classes), float(context.parameters["margin_max"]))

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        distances = distance(features[:, None], forward(TRAINED).float())
        distances = distances + margin * F.one_hot(classes, distances.shape[1])
        total = F.cross_entropy(-distances, classes, reduction="sum")
        return {"prototype_contrast": Term(total / max(len(classes), 1))}

    return one_step_stage({TRAINED: trained}, (TRAINED,), losses)


def gather(tables: Iterable[PrototypeTable]) -> tuple[Tensor, Tensor]:
    """Return the prototypes ``(m, width)`` that the tables have, in their order, and their classes ``(m,)``."""
    pairs = [(table.prototypes[table.counts > 0], (table.counts > 0).nonzero()[:, 0]) for table in tables]
    return torch.cat([features for features, _ in pairs]).float(), torch.cat([classes for _, classes in pairs])


def separation(features: Tensor, classes: Tensor) -> float:
    """Return the largest distance between the mean prototypes of two classes; 0 without two."""
    means = [features[classes == number].mean(0) for number in sorted(set(classes.tolist()))]
    return max((float(distance(one, other)) for one, other in itertools.combinations(means, 2)), default=0.0)


def distance(one: Tensor, other: Tensor) -> Tensor:
    """Return the Euclidean distance over the last dimension, whose gradient at 0 is 0."""
    squares = (one - other).square().sum(-1)
    return torch.where(squares > 0, squares, 1.0).sqrt() * (squares > 0)


def build_trained(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the prototypes that are trained, of no class yet."""
    return TrainedPrototypes(classes=context.classes, width=int(context.parameters["width"]))


FEDTGP = Method(
    stages={"train": train, PROTOTYPES: prototypes, "refine": refine},
    local_networks={
        PROTOTYPES: partial(build_table, name="peer.methods.fedtgp.table:ClassMeans"),
        TRAINED: build_trained,
    },
    artifact_network=PROTOTYPES,
    check_local=check_local,
)
