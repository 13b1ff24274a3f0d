"""A site's networks and their optimisers' moments, loaded from one checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from models import Network, Output
from peer.core.seeds import derive
from peer.methods.method import DAM, BuildContext, Method
from peer.train.checkpoint import Checkpoint, Checkpoints
from peer.train.errors import UnusableConfigurationError
from peer.train.network import BaseWeights, build_spec, local_spec, probe, shared_spec
from peer.train.public_set import load_public_images
from peer.train.samples import Seed
from peer.train.settings import TrainingSettings
from peer.train.tensors import State, state_of
from peer.train.weights import load_weights

ACCEPTED = "accepted-sum"
"""The name of the last accepted mean of a secure sum in checkpoints and their records."""


class SiteNetworks:
    """The networks by name: the local model as ``dam``, and the method's ``local_networks``.

    Args:
        seed: the site's seed. Averaged networks, and the one model of a homogeneous federation, start
            from the same weights at every site.

    Attributes:
        base_weights: the weights files of this site.
        weights_summary: how the weights of ``[model]`` fit, once the local model is built.
        accepted: the last mean of a secure sum that the site used, which its checkpoints hold, too;
            empty before the first.
        accepted_round: the round of that mean; 0 before the first.
    """

    def __init__(self, settings: TrainingSettings, method: Method, seed: Seed, checkpoints: Checkpoints) -> None:
        self._settings, self._method, self._seed, self._checkpoints = settings, method, seed, checkpoints
        self._beside: dict[str, nn.Module] | None = None
        self._loaded = ""  # the name of the checkpoint that networks and moments equal, bit for bit
        self.moments: Mapping[str, State] = {}
        self.accepted, self.accepted_round = State(), 0
        self.base_weights = BaseWeights(settings)
        self.weights_summary: str | None = None

    @cached_property
    def dam(self) -> Network:
        """The local model: initial until a checkpoint is loaded into it."""
        alike = self._settings.plan.shared != "beside" and self._settings.shared_model is not None
        self._seed_torch("init", alike=alike, role=DAM)
        network = self._pretrained(build_spec(local_spec(self._settings), "[model]"))
        plan, parameters = self._settings.plan, self._settings.parameters
        if plan.artifact == "head" and ("aggregate" in plan.phases or parameters.get("alignment")):
            self._seed_torch("init", alike=True, role="head")
            for layer in network.head.modules():
                if callable(reset := getattr(layer, "reset_parameters", None)):
                    reset()
        return network

    @cached_property
    def output(self) -> Output:
        """The local model's output for an image of zeros, checked against the task."""
        return self._probe(self.dam, f"[model] {self.dam.spec['name']}")

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """All networks, built at first use."""
        if self._beside is None:
            networks: dict[str, nn.Module] = {}
            for name, build in self._method.local_networks.items():
                build_context = self.build_context  # before seeding: building it draws weights
                alike = name in (self._method.artifact_network, self._averaged_with_head, *self._method.sent_beside)
                # If the local model has the shared architecture, both start with the same weights.
                role = DAM if self._settings.plan.shared == "itself" else name
                self._seed_torch("init", name, alike=alike, role=role)
                networks[name] = build(build_context, {DAM: self.dam, **networks})
            self._beside = networks
        return {DAM: self.dam, **self._beside}

    def check(self) -> None:
        """Raise ``UnusableConfigurationError`` if the method cannot use these networks."""
        build, settings = self.build_context, self._settings
        masks = settings.data.regions is not None
        problem = self._method.check_local(build.output, build.shared_output, settings.parameters, masks=masks)
        if problem is not None:
            raise UnusableConfigurationError(problem)

    @property
    def artifact_network(self) -> Network:
        """The network whose state is the artifact."""
        network = self.networks[self._method.artifact_network]
        assert isinstance(network, Network)
        return network

    def load(self, name: str) -> None:
        """Load a checkpoint; raise ``UnusableConfigurationError`` if it is of other networks."""
        if self._loaded == name:
            return
        self._loaded, self._beside = "", None
        checkpoint = self._checkpoints.read(name)
        for network, module in self.networks.items():
            try:
                module.load_state_dict(checkpoint.networks[network])
            except (KeyError, RuntimeError) as error:
                raise UnusableConfigurationError(f"checkpoint {name} does not fit [model]: {error}") from error
        self._loaded, self.moments = name, checkpoint.optimisers
        self.accepted = checkpoint.networks.get(ACCEPTED, State())
        self.accepted_round = checkpoint.record.get(ACCEPTED, 0)

    def accept(self, mean: State, *, round: int) -> None:
        """Keep the mean of a secure sum in the checkpoints from now on."""
        self.invalidate()
        self.accepted, self.accepted_round = mean, round

    def read_artifact_state(self, name: str) -> State:
        """Read the state of the artifact's network in a checkpoint."""
        return self._checkpoints.read(name).networks[self._method.artifact_network]

    def invalidate(self) -> None:
        """Record that the networks will change, and no longer equal a checkpoint."""
        self._loaded = ""

    def leave_device(self) -> None:
        """Move the built networks off the device; the next stage moves them back."""
        built = [self.dam] if "dam" in self.__dict__ else []
        for network in (*built, *(self._beside or {}).values()):
            network.cpu()

    def write(self, name: str, record: Mapping[str, Any], moments: Mapping[str, State]) -> None:
        """Write all networks in their current state, with these moments, as a checkpoint.

        Omit the moments of the network that travels with the head: the stage that trains it averages it first, and
        gives it a fresh Adam each round.
        """
        states = {network: state_of(module) for network, module in self.networks.items()}
        moments = {network: state for network, state in moments.items() if network != self._averaged_with_head}
        if self.accepted:
            states, record = {**states, ACCEPTED: self.accepted}, {**record, ACCEPTED: self.accepted_round}
        self._checkpoints.write(name, Checkpoint(record, states, moments))
        self._loaded, self.moments = name, moments

    @cached_property
    def build_context(self) -> BuildContext:
        """The method's inputs for building its networks."""
        settings = self._settings
        spec = shared_spec(settings)

        def build_shared() -> Network:
            network = build_spec(spec or {}, "[shared_model]")
            return network if settings.plan.shared == "beside" else self._pretrained(network)

        return BuildContext(
            site=settings.site,
            task=settings.task.objective,
            classes=settings.task.classes,
            parameters=settings.parameters,
            output=self.output,
            shared_output=None if spec is None else self._probe(build_spec(spec, "[shared_model]"), "[shared_model]"),
            build_shared=build_shared,
            spatial_dims=settings.task.spatial_dims,
            in_channels=settings.task.in_channels,
            sites=settings.sites,
            public_images=lambda: self._public_images,
            columns=settings.task.columns,
            target=settings.task.target,
            class_names=settings.task.class_names,
            noised=settings.noise is not None,
            noise_multiplier=0.0 if settings.noise is None else settings.noise.share,
        )

    @cached_property
    def _public_images(self) -> Tensor:
        return load_public_images(self._settings)

    @property
    def _averaged_with_head(self) -> str | None:
        """The name of the network that travels with the head, if there is one."""
        return None if self._method.averaged_with_head is None else self._method.averaged_with_head.name

    def _pretrained(self, network: Network) -> Network:
        """Load the fitting part of the weights that ``[model]`` names, if any, into the network."""
        model = self._settings.model
        if "weights" not in model:
            return network
        state = self.base_weights.of(model["weights_sha256"])
        try:
            self.weights_summary = load_weights(network, state).describe()
        except ValueError as error:
            raise UnusableConfigurationError(f"[model] weights {model['weights']}: {error}") from error
        return network

    def _probe(self, network: Network, where: str) -> Output:
        try:
            data = self._settings.data
            return probe(network.cpu(), self._settings.task, data.input_size, scale=data.scale or 1)
        except Exception as error:
            raise UnusableConfigurationError(f"{where}: {error}") from error

    def _seed_torch(self, *purpose: str, alike: bool, role: str) -> None:
        """Seed torch's global generator; if all sites start ``alike``, by the role alone."""
        settings = self._settings
        torch.manual_seed(
            derive(settings.federation_name, settings.seed, "init", role) if alike else self._seed(*purpose)
        )
