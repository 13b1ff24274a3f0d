r"""dFLMoE: sites exchange heads, and each mixes what all heads say of its own body's feature.

.. math:: L_a = \tfrac12\,\ell(y_l, y) + \tfrac12\,\ell(y_m, y), \qquad L_c = \ell(y_m, y)

Stage a (``local``) trains body and head with the transform, the attention and all received heads frozen; stage c
(``decide``) trains those transforms and the attention alone. The mixture is what predicts.

Source: dFLMoE (CVPR 2025), eqs. 1 to 6, tables 8 and 9.
Differs: nothing is detached in stage a unless ``detach`` says so; the own head is an expert and takes the feature as it
is; a peer's last received head stays when no newer one comes. ``models.moe`` names the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from models import Network, Output
from models.moe import Mixture
from models.network import head_width
from peer.methods.method import DAM, MIXTURE, Batch, Forward, Method, Place, Scene, Stage, Term, one_move
from peer.methods.supervised import supervised

Mix = Any
"""Calls a network by its name, as ``Forward`` does."""


def local(scene: Scene) -> Stage:
    """Stage a: body and own head."""
    loss, detach = supervised(scene.task, scene.parameters["segmentation_loss"]), bool(scene.parameters["detach"])
    invite(scene)

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        output: Output = forward(DAM, batch.images)
        mixed = mix(scene, batch.images, output, forward, detach=detach)
        return {
            f"{loss.name}_{DAM}": Term(loss.loss(output.prediction.float(), batch.targets), 0.5),
            f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets), 0.5),
        }

    return one_move(_networks(scene), (DAM,), losses)


def decide(scene: Scene) -> Stage:
    """Stage c: transforms and attention; without an expert from elsewhere there is nothing to learn."""
    loss = supervised(scene.task, scene.parameters["segmentation_loss"])
    invite(scene)
    # One expert has all the weight, whatever the query: only weight decay would move it, step by step to 0.
    learns = (MIXTURE,) if scene.received else ()

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        mixed = mix(scene, batch.images, forward(DAM, batch.images), forward)
        return {f"{loss.name}_{MIXTURE}": Term(loss.loss(mixed.float(), batch.targets))}

    return one_move(_networks(scene), learns, losses)


def predict(scene: Scene, images: Tensor) -> Tensor:
    """The mixture's prediction, with the heads that are here."""

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        module = _networks(scene)[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    return mix(scene, images, scene.dam(images), forward)


def mix(scene: Scene, images: Tensor, output: Output, forward: Mix, *, detach: bool = False) -> Tensor:
    """What the experts say together: of the feature where they are heads, of the images where they are models."""
    feature = output.penultimate.detach() if detach else output.penultimate
    mixed: Tensor
    if _are_models(scene):
        said = {origin: forward(_expert(origin), images).prediction for origin in scene.received}
        said[scene.site] = forward(DAM, feature, part=scene.dam.head_name) if detach else output.prediction
        mixed = forward(MIXTURE, feature, {site: said[site].float() for site in sorted(said)}, part="mixing")
    else:
        mixed = forward(MIXTURE, feature, {**scene.received, scene.site: scene.dam.head})
    return mixed


def invite(scene: Scene) -> None:
    """Make what each received head needs here, the first time that it is seen."""
    mixture: Mixture = scene.networks[MIXTURE]
    for origin, expert in scene.received.items():
        width = mixture.features if _are_models(scene) else head_width(expert)
        scene.seeded(MIXTURE, origin, width)
        mixture.invite(origin, width)


def mixture(place: Place, made: Mapping[str, nn.Module]) -> nn.Module:
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


def sent(network: Network, parameters: Mapping[str, Any]) -> list[str]:
    """The head's state."""
    return [name for name in network.state_dict() if name.startswith(f"{network.head_name}.")]


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


def _are_models(scene: Scene) -> bool:
    return any(isinstance(expert, Network) for expert in scene.received.values())


def _networks(scene: Scene) -> dict[str, Any]:
    kept = {name: scene.networks[name] for name in (DAM, MIXTURE)}
    return kept | {_expert(origin): expert for origin, expert in scene.received.items()}


def _expert(origin: str) -> str:
    return f"expert-{origin}"


STAGES = {"local": local, "decide": decide}
KEEPS = {MIXTURE: mixture}
DFLMOE = Method(stages=STAGES, keeps=KEEPS, sent=sent, predict=predict, unfit=unfit, mismatch=mismatch)
DFLMOE_MODELS = Method(stages=STAGES, keeps=KEEPS, predict=predict, unfit=unfit, mismatch=mismatch_of_models)
