r"""FedVisit, reciprocal visits: a model that visited other sites returns and is averaged with the one that stayed.

In each round a copy of every site's model visits ``visits`` other sites. A host trains its own model
(DAM) throughout the round, and beside it each visitor for a share of the steps. Both learn from the
labels and from each other's predictions, which are constants as teachers:

.. math:: L = \mathrm{CE}(M_i(x), y) + \mathrm{CE}(\tilde M_j(x), y)
          + k \tau^2 \left[\mathrm{KL}\!\left(\tilde q_j \Vert q_i\right)
          + \mathrm{KL}\!\left(q_i \Vert \tilde q_j\right)\right] + \gamma\,L_{SKD}

with :math:`q = \mathrm{softmax}(M(x) / \tau)`. The owner then averages its DAM and the copies that
returned, all of one architecture and one starting point.

Source: of this project. The nearest published method is DFML (Khalil et al. 2024, arXiv
2402.01863): there models are sent to a receiver, learn mutually by logits on its data, and return.
Differs: in DFML, no model trains at home while a copy of it is away, and the returned one replaces
it; here the owner averages both. DFML gathers several models at one receiver at a time and varies
the distillation's weight cyclically; here each site hosts as many models as it sends copies, one at
a time, under one weight. The form of a visit, :math:`L_{SKD}` and the frozen header are FedSKD's
(arXiv 2503.18981), whose visitor is discarded.

``fedvisit_twin`` has a twin of the local model in place of :math:`M_i`: the twin travels, visits and is averaged. The
local model :math:`P_i` stays, and learns from the labels, the twin and the visitor; neither learns from it:

.. math:: L_P = \mathrm{CE}(P_i(x), y) + k_P \tau^2 \left[\mathrm{KL}\!\left(q_i \Vert p_i\right)
          + \mathrm{KL}\!\left(\tilde q_j \Vert p_i\right)\right]

The visitor's Adam ends with the visit; the local one keeps its moments from round to round, through
the average. Without class distributions, the mean absolute difference of images (super-resolution), or the mean
squared difference of numbers, takes the place of the divergence.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from losses import forward_kl
from models import Network, Output
from peer.methods.fedskd import stages as fedskd
from peer.methods.method import (
    DAM,
    TWIN,
    VISITOR,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Step,
    Term,
    visitor_name,
)
from peer.methods.supervised import DISTANCES, class_logits, has_classes, stage_loss, supervised_stage

COMPARED = {
    "terms": ("batch", "position", "region"),
    "taps": (1, 2, 3, 4),
    "position_form": "auto",
    "accumulate": "float32",
}
"""Settings of the similarity distillation: the defaults of FedSKD's parameters."""


def train(context: StageContext) -> Stage:
    """Train the local model throughout, and each visitor for its share of the steps."""
    if not context.received:
        return supervised_stage(context, DAM, context.dam)
    networks: dict[str, Any] = {DAM: context.dam}
    passes = []
    for origin, visitor in context.received.items():
        _fix_header(visitor, context.parameters["header"])
        name = visitor_name(origin)
        networks[name] = visitor
        passes.append((Step((DAM, name), _losses(context, name)),))
    return Stage(networks, tuple(passes), divides=True)


def _fix_header(visitor: Any, trained: str) -> None:
    """Exempt from training what the parameter ``header`` says: nothing, the header's biases, or all of it.

    The bias's change in a visit follows the host's shares of the classes: cross-entropy moves it by their difference
    from the predicted ones.
    """
    if trained == "open":
        return
    for name, parameter in visitor.head.named_parameters():
        if trained == "frozen" or name.rpartition(".")[2] == "bias":
            parameter.requires_grad_(False)


def _losses(context: StageContext, name: str) -> Callable[[Batch, Forward], Mapping[str, Term]]:
    """Build the losses of the steps that the visitor of this name takes beside the local model."""
    parameters, loss = context.parameters, stage_loss(context)
    distillation = parameters["distillation"]
    kd = float(parameters["kd"]) if distillation in ("logits", "both") else 0.0
    gamma = float(parameters["gamma"]) if distillation in ("similarity", "both") else 0.0

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        dam, visitor = forward(DAM, batch.images), forward(name, batch.images)
        terms = {
            f"{loss.name}_{DAM}": Term(loss.loss(dam.prediction.float(), batch.targets)),
            f"{loss.name}_{VISITOR}": Term(loss.loss(visitor.prediction.float(), batch.targets)),
        }
        if kd > 0:
            measure = "kl" if has_classes(context.task) else DISTANCES[context.task][0]
            terms[f"{measure}_from_{VISITOR}"] = _distil(context, visitor.prediction, dam.prediction, kd)
            terms[f"{measure}_from_{DAM}"] = _distil(context, dam.prediction, visitor.prediction, kd)
        if gamma > 0:
            similarity: Mapping[str, Tensor] = fedskd.similarity(dam.taps, visitor.taps, batch.masks, COMPARED)
            terms |= {key: Term(value, gamma) for key, value in similarity.items()}
        return terms

    return losses


def _distil(context: StageContext, teacher: Tensor, student: Tensor, weight: float) -> Term:
    """Build the term by which a prediction learns another, which is a constant."""
    if not has_classes(context.task):
        return Term(DISTANCES[context.task][1](teacher, student), weight)
    temperature = float(context.parameters["temperature"])
    teacher, student = (class_logits(context.task, each) / temperature for each in (teacher, student))
    return Term(forward_kl(teacher, student), weight * temperature**2)


def train_twin(context: StageContext) -> Stage:
    """Train local model and twin throughout, and each visitor for its share of the steps."""
    own: dict[str, Any] = {DAM: context.dam, TWIN: context.networks[TWIN]}
    visitors = {visitor_name(origin): visitor for origin, visitor in context.received.items()}
    for visitor in visitors.values():
        _fix_header(visitor, context.parameters["header"])
    steps = [Step((*own, name), _twin_losses(context, TWIN, name)) for name in visitors]
    steps = steps or [Step(tuple(own), _twin_losses(context, TWIN))]
    return Stage(own | visitors, tuple((step,) for step in steps), divides=True)


def _twin_losses(context: StageContext, *travelling: str) -> Callable[[Batch, Forward], Mapping[str, Term]]:
    """Build the losses of a step: all learn from the labels and from those that travel, none from the local model."""
    loss, measure = stage_loss(context), "kl" if has_classes(context.task) else DISTANCES[context.task][0]
    weights = dict.fromkeys(travelling, float(context.parameters["kd"]))
    weights[DAM] = float(context.parameters["personal_kd"])

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        predictions = {name: forward(name, batch.images).prediction for name in (DAM, *travelling)}
        terms = {
            f"{loss.name}_{_plain(name)}": Term(loss.loss(prediction.float(), batch.targets))
            for name, prediction in predictions.items()
        }
        for student, weight in weights.items():
            for teacher in travelling:
                if teacher != student and weight > 0:
                    name = f"{measure}_{_plain(student)}_from_{_plain(teacher)}"
                    terms[name] = _distil(context, predictions[teacher], predictions[student], weight)
        return terms

    return losses


def _plain(name: str) -> str:
    """Return a network's name without the visitor's origin, which changes from round to round."""
    return name.partition("-")[0]


def build_twin(context: BuildContext, networks: Mapping[str, Any]) -> Network:
    """Build the twin: a copy of the local model as it starts."""
    twin: Network = copy.deepcopy(networks[DAM])
    return twin


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand stage features of the local model if they are compared."""
    if parameters["distillation"] in ("logits", "none") or own.taps:
        return None
    return (
        f"[method] distillation = {parameters['distillation']!r} compares stage features, but the model shows none; "
        "name its layers in [model] features"
    )


def check_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """Demand a common stage if stage features are compared."""
    if parameters["distillation"] in ("logits", "none"):
        return None
    return fedskd.check_received(own, received, COMPARED)


FEDVISIT = Method(stages={"train": train}, check_local=check_local, check_received=check_received)
FEDVISIT_TWIN = Method(stages={"train": train_twin}, local_networks={TWIN: build_twin}, artifact_network=TWIN)
