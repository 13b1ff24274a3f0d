r"""FedMD and KT-pFL: every site predicts the images of a public set, all send their logits
:math:`z_j`, and each site's model learns the public images from them.

FedMD learns from the mean of all, KT-pFL from a mixture of its own:

.. math:: L_{FedMD} = \frac{1}{C}\,\bigl\lVert M(x) - \tfrac1N \textstyle\sum_j z_j \bigr\rVert_1, \qquad
          L_{KT} = \mathrm{KL}\Bigl(\textstyle\sum_j c_{ij} z_j \,\Big\Vert\, M(x)\Bigr)

.. math:: c_i \leftarrow \mathrm{softmax}\Bigl(5\,\bigl(c_i - \eta\,\nabla_{c_i}
          \bigl[\mathrm{KL}(z_i \Vert \textstyle\sum_j c_{ij} z_j)
          + \rho\,\mathrm{mean}_j (c_{ij} - \tfrac1N)^2\bigr]\bigr)\Bigr)

Source: Li and Wang 2019 (FedMD); Zhang et al. 2021 (KT-pFL).
Differs: there is no server: every site averages, or learns its row of coefficients, from the same
predictions. The public set has no labels here, so no site trains on it first: FedMD's sites train on
their own data before the first exchange. Public images come in their order and are not augmented.
The coefficients' loss is a mean over all public images; sites whose predictions are missing have no
share in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
from losses import forward_kl
from peer.methods.local.stages import train
from peer.methods.method import (
    DAM,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Step,
    Term,
    one_step_stage,
)
from peer.methods.public_distillation.tables import KnowledgeCoefficients, PredictionTable, PublicImages
from peer.methods.supervised import class_logits

PUBLIC, PREDICTIONS, COEFFICIENTS = "public", "predictions", "coefficients"
"""Names of networks: the public images; the predictions of them; the site's coefficients."""


def predict_public(context: StageContext) -> Stage:
    """Predict all public images; nothing is trained."""
    public: PublicImages = context.networks[PUBLIC]
    table = _table(context.networks[PREDICTIONS])

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            parts = [
                forward(DAM, images).prediction.float() for images in torch.split(public.images, len(batch.images))
            ]
            table.logits.copy_(torch.cat(parts))
            table.taken.fill_(1)
        return {"public_spread": Term(table.logits.std())}

    networks = {name: context.networks[name] for name in (DAM, PUBLIC, PREDICTIONS)}
    return one_step_stage(networks, (), losses)


def digest_mean(context: StageContext) -> Stage:
    """Train the local model to predict the mean logits of all sites, once there are some."""
    return _digest(context, F.l1_loss, learns=bool(_table(context.networks[PREDICTIONS]).taken))


def digest_mixture(context: StageContext) -> Stage:
    """Take a step of the coefficients, and train the local model on the mixture of predictions."""
    own = _table(context.networks[PREDICTIONS]).logits.float()
    tables = {context.site: own} | {origin: _table(each).logits.to(own) for origin, each in context.received.items()}
    coefficients: KnowledgeCoefficients = context.networks[COEFFICIENTS]
    sites = [site for site in coefficients.sites if site in tables]
    logits = torch.stack([tables[site] for site in sites])
    places = [coefficients.sites.index(site) for site in sites]
    shares = coefficients.shares[places] / coefficients.shares[places].sum()
    classes = partial(class_logits, context.task)
    shares = step_coefficients(shares, own, logits, context.parameters, classes)
    coefficients.shares.zero_()
    coefficients.shares[places] = shares
    _table(context.networks[PREDICTIONS]).logits.copy_(torch.einsum("j,jnc->nc", shares, logits))
    return _digest(context, lambda prediction, target: forward_kl(classes(target), classes(prediction)), learns=True)


def step_coefficients(
    shares: Tensor,
    own: Tensor,
    logits: Tensor,
    parameters: Mapping[str, Any],
    classes: Callable[[Tensor], Tensor] = lambda logits: logits,
) -> Tensor:
    """Take one step of a site's coefficients ``(j,)`` on its logits ``(n, c)`` and all sites' ``(j, n, c)``."""
    with torch.enable_grad():
        shares = shares.detach().clone().requires_grad_(True)
        divergence = forward_kl(classes(own), classes(torch.einsum("j,jnc->nc", shares, logits)))
        pull = (shares - 1 / len(shares)).square().mean()
        (gradient,) = torch.autograd.grad(divergence + float(parameters["rho"]) * pull, shares)
    stepped = shares.detach() - float(parameters["coefficient_rate"]) * gradient
    return (float(parameters["sharpness"]) * stepped).softmax(0)


def _digest(context: StageContext, distance: Callable[[Tensor, Tensor], Tensor], *, learns: bool) -> Stage:
    """Train the local model to predict the public images as the table does.

    With ``public_batch``, a step has the same images however often its losses are computed: once for each person
    where it trains with noise.
    """
    count = int(context.parameters["public_batch"])
    public: PublicImages = context.networks[PUBLIC]
    table = _table(context.networks[PREDICTIONS])

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        indices = public.following(count) if count else public.take(len(batch.images))
        prediction = forward(DAM, public.images[indices]).prediction.float()
        return {"digest": Term(distance(prediction, table.logits[indices]))}

    def go_on() -> None:
        public.take(count)

    networks = {name: context.networks[name] for name in (DAM, PUBLIC, PREDICTIONS)}
    return Stage(networks, ((Step((DAM,) if learns else (), losses, after_backward=go_on),),))


def build_public(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the module with the public images."""
    return PublicImages(context.public_images())


def build_predictions(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty table of predictions, as a network that has a spec."""
    spec = {
        "name": "peer.methods.public_distillation.tables:PredictionTable",
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": context.classes,
        "hyper": {"samples": len(networks[PUBLIC].images)},
        "head": "mean",
    }
    return models.build(spec)


def build_coefficients(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build equal coefficients for all sites of the roster."""
    return KnowledgeCoefficients({context.site, *context.sites})


def _table(network: Any) -> PredictionTable:
    table: PredictionTable = network.network
    return table


LOCAL_NETWORKS = {PUBLIC: build_public, PREDICTIONS: build_predictions}
FEDMD = Method(
    stages={"digest": digest_mean, "train": train, "predict": predict_public},
    local_networks=LOCAL_NETWORKS,
    artifact_network=PREDICTIONS,
)
KT_PFL = Method(
    stages={"digest": digest_mixture, "train": train, "predict": predict_public},
    local_networks={**LOCAL_NETWORKS, COEFFICIENTS: build_coefficients},
    artifact_network=PREDICTIONS,
)
