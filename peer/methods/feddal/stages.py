r"""FedDAL: a private model that never leaves the site and a travelling proxy learn from each other.

On each batch, the proxy first learns the private model's whole distribution. Then the private model
learns from the labels and from the proxy's most likely classes, as far as both agree:

.. math:: L_p = \mathrm{KL}(w \Vert p) + \alpha_p\,\ell(p(x), y), \qquad L_w = \ell(w(x), y) + L_{back}

Source: FedDAL, eqs. 1 to 3 and algorithm 1; the order of the two steps and the frozen network's
evaluation mode from its authors' code.
Differs: every site averages the proxies (the paper's algorithm uploads them); ``losses.mutual``
names the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from losses import consensus, feeding_loss, forward_kl, transfer_loss
from models import Output
from peer.core.tasks import ANSWERS
from peer.methods.method import (
    DAM,
    PROXY,
    Batch,
    Forward,
    Method,
    Stage,
    StageContext,
    Step,
    Term,
    build_shared_network,
)
from peer.methods.supervised import class_logits, stage_loss


def train(context: StageContext) -> Stage:
    """Train proxy and private model in turn, on each batch or (not ``alternating``) on all."""
    parameters = context.parameters
    loss, top = stage_loss(context), 1 if context.task in ANSWERS else int(parameters["top"])
    alpha, mutual = float(parameters["proxy_supervision"]), bool(parameters["forward_kl_updates_private"])
    backward = transfer_loss if parameters["backward"] == "transfer" else feeding_loss
    classes = partial(class_logits, context.task)

    def proxy_losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            private = forward(DAM, batch.images).prediction
        proxy = forward(PROXY, batch.images).prediction
        terms = {"forward_kl": Term(forward_kl(classes(private), classes(proxy)))}
        if alpha > 0:
            terms[f"{loss.name}_{PROXY}"] = Term(loss.loss(proxy.float(), batch.targets), alpha)
        return terms

    def private_losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            proxy = forward(PROXY, batch.images).prediction
        private = forward(DAM, batch.images).prediction
        agreement = consensus(classes(private), classes(proxy), top=top)
        weights: Tensor | float = 1.0 if parameters["consensus"] == "one" else agreement
        terms = {
            f"{loss.name}_{DAM}": Term(loss.loss(private.float(), batch.targets)),
            "feeding": Term(backward(classes(private), classes(proxy), top=top, weights=weights)),
            "consensus": Term(agreement.mean(), 0.0),
        }
        if mutual:
            terms["forward_kl_private"] = Term(forward_kl(classes(private), classes(proxy), updates_private=True))
        return terms

    proxy_step, private_step = Step((PROXY,), proxy_losses), Step((DAM,), private_losses)
    passes = ((proxy_step, private_step),) if parameters["alternating"] else ((proxy_step,), (private_step,))
    return Stage({DAM: context.dam, PROXY: context.networks[PROXY]}, passes)


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand that the proxy feeds back fewer classes than there are."""
    top, classes = int(parameters["top"]), own.prediction.shape[1]
    if top < classes:
        return None
    return f"[method] top = {top} must be less than the {classes} classes"


FEDDAL = Method(
    stages={"train": train},
    local_networks={PROXY: build_shared_network},
    artifact_network=PROXY,
    check_local=check_local,
)
