"""``EXPERIMENT.toml``: methods, networks, partitions, links, folds and seeds, of which every combination is a run.

Everything is checked before anything is trained, and without torch. A key that is wrong is a ``ConfigError`` that names
the file, the dotted key and what would be right.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, PrivateAttr, model_validator

from models.spec import HYPER, hyper_problem, installed_model
from peer.config import toml
from peer.config.schema import NamedParameters, TaskConfig, TrainingConfig
from peer.config.toml import Count, Loose, Share, StrictTable, key_problem, suggestion
from peer.core.plan import Plan
from peer.core.roster import site_name
from peer.core.tasks import METRICS, MINOR
from peer.data.adapters import DATASETS, installed_datasets
from peer.methods.registry import find_plan, method_names
from peer.research.partition.divide import rule
from peer.research.partition.groups import SUBJECT
from peer.research.result_files import CENTRALISED, EVERY_LINK

EVERY_SITE = "*"
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_.-]*")
"""A name that becomes part of a run's folder."""


class ExperimentData(StrictTable):
    """Where the samples are, and what becomes of them at every site.

    ``dataset`` is prepared by `data prepare`, with ``options``; ``source`` is where a public set was unpacked. ``pool``
    is a datalist, or a folder of one datalist a site. Paths are relative to the experiment's file. ``subject`` is the
    key of an entry whose value must not be divided between training and test, or between sites. ``duplicates`` says
    what becomes of images with the same content: refused where they meet, or dropped but for one.
    """

    dataset: str | None = None
    options: dict[str, JsonValue] = Field(default_factory=dict)
    source: str | None = None
    pool: str | None = None
    subject: Annotated[str, Field(min_length=1)] = SUBJECT
    duplicates: Literal["refuse", "drop"] = "refuse"
    input_size: Annotated[tuple[Count, ...], Loose, Field(min_length=1, max_length=3)] | None = None
    input_sizes: dict[str, Annotated[tuple[Count, ...], Loose, Field(min_length=1, max_length=3)]] = Field(
        default_factory=dict
    )
    scales: dict[str, Literal[2, 4, 8]] = Field(default_factory=dict)
    regions: bool = False
    normalise: Literal["none", "zscore", "unit"] = "none"
    cache: Literal["memory", "disk", "none"] = "memory"
    validation_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.dataset is None) == (self.pool is None):
            raise key_problem("dataset", "name either a dataset or a pool")
        if self.dataset is not None and self.dataset not in (known := {*DATASETS, *installed_datasets()}):
            raise key_problem("dataset", f"unknown data set {self.dataset!r}{suggestion(self.dataset, known)}")
        if (self.input_size is None) == (not self.input_sizes):
            raise key_problem("input_size", "give one for all sites, or input_sizes by site")
        return self


class Partition(StrictTable):
    """How one pool becomes the sites' data; further keys are those of ``peer.research.partition``'s kind."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    kind: str
    sites: Annotated[tuple[str, ...], Loose, Field(min_length=1)]


class Links(StrictTable):
    """What does not reach whom: each directed link is down in a round with probability ``loss``; or sites are gone."""

    loss: Share = 0.0
    removed: Annotated[tuple[str, ...], Loose] = ()


class Budget(StrictTable):
    """The same work for all methods: optimiser steps a round on the network that is evaluated, at one learning rate.

    Stages that only distil or decide have ``minor_steps``. With ``paper = true`` every method has its paper's stages,
    and what its row has under ``paper``.
    """

    steps: Count = 20
    minor_steps: Count = 5
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    paper: bool = False


class MethodSettings(StrictTable):
    """A row of the tables: a method with parameters. ``method`` is by default the row's own name, ``package`` is the
    installed package that the method comes with, as in federation.toml.

    ``stages`` are always what they say, ``paper`` only with the budget's ``paper = true``.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    method: str = ""
    package: str | None = None
    models: Annotated[tuple[str, ...], Loose] = ()
    stages: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    paper: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    shared_model: NamedParameters | None = None


class Reference(StrictTable):
    """Which published rows stand beside these: only where the data set is the paper's."""

    paper: str
    table: str
    dataset: str
    setting: str | None = None


class NotRun(StrictTable):
    """A row of the paper that is not implemented here; it is shown as published."""

    method: str
    reason: str


class Experiment(StrictTable):
    """The file. Made by ``load``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    title: str = ""
    description: str = ""
    differs: str = ""
    rounds: Count
    seeds: Annotated[tuple[int, ...], Loose, Field(min_length=1)] = (0,)
    folds: Annotated[int, Field(ge=0)] = 0
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    classes_min: Count | None = None
    evaluation_every: Annotated[int, Field(ge=0)] = 0
    schedule: Literal["permutation", "derangement", "ring"] = "permutation"
    fallback: Literal["self", "stale"] = "self"
    round_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    task: TaskConfig
    data: ExperimentData
    training: TrainingConfig = TrainingConfig(device="cpu")
    budget: Budget = Budget()
    partitions: Annotated[dict[str, Partition], Field(min_length=1)]
    models: Annotated[dict[str, dict[str, NamedParameters]], Field(min_length=1)]
    proxy: NamedParameters | None = None
    messenger: NamedParameters | None = None
    methods: Annotated[dict[str, MethodSettings], Field(min_length=1)]
    links: dict[str, Links] = Field(default_factory=dict)
    reference: Reference | None = None
    not_run: Annotated[tuple[NotRun, ...], Loose] = ()

    _where: Path = PrivateAttr(Path("experiment.toml"))
    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """The experiment that a file describes; ``ConfigError`` when it cannot be read or is wrong."""
        document = toml.read_extended(path)
        experiment = toml.validate(cls, document, str(path))
        experiment._where, experiment._document = path, document
        for name, division in experiment.partitions.items():
            rule(division.kind, division.sites, division.__pydantic_extra__, where=f"{path}: partitions.{name}")
        return experiment

    @property
    def where(self) -> Path:
        return self._where

    def text(self) -> str:
        """The file that it came from; where that extends another one, both as one file."""
        own = toml.read(self._where)
        return toml.text(self._document) if "extends" in toml.parse(own, str(self._where)) else own

    @property
    def metric(self) -> str:
        return METRICS[self.task.kind][0]

    @property
    def every_link(self) -> dict[str, Links]:
        """What is lost, by name, the undisturbed federation first."""
        return {EVERY_LINK: Links(), **self.links}

    def plan(self, label: str) -> Plan:
        """The choreography of a row's method."""
        return find_plan(self.method_name(label), self.methods[label].package)

    def method_name(self, label: str) -> str:
        """The method that a row runs; the pooled bound trains as ``local`` does."""
        name = self.methods[label].method or label
        return "local" if name == CENTRALISED else name

    def centralised(self, label: str) -> bool:
        """Whether the row is the pooled bound."""
        return (self.methods[label].method or label) == CENTRALISED

    def model(self, chosen: str, site: str) -> NamedParameters:
        models = self.models[chosen]
        return models[site] if site in models else models[EVERY_SITE]

    def alike(self, chosen: str, partition: str) -> bool:
        """Whether all sites of a partition have one network."""
        specs = [self.model(chosen, site).model_dump() for site in self.partitions[partition].sites]
        return all(spec == specs[0] for spec in specs)

    def combinations(self) -> Iterator[tuple[str, str, str, str]]:
        """Partition, set of networks, links and row of every federation; folds and seeds are beside them.

        A method whose sites all have one network is left out where they do not.
        """
        for partition, chosen, label, links in itertools.product(
            self.partitions, self.models, self.methods, self.every_link
        ):
            wanted, plan = self.methods[label].models, self.plan(label)
            if wanted and chosen not in wanted:
                continue
            if plan.shared == "itself" and not self.alike(chosen, partition):
                continue
            if links != EVERY_LINK and plan.pattern == "none" and not self.every_link[links].removed:
                continue  # nobody sends anything: no link can be lost
            yield partition, chosen, links, label

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for label, method in self.methods.items():
            self._check_method(label, method)
        for kind in ("partitions", "models", "methods", "links"):
            for name in getattr(self, kind):
                if not PART.fullmatch(name):
                    raise key_problem(kind, f"{name!r} names folders: letters, digits, and + _ . - after the first")
        for name, partition in self.partitions.items():
            for site in partition.sites:
                try:
                    site_name(site)
                except ValueError as error:
                    raise key_problem(f"partitions.{name}.sites", str(error)) from None
                for chosen, models in self.models.items():
                    if site not in models and EVERY_SITE not in models:
                        raise key_problem(
                            f"models.{chosen}", f"has no network for {site!r}, and none for {EVERY_SITE!r}"
                        )
                if self.data.input_sizes and site not in self.data.input_sizes:
                    raise key_problem("data.input_sizes", f"has none for {site!r}")
        sites = {site for partition in self.partitions.values() for site in partition.sites}
        for name, links in self.links.items():
            for site in sorted(set(links.removed) - sites):
                raise key_problem(f"links.{name}.removed", f"{site!r} is no site{suggestion(site, sites)}")
        for name, models in self.models.items():
            for site in sorted(models.keys() - sites - {EVERY_SITE}):
                raise key_problem(f"models.{name}", f"{site!r} is no site{suggestion(site, sites)}")
        for name, sized in (("scales", self.data.scales), ("input_sizes", self.data.input_sizes)):
            for site in sorted(sized.keys() - sites):
                raise key_problem(f"data.{name}", f"{site!r} is no site{suggestion(site, sites)}")
        self._check_networks()
        if len(set(self.seeds)) < len(self.seeds):
            raise key_problem("seeds", "one is there twice: both would be the same run")
        if EVERY_LINK in self.links:
            raise key_problem(f"links.{EVERY_LINK}", "is the name of the undisturbed federation; give another")
        for name, count in Counter(map(".".join, self.combinations())).items():
            if count > 1:
                raise key_problem(
                    "partitions", f"two federations would both be called {name!r}; use fewer dots in names"
                )
        if self.folds == 1:
            raise key_problem("folds", "one fold has nothing to train on; 0 takes the data's own split or test_share")
        if self.folds and self.test_share is not None:
            raise key_problem("test_share", "folds decide already what is tested on")
        return self

    def _check_networks(self) -> None:
        """Names and hyper-parameters of our own networks; those from elsewhere only their module can judge."""
        named: dict[str, NamedParameters | None] = {"proxy": self.proxy, "messenger": self.messenger}
        for name, models in self.models.items():
            named |= {f"models.{name}.{site}": model for site, model in models.items()}
        named |= {f"methods.{label}.shared_model": row.shared_model for label, row in self.methods.items()}
        for where, model in named.items():
            if model is None or "." in model.name or ":" in model.name:
                continue
            hyper = dict(model.__pydantic_extra__)
            if model.name not in HYPER and installed_model(model.name):
                continue
            if model.name not in HYPER:
                raise key_problem(where, f"unknown network {model.name!r}{suggestion(model.name, HYPER)}")
            for key in sorted(hyper.keys() - HYPER[model.name]):
                raise key_problem(f"{where}.{key}", f"unknown key{suggestion(key, HYPER[model.name])}")
            if (problem := hyper_problem(model.name, hyper)) is not None:
                raise key_problem(where, problem)

    def _check_method(self, label: str, method: MethodSettings) -> None:
        name = method.method or label
        if method.package is None and name not in (known := {*method_names(), CENTRALISED}):
            raise key_problem(f"methods.{label}", f"unknown method {name!r}{suggestion(name, known)}")
        plan = self.plan(label)
        for parameter, reason in plan.problems(method.__pydantic_extra__):
            unknown = f"unknown key{suggestion(parameter, plan.parameters)}"
            raise key_problem(f"methods.{label}.{parameter}", unknown if reason == "unknown" else reason)
        for key, stages in (("stages", method.stages), ("paper", method.paper)):
            for stage in stages.keys() - plan.stages.keys():
                raise key_problem(f"methods.{label}.{key}.{stage}", f"unknown stage{suggestion(stage, plan.stages)}")
        for chosen in method.models:
            if chosen not in self.models:
                raise key_problem(f"methods.{label}.models", f"no such set {chosen!r}{suggestion(chosen, self.models)}")
        if self.task.kind in plan.not_for:
            raise key_problem(f"methods.{label}", f"{name} is not defined for {self.task.kind}")
        if plan.artifact == "proxy" and self.proxy is None and method.shared_model is None:
            raise key_problem(f"methods.{label}", "needs the table [proxy]: the small network that all sites share")

    # --- the documents of one federation ---------------------------------------------------------------------------
    def federation_text(self, label: str, chosen: str, sites: Sequence[str], *, seed: int) -> str:
        """The ``federation.toml`` of one federation, as daemons would read it."""
        draft = self.federation_draft(label, chosen, sites[0], seed=seed)
        return toml.text({**draft, "site": [{"name": site} for site in sites]})

    def federation_draft(self, label: str, chosen: str, site: str, *, seed: int) -> dict[str, Any]:
        """The same as a document without a roster; a network that all sites share is the one of ``site``."""
        method = self.methods[label]
        package = {} if method.package is None else {"package": method.package}
        document: dict[str, Any] = {
            "name": self.name,
            "description": self.title,
            "rounds": self.rounds,
            "seed": seed,
            "evaluation_every": self.evaluation_every,
            "task": self.task.model_dump(),
            "method": {"name": self.method_name(label), **package, **method.__pydantic_extra__},
        }
        if stages := self.stages(label):
            document["stages"] = stages
        document["schedule"] = {"kind": self.schedule}
        if "aggregate" not in self.plan(label).phases:
            document["fallback"] = {"kind": self.fallback}
        if (shared := self._shared(label, chosen, site)) is not None:
            document["shared_model"] = shared
        return document

    def stages(self, label: str) -> dict[str, dict[str, Any]]:
        """What each stage of a row's method does: the budget's equal work, or the paper's, and the row's own keys."""
        method, budget = self.methods[label], self.budget
        found: dict[str, dict[str, Any]] = {}
        for stage in self.plan(label).stages:
            equal = {
                "unit": "step",
                "count": budget.minor_steps if stage in MINOR else budget.steps,
                "learning_rate": budget.learning_rate,
            }
            base = method.paper.get(stage, {}) if budget.paper else equal
            if keys := base | method.stages.get(stage, {}):
                found[stage] = keys
        return found

    def _shared(self, label: str, chosen: str, site: str) -> dict[str, Any] | None:
        method, plan = self.methods[label], self.plan(label)
        given = method.shared_model
        if given is None and plan.shared == "itself":
            given = self.model(chosen, site)
        elif given is None and plan.artifact in ("proxy", "messenger"):
            given = self.proxy if plan.artifact == "proxy" else self.messenger
        return None if given is None else given.model_dump()

    def site_text(
        self, site: str, chosen: str, *, datalist: str = "datalist.json", root: str | None, regions: str | None
    ) -> str:
        """The ``site.toml`` of one site; ``root`` is what the paths in its datalist start at."""
        model, hyper = self.model(chosen, site), dict(self.model(chosen, site).__pydantic_extra__)
        layers: dict[str, Any] = {key: hyper.pop(key) for key in ("features", "head") if key in hyper}
        data = self.data
        keys: dict[str, Any] = {
            "datalist": datalist,
            "root": root,
            "input_size": list(data.input_sizes.get(site, data.input_size) or ()),
            "normalise": data.normalise,
            "validation_share": data.validation_share,
            "cache": data.cache if data.cache != "memory" else None,
            "scale": data.scales.get(site),
            "regions": regions,
            "augmentation": data.augmentation or None,
        }
        document = {
            "data": keys,
            "model": {"name": model.name, **layers, "parameters": hyper},
            "training": self.training.model_dump(),
        }
        return toml.text(
            {
                name: {key: value for key, value in table.items() if value is not None}
                for name, table in document.items()
            }
        )
