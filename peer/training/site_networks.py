"""What a site keeps from round to round: its networks and their optimisers' moments, always those of one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn

from models import Network, Output
from peer.core.seeds import derive
from peer.methods.method import DAM, BuildContext, Method
from peer.training.checkpoint import Checkpoint, Checkpoints
from peer.training.data import Seed
from peer.training.errors import UnusableConfigurationError
from peer.training.network import build_spec, local_spec, probe, shared_spec
from peer.training.settings import TrainingSettings
from peer.training.tensors import State, state_of


class SiteNetworks:
    """The networks by name: the local model as ``dam``, and what the method keeps beside it.

    Args:
        settings: the site's.
        method: the federation's.
        seed: the site's; what is averaged, and the one model of a homogeneous federation, starts from the same weights
            at every site instead.
        checkpoints: where states come from and go to.
    """

    def __init__(self, settings: TrainingSettings, method: Method, seed: Seed, checkpoints: Checkpoints) -> None:
        self._settings, self._method, self._seed, self._checkpoints = settings, method, seed, checkpoints
        self._beside: dict[str, nn.Module] | None = None
        self._held = ""  # the checkpoint that networks and moments equal, bit for bit
        self.moments: Mapping[str, State] = {}

    @cached_property
    def dam(self) -> Network:
        """The local model: initial until a checkpoint is loaded into it."""
        alike = self._settings.plan.shared != "beside" and self._settings.shared_model is not None
        self._sow("init", alike=alike, role=DAM)
        network = build_spec(local_spec(self._settings), "[model]")
        if "aggregate" in self._settings.plan.phases and self._settings.plan.artifact == "head":
            self._sow("init", alike=True, role="head")
            for layer in network.head.modules():
                if callable(renew := getattr(layer, "reset_parameters", None)):
                    renew()
        return network

    @cached_property
    def output(self) -> Output:
        """What the local model makes of one image of zeros: proof that it fits the task, and its shapes."""
        return self._probed(self.dam, f"[model] {self.dam.spec['name']}")

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """All of them, made at first use."""
        if self._beside is None:
            made: dict[str, nn.Module] = {}
            for name, make in self._method.keeps.items():
                place = self.place  # before the seed: to make it draws weights
                self._sow("init", name, alike=name in (self._method.sends, self._averaged), role=name)
                made[name] = make(place, made)
            self._beside = made
        return {DAM: self.dam, **self._beside}

    @property
    def sent(self) -> Network:
        """The network whose state is the artifact."""
        network = self.networks[self._method.sends]
        assert isinstance(network, Network)
        return network

    def hold(self, name: str) -> None:
        """Have networks and moments equal a checkpoint;
        ``UnusableConfigurationError`` where it belongs to other networks.
        """
        if self._held == name:
            return
        self._held, self._beside = "", None
        checkpoint = self._checkpoints.read(name)
        for network, module in self.networks.items():
            try:
                module.load_state_dict(checkpoint.networks[network])
            except (KeyError, RuntimeError) as error:
                raise UnusableConfigurationError(f"checkpoint {name} does not fit [model]: {error}") from error
        self._held, self.moments = name, checkpoint.optimisers

    def let_go(self) -> None:
        """The networks are about to change: they equal no checkpoint any more."""
        self._held = ""

    def write(self, name: str, record: Mapping[str, Any], moments: Mapping[str, State]) -> None:
        """Keep all networks as they are now, with these moments, as a checkpoint, and hold it.

        Of a network that is averaged in the stage that trains it no moments are kept: it has a fresh Adam each round.
        """
        states = {network: state_of(module) for network, module in self.networks.items()}
        moments = {network: state for network, state in moments.items() if network != self._averaged}
        self._checkpoints.write(name, Checkpoint(record, states, moments))
        self._held, self.moments = name, moments

    @cached_property
    def place(self) -> BuildContext:
        """What the method's networks must fit."""
        settings = self._settings
        spec = shared_spec(settings)
        return BuildContext(
            site=settings.site,
            task=settings.task.kind,
            classes=settings.task.classes,
            parameters=settings.parameters,
            output=self.output,
            shared_output=None if spec is None else self._probed(build_spec(spec, "[shared_model]"), "[shared_model]"),
            make_shared=lambda: build_spec(spec or {}, "[shared_model]"),
        )

    @property
    def _averaged(self) -> str | None:
        """The network that goes with the head, where there is one."""
        return None if self._method.companion is None else self._method.companion.name

    def _probed(self, network: Network, where: str) -> Output:
        try:
            data = self._settings.data
            return probe(network.cpu(), self._settings.task, data.input_size, scale=data.scale or 1)
        except Exception as error:
            raise UnusableConfigurationError(f"{where}: {error}") from error

    def _sow(self, *purpose: str, alike: bool, role: str) -> None:
        """Seed torch's global generator: for the role alone where all sites start alike."""
        settings = self._settings
        torch.manual_seed(
            derive(settings.federation_name, settings.seed, "init", role) if alike else self._seed(*purpose)
        )
