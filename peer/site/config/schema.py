"""The tables and keys of federation.toml and site.toml, and whether a site fits its federation."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, create_model, model_validator

from peer.core import limits, roster
from peer.core.epochs import PaceRules
from peer.core.limits import CONTACT_CHARACTERS_MAX
from peer.core.metrics import METRICS_OF
from peer.core.plan import METHOD_KEYS, Plan, Unit, Value, Wire, Work
from peer.core.privacy import Noise
from peer.core.roster import Roster, Sha256, SiteName
from peer.core.tasks import UNCLASSED
from peer.errors import ConfigError
from peer.methods.registry import PLANS, find_plan, method_names
from peer.site.config import toml
from peer.site.config.aggregate_table import AggregateConfig, rule_problem, secure_problem
from peer.site.config.privacy_table import NoiseConfig, mechanism_problem, site_noise_problems
from peer.site.config.site_tables import (
    ConnectConfig,
    DataConfig,
    DiscoveryConfig,
    EgressConfig,
    LimitsConfig,
    MetricsConfig,
    ModelConfig,
    PrivacyConfig,
    ReferenceConfig,
    TrainingConfig,
)
from peer.site.config.task_table import TaskConfig, geometry_problems, sampling_problems, scale_problems, table_problems
from peer.site.config.toml import (
    Addresses,
    Count,
    Listen,
    Loose,
    NotNegative,
    Route,
    StrictTable,
    key_problem,
    split_relay,
    split_route,
    suggestion,
)
from peer.site.config.value_types import DIGEST, ClassName, Digest, Name


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
    """ "step" or "epoch"."""
    count: Count
    """How many of them in a round. Where FedSKD's draft has none, `federation create` writes the paper's 5 for each
    site."""
    learning_rate: Annotated[float, Field(gt=0, le=limits.LEARNING_RATE_MAX)]
    """Adam's learning rate."""
    weight_decay: NotNegative = 0.0
    """Adam's weight decay."""
    decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """What the learning rate is multiplied by from round to round."""


class ScheduleConfig(StrictTable):
    """``[schedule]``: how the order of a round is drawn, and how old its artifacts are."""

    kind: Literal["permutation", "derangement", "ring"] = "permutation"
    """Who receives from whom: "permutation" (any; a site may stay with itself), "derangement" (nobody does) or "ring".
    FedVisit always draws a ring."""
    staleness: Literal[0, 1] = 0
    """With 1, a round uses artifacts that are one round older than the method needs: their transfers run while the
    sites train, and hardly any site waits. FedSKD without activation, dFLMoE, FedProto, and methods that send
    predictions have a use for it."""


class Fallback(StrictTable):
    """``[fallback]``: what a permutation method trains with when no artifact arrives."""

    kind: Literal["self", "stale"] = "self"
    """When nothing comes in time: "self" (consolidate alone), or "stale" (the newest artifact held from that site)."""
    staleness_rounds_max: Count = 1
    """How many rounds old a stale artifact may be."""


if TYPE_CHECKING:

    class PaceConfig(StrictTable, PaceRules): ...  # type: ignore[misc]  # mypy does not read that a table is frozen

else:
    kinds = get_type_hints(PaceRules)
    PaceConfig = create_model(
        "PaceConfig",
        __base__=StrictTable,
        __doc__=PaceRules.__doc__,
        __module__=__name__,
        **{key.name: (kinds[key.name], Field(key.default, **key.metadata)) for key in dataclasses.fields(PaceRules)},
    )


class RosterEntry(StrictTable):
    """``[[site]]``: one site."""

    name: Name
    address: Route | None = None
    key: Digest | None = None
    """The site's fingerprint, as `site init` prints it, also with this draft. No other key counts as this site's then,
    even with a certificate of the CA: whoever has the CA's key alone cannot act as the site."""
    description: str = ""


class MembersGovernance(StrictTable):
    """``governance = {members = M}``: so many members, and a majority, sign each amendment."""

    members: Annotated[int, Field(ge=1, le=limits.SITES_MAX)]


class FederationConfig(StrictTable):
    """``federation.toml``. Use ``load`` or ``parse``, which also set the digest."""

    name: Name
    """The federation's name, also that of its folder at each site: lower-case letters, digits, inner hyphens, at most
    32."""
    description: str = ""
    """Free text."""
    rounds: Annotated[int, Field(ge=1, le=limits.ROUNDS_MAX)]
    """How many rounds there are."""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    """From which initial states and batch orders derive, beside the federation's digest."""
    weighting: Literal["uniform", "samples"] = "uniform"
    """What an average counts by: "uniform", or "samples", which tells the others how many samples a site trains on."""
    wire: Wire = "float32"
    """The element type of weights on the wire: "float32", or "bfloat16", which halves the bytes and rounds every weight
    that leaves to three significant digits; methods that send no weights have only "float32"."""
    quorum: Count | None = None
    """All-to-all methods: how many others must have delivered before a slow round goes on; left out: all of them."""
    global_test: bool = False
    """Whether sites measure each other's models on their own test data (Global Test; figures travel, data does not): at
    the end and each time that evaluation_every says. Each site.toml must allow it too, and the method let whole models
    leave."""
    evaluation_every: Annotated[int, Field(ge=0, le=limits.NUMBER_CONFIGURED_MAX)] = 0
    """Evaluate after each so many rounds; 0: only at the end."""
    image_axes: Literal["rows_columns"] = "rows_columns"
    """The order of a picture's axes at every site: rows, then columns (height, width)."""
    ca_certificate: str | None = None
    """The CA certificate; `federation create` writes it, a draft has none."""
    governance: Literal["founder"] | MembersGovernance = "founder"
    """Who signs amendments of this federation: the "founder" with the CA's key, or { members = M }: at least M of the
    sites, and more than half of them. Where members sign, every [[site]] has its `key`."""
    task: TaskConfig
    method: NamedParameters
    """One that `mhfl-peer methods` lists; further keys are its parameters, which `mhfl-peer methods fedskd` explains. A
    method of an installed package (see plugin/README.md) also names the package, which every site must have in exactly
    this version: package = "mhfl-example==1.0"."""
    stages: dict[str, StageConfig]
    """One table a training stage of the method, as `mhfl-peer methods NAME` lists them; FedSKD has "train"."""
    aggregate: AggregateConfig = AggregateConfig()
    privacy: NoiseConfig = NoiseConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    fallback: Fallback = Fallback()
    pace: PaceConfig = PaceConfig()
    shared_model: NamedParameters | None = None
    """The network that all sites share, name and hyper-parameters: FedDAL's and ProxyFL's proxy, MH-pFLID's messenger,
    the one model of fedavg, fedprox and fedbn. For the other methods it makes the federation homogeneous: every site's
    [model] must then be this one, and all start alike."""
    site: Annotated[tuple[RosterEntry, ...], Loose, Field(min_length=1, max_length=limits.SITES_MAX)]
    """The roster: one table a site. An address is a hint: site.toml can override it, and discovery can find it. That of
    a site that nobody can dial is "relay NAME host:port"."""

    _digest: Sha256 = PrivateAttr()
    _where: str = PrivateAttr("federation.toml")
    _file_stages: dict[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> FederationConfig:
        """Load the federation in a file. Raises ``ConfigError`` if the file cannot be read or is wrong."""
        return cls.parse(toml.read(path), str(path))

    @classmethod
    def parse(cls, text: str, where: str) -> FederationConfig:
        """Parse the federation in a text; ``where`` names it in errors."""
        document = toml.parse(text, where)
        try:
            digest = roster.federation_digest(document)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error
        federation = toml.validate(cls, document, where)
        visits, others = federation.plan.visits, len(federation.site) - 1
        if visits in document["method"] and document["method"][visits] > (at_most := max(1, others)):
            reason = f"{document['method'][visits]} is above the {others} other sites"
            toml.refuse(where, [f"method.{visits}: {reason}; set it to {at_most}, or leave it out"])
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
    def _counts(self) -> dict[str, int]:
        """The steps or epochs of each stage in a round."""
        return {stage: table.count for stage, table in self.stages.items()}

    @property
    def noise(self) -> Noise | None:
        """The noise on what leaves; ``None`` without ``[privacy] mechanism``. No amendment changes it."""
        return self.privacy.noise(self.plan, self._counts, self.rounds, self.aggregate)

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
        file_stages = document.get("stages", {})
        if not isinstance(file_stages, dict):
            return document
        for stage in file_stages.keys() - plan.stages.keys():
            raise key_problem(f"stages.{stage}", f"unknown stage{suggestion(stage, plan.stages)}")
        stages: dict[str, Any] = {stage: dataclasses.asdict(work) for stage, work in plan.stages.items()}
        if isinstance(rounds := document.get("rounds"), int):
            for stage in plan.final_rates:
                stages[stage]["decay"] = plan.default_decay(stage, rounds)
        defaults: dict[str, Any] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in plan.defaults().items()
        }
        for path, value in plan.earlier_defaults.items() if "ca_certificate" in document else ():
            table, _, key = path.rpartition(".")
            (defaults if table == "method" else stages[table.removeprefix("stages.")])[key] = value
        for stage, keys in file_stages.items():
            stages[stage] = stages[stage] | keys if isinstance(keys, dict) else keys
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
        if undefined := {self.task.kind, self.task.target} & set(self.plan.not_for):
            raise key_problem("method.name", _undefined_for(undefined.pop(), self.method.name, self.plan))
        if self.fallback.kind == "stale" and "aggregate" in self.plan.phases:
            raise key_problem("fallback.kind", f"{self.method.name} averages, and a mean takes no stale artifact")
        if self.plan.public and not DIGEST.fullmatch(str(self.parameters["public_sha256"])):
            raise key_problem(
                "method.public_sha256",
                f"{self.method.name} needs the digest of its public set, 64 hexadecimal digits; `check` says which a "
                "site's set has",
            )
        if not self.plan.predicts and self.rounds > 1:
            again = "a second round would tell what changed of single people"
            raise key_problem("rounds", f"{self.method.name} has one round: {again}; set rounds = 1")
        if not self.plan.predicts and self.weighting == "samples":
            raise key_problem("weighting", f"{self.method.name} adds up sums; leave it out")
        if (contradiction := self._aggregate_problem()) is not None:
            raise key_problem(*contradiction)
        if (contradiction := self._noise_problem()) is not None:
            raise key_problem(*contradiction)
        if (problem := self._shared_model_problem()) is not None:
            raise key_problem("shared_model", problem)
        if self.wire != "float32" and self.plan.artifact in (None, "prototype", "prediction", "sums"):
            sent = "nothing" if self.plan.artifact is None else f"{self.plan.artifact.rstrip('s')}s and no weights"
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

    def _aggregate_problem(self) -> tuple[str, str] | None:
        """Return the key and the reason where the table ``[aggregate]`` and the rest contradict each other."""
        plan, method, weighting = self.plan, self.method.name, self.weighting
        if (problem := rule_problem(self.aggregate.rule, plan, method=method, weighting=weighting)) is not None:
            return "aggregate.rule", problem
        return secure_problem(
            self.aggregate,
            plan,
            method=method,
            sites=len(self.site),
            rounds=self.rounds,
            weighting=weighting,
            wire=self.wire,
            staleness=self.schedule.staleness,
            global_test=self.global_test,
        )

    def _noise_problem(self) -> tuple[str, str] | None:
        """Return the key and the reason where the table ``[privacy]`` and the rest contradict each other."""
        shared, usual = self.shared_model, self.plan.shared_default.get(self.task.kind)
        return mechanism_problem(
            self.privacy,
            self.plan,
            method=self.method.name,
            parameters=self.parameters,
            counts=self._counts,
            rounds=self.rounds,
            weighting=self.weighting,
            global_test=self.global_test,
            shared=(shared.name, shared.__pydantic_extra__) if shared else (usual, {}) if usual else None,
        )

    def _shared_model_problem(self) -> str | None:
        """Return the error message where the method needs a ``[shared_model]`` and the file has none."""
        plan, method = self.plan, self.method.name
        needed = plan.shared != "maybe" and self.task.kind not in plan.shared_default
        return f"{method} needs one: the network that all sites share" if needed and self.shared_model is None else None


def _undefined_for(what: str, method: str, plan: Plan) -> str:
    """Say that a method is not defined for a kind of task or a target, why, and what to do."""
    why = f": {plan.why_not[what]}" if what in plan.why_not else ""
    return f"{method} is not defined for {what}{why}; take another method, such as fedvisit or fedavg"


def _plan(method: str, package: object) -> Plan:
    """Return the plan of a method.

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
    """Where the daemon listens for the other sites; port 0 takes any free one, which only discovery can tell them."""
    refuse_certificates: Annotated[tuple[Digest, ...], Loose] = ()
    """SHA-256 of certificates that are refused whatever their dates, as `federation admit --replace` prints them. A
    running daemon follows this list and [addresses], and reads nothing else of this file."""
    contact: Annotated[str, Field(max_length=CONTACT_CHARACTERS_MAX)] = ""
    """Whom to ask about this site's exported models, such as a department and its telephone: their model cards say it,
    nothing else does. Left out: a card names the site alone."""
    allow_models: Annotated[tuple[ClassName, ...], Loose] = ()
    """Network classes beyond the registry that other sites may name, each "package.module:Class", installed here."""
    addresses: dict[Name, Addresses] = Field(default_factory=dict)
    """Other sites' addresses where the roster's do not hold from here, one or several each; read again while the daemon
    runs."""
    base_weights: dict[Digest, str] = Field(default_factory=dict)
    """Files of weights by SHA-256 on which networks of other sites build (their [model] weights), for which these sites
    send only what learns."""
    data: DataConfig
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    limits: LimitsConfig = LimitsConfig()
    """What may come to this site."""
    egress: EgressConfig = EgressConfig()
    """What may leave this site. Every byte that does is a row of `mhfl-peer egress`."""
    privacy: PrivacyConfig = PrivacyConfig()
    """What this site measures before something leaves."""
    connect: ConnectConfig = ConnectConfig()
    """How this site dials the others, and how they reach it."""
    discovery: DiscoveryConfig = DiscoveryConfig()
    """How sites find each other."""
    metrics: MetricsConfig = MetricsConfig()
    """What a monitoring system may see."""
    reference: ReferenceConfig | None = None
    """What this site's network reaches on the site's own test data, alone and with the data of all sites pooled, as
    `mhfl-peer demo` or the report of an experiment has it. `overview`, `dashboard` and `status --out`
    then show how much of the room between them the newest evaluated round has taken; nothing else depends on it."""

    _path: Path = PrivateAttr(Path("site.toml"))

    @classmethod
    def load(cls, path: Path) -> SiteConfig:
        """Load the site in a file. Raises ``ConfigError`` if the file cannot be read or is wrong."""
        return cls.parse(toml.read(path), path)

    @classmethod
    def parse(cls, text: str, path: Path) -> SiteConfig:
        """Parse the site in a text that the file has, or shall have."""
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
        problems.append(
            f"egress.receivers: {federation.method.name} also sends to {', '.join(left_out)}; no method that sends "
            "something can leave out a member"
        )
    if plan.public and site.data.public is None:
        problems.append(f"data.public: {federation.method.name} needs the datalist of its public set of images")
    shared = federation.shared_model
    if shared is not None and plan.shared != "beside":
        hyper = dict(shared.__pydantic_extra__)
        if (site.model.name, site.model.parameters) != (shared.name, hyper):
            problems.append(f"model: {federation.method.name} trains one model, [shared_model] {shared.name} {hyper}")
    if federation.weighting == "samples" and not egress.training_set_size:
        problems.append('egress.training_set_size: weighting = "samples" tells it to the others, but it is false')
    if plan.artifact == "sums" and federation.noise is None and not egress.training_set_size:
        problems.append(f"egress.training_set_size: the sums of {federation.method.name} tell it, but it is false")
    problems += table_problems(federation.task, site.data)
    if federation.task.kind != "tabular" and not site.data.input_size:
        problems.append("data.input_size is missing; write, for example, input_size = [224, 224]")
    elif federation.task.kind != "tabular" and len(site.data.input_size) != federation.task.spatial_dims:
        problems.append(
            f"data.input_size: {len(site.data.input_size)} sizes for spatial_dims = {federation.task.spatial_dims}"
        )
    if egress.leak_auc_max is not None and site.privacy.leak == "off":
        problems.append("egress.leak_auc_max: [privacy] leak is off; leave out one of them")
    metrics = METRICS_OF[federation.task.objective]
    if site.reference is not None and site.reference.metric not in metrics:
        problems.append(f"reference.metric: {federation.task.objective} has {', '.join(metrics)}")
    problems += scale_problems(federation.task.kind, site.data, site.model)
    problems += geometry_problems(federation.task, site.data)
    problems += [*_supervision_problems(federation, site.training), *sampling_problems(federation.task, site.training)]
    if federation.noise is not None:
        problems += site_noise_problems(site.egress, site.training, site.model, plan)
    if problems:
        toml.refuse(site.where, sorted(problems))


def _supervision_problems(federation: FederationConfig, training: TrainingConfig) -> Iterator[str]:
    """Problems with the keys that change the cross-entropy with own labels."""
    kind, weights = federation.task.objective, training.class_weights
    loss = federation.parameters.get("segmentation_loss")
    for key in ("class_weights", "label_smoothing"):
        if not getattr(training, key):
            continue
        if kind in UNCLASSED:
            yield f"training.{key}: {kind} has no classes; leave it out"
        elif kind == "segmentation" and loss == "dice":
            yield f'training.{key}: segmentation_loss = "dice" of federation.toml has no cross-entropy; leave it out'
    if isinstance(weights, tuple) and kind not in UNCLASSED and len(weights) != federation.task.classes:
        yield f"training.class_weights: {len(weights)} numbers for {federation.task.classes} classes"
    if training.label_smoothing and federation.parameters.get("absent_classes") == "left_out":
        yield (
            f"training.label_smoothing: {federation.method.name} leaves out classes (absent_classes), over "
            "which labels would be spread; leave it out"
        )
