r"""Ditto: on the same batches, every site trains the global model :math:`w` as in FedAvg, and a
personal model :math:`v` of its own, with which it predicts.

.. math:: L_w = \ell(w(x), y), \qquad L_v = \ell(v(x), y) + \frac{\lambda}{2}\,\lVert v - w^{t-1}\rVert^2

with :math:`w^{t-1}` the mean that the round began with.

Source: Li et al. 2021 (Ditto), algorithm 1.
Differs: there is no server: every site averages, by default with equal weights. Both models take
equally many steps, of Adam.
"""

from __future__ import annotations

from collections.abc import Mapping

from peer.methods.averaging.stages import squared_distance
from peer.methods.method import (
    DAM,
    GLOBAL,
    Batch,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    build_shared_network,
    one_step_stage,
)
from peer.methods.supervised import stage_loss


def train(context: StageContext) -> Stage:
    """Train both models on the labels, the personal one with a pull towards the mean."""
    loss, pull = stage_loss(context), float(context.parameters["lambda"])
    mean = {name: parameter.detach().clone() for name, parameter in context.networks[GLOBAL].named_parameters()}

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        terms = {
            f"{loss.name}_{name}": Term(loss.loss(forward(name, batch.images).prediction.float(), batch.targets))
            for name in (DAM, GLOBAL)
        }
        return terms | {"proximal": Term(squared_distance(context.dam, mean), pull / 2)}

    return one_step_stage({DAM: context.dam, GLOBAL: context.networks[GLOBAL]}, (DAM, GLOBAL), losses)


DITTO = Method(stages={"train": train}, local_networks={GLOBAL: build_shared_network}, artifact_network=GLOBAL)
