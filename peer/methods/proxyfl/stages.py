r"""ProxyFL: a private model and a proxy teach each other; proxies go one to one and are averaged in pairs.

.. math:: L_w = (1-\alpha)\,\ell(w(x), y) + \alpha\,\mathrm{KL}(p \Vert w), \qquad
          L_p = (1-\alpha)\,\ell(p(x), y) + \alpha\,\mathrm{KL}(w \Vert p)

Both networks run before either is stepped. The teacher in a divergence is a constant.

Source: ProxyFL (Kalra et al. 2023), with its authors' α of 0.5.
Differs: there is no differential privacy. The round's order determines the receivers, instead of
exponential hops, so that the mean of own and received proxy needs no push-sum weights. A site
that receives its own proxy keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from losses import forward_kl
from peer.methods.method import (
    DAM,
    PROXY,
    Batch,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    build_shared_network,
    one_step_stage,
)
from peer.methods.supervised import class_logits, stage_loss


def train(context: StageContext) -> Stage:
    """Train both networks on the labels and on each other's predictions."""
    loss, alpha = stage_loss(context), float(context.parameters["alpha"])
    classes = partial(class_logits, context.task)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        private, shared = forward(DAM, batch.images).prediction, forward(PROXY, batch.images).prediction
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(private.float(), batch.targets), 1 - alpha),
            f"{loss.name}_{PROXY}": Term(loss.loss(shared.float(), batch.targets), 1 - alpha),
            f"kl_{DAM}": Term(forward_kl(classes(shared), classes(private)), alpha),
            f"kl_{PROXY}": Term(forward_kl(classes(private), classes(shared)), alpha),
        }

    return one_step_stage({DAM: context.dam, PROXY: context.networks[PROXY]}, (DAM, PROXY), losses)


PROXYFL = Method(stages={"train": train}, local_networks={PROXY: build_shared_network}, artifact_network=PROXY)
