"""FedRep: in each round a site fits its own head to the shared body, then trains the body; sites average bodies.

Source: Collins et al. 2021 (FedRep), algorithm 1.
Differs: there is no server: every site averages, by default with equal weights. Frozen parts
are in evaluation mode. Both stages begin with a fresh Adam in each round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models import Network
from peer.methods.method import (
    DAM,
    HEAD,
    Batch,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    head_tensors,
    one_step_stage,
)
from peer.methods.supervised import stage_loss


def head(context: StageContext) -> Stage:
    """Train the head on the labels; the body is frozen."""
    return _train(context, HEAD)


def body(context: StageContext) -> Stage:
    """Train the body on the labels; the head is frozen."""
    return _train(context, DAM)


def _train(context: StageContext, trained: str) -> Stage:
    """Train the head, or all of the local model but the head."""
    loss = stage_loss(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(DAM, batch.images).prediction
        return {f"{loss.name}_{DAM}": Term(loss.loss(prediction.float(), batch.targets))}

    # The loop sets the networks' modes in this order, so the head keeps its own.
    return one_step_stage({DAM: context.dam, HEAD: context.dam.head}, (trained,), losses)


def body_tensors(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """Return the names of the state without the head's."""
    of_head = set(head_tensors(network, parameters))
    return [name for name in network.state_dict() if name not in of_head]


FEDREP = Method(stages={"head": head, "body": body}, artifact_tensors=body_tensors)
