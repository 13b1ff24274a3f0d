"""A site's predictor as one module, and as plain data from which it can be rebuilt."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

import models
from models import Network, Output, head_width
from models.moe import Expert, Mixture
from models.registry import build_head, merge_adapters
from models.spec import HEAD_KEY, LEARNING_KEYS, remote_spec_problem
from peer.core.artifacts import Source
from peer.methods.dflmoe import stages as dflmoe
from peer.methods.method import DAM, MIXTURE, StageContext, predict_locally
from peer.train.column_channels import ColumnChannels
from peer.train.errors import UnusableConfigurationError
from peer.train.outputs import final_outputs
from peer.train.settings import TaskSettings
from peer.train.trainer import Trainer

HEAD, WHOLE = "head", "model"
"""The part of another site's network in a mixture: the head alone, or all of it."""


class Predictor(nn.Module):
    """A site's local network and, if its method mixes, the mixture of experts with those of other sites.

    Args:
        site: the owner; only a mixture uses it.
        mixture: the mixture on the local feature; None if the local network predicts alone.
        experts: heads or networks of other sites, by site.
    """

    def __init__(
        self,
        dam: Network,
        *,
        site: str = "",
        mixture: Mixture | None = None,
        experts: Mapping[str, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.site, self.dam, self.mixture = site, dam, mixture
        self.experts = nn.ModuleDict({_key(origin): expert for origin, expert in (experts or {}).items()})

    def forward(self, image: Tensor) -> Tensor:
        """Return logits ``(b, classes, *space)``, or larger images, for images ``(b, c, *space)``."""
        if self.mixture is None:
            output: Output = self.dam(image)
            return output.prediction
        experts = {key.partition(":")[2]: expert for key, expert in self.experts.items()}
        context = StageContext(self.site, "", {}, {DAM: self.dam, MIXTURE: self.mixture}, experts)
        return dflmoe.predict(context, image)


class Shares(nn.Module):
    """A predictor with the final outputs of its task."""

    def __init__(self, predictor: nn.Module, task: TaskSettings) -> None:
        super().__init__()
        self.predictor, self.task = predictor, task

    def forward(self, image: Tensor) -> Tensor:
        """Return the result of ``final_outputs``, float32."""
        return final_outputs(self.predictor(image).float(), self.task)


class RowShares(nn.Module):
    """The same for the rows of a table, with the preparation of the columns inside."""

    def __init__(self, predictor: nn.Module, task: TaskSettings) -> None:
        super().__init__()
        self.channels, self.shares = ColumnChannels(task.columns).float(), Shares(predictor, task)

    def forward(self, columns: Tensor) -> Tensor:
        """Return the outputs of rows ``(b, columns)``, float32, which :class:`ColumnChannels` describes.

        A row without any value has NaN: a site refuses to predict it.
        """
        channels = self.channels(columns)
        outputs: Tensor = self.shares(channels)
        return outputs.masked_fill(self.channels.without_value(channels), math.nan)


def graph_module(predictor: nn.Module, task: TaskSettings) -> Shares | RowShares:
    """Return the module that an exported graph computes, in evaluation mode."""
    return (RowShares if task.kind == "tabular" else Shares)(predictor, task).eval()


def build_predictor(trainer: Trainer, state: str, sources: tuple[Source, ...]) -> tuple[Predictor, dict[str, Any]]:
    """Build the site's predictor in a finished state, on the CPU in evaluation mode, and its description.

    Args:
        trainer: the site's trainer; it loads the state, and the predictor takes over its
            networks.
        sources: the artifacts of other sites that the predictor may include; if there are none, the local
            network predicts alone, like a mixture of one expert.

    Raises:
        UnusableConfigurationError: the method predicts with more than a local network and a mixture
            of experts.
    """
    trainer.load(state, sources)
    networks, method, settings = trainer.site_networks, trainer.method, trainer.settings
    dam = networks.dam
    if method.one_network is not None:
        dam = method.one_network(networks.networks, settings.parameters)
    dam = merge_adapters(dam.cpu()).eval()
    description: dict[str, Any] = {"network": dam.spec}
    predicts_alone = method.predict is predict_locally or settings.parameters.get("predict") == "model"
    if method.one_network is not None or predicts_alone:
        return Predictor(dam).eval(), description
    if method.predict is not dflmoe.predict:
        raise UnusableConfigurationError(
            f"method {settings.method!r} predicts with what no exported file can hold; use `mhfl-peer predict` here"
        )
    experts = {
        name: _without_mixture(module) for name, module in trainer.artifact_exchange.receive_all(sources).items()
    }
    if not experts:
        return Predictor(dam).eval(), description
    origins = {str(source.origin): source.artifact.spec for source in sources}
    description |= {
        "site": str(settings.site),
        "mixture": _mixture_arguments(trainer),
        "experts": {
            name: {"network": _without_learning(origins[name]), "part": WHOLE if isinstance(expert, Network) else HEAD}
            for name, expert in experts.items()
        },
    }
    mixture = _build_mixture(description, experts)
    trained = networks.networks[MIXTURE].state_dict()
    mixture.load_state_dict({name: trained[name] for name in mixture.state_dict()})
    predictor = Predictor(dam, site=str(settings.site), mixture=mixture, experts=experts)
    return predictor.cpu().eval(), description


def build(network: Mapping[str, Any], **mixing: Any) -> Predictor:
    """Build the predictor of a description, with untrained weights; called by a MONAI bundle's configuration.

    Args:
        mixing: ``site``, ``mixture`` and ``experts`` of the description, if it has them.

    Raises:
        ValueError: a spec names a network that is not installed, or does not fit.
    """
    dam = models.build(network)
    if "mixture" not in mixing:
        return Predictor(dam).eval()
    experts = {}
    for name, expert in mixing["experts"].items():
        with torch.device("meta"):
            part = _build_part(expert["network"], whole=expert["part"] == WHOLE)
        experts[str(name)] = part.to_empty(device=torch.get_default_device())
    mixture = _build_mixture(mixing, experts)
    return Predictor(dam, site=mixing["site"], mixture=mixture, experts=experts).eval()


def find_problem(description: Mapping[str, Any]) -> str | None:
    """Return why a description from another machine must not be built here; None if it may."""
    experts = [(expert["network"], expert.get("part") == HEAD) for expert in description.get("experts", {}).values()]
    for spec, head_only in [(description.get("network"), False), *experts]:
        if not isinstance(spec, Mapping):
            return "it describes no network"
        if (problem := remote_spec_problem(spec, head_only=head_only)) is not None:
            return problem
    return None


def _build_part(spec: Mapping[str, Any], *, whole: bool) -> nn.Module:
    """Build another site's network, or its head, whose body's class is not needed if the spec describes it."""
    if not whole and HEAD_KEY in spec:
        return build_head(spec)
    network = models.build(spec)
    return network if whole else network.head


def _mixture_arguments(trainer: Trainer) -> dict[str, Any]:
    """Return the arguments with which the method built this site's mixture."""
    feature, parameters = trainer.site_networks.output.penultimate, trainer.settings.parameters
    return {
        "features": feature.shape[1],
        "classes": trainer.settings.task.classes,
        "spatial_dims": feature.ndim - 2,
        "mixing": parameters["mixing"],
        "attention": parameters["attention"],
        "transform": parameters.get("transform", False),
    }


def _build_mixture(description: Mapping[str, Any], experts: Mapping[str, nn.Module]) -> Mixture:
    """Build a mixture for exactly these experts."""
    mixture = Mixture(own=description["site"], **description["mixture"])
    for name, expert in experts.items():
        mixture.add_expert(name, mixture.features if isinstance(expert, Network) else head_width(expert))
    return mixture.eval()


def _without_mixture(expert: nn.Module) -> nn.Module:
    """Return the expert without adapters, and without a head's mixture, which this site averaged itself."""
    if isinstance(expert, Network):
        return merge_adapters(expert)
    return expert.head if isinstance(expert, Expert) else expert


def _without_learning(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key not in LEARNING_KEYS}


def _key(site: str) -> str:
    """Return the name of a site's module; without the prefix it could equal a method of ``ModuleDict``."""
    return f"site:{site}"
