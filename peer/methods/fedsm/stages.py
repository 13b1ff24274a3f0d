r"""FedSM: on the same batches, every site trains the global model :math:`w` as in FedAvg, a personal model
:math:`v_i`, and a selector :math:`s` that learns from which site an image is.

.. math:: L = \ell(w(x), y) + \ell(v_i(x), y) + \mathrm{CE}(s(x), i), \qquad
          v_i \leftarrow \lambda v_i + \frac{1 - \lambda}{N - 1} \sum_{j \ne i} v_j

.. math:: \hat y = \begin{cases} v_k(x) & \text{if } \max_k \mathrm{softmax}_k\, s(x) > \gamma \\
          w(x) & \text{otherwise} \end{cases}

Source: Xu et al. 2022 (FedSM, CVPR, arXiv 2203.10144), from its abstract and its authors' example in
NVFlare, `research/fed-sm`, whose :math:`\lambda` is 0.8.
Differs: there is no server: all three networks go to all sites. Every site averages :math:`w` and
:math:`s`, by default with equal weights, and pulls all sites' personal models (SoftPull) alike; a site whose
models are missing in a round keeps its last personal model at the others. The selector is a ResNet with
group norm (of rows of a table, a perceptron); theirs is a VGG-11. All three begin each round with a fresh Adam;
their server also averages the moments of the selector's. Counts of batches are not pulled.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import models
from peer.methods.method import (
    DAM,
    Batch,
    BuildContext,
    Forward,
    KeptPart,
    Method,
    Stage,
    StageContext,
    Term,
    build_shared_network,
    one_step_stage,
)
from peer.methods.received_states import ReceivedStates
from peer.methods.supervised import stage_loss

PERSONAL, SELECTOR, PERSONALS = "personal", "selector", "personals"
"""Names of networks: the site's personal model; the selector of models; the other sites' personal models."""


class PersonalModels(ReceivedStates):
    """The other sites' personal models, as they were pulled.

    Attributes:
        own: this site.
    """

    def __init__(self, model: nn.Module, site: str, sites: set[str]) -> None:
        super().__init__(model, sites, part="model")
        self.own = site


def train(context: StageContext) -> Stage:
    """Train the global and the personal model on the labels, and the selector on the site's place in the roster."""
    loss, networks = stage_loss(context), {name: context.networks[name] for name in (DAM, PERSONAL, SELECTOR)}
    place = context.networks[PERSONALS].sites.index(context.site)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        terms = {
            f"{loss.name}_{name}": Term(loss.loss(forward(name, batch.images).prediction.float(), batch.targets))
            for name in (DAM, PERSONAL)
        }
        places = torch.full((len(batch.images),), place, device=batch.images.device)
        return terms | {"origin": Term(F.cross_entropy(forward(SELECTOR, batch.images).prediction.float(), places))}

    return one_step_stage(networks, tuple(networks), losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return for each image the prediction of the personal model that is selected, or of the global model."""
    personal, personals = context.networks[PERSONAL], context.networks[PERSONALS]
    prediction: Tensor = context.dam(images).prediction.clone()
    shares, places = context.networks[SELECTOR](images).prediction.float().softmax(1).max(1)
    selected = shares > float(context.parameters["gamma"])
    for site, state in {**personals.states(), context.site: personal.state_dict()}.items():
        rows = selected & (places == personals.sites.index(site))
        if rows.any():
            prediction[rows] = functional_call(personal, state, (images[rows],)).prediction
    return prediction


def soft_pull(states: Mapping[str, Mapping[str, Tensor]], share: float) -> dict[str, dict[str, Tensor]]:
    """Pull each site's state to the mean of the others', in float64 and in the order of the sites' names.

    Counts stay, and so does what some site lacks. Of one site, the state stays.
    """
    sites = sorted(states)
    if len(sites) < 2:
        return {site: dict(state) for site, state in states.items()}
    pulled: dict[str, dict[str, Tensor]] = {site: {} for site in sites}
    for name in sorted(set.intersection(*({*state} for state in states.values()))):
        first = states[sites[0]][name]
        values = torch.stack([states[site][name].to("cpu", torch.float64) for site in sites])
        if first.is_floating_point():
            values = share * values + (1 - share) / (len(sites) - 1) * (values.sum(0) - values)
        for site, value in zip(sites, values, strict=True):
            pulled[site][name] = value.to(first.dtype)
    return pulled


def keep(
    networks: Mapping[str, Any],
    own: Mapping[str, Tensor],
    parts: Mapping[str, Mapping[str, Tensor]],
    parameters: Mapping[str, Any],
) -> None:
    """Pull this site's personal model, as it was sent, and those that it received."""
    personal, personals = networks[PERSONAL], networks[PERSONALS]
    states = {**parts, personals.own: own or personal.state_dict()}
    for site, state in soft_pull(states, float(parameters["lambda"])).items():
        if site == personals.own:
            personal.load_state_dict(state, strict=False)  # what is frozen is not sent
        else:
            personals.keep(site, state)


def build_selector(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the selector, whose classes are the sites of the roster; group norm compares no samples."""
    norm = {} if context.columns else {"norm": "group"}
    spec = {
        "name": "mlp" if context.columns else "resnet10",
        "spatial_dims": context.spatial_dims,
        "in_channels": context.in_channels,
        "classes": len({context.site, *context.sites}),
        "hyper": {"width": int(context.parameters["selector_width"]), **norm},
    }
    return models.build(spec)


def build_personals(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build an empty store of the other sites' personal models."""
    return PersonalModels(networks[PERSONAL], context.site, {context.site, *context.sites})


FEDSM = Method(
    stages={"train": train},
    local_networks={PERSONAL: build_shared_network, SELECTOR: build_selector, PERSONALS: build_personals},
    sent_beside=(PERSONAL, SELECTOR),
    kept=KeptPart(prefix=lambda network: f"{PERSONAL}/", keep=keep, bounded=True),
    predict=predict,
)
