"""The tables and keys of federation.toml and site.toml, and whether a site fits its federation."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, model_validator

from models.spec import HYPER
from peer.core import epochs, limits, roster
from peer.core.metrics import METRICS_OF
from peer.core.plan import METHOD_KEYS, AggregateRule, Plan, Unit, Value, Wire, Work
from peer.core.roster import Roster, Sha256, SiteName
from peer.errors import ConfigError
from peer.methods.registry import PLANS, find_plan, method_names
from peer.site.config import toml
from peer.site.config.site_tables import (
    ConnectConfig,
    DataConfig,
    DiscoveryConfig,
    EgressConfig,
    LimitsConfig,
    MetricsConfig,
    ModelConfig,
    ReferenceConfig,
    TrainingConfig,
)
from peer.site.config.toml import (
    Addresses,
    Count,
    Listen,
    Loose,
    NotNegative,
    Route,
    Seconds,
    StrictTable,
    key_problem,
    split_relay,
    split_route,
    suggestion,
)
from peer.site.config.value_types import DIGEST, ClassName, Digest, Name

PACE = epochs.PaceRules()


class TaskConfig(StrictTable):
    """``[task]``: the learning task.

    For super-resolution, ``classes`` is the number of output channels.
    """

    kind: Literal["classification", "segmentation", "time_series", "super_resolution"]
    spatial_dims: Annotated[int, Field(ge=1, le=3)]
    in_channels: Count
    classes: Count
    same_input_size: bool = True

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.kind != "super_resolution" and self.classes < 2:
            raise key_problem("classes", f"{self.kind} needs at least 2, not {self.classes}")
        if self.kind == "time_series" and self.spatial_dims != 1:
            raise key_problem("spatial_dims", f"a time series has 1, not {self.spatial_dims}")
        return self


class NamedParameters(StrictTable):
    """``[method]`` or ``[shared_model]``: a name, and any parameters beside it."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    name: str


class StageConfig(StrictTable):
    """``[stages.NAME]``: one training stage of a round.

    The method's plan has the values that the file leaves out.
    """

    unit: Unit
    count: Count
    learning_rate: Annotated[float, Field(gt=0)]
    weight_decay: NotNegative = 0.0
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0


class AggregateConfig(StrictTable):
    """``[aggregate]``: how sites average, in methods that do.

    With ``bounds``, a contribution far from the others is left out, and claimed samples count up to
    a multiple of their median.
    """

    rule: AggregateRule = "mean"
    bounds: bool = True


class ScheduleConfig(StrictTable):
    """``[schedule]``: how the order of a round is drawn, and how old its artifacts are."""

    kind: Literal["permutation", "derangement", "ring"] = "permutation"
    staleness: Literal[0, 1] = 0


class Fallback(StrictTable):
    """``[fallback]``: what a permutation method trains with when no artifact arrives."""

    kind: Literal["self", "stale"] = "self"
    staleness_rounds_max: Count = 1


class PaceConfig(StrictTable):
    """``[pace]``: how long sites wait for each other; the core's rules have the defaults."""

    wait_max_s: Seconds = PACE.wait_max_s
    deadline_floor_s: NotNegative = PACE.deadline_floor_s
    gather_s: Seconds | None = PACE.gather_s
    silence_s: Seconds = PACE.silence_s
    beat_s: Seconds | None = None
    lead_rounds_max: Count = PACE.lead_rounds_max
    lag_rounds_max: Count = PACE.lag_rounds_max
    isolated_s: Seconds = PACE.isolated_s
    linger_s: NotNegative = PACE.linger_s
    artifact_rounds_max: Count = PACE.artifact_rounds_max
    members_min: Count = PACE.members_min


class RosterEntry(StrictTable):
    """``[[site]]``: one site.

    Its address is ``host:port``, or ``relay NAME host:port``; it may also come from discovery or from
    ``[addresses]`` in site.toml.
    """

    name: Name
    address: Route | None = None
    key: Digest | None = None
    description: str = ""


class MembersGovernance(StrictTable):
    """``governance = {members = M}``: so many members, and a majority, sign each amendment."""

    members: Annotated[int, Field(ge=1, le=limits.SITES_MAX)]


class FederationConfig(StrictTable):
    """``federation.toml``. Use ``load`` or ``parse``, which also set the digest."""

    name: Name
    description: str = ""
    rounds: Annotated[int, Field(ge=1, le=limits.ROUNDS_MAX)]
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    weighting: Literal["uniform", "samples"] = "uniform"
    wire: Wire = "float32"
    quorum: Count | None = None
    global_test: bool = False
    evaluation_every: Annotated[int, Field(ge=0)] = 0
    image_axes: Literal["rows_columns"] = "rows_columns"
    ca_certificate: str | None = None
    governance: Literal["founder"] | MembersGovernance = "founder"
    task: TaskConfig
    method: NamedParameters
    stages: dict[str, StageConfig]
    aggregate: AggregateConfig = AggregateConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    fallback: Fallback = Fallback()
    pace: PaceConfig = PaceConfig()
    shared_model: NamedParameters | None = None
    site: Annotated[tuple[RosterEntry, ...], Loose, Field(min_length=1, max_length=limits.SITES_MAX)]

    _digest: Sha256 = PrivateAttr()
    _where: str = PrivateAttr("federation.toml")
    _file_stages: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> FederationConfig:
        """The federation in a file; ``ConfigError`` when the file cannot be read or is wrong."""
        return cls.parse(toml.read(path), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> FederationConfig:
        """The federation in a text; ``where`` names it in errors."""
        document = toml.parse(text, where)
        try:
            digest = roster.federation_digest(document)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        federation = toml.validate(cls, document, where)
        federation._digest = digest
        federation._where = where
        federation._file_stages = document.get("stages", {})
        return federation

    @property
    def where(self) -> str:
        return self._where

    @property
    def digest(self) -> Sha256:
        return self._digest

    @functools.cached_property
    def roster(self) -> Roster:
        return Roster.of([entry.name for entry in self.site])

    @property
    def addresses(self) -> dict[SiteName, str]:
        return {SiteName(entry.name): entry.address for entry in self.site if entry.address is not None}

    @property
    def plan(self) -> Plan:
        return _plan(self.method.name, self.method.__pydantic_extra__.get("package"))

    @property
    def parameters(self) -> dict[str, Value]:
        """Every parameter of the method, with the type of its default."""
        values: dict[str, Any] = self.method.__pydantic_extra__
        return {name: type(default)(values[name]) for name, default in self.plan.defaults().items()}

    @property
    def pinned_keys(self) -> dict[SiteName, Sha256 | None]:
        """By site, the SHA-256 of the one key that counts as its own; ``None`` where any of the CA's does."""
        return {SiteName(site.name): None if site.key is None else Sha256(site.key) for site in self.site}

    @property
    def governance_members(self) -> int | None:
        """How many members sign an amendment at least; ``None`` where the founder signs."""
        return self.governance.members if isinstance(self.governance, MembersGovernance) else None

    @property
    def derived_counts(self) -> dict[str, int]:
        """By stage, the steps that the method's paper gives for so many sites, where the file has no
        ``count`` of the stage and its unit is the step.
        """
        return {
            stage: steps * len(self.site)
            for stage, steps in self.plan.steps_per_site.items()
            if "count" not in self._file_stages.get(stage, {}) and self.stages[stage].unit == "step"
        }

    def work(self, stage: str) -> Work:
        return Work(**self.stages[stage].model_dump())

    @property
    def beat_s(self) -> float:
        """Seconds between two heartbeats of a site; a large federation sends them less often."""
        if self.pace.beat_s is not None:
            return self.pace.beat_s
        return limits.BEAT_LARGE_S if len(self.site) > limits.BEAT_LARGE_SITES else limits.BEAT_S

    @model_validator(mode="before")
    @classmethod
    def _with_plan(cls, document: Any) -> Any:
        """Check the method's parameters and stages by its plan, and fill in what they leave out."""
        method = document.get("method") if isinstance(document, dict) else None
        if not isinstance(method, dict) or not isinstance(method.get("name"), str):
            return document
        plan = _plan(method["name"], method.get("package"))
        for name, reason in plan.problems({key: value for key, value in method.items() if key not in METHOD_KEYS}):
            unknown = f"unknown key{suggestion(name, plan.parameters)}"
            raise key_problem(f"method.{name}", unknown if reason == "unknown" else reason)
        others = len(document["site"]) - 1 if isinstance(document.get("site"), list) else None
        if plan.visits in method and others is not None and method[plan.visits] > max(1, others):
            at_most = max(1, others)
            reason = f"{method[plan.visits]} is above the {others} other sites; set it to {at_most}, or leave it out"
            raise key_problem(f"method.{plan.visits}", reason)
        file_stages = document.get("stages", {})
        if not isinstance(file_stages, dict):
            return document
        for stage in file_stages.keys() - plan.stages.keys():
            raise key_problem(f"stages.{stage}", f"unknown stage{suggestion(stage, plan.stages)}")
        stages = {stage: dataclasses.asdict(work) for stage, work in plan.stages.items()}
        for stage, keys in file_stages.items():
            stages[stage] = stages[stage] | keys if isinstance(keys, dict) else keys
        defaults = {key: list(value) if isinstance(value, tuple) else value for key, value in plan.defaults().items()}
        return {**document, "method": defaults | method, "stages": stages}

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for name, count in Counter(entry.name for entry in self.site).items():
            if count > 1:
                raise key_problem("site", f"{name!r} is in the roster {count} times")
        for address, count in Counter(self.addresses.values()).items():
            if count > 1 and not split_route(address)[0]:
                raise key_problem("site", f"{count} sites have the address {address!r}")
        if (problem := self._governance_problem()) is not None:
            raise key_problem("governance", problem)
        if self.quorum is not None and self.quorum >= len(self.site):
            raise key_problem("quorum", f"{self.quorum} is more than the {len(self.site) - 1} other sites")
        if self.task.kind in self.plan.not_for:
            raise key_problem("method.name", f"{self.method.name} is not defined for {self.task.kind}")
        if self.fallback.kind == "stale" and "aggregate" in self.plan.phases:
            raise key_problem("fallback.kind", f"{self.method.name} averages, and a mean takes no stale artifact")
        if self.plan.public and not DIGEST.fullmatch(str(self.parameters["public_sha256"])):
            raise key_problem(
                "method.public_sha256",
                f"{self.method.name} needs the digest of its public set, 64 hexadecimal digits; `check` says which a "
                "site's set has",
            )
        if (problem := self._aggregate_problem()) is not None:
            raise key_problem("aggregate.rule", problem)
        if (problem := self._shared_model_problem()) is not None:
            raise key_problem("shared_model", problem)
        if self.wire != "float32" and self.plan.artifact in (None, "prototype", "prediction"):
            sent = "nothing" if self.plan.artifact is None else f"{self.plan.artifact}s and no weights"
            raise key_problem("wire", f"{self.method.name} sends {sent}; leave it out")
        if self.plan.pattern == "visit" and self.schedule.kind not in ("ring", ScheduleConfig().kind):
            raise key_problem("schedule.kind", f"{self.method.name} visits along a ring; leave it out")
        if self.schedule.staleness and (problem := self.plan.staleness_problem(self.parameters)) is not None:
            raise key_problem("schedule.staleness", f"{self.method.name} {problem}; leave it out")
        if self.schedule.kind == "derangement" and len(self.site) < 2:
            raise key_problem("schedule.kind", "a derangement needs at least 2 sites")
        if self.pace.silence_s < 3 * self.beat_s:
            raise key_problem("pace.silence_s", f"{self.pace.silence_s} leaves no room for 3 beats of {self.beat_s} s")
        if self.pace.deadline_floor_s > self.pace.wait_max_s:
            raise key_problem("pace.deadline_floor_s", f"{self.pace.deadline_floor_s} is above wait_max_s")
        if self.pace.members_min > len(self.site):
            raise key_problem("pace.members_min", f"{self.pace.members_min} is more than the {len(self.site)} sites")
        return self

    def _governance_problem(self) -> str | None:
        for key, count in Counter(entry.key for entry in self.site if entry.key is not None).items():
            if count > 1:
                return f"{count} sites have the key {key[:12]}…; every site has its own"
        if self.governance_members is None:
            return None
        if self.governance_members > len(self.site):
            return f"members = {self.governance_members} is more than the {len(self.site)} sites"
        # From a draft, a site makes the key that the founder then writes into it.
        return self.unpinned_problem if self.ca_certificate is not None else None

    @property
    def unpinned_problem(self) -> str | None:
        """The error message where members sign, and sites have no ``key``; only a draft may lack one."""
        unpinned = [entry.name for entry in self.site if entry.key is None]
        if self.governance_members is None or not unpinned:
            return None
        return (
            f"members sign with pinned keys: write `key` into the [[site]] of {', '.join(unpinned)}, as "
            "`mhfl-peer site init --federation DRAFT` prints it there"
        )

    def _aggregate_problem(self) -> str | None:
        """Why the method or the weighting has no use for a rule other than the mean."""
        rule, plan = self.aggregate.rule, self.plan
        if rule == "mean":
            return None
        if "aggregate" not in plan.phases:
            return f"{self.method.name} averages nothing; leave it out"
        if plan.pattern == "visit":
            return f"{self.method.name} averages a model with its own copies, which are too few; leave it out"
        if plan.pattern != "all_to_all":
            return f"{self.method.name} averages pairs, of which only a mean exists; leave it out"
        return f'{rule} takes no weights, but weighting = "samples"' if self.weighting == "samples" else None

    def _shared_model_problem(self) -> str | None:
        """The error message where the method needs a ``[shared_model]`` and the file has none."""
        plan, method = self.plan, self.method.name
        needed = plan.shared != "maybe" and self.task.kind not in plan.shared_default
        return f"{method} needs one: the network that all sites share" if needed and self.shared_model is None else None


def _plan(method: str, package: object) -> Plan:
    """The plan of a method.

    ``ConfigError`` with a remedy of its own where the method's package is not installed.
    """
    if package is not None and not isinstance(package, str):
        raise key_problem("method.package", f"must be a string, not {package!r}")
    if package is None and method not in PLANS and method not in (known := method_names()):
        raise key_problem("method.name", f"unknown method {method!r}{suggestion(method, known)}")
    return find_plan(method, package)


class SiteConfig(StrictTable):
    """``site.toml``. Use ``load``, which also remembers the file's path."""

    listen: Listen = "127.0.0.1:7443"
    refuse_certificates: Annotated[tuple[Digest, ...], Loose] = ()
    allow_models: Annotated[tuple[ClassName, ...], Loose] = ()
    addresses: dict[Name, Addresses] = Field(default_factory=dict)
    base_weights: dict[Digest, str] = Field(default_factory=dict)
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    limits: LimitsConfig = LimitsConfig()
    egress: EgressConfig = EgressConfig()
    connect: ConnectConfig = ConnectConfig()
    discovery: DiscoveryConfig = DiscoveryConfig()
    metrics: MetricsConfig = MetricsConfig()
    reference: ReferenceConfig | None = None

    _path: Path = PrivateAttr(Path("site.toml"))

    @classmethod
    def load(cls, path: Path) -> SiteConfig:
        """The site in a file; ``ConfigError`` when the file cannot be read or is wrong."""
        return cls.parse(toml.read(path), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> SiteConfig:
        """The site in a text that the file has, or shall have."""
        site = toml.validate(cls, toml.parse(text, str(path)), str(path))
        site._path = path
        return site

    @property
    def where(self) -> str:
        return str(self._path)

    @property
    def folder(self) -> Path:
        """The folder that relative paths in the file start from."""
        return self._path.parent


def check_site(federation: FederationConfig, site: SiteConfig, name: str, *, newcomers: Collection[str] = ()) -> None:
    """``ConfigError`` with every reason why the site cannot take part in this federation.

    ``newcomers`` are the sites that amendments added, or will add: this one may be among them.
    """
    known = {*federation.roster, *newcomers}
    if name not in known:
        raise ConfigError(
            f"{federation.where}: the roster ({', '.join(federation.roster)}) does not name this site, {name!r}",
            "start it under the name that the founder gave it; a site that an amendment adds first runs "
            "`mhfl-peer site join` with the founder's bundle",
        )
    plan, egress, others = federation.plan, site.egress, [other for other in federation.roster if other != name]
    problems = []
    for stranger in site.addresses.keys() - known:
        problems.append(f"addresses.{stranger}: not in the roster{suggestion(stranger, known)}")
    relays = {split_relay(relay)[0] for relay in site.connect.relays}
    if name in relays:
        problems.append(f"connect.relays: {name} is this site; write the relay's own name before its address")
    for stranger in site.connect.peers.keys() - known - relays:
        problems.append(f"connect.peers.{stranger}: not in the roster{suggestion(stranger, known)}")
    connections, needed = site.limits.connections_max, limits.CONNECTIONS_PER_PEER_RESERVED * len(others)
    if connections is not None and connections < needed:
        problems.append(f"limits.connections_max: {len(others)} other sites need {needed} at least; leave it out")
    for stranger in set(egress.receivers) - {"*", *known}:
        problems.append(f"egress.receivers: {stranger!r} is not in the roster{suggestion(stranger, known)}")
    for kind in egress.kinds or ():
        if kind in plan.never_leaves:
            problems.append(f"egress.kinds: {federation.method.name} never lets a {kind} leave")
    for kind in plan.sends:
        if kind not in egress.permitted_kinds(plan):
            problems.append(f"egress.kinds: {federation.method.name} sends a {kind}, which is not listed")
    if plan.artifact is not None and (left_out := [other for other in others if not egress.permits_receiver(other)]):
        problems.append(f"egress.receivers: {federation.method.name} also sends to {', '.join(left_out)}")
    if plan.public and site.data.public is None:
        problems.append(f"data.public: {federation.method.name} needs the datalist of its public set of images")
    shared = federation.shared_model
    if shared is not None and plan.shared != "beside":
        hyper = dict(shared.__pydantic_extra__)
        if (site.model.name, site.model.parameters) != (shared.name, hyper):
            problems.append(f"model: {federation.method.name} trains one model, [shared_model] {shared.name} {hyper}")
    if federation.weighting == "samples" and not egress.training_set_size:
        problems.append('egress.training_set_size: weighting = "samples" tells it to the others, but it is false')
    if len(site.data.input_size) != federation.task.spatial_dims:
        problems.append(
            f"data.input_size: {len(site.data.input_size)} sizes for spatial_dims = {federation.task.spatial_dims}"
        )
    metrics = METRICS_OF[federation.task.kind]
    if site.reference is not None and site.reference.metric not in metrics:
        problems.append(f"reference.metric: {federation.task.kind} has {', '.join(metrics)}")
    problems += _scale_problems(federation.task.kind, site)
    problems += geometry_problems(federation.task, site.data)
    if problems:
        toml.refuse(site.where, sorted(problems))


def geometry_problems(task: TaskConfig, data: DataConfig) -> Iterator[str]:
    """Problems with the keys that say how images are turned, resampled and scaled."""
    if data.orientation is not None and task.spatial_dims < 3:
        yield "data.orientation: only volumes have one; leave it out"
    if data.spacing is not None and len(data.spacing) != task.spatial_dims:
        yield f"data.spacing: {len(data.spacing)} distances for spatial_dims = {task.spatial_dims}"
    if task.kind == "super_resolution":
        if data.spacing is not None:
            yield "data.spacing: would interpolate what the network must learn; super-resolution takes none"
        if data.intensity is not None:
            yield "data.intensity: super-resolution takes images with values from 0 to 1; leave it out"


def _scale_problems(kind: str, site: SiteConfig) -> Iterator[str]:
    """Problems with the keys that only super-resolution has."""
    data, model = site.data, site.model
    if kind != "super_resolution":
        if data.scale is not None:
            yield f"data.scale: {kind} has none; leave it out"
        return
    if data.normalise != "none":
        yield f"data.normalise: {data.normalise} would part an image from its target; super-resolution takes none"
    if data.scale is None:
        yield "data.scale: super-resolution needs 2, 4 or 8"
    elif "scale" in HYPER.get(model.name, ()) and model.parameters.get("scale") != data.scale:
        yield f"model.parameters.scale: {model.name} must have {data.scale}, as [data] scale has"
