"""The artifacts that a site sends and receives: a network, a head, or a state to average."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import models
from models import Network, Output
from models.footprint import count_operations
from models.foreign import is_foreign
from models.learning import base_tensors
from models.registry import describe_head
from models.spec import HEAD_KEY
from models.tap import Tapped
from peer.core.artifacts import Artifact, Source
from peer.core.kinds import Kind
from peer.core.limits import RECEIVED_OPERATIONS_FLOOR, STEPS_MAX
from peer.core.roster import SiteName
from peer.files import STATISTICS_FILE, artifact_path, write_file
from peer.methods.method import Method
from peer.train.aggregation import (
    TABLE,
    Aggregation,
    aggregate,
    aggregate_prototypes,
    aggregate_sums,
    cap_change,
    divide_prototypes,
    divide_total,
    find_leap,
    find_outliers,
    keep_total,
)
from peer.train.artifact import read_head, read_network, read_state, read_total, write_artifact
from peer.train.errors import UnusableArtifact, UnusableConfigurationError, refuse
from peer.train.network import probe, probe_head
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.tensors import State, as_received, as_sent, mean, non_finite, state_of, unpack

COMBINE: Mapping[Kind | None, Callable[..., Aggregation]] = {"prototype": aggregate_prototypes, "sums": aggregate_sums}
"""How artifacts are aggregated that are no weights."""
DIVIDE: Mapping[Kind | None, Callable[[State, int, State], State]] = {
    "prototype": divide_prototypes,
    "sums": keep_total,
}
"""How their aggregate comes from the total of a secure sum."""
BATCH_COUNTER = "num_batches_tracked"
"""Name of the counters of torch's batch normalisations."""


class ArtifactExchange:
    """Writes artifacts of a site's networks, and reads received ones, which must fit these networks.

    Every method that reads raises ``UnusableArtifact`` with the reason, before any received value reaches the device.
    """

    def __init__(self, settings: TrainingSettings, method: Method, networks: SiteNetworks) -> None:
        self._settings, self._method, self._networks = settings, method, networks

    def send(
        self,
        network: nn.Module,
        *,
        owner: SiteName,
        steps: int,
        samples: int | None,
        kind: Kind | None = None,
        lent: bool = False,
    ) -> Artifact:
        """Write the artifact of a network: the tensors that the method sends, by default as the method's kind.

        The artifact of a lent model contains that model alone.
        """
        settings, kind = self._settings, kind or self._settings.plan.artifact
        if kind is None or not isinstance(network, Network):
            raise UnusableConfigurationError(f"method {settings.method!r} shares no model")
        return write_artifact(
            settings.artifacts,
            self._sent_state(network) | self._state_with_head() | ({} if lent else self._state_beside()),
            spec=_sent_spec(network, kind),
            kind=kind,
            owner=owner,
            steps=min(steps, STEPS_MAX),  # a received count is another site's claim
            training_samples=samples if settings.tells_samples else None,
            wire=settings.wire,
        )

    def self_check(self, artifact: Artifact) -> None:
        """Refuse, before round 1, an artifact of this site that every other site would refuse."""
        settings, network = self._settings, self._networks.artifact_network
        source, allow = Source(settings.site, 1, artifact), {network.spec["name"]}
        try:
            if self.averages:
                self._read_state(source, allow=allow)
            else:
                self._read_module(source, allow=allow)
        except UnusableArtifact as error:
            table = "[model]" if network.spec == self._networks.dam.spec else "[shared_model]"
            raise UnusableConfigurationError(
                f"{table} {network.spec['name']} would be refused by other sites: {error}"
            ) from error

    def receive(self, source: Source) -> tuple[nn.Module, Output]:
        """Read the source's network or head on the CPU, and its output for one image, or one feature, of zeros.

        A model with this site's own spec needs no entry in ``allow_models``.
        """
        spec, own_specs = source.artifact.spec, (self._networks.dam.spec, self._networks.artifact_network.spec)
        module = self._read_module(
            source, allow={*self._settings.allow_models, *([spec["name"]] if spec in own_specs else [])}
        )
        try:
            if isinstance(module, Network):
                data = self._settings.data
                return module, probe(module, self._settings.task, data.input_size, scale=data.scale or 1)
            return module, probe_head(module, self._networks.output)
        except Exception as error:
            raise refuse(source, error) from error

    @property
    def stages_receive(self) -> bool:
        """Whether stages take the received artifacts; if not, the aggregate has already taken everything from them."""
        aggregated = self._settings.plan.artifact == "sums" or self._settings.aggregate.secure
        return self._method.kept is None and not aggregated

    def receive_all(self, sources: Sequence[Source]) -> dict[str, nn.Module]:
        """Read the sources' networks or heads, by origin; raise ``UnusableArtifact`` if the method cannot use one."""
        modules = {}
        for source in sources:
            module, output = self.receive(source)
            reason = self._method.check_received(self._networks.output, output, self._settings.parameters)
            if reason is not None:
                raise UnusableArtifact(source, reason)
            modules[str(source.origin)] = module
        return modules

    def max_abs(self, source: Source) -> float:
        """Return the largest absolute floating value of an artifact, excluding counters."""
        state = unpack(artifact_path(self._settings.artifacts, source.artifact.sha256).read_bytes())
        weights = [tensor for tensor in state.values() if tensor.is_floating_point() and tensor.numel()]
        return max((float(tensor.abs().max()) for tensor in weights), default=0.0)

    def average(self, sources: Sequence[Source], *, samples: int | None, sent: Source | None = None) -> Aggregation:
        """Aggregate this site's state and the received ones by the federation's rule and bounds.

        Without ``samples``, aggregate the received states alone. The artifact ``sent`` replaces this site's current
        state.

        The federation's ``weighting = "samples"`` applies only if every site reports its number of samples: all sites
        that average the same states must compute the same mean.
        """
        settings, own = self._settings, self._networks.artifact_network
        allow = {*settings.allow_models, own.spec["name"]}
        states: dict[SiteName, State] = {}
        counts: dict[SiteName, int | None] = {}
        if samples is not None and sent is not None:
            sources = (sent, *sources)
        elif samples is not None:
            state = self.sent_state(self._networks)
            states[settings.site] = as_received(as_sent(state, settings.wire), state)  # all average the same bits
            counts[settings.site] = samples if settings.tells_samples else None
        for source in sources:
            state = states[source.origin] = self._read_state(source, allow=allow)
            if (reason := self._method.check_state(state, own)) is not None:
                raise UnusableArtifact(source, reason)
            counts[source.origin] = source.artifact.training_samples
        kept = {site: self._take_kept(state) for site, state in states.items()}
        combine = COMBINE.get(settings.plan.artifact, aggregate)
        aggregation = combine(
            states,
            counts,
            rule=settings.aggregate.rule,
            bounds=settings.aggregate.bounds and self._method.bounded,
            weighted=settings.weighted,
        )
        judged = settings.aggregate.bounds and self._method.kept is not None and self._method.kept.bounded
        beyond = find_outliers(kept) if judged else {}
        contributors = (site for site in aggregation.contributors if site == settings.site or site not in beyond)
        kept = {site: kept[site] for site in contributors if kept[site]}
        return dataclasses.replace(aggregation, kept=kept, cut=beyond | aggregation.cut)

    def divide(self, total: Source, contributors: Collection[SiteName]) -> Aggregation:
        """Compute the aggregate from the total of a secure sum of the contributors' states."""
        network, own = self._networks.artifact_network, self.sent_state(self._networks)
        sums, weight = read_total(self._settings.artifacts, total, own)
        state = DIVIDE.get(self._settings.plan.artifact, divide_total)(sums, weight, own)
        if (bad := non_finite(state)) is not None:
            raise UnusableArtifact(total, f"tensor {bad!r} of the mean is too large for its type")
        if self._settings.plan.artifact == "sums":
            reason = self._method.check_state(state, network, len(contributors))
            if reason is not None:
                raise UnusableArtifact(total, reason)
        return Aggregation(state, sorted(contributors))

    def sent_state(self, networks: SiteNetworks) -> State:
        """Return the tensors of a site's networks that its artifact has."""
        return self._sent_state(networks.artifact_network) | self._state_beside(networks)

    def merge(self, returned: Sequence[tuple[Source, Network]], sent: State) -> State:
        """Average, with weights, the local model and the copies of it that other sites trained.

        With the rule "capped", a copy changes the average as far as the local model's own training does, at most.

        Args:
            returned: the copies, of this site's spec, in roster order.
            sent: the state that the copies and the local model started from.

        Raises:
            UnusableArtifact: a copy is beyond the bounds.
        """
        own, rules = self._sent_state(self._networks.artifact_network), self._settings.aggregate
        sent = {name: tensor for name, tensor in sent.items() if name in own}
        parameters = self._settings.parameters
        replaces = bool(returned) and parameters.get("merge") == "replace"
        states, weights = ([], []) if replaces else ([own], [1.0])
        for source, network in returned:
            state = self._sent_state(network)
            if rules.bounds and (reason := find_leap(sent, own, state)) is not None:
                raise UnusableArtifact(source, reason)
            states.append(cap_change(sent, own, state) if rules.rule == "capped" else state)
            weights.append(float(parameters.get("merge_weight", 1.0)))  # type: ignore[arg-type]
        return mean(states, weights)

    @property
    def averages(self) -> bool:
        """Whether this site's network takes the mean of the artifacts, and so has a place for each of their tensors."""
        return "aggregate" in self._settings.plan.phases and self._settings.plan.pattern != "visit"

    def load_state(self, checkpoint: str) -> None:
        """Load a checkpoint into the site's networks, unless it is loaded, or the name is empty."""
        if checkpoint:
            self._networks.load(checkpoint)

    def read_predicting(self, source: Source) -> Network:
        """Read an artifact as a network that predicts; what it omits is this site's own.

        Raises:
            ValueError: the artifact is no network.
        """
        if self.averages:
            own = self._networks.artifact_network
            return self._with_state(self._read_state(source, allow={*self._settings.allow_models, own.spec["name"]}))
        module, _ = self.receive(source)
        if not isinstance(module, Network):
            raise ValueError(f"a {source.artifact.kind} is no network")
        return module

    def read_checkpoint(self, name: str) -> Network:
        """Read the network whose state is the artifact from a checkpoint."""
        return self._with_state(self._networks.read_artifact_state(name))

    def _with_state(self, state: Mapping[str, Tensor]) -> Network:
        network = copy.deepcopy(self._networks.artifact_network)
        network.load_state_dict(state, strict=False)
        return network

    def _read_module(self, source: Source, *, allow: Collection[str]) -> nn.Module:
        """Read a received network, or a received head joined with the network that travels with it."""
        settings, averaged_with_head = self._settings, self._method.averaged_with_head
        if settings.plan.artifact != "head":
            return read_network(
                settings.artifacts,
                source,
                settings.task,
                allow=allow,
                bases=self._networks.base_weights.of,
                check=self._check_operations,
                wire=settings.wire,
            )
        if averaged_with_head is None:
            return read_head(settings.artifacts, source, settings.task, allow=allow, wire=settings.wire)[0]
        build = functools.partial(averaged_with_head.build_received, self._networks.build_context, source.origin)
        head, network = read_head(
            settings.artifacts,
            source,
            settings.task,
            allow=allow,
            with_head=(averaged_with_head.name, build),
            wire=settings.wire,
        )
        # The network that came with an older head was averaged in its own round, or is too late for any.
        return head if source.fallback else averaged_with_head.join(head, network)

    def _check_operations(self, network: Network) -> None:
        """Raise ``ValueError`` if a sample costs many times the operations that it costs in the local network."""
        ratio, size = self._settings.received_ratio_max, tuple(self._settings.data.input_size)
        operations = _operations(json.dumps(network.spec, sort_keys=True), size) if ratio else None
        if operations is None or operations <= RECEIVED_OPERATIONS_FLOOR:
            return
        own = _operations(json.dumps(self._networks.dam.spec, sort_keys=True), size) or 0
        if operations > ratio * own:
            raise ValueError(
                f"it takes {operations} multiply-accumulates for one sample, above {ratio:g} times this site's {own} "
                "([limits] received_ratio_max)"
            )

    def _read_state(self, source: Source, *, allow: Collection[str]) -> State:
        settings = self._settings
        return read_state(
            settings.artifacts,
            source,
            settings.task,
            own=self._networks.artifact_network,
            artifact_tensors=self._artifact_tensors,
            allow=allow,
            any_body=settings.plan.artifact == "head",
            beside=self._state_beside(),
            wire=settings.wire,
        )

    def load(self, aggregation: Aggregation, *, round: int) -> None:
        """Load a round's aggregate into the networks whose states it averages, and keep what is kept by site.

        Write its content if the method has no model.
        """
        state = aggregation.state
        self._networks.artifact_network.load_state_dict(state, strict=False)
        for name in self._method.sent_beside:
            prefix = f"{name}/"
            beside = {key.removeprefix(prefix): state[key] for key in state if key.startswith(prefix)}
            self._networks.networks[name].load_state_dict(beside, strict=False)  # without what is kept
        if self._method.kept is not None:
            parts = {str(site): state for site, state in aggregation.kept.items()}
            own = parts.pop(self._settings.site, {})
            self._method.kept.keep(self._networks.networks, own, parts, self._settings.parameters)
        if self._method.describe_aggregate is not None:
            document = self._method.describe_aggregate(self._networks.networks)
            settings, members = self._settings, list(aggregation.contributors)
            of_what = {"federation": settings.federation_name, "site": settings.site, "round": round}
            document = {**of_what, "members": members, "count_min": settings.count_min, **document}
            if settings.noise is not None:
                bound = {"epsilon": settings.noise.epsilon, "delta": settings.noise.delta}
                document["noise"] = bound | document.get("noise", {})
            write_file(settings.home / STATISTICS_FILE, json.dumps(document, indent=1).encode(), 0o600)

    def _take_kept(self, state: State) -> State:
        """Remove the part that the method keeps by site from a state, and return it."""
        if self._method.kept is None:
            return {}
        prefix = self._method.kept.prefix(self._networks.artifact_network)
        return {name.removeprefix(prefix): state.pop(name) for name in list(state) if name.startswith(prefix)}

    def _artifact_tensors(self, network: Network) -> Collection[str]:
        return self._method.artifact_tensors(network, self._settings.parameters)

    def _state_with_head(self) -> State:
        """Return the state of the network that travels with the head, prefixed with its name."""
        averaged_with_head = self._method.averaged_with_head
        if averaged_with_head is None:
            return {}
        state = self._hide_counters(state_of(self._networks.networks[averaged_with_head.name]))
        return {f"{averaged_with_head.name}/{name}": tensor for name, tensor in state.items()}

    def _state_beside(self, networks: SiteNetworks | None = None) -> State:
        """Return the states of the networks that travel beside the artifact's, each prefixed with its name."""
        every = (networks or self._networks).networks
        beside = {name: every[name] for name in self._method.sent_beside}
        state = {
            f"{name}/{key}": tensor
            for name, network in beside.items()
            for key, tensor in state_of(network).items()
            if not (isinstance(network, Network) and key in base_tensors(network))
        }
        return self._hide_counters(state)

    def _sent_state(self, network: Network) -> State:
        names = set(self._artifact_tensors(network)) - base_tensors(network)
        state = {name: tensor for name, tensor in state_of(network).items() if name in names}
        return self._hide_counters(self._hide_class_counts(state))

    def _hide_class_counts(self, state: State) -> State:
        """Set the count of every class present in a table of prototypes to 1, if the policy hides sizes.

        For a secure sum, the row of every other class is 0, so that tables can be added up.
        """
        settings = self._settings
        if settings.plan.artifact != "prototype" or settings.tells_samples:
            return state
        prototypes, counts = (next(name for name in state if name.endswith(end)) for end in TABLE)
        present = state[counts] > 0
        rows = torch.where(present[:, None], state[prototypes], 0.0) if settings.aggregate.secure else state[prototypes]
        return state | {prototypes: rows, counts: present.to(state[counts].dtype)}

    def _hide_counters(self, state: State) -> State:
        """Set the numbers of batches that layers have seen to 0, if the policy hides them.

        Only a batch normalisation without momentum reads its counter.
        """
        if not self._settings.hides_counters:
            return state
        return {
            name: torch.zeros_like(tensor) if name.endswith(BATCH_COUNTER) else tensor for name, tensor in state.items()
        }


@functools.lru_cache(maxsize=256)
def _operations(spec: str, input_size: tuple[int, ...]) -> int | None:
    """Count the operations of one sample in a network of a spec; ``None`` if it does not run on the meta device.

    The results are cached, since sites send the same specs in every round.
    """
    try:
        with torch.device("meta"):
            return count_operations(models.build(json.loads(spec)), input_size)[0]
    except Exception:  # another site's network; the probe on the CPU reports the error
        return None


def _sent_spec(network: Network, kind: Kind) -> Mapping[str, Any]:
    """Return the spec for receivers; for a foreign network's head it describes the head, so that its class is not
    needed.
    """
    foreign = is_foreign(network.spec["name"]) and isinstance(network, Tapped)
    layer = describe_head(network) if foreign and kind == "head" else None
    return network.spec if layer is None else {**network.spec, HEAD_KEY: layer}
