r"""dFLMoE: sites exchange heads, and each site mixes the predictions of all heads for its own body's feature.

.. math:: L_a = \tfrac12\,\ell(y_l, y) + \tfrac12\,\ell(y_m, y), \qquad L_c = \ell(y_m, y)

Stage a (``local``) trains body and head with the transforms, the attention and all received heads
frozen; stage c (``decide``) trains only the transforms and the attention. The site predicts with
the mixture.

Source: dFLMoE (CVPR 2025), eqs. 1 to 6, tables 8 and 9.
Differs: stage a detaches nothing unless ``detach`` says so. The own head is an expert and takes the
feature without a transform. A peer's last received head stays in use until a newer one arrives.
``models.moe`` names the rest. Table 9 averages transform and attention at a server:
``dflmoe_averaged`` sends them with the head, as they are after stage a, and every site averages
those of this round before stage c. For that all bodies must give equally many features.
``alignment`` is ours: it adds the received heads' mean loss on the untransformed feature to stage
a, and all heads start alike. As printed, the transform that is trained at home fits any head, so
that heads of random weights do as well as received ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from models import Network, Output
from models.moe import Expert, Mixture, sites_in
from models.network import head_width
from peer.methods.method import (
    DAM,
    MIXTURE,
    AveragedNetwork,
    Batch,
    BuildContext,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    head_tensors,
    one_step_stage,
)
from peer.methods.supervised import stage_loss

AnyForward = Any
"""Runs a network by its name, as ``Forward`` does."""


def local(context: StageContext) -> Stage:
    """Stage a: train body and own head."""
    loss, detach = stage_loss(context), bool(context.parameters["detach"])
    alignment = float(context.parameters.get("alignment", 0.0))
    add_experts(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        output: Output = forward(DAM, batch.images)
        mixed = mix(context, batch.images, output, forward, detach=detach)
        terms = {
            f"{loss.name}_{DAM}": Term(loss.loss(output.prediction.float(), batch.targets), 0.5),
            f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets), 0.5),
        }
        if alignment and context.received:
            predictions = (forward(_expert(origin), output.penultimate) for origin in sorted(context.received))
            values = [loss.loss(prediction.float(), batch.targets) for prediction in predictions]
            terms["alignment"] = Term(torch.stack(values).mean(), alignment)
        return terms

    return one_step_stage(_networks(context), (DAM,), losses)


def decide(context: StageContext) -> Stage:
    """Stage c: train transforms and attention, if there is another site's expert."""
    loss = stage_loss(context)
    average_mixtures(context)
    add_experts(context)
    # A single expert has all the weight for any query: only weight decay would move it, step by step to 0.
    learns = (MIXTURE,) if context.received else ()

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        mixed = mix(context, batch.images, forward(DAM, batch.images), forward)
        return {f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets))}

    return one_step_stage(_networks(context), learns, losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """Return the mixture's prediction, with the experts received so far."""

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        module = _networks(context)[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    return mix(context, images, context.dam(images), forward)


def mix(context: StageContext, images: Tensor, output: Output, forward: AnyForward, *, detach: bool = False) -> Tensor:
    """Mix the experts' predictions: heads take the local model's feature, whole models the images."""
    feature, own = output.penultimate, output.prediction
    mixed: Tensor
    if detach:  # the head learns from the mixture, the body does not: the head needs a separate forward pass
        feature = feature.detach()
        with _untracked_statistics(context.dam.head):
            own = forward(DAM, feature, part=context.dam.head_name)
    if _are_models(context):
        predictions = {origin: forward(_expert(origin), images).prediction for origin in context.received} | {
            context.site: own
        }
        mixed = forward(
            MIXTURE, feature, {site: predictions[site].float() for site in sorted(predictions)}, part="mixing"
        )
    else:
        mixed = forward(MIXTURE, feature, own, context.received)
    return mixed


def average_mixtures(context: StageContext) -> None:
    """Average the own mixture with those received with this round's heads."""
    received_mixtures = {
        origin: expert.mixture for origin, expert in context.received.items() if isinstance(expert, Expert)
    }
    if received_mixtures:
        mixture: Mixture = context.networks[MIXTURE]
        mixture.average(received_mixtures)


def add_experts(context: StageContext) -> None:
    """Add the layers that each newly received expert needs to the mixture."""
    mixture: Mixture = context.networks[MIXTURE]
    for origin, expert in context.received.items():
        width = mixture.features if _are_models(context) else head_width(expert)
        context.seed_torch(MIXTURE, origin, width)
        mixture.add_expert(origin, width)


def build_mixture(context: BuildContext, networks: Mapping[str, Any]) -> Mixture:
    """Build transform and attention for the feature of this site's body."""
    feature, parameters = context.output.penultimate, context.parameters
    return Mixture(
        own=context.site,
        features=feature.shape[1],
        classes=context.classes,
        spatial_dims=feature.ndim - 2,
        mixing=parameters["mixing"],
        attention=parameters["attention"],
        transform=parameters.get("transform", False),
    )


def build_received_mixture(context: BuildContext, origin: str, head: nn.Module, names: Collection[str]) -> nn.Module:
    """Build another site's mixture; the names reveal the sites for which it has weights."""
    mixture = build_mixture(dataclasses.replace(context, site=origin), {})
    if (width := head_width(head)) != mixture.features:
        raise ValueError(
            f"its head takes {width} features, this body gives {mixture.features}, and mixtures are averaged"
        )
    for site in sites_in(names):
        mixture.add_expert(site, mixture.features)
    return mixture


def check_local(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """Demand feature and prediction on one grid, since the mixture weighs predictions by the feature;
    and features without a transform where bodies are aligned with received heads.
    """
    if parameters.get("alignment") and parameters["transform"]:
        return "[method] alignment takes received heads without a transform: set transform = false, or alignment = 0"
    feature, prediction = own.penultimate.shape[2:], own.prediction.shape[2:]
    if feature == prediction:
        return None
    return f"the model's head takes a feature on the grid {tuple(feature)}, but predicts on {tuple(prediction)}"


def check_received(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """Demand a head for this body's vectors or maps and, without a transform, as many features."""
    feature, expected = own.penultimate, received.penultimate
    if feature.ndim != expected.ndim:
        return f"its head takes features of {expected.ndim - 2} spatial dimensions, this body gives {feature.ndim - 2}"
    if not parameters["transform"] and feature.shape[1] != expected.shape[1]:
        return f"its head takes {expected.shape[1]} features, this body gives {feature.shape[1]}, and transform = false"
    if own.prediction.shape != received.prediction.shape:
        return f"it predicts {tuple(received.prediction.shape[1:])}, this site {tuple(own.prediction.shape[1:])}"
    return None


def check_received_model(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """Demand a model whose prediction has the shape of this site's."""
    if own.prediction.shape != received.prediction.shape:
        return f"it predicts {tuple(received.prediction.shape[1:])}, this site {tuple(own.prediction.shape[1:])}"
    return None


@contextmanager
def _untracked_statistics(head: nn.Module) -> Iterator[None]:
    """Run a second pass of a batch with its batch statistics, and do not track them again."""
    norms = [module for module in head.modules() if isinstance(module, _NormBase) and module.track_running_stats]
    for norm in norms:
        norm.track_running_stats = not norm.training
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def _are_models(context: StageContext) -> bool:
    return any(isinstance(expert, Network) for expert in context.received.values())


def _networks(context: StageContext) -> dict[str, Any]:
    local_networks = {name: context.networks[name] for name in (DAM, MIXTURE)}
    return local_networks | {_expert(origin): expert for origin, expert in context.received.items()}


def _expert(origin: str) -> str:
    return f"expert-{origin}"


STAGES = {"local": local, "decide": decide}
LOCAL_NETWORKS = {MIXTURE: build_mixture}
DFLMOE = Method(
    stages=STAGES,
    local_networks=LOCAL_NETWORKS,
    artifact_tensors=head_tensors,
    predict=predict,
    check_local=check_local,
    check_received=check_received,
)
DFLMOE_AVERAGED = dataclasses.replace(
    DFLMOE, averaged_with_head=AveragedNetwork(MIXTURE, build_received_mixture, Expert)
)
DFLMOE_MODELS = Method(
    stages=STAGES,
    local_networks=LOCAL_NETWORKS,
    predict=predict,
    check_local=check_local,
    check_received=check_received_model,
)
