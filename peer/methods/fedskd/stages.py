r"""FedSKD: a site learns from one received model a round by matching similarities, not features.

.. math:: L = \mathrm{CE}(M_i(x), y) + \gamma\,L_{SKD} + \mathrm{CE}(\tilde M_j(x), y)

Source: FedSKD (arXiv 2503.18981), eq. 2 and fig. 3. Nothing is detached: the similarity loss trains
both extractors, and the received model's supervised loss passes through its frozen header into its
extractor. The received model (KTM) and its Adam end with the stage; the local one (DAM) keeps its
Adam from round to round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from losses import similarity_terms
from models import Network, Output
from peer.methods.method import DAM, KTM, Batch, Forward, Method, Stage, StageContext, Term, one_step_stage
from peer.methods.supervised import stage_loss, supervised_stage

ACCUMULATE = {"float32": torch.float32, "float64": torch.float64}


def train(context: StageContext) -> Stage:
    """Train local and received model for a round; without one, the local model on labels only."""
    if not context.received:
        return supervised_stage(context, DAM, context.dam)
    (ktm,) = context.received.values()
    assert isinstance(ktm, Network)
    # The header's weights are frozen, its mode is not: both networks use batch statistics; the
    # KTM's end with the stage.
    for parameter in ktm.head.parameters():
        parameter.requires_grad_(False)
    loss, gamma = stage_loss(context), float(context.parameters["gamma"])
    ce_dam, ce_ktm = f"{loss.name}_{DAM}", f"{loss.name}_{KTM}"

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        dam, received = forward(DAM, batch.images), forward(KTM, batch.images)
        terms = {
            ce_dam: Term(loss.loss(dam.prediction.float(), batch.targets)),
            ce_ktm: Term(loss.loss(received.prediction.float(), batch.targets)),
        }
        if gamma > 0:
            skd = similarity(dam.taps, received.taps, batch.masks, context.parameters)
            terms |= {name: Term(value, gamma) for name, value in skd.items()}
        return terms

    def summary(means: Mapping[str, float]) -> Mapping[str, float]:
        distilled = gamma * sum(means.get(name, 0.0) for name in ("batch", "position", "region"))
        return {"distillation_ratio": distilled / means[ce_dam]} if means[ce_dam] > 0 else {}

    return one_step_stage({DAM: context.dam, KTM: ktm}, (DAM, KTM), losses, summary=summary)


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand stage features of the local model, and masks if the region term is the only one."""
    if not own.taps:
        return (
            "fedskd compares stage features, but the model shows none; name its layers in [model] features, or take a "
            "network that has stages, which linear has not"
        )
    if tuple(parameters["terms"]) == ("region",) and not masks:
        return "[method] terms = ['region'] needs masks; set [data] regions"
    return None


def check_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """Demand a common stage among those that ``taps`` chooses."""
    if chosen_stages(len(own.taps), len(received.taps), parameters["taps"]):
        return None
    return (
        f"taps {list(parameters['taps'])} choose no stage that {len(own.taps)} and {len(received.taps)} have in common"
    )


def chosen_stages(own: int, received: int, taps: Sequence[int]) -> list[int]:
    """Return the numbers of the compared stages, counted from 1 at the shallowest that both models have.

    Differs: the paper's models have equally many stages. Here stages are matched from the deepest
    one backwards, ``taps`` counts those of the model with more stages, and a stage without a
    counterpart is left out.
    """
    surplus, shared = abs(own - received), min(own, received)
    return [number - surplus for number in sorted(set(taps)) if 1 <= number - surplus <= shared]


def similarity(
    dam: Sequence[Tensor], ktm: Sequence[Tensor], masks: Tensor | None, parameters: Mapping[str, Any]
) -> dict[str, Tensor]:
    """Compute the similarity terms of two models' stage features, by name."""
    return similarity_terms(
        dam,
        ktm,
        masks=masks,
        terms=parameters["terms"],
        taps=chosen_stages(len(dam), len(ktm), parameters["taps"]),
        form=parameters["position_form"],
        accumulate=ACCUMULATE[parameters["accumulate"]],
    )


FEDSKD = Method(stages={"train": train}, check_local=check_local, check_received=check_received)
