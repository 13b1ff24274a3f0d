"""What a site sends and what it makes of that which came: a network, a head, or a state to average."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence

from torch import nn

from models import Network, Output
from peer.core.commands import Source
from peer.core.limits import STEPS_MAX
from peer.core.messages import Artifact
from peer.core.roster import SiteName
from peer.files import artifact_path
from peer.methods.method import Method
from peer.training.artifact import read_head, read_network, read_state, write_artifact
from peer.training.errors import UnusableArtifact, UnusableConfigurationError
from peer.training.network import probe, probe_head
from peer.training.settings import TrainingSettings
from peer.training.site_networks import SiteNetworks
from peer.training.tensors import State, mean, state_of, unpack


class ArtifactExchange:
    """Artifacts of one site, made of and held against the networks that it keeps.

    Every reading raises ``UnusableArtifact`` with the reason, before anything of what came reaches the device.
    """

    def __init__(self, settings: TrainingSettings, method: Method, kept: SiteNetworks) -> None:
        self._settings, self._method, self._kept = settings, method, kept

    def send(self, network: nn.Module, *, owner: SiteName, steps: int, samples: int) -> Artifact:
        """Write the network's artifact: of its state what the method sends."""
        settings, kind = self._settings, self._settings.plan.artifact
        if kind is None or not isinstance(network, Network):
            raise UnusableConfigurationError(f"method {settings.method!r} shares no model")
        return write_artifact(
            settings.artifacts,
            self._part(network) | self._beside(),
            spec=network.spec,
            kind=kind,
            owner=owner,
            steps=min(steps, STEPS_MAX),  # a received count is another site's claim
            training_samples=samples if settings.tells_samples else None,
        )

    def judge_own(self, artifact: Artifact) -> None:
        """Refuse at the start an artifact that every other site would refuse in round 1."""
        settings, network = self._settings, self._kept.sent
        source, allow = Source(settings.site, 1, artifact), {network.spec["name"]}
        try:
            if "aggregate" in settings.plan.phases:
                self._state(source, allow=allow)
            else:
                self._read(source, allow=allow)
        except UnusableArtifact as error:
            named = f"{'[model]' if network is self._kept.dam else '[shared_model]'} {network.spec['name']}"
            raise UnusableConfigurationError(f"{named} would be refused by other sites: {error}") from error

    def receive(self, source: Source) -> tuple[nn.Module, Output]:
        """The source's network or head, on the CPU, and its output for one image, or one feature, of zeros.

        A model of this site's own spec comes home, and needs no entry in ``allow_models``.
        """
        own, spec = self._kept.dam.spec, source.artifact.spec
        module = self._read(source, allow={*self._settings.allow_models, *([own["name"]] if spec == own else [])})
        try:
            if isinstance(module, Network):
                data = self._settings.data
                return module, probe(module, self._settings.task, data.input_size, scale=data.scale or 1)
            return module, probe_head(module, self._kept.output)
        except Exception as error:
            raise UnusableArtifact(source, str(error)) from error

    def received(self, sources: Sequence[Source]) -> dict[str, nn.Module]:
        """What the sources sent, by origin, if the method can use it beside the local model."""
        found = {}
        for source in sources:
            module, output = self.receive(source)
            reason = self._method.mismatch(self._kept.output, output, self._settings.parameters)
            if reason is not None:
                raise UnusableArtifact(source, reason)
            found[str(source.origin)] = module
        return found

    def extreme(self, source: Source) -> float:
        """The largest absolute value in what came, counts apart: an old network has counted far."""
        state = unpack(artifact_path(self._settings.artifacts, source.artifact.sha256).read_bytes())
        weights = [tensor for tensor in state.values() if tensor.is_floating_point() and tensor.numel()]
        return max((float(tensor.abs().max()) for tensor in weights), default=0.0)

    def averaged(self, sources: Sequence[Source], *, samples: int) -> tuple[State, list[SiteName]]:
        """The mean of the own state and of those that came, in ascending order of their sites, and whose they are.

        The federation's ``weighting = "samples"`` holds only while everybody says how many there are: the mean must be
        the same at all sites that average the same states.
        """
        settings, like = self._settings, self._kept.sent
        allow = {*settings.allow_models, like.spec["name"]}
        states, counts = {settings.site: self._part(like)}, {settings.site: samples if settings.tells_samples else None}
        for source in sources:
            states[source.origin] = self._state(source, allow=allow)
            counts[source.origin] = source.artifact.training_samples
        order = sorted(states)
        weights = [float(count) for name in order if (count := counts[name])]
        weighted = settings.weighted and len(weights) == len(order)
        return mean([states[name] for name in order], weights if weighted else None), order

    def _read(self, source: Source, *, allow: Collection[str]) -> nn.Module:
        settings, companion = self._settings, self._method.companion
        if settings.plan.artifact != "head":
            return read_network(settings.artifacts, source, settings.task, allow=allow)
        if companion is None:
            return read_head(settings.artifacts, source, settings.task, allow=allow)[0]
        beside = companion.name, functools.partial(companion.theirs, self._kept.place, source.origin)
        head, came = read_head(settings.artifacts, source, settings.task, allow=allow, beside=beside)
        # What came beside an older head was averaged in its own round, or is too late for any.
        return head if source.fallback else companion.join(head, came)

    def _state(self, source: Source, *, allow: Collection[str]) -> State:
        settings = self._settings
        like = self._kept.sent
        heads = settings.plan.artifact == "head"
        return read_state(
            settings.artifacts, source, settings.task, like=like, sent=self._names, allow=allow, any_body=heads
        )

    def _names(self, network: Network) -> Collection[str]:
        return self._method.sent(network, self._settings.parameters)

    def _beside(self) -> State:
        """What goes with the head, under names of its own."""
        companion = self._method.companion
        if companion is None:
            return {}
        state = state_of(self._kept.networks[companion.name])
        return {f"{companion.name}/{name}": tensor for name, tensor in state.items()}

    def _part(self, network: Network) -> State:
        names = set(self._names(network))
        return {name: tensor for name, tensor in state_of(network).items() if name in names}
