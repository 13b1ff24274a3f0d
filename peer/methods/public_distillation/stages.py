r"""FedMD, pFedDF, DS-pFL and KT-pFL: every site predicts the images of a public set, all send their
logits :math:`z_j` (DS-pFL: probabilities :math:`p_j`), and each site's model learns the public images from them.

FedMD and pFedDF learn from the mean of all, DS-pFL from the mean after sharpening, KT-pFL from a mixture of its own:

.. math:: L_{FedMD} = \frac{1}{C}\,\bigl\lVert M(x) - \tfrac1N \textstyle\sum_j z_j \bigr\rVert_1, \qquad
          L_{DF} = \mathrm{KL}\Bigl(\tfrac1N \textstyle\sum_j z_j \,\Big\Vert\, M(x)\Bigr)

.. math:: L_{DS} = \mathrm{KL}\Bigl(\tfrac1{NT} \textstyle\sum_j p_j \,\Big\Vert\, M(x)\Bigr), \qquad
          L_{KT} = \mathrm{KL}\Bigl(\textstyle\sum_j c_{ij} z_j \,\Big\Vert\, M(x)\Bigr)

with a softmax of both sides of each divergence.

.. math:: c_i \leftarrow \mathrm{softmax}\Bigl(5\,\bigl(c_i - \eta\,\nabla_{c_i}
          \bigl[\mathrm{KL}(z_i \Vert \textstyle\sum_j c_{ij} z_j)
          + \rho\,\mathrm{mean}_j (c_{ij} - \tfrac1N)^2\bigr]\bigr)\Bigr)

Source: Li and Wang 2019 (FedMD); Lin et al. 2020 (FedDF), kept personal as Zhang et al. 2021 compare with
it (pFedDF); Itahara et al. 2020 (DS-FL, arXiv 2008.06180), likewise (DS-pFL); Zhang et al. 2021 (KT-pFL).
Differs: there is no server: every site averages, or learns its row of coefficients, from the same
predictions. The public set has no labels here, so no site trains on it first: FedMD's sites train on
their own data before the first exchange. Public images come in their order and are not augmented.
pFedDF sends predictions, not the models that make them: a public image has one prediction of each model, so
the mean is the same. In pFedDF and DS-pFL a round begins with what the sites predicted at the end of the
last one: a site learns it, then trains at home, and so predicts with its personal model. DS-FL's loss is
the cross-entropy, whose gradient is that of the divergence here; its server's model is not trained.
The coefficients' loss is a mean over all public images; sites whose predictions are missing have no
share in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import models
from losses import forward_kl
from peer.core.tasks import ANSWERS
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
    return _predict(context, lambda logits: logits)


def predict_probabilities(context: StageContext) -> Stage:
    """Predict the probabilities of all public images: those of the classes, or that of each label or interval."""
    return _predict(context, torch.sigmoid if context.task in ANSWERS else partial(torch.softmax, dim=1))


def _predict(context: StageContext, convert: Callable[[Tensor], Tensor]) -> Stage:
    """Predict all public images, and put the converted logits into the table."""
    public: PublicImages = context.networks[PUBLIC]
    table = _table(context.networks[PREDICTIONS])

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        with torch.no_grad():
            parts = [
                forward(DAM, images).prediction.float() for images in torch.split(public.images, len(batch.images))
            ]
            table.logits.copy_(convert(torch.cat(parts)))
            table.taken.fill_(1)
        return {"public_spread": Term(table.logits.std())}

    networks = {name: context.networks[name] for name in (DAM, PUBLIC, PREDICTIONS)}
    return one_step_stage(networks, (), losses)


def digest_mean(context: StageContext) -> Stage:
    """Train the local model to predict the mean logits of all sites, once there are some."""
    return _digest(context, F.l1_loss, learns=bool(_table(context.networks[PREDICTIONS]).taken))


def digest_ensemble(context: StageContext) -> Stage:
    """Train the local model on its divergence from the mean logits of all sites, once there are some."""
    return _digest(context, divergence(context), learns=bool(_table(context.networks[PREDICTIONS]).taken))


def digest_sharpened(context: StageContext) -> Stage:
    """Train the local model on its divergence from the sharpened mean probabilities, once there are some."""
    temperature, answers = float(context.parameters["temperature"]), context.task in ANSWERS
    distance = partial(class_logits, context.task)

    def sharpened(prediction: Tensor, mean: Tensor) -> Tensor:
        probabilities = torch.stack([1 - mean, mean], 1) if answers else mean
        return forward_kl(probabilities / temperature, distance(prediction))

    return _digest(context, sharpened, learns=bool(_table(context.networks[PREDICTIONS]).taken))


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
    return _digest(context, divergence(context), learns=True)


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


def divergence(context: StageContext) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the divergence of a prediction from target logits, both by classes."""
    classes = partial(class_logits, context.task)
    return lambda prediction, target: forward_kl(classes(target), classes(prediction))


def _digest(context: StageContext, distance: Callable[[Tensor, Tensor], Tensor], *, learns: bool) -> Stage:
    """Train the local model to predict the public images as the table does."""
    table = _table(context.networks[PREDICTIONS])

    def targets(indices: Tensor, images: Tensor, forward: Forward) -> Tensor:
        return table.logits[indices]

    return distil_public(context, {PREDICTIONS: context.networks[PREDICTIONS]}, targets, distance, learns=learns)


def distil_public(
    context: StageContext,
    teachers: Mapping[str, nn.Module],
    targets: Callable[[Tensor, Tensor, Forward], Tensor],
    distance: Callable[[Tensor, Tensor], Tensor],
    *,
    learns: bool,
) -> Stage:
    """Train the local model on public images and the targets for them.

    With ``public_batch``, a step has the same images however often its losses are computed: once for each person
    where it trains with noise.

    Args:
        teachers: the networks that the targets come from.
        targets: returns those of public images, given their indices and the images.
        distance: from a prediction to its target.
        learns: whether the local model trains; if not, the distance is reported alone.
    """
    count = int(context.parameters["public_batch"])
    public: PublicImages = context.networks[PUBLIC]

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        indices = public.following(count) if count else public.take(len(batch.images))
        images = public.images[indices]
        with torch.no_grad():
            target = targets(indices, images, forward)
        return {"digest": Term(distance(forward(DAM, images).prediction.float(), target))}

    def go_on() -> None:
        public.take(count)

    networks = {DAM: context.dam, PUBLIC: public, **teachers}
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
PFEDDF = replace(FEDMD, stages={**FEDMD.stages, "digest": digest_ensemble})
DS_PFL = replace(FEDMD, stages={**FEDMD.stages, "digest": digest_sharpened, "predict": predict_probabilities})
KT_PFL = Method(
    stages={"digest": digest_mixture, "train": train, "predict": predict_public},
    local_networks={**LOCAL_NETWORKS, COEFFICIENTS: build_coefficients},
    artifact_network=PREDICTIONS,
)
