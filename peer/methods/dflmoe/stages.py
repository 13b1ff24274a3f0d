r"""dFLMoE: sites exchange heads, and each mixes what all heads say of its own body's feature.

.. math:: L_a = \tfrac12\,\ell(y_l, y) + \tfrac12\,\ell(y_m, y), \qquad L_c = \ell(y_m, y)

Stage a (``local``) trains body and head with the transform, the attention and all received heads frozen; stage c
(``decide``) trains those transforms and the attention alone. The mixture is what predicts.

Source: dFLMoE (CVPR 2025), eqs. 1 to 6, tables 8 and 9.
Differs: nothing is detached in stage a unless ``detach`` says so; the own head is an expert and takes the feature as it
is; a peer's last received head stays when no newer one comes. ``models.moe`` names the rest. Table 9 averages transform
and attention at a server: ``dflmoe_averaged`` sends them with the head, as they are after stage a, and every site
averages those of this round before stage c. For that all bodies must give equally many features.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from models import Network, Output
from models.moe import Expert, Mixture, sites_in
from models.network import head_width
from peer.methods.method import (
    DAM,
    MIXTURE,
    Batch,
    BuildContext,
    Companion,
    Forward,
    Method,
    Stage,
    StageContext,
    Term,
    head,
    one_move,
)
from peer.methods.supervised import scene_loss

Mix = Any
"""Calls a network by its name, as ``Forward`` does."""


def local(context: StageContext) -> Stage:
    """Stage a: body and own head."""
    loss, detach = scene_loss(context), bool(context.parameters["detach"])
    invite(context)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        output: Output = forward(DAM, batch.images)
        mixed = mix(context, batch.images, output, forward, detach=detach)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(output.prediction.float(), batch.targets), 0.5),
            f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets), 0.5),
        }

    return one_move(_networks(context), (DAM,), losses)


def decide(context: StageContext) -> Stage:
    """Stage c: transforms and attention; without an expert from elsewhere there is nothing to learn."""
    loss = scene_loss(context)
    average(context)
    invite(context)
    # One expert has all the weight, whatever the query: only weight decay would move it, step by step to 0.
    learns = (MIXTURE,) if context.received else ()

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        mixed = mix(context, batch.images, forward(DAM, batch.images), forward)
        return {f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets))}

    return one_move(_networks(context), learns, losses)


def predict(context: StageContext, images: Tensor) -> Tensor:
    """The mixture's prediction, with the heads that are here."""

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        module = _networks(context)[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    return mix(context, images, context.dam(images), forward)


def mix(context: StageContext, images: Tensor, output: Output, forward: Mix, *, detach: bool = False) -> Tensor:
    """What the experts say together: of the feature where they are heads, of the images where they are models."""
    feature, own = output.penultimate, output.prediction
    mixed: Tensor
    if detach:  # the head learns from the mixture, the body does not: that takes a pass of its own
        feature = feature.detach()
        with _uncounted(context.dam.head):
            own = forward(DAM, feature, part=context.dam.head_name)
    if _are_models(context):
        said = {origin: forward(_expert(origin), images).prediction for origin in context.received} | {
            context.site: own
        }
        mixed = forward(MIXTURE, feature, {site: said[site].float() for site in sorted(said)}, part="mixing")
    else:
        mixed = forward(MIXTURE, feature, own, context.received)
    return mixed


def average(context: StageContext) -> None:
    """The mean of the own mixture and of those that came with this round's heads, where they do."""
    came = {origin: expert.mixture for origin, expert in context.received.items() if isinstance(expert, Expert)}
    if came:
        mixture: Mixture = context.networks[MIXTURE]
        mixture.average(came)


def invite(context: StageContext) -> None:
    """Make what each received head needs here, the first time that it is seen."""
    mixture: Mixture = context.networks[MIXTURE]
    for origin, expert in context.received.items():
        width = mixture.features if _are_models(context) else head_width(expert)
        context.seeded(MIXTURE, origin, width)
        mixture.invite(origin, width)


def mixture(place: BuildContext, made: Mapping[str, nn.Module]) -> Mixture:
    """Transform and attention for the feature of this site's body."""
    feature, parameters = place.output.penultimate, place.parameters
    return Mixture(
        own=place.site,
        features=feature.shape[1],
        classes=place.classes,
        spatial_dims=feature.ndim - 2,
        mixing=parameters["mixing"],
        attention=parameters["attention"],
        transform=parameters.get("transform", False),
    )


def theirs(place: BuildContext, origin: str, head: nn.Module, names: Collection[str]) -> nn.Module:
    """Another site's mixture, as it must be to have a mean with this one's; the names tell for whom it has weights."""
    made = mixture(dataclasses.replace(place, site=origin), {})
    if (width := head_width(head)) != made.features:
        raise ValueError(f"its head takes {width} features, this body gives {made.features}, and mixtures are averaged")
    for site in sites_in(names):
        made.invite(site, made.features)
    return made


def unfit(own: Output, shared: Output | None, parameters: Mapping[str, Any], *, masks: bool) -> str | None:
    """The mixture weighs predictions by the feature that the head takes: both must be on one grid."""
    feature, prediction = own.penultimate.shape[2:], own.prediction.shape[2:]
    if feature == prediction:
        return None
    return f"the model's head takes a feature on the grid {tuple(feature)}, but predicts on {tuple(prediction)}"


def mismatch(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """A head must take what this body gives: vectors or maps; without a transform also as many features."""
    given, taken = own.penultimate, received.penultimate
    if given.ndim != taken.ndim:
        return f"its head takes features of {taken.ndim - 2} spatial dimensions, this body gives {given.ndim - 2}"
    if not parameters["transform"] and given.shape[1] != taken.shape[1]:
        return f"its head takes {taken.shape[1]} features, this body gives {given.shape[1]}, and transform = false"
    if own.prediction.shape != received.prediction.shape:
        return f"it predicts {tuple(received.prediction.shape[1:])}, this site {tuple(own.prediction.shape[1:])}"
    return None


def mismatch_of_models(own: Output, received: Output, parameters: Mapping[str, Any]) -> str | None:
    """A model must predict what this site's does."""
    if own.prediction.shape != received.prediction.shape:
        return f"it predicts {tuple(received.prediction.shape[1:])}, this site {tuple(own.prediction.shape[1:])}"
    return None


@contextmanager
def _uncounted(head: nn.Module) -> Iterator[None]:
    """A second pass of the same batch: batch statistics normalise it as they did the first, and are not counted."""
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
    kept = {name: context.networks[name] for name in (DAM, MIXTURE)}
    return kept | {_expert(origin): expert for origin, expert in context.received.items()}


def _expert(origin: str) -> str:
    return f"expert-{origin}"


STAGES = {"local": local, "decide": decide}
KEEPS = {MIXTURE: mixture}
DFLMOE = Method(stages=STAGES, keeps=KEEPS, sent=head, predict=predict, unfit=unfit, mismatch=mismatch)
DFLMOE_AVERAGED = dataclasses.replace(DFLMOE, companion=Companion(MIXTURE, theirs, Expert))
DFLMOE_MODELS = Method(stages=STAGES, keeps=KEEPS, predict=predict, unfit=unfit, mismatch=mismatch_of_models)
