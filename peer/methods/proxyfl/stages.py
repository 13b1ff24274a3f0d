r"""ProxyFL: a private model and a proxy teach each other; proxies go one to one and are averaged in pairs.

.. math:: L_w = (1-\alpha)\,\ell(w(x), y) + \alpha\,\mathrm{KL}(p \Vert w), \qquad
          L_p = (1-\alpha)\,\ell(p(x), y) + \alpha\,\mathrm{KL}(w \Vert p)

Both forwards stand before both steps; a teacher is a constant.

Source: ProxyFL (Kalra et al. 2023), with its authors' α of 0.5.
Differs: no differential privacy; who sends to whom is the round's order instead of exponential hops, so that the mean
of own and received proxy needs no push-sum weights. A site that receives its own keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping

from losses import forward_kl
from peer.methods.feddal.stages import proxy
from peer.methods.method import DAM, PROXY, Batch, Forward, Method, Stage, StageContext, Term, one_move
from peer.methods.supervised import scene_loss


def train(context: StageContext) -> Stage:
    """Both networks learn from the labels and from each other."""
    loss, alpha = scene_loss(context), float(context.parameters["alpha"])

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        private, shared = forward(DAM, batch.images).prediction, forward(PROXY, batch.images).prediction
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(private.float(), batch.targets), 1 - alpha),
            f"{loss.name}_{PROXY}": Term(loss.loss(shared.float(), batch.targets), 1 - alpha),
            f"kl_{DAM}": Term(forward_kl(shared, private), alpha),
            f"kl_{PROXY}": Term(forward_kl(private, shared), alpha),
        }

    return one_move({DAM: context.dam, PROXY: context.networks[PROXY]}, (DAM, PROXY), losses)


PROXYFL = Method(stages={"train": train}, keeps={PROXY: proxy}, sends=PROXY)
