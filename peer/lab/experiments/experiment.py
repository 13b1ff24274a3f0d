"""``EXPERIMENT.toml``: methods, networks, partitions, links, folds and seeds. Each combination is a run.

``Experiment.load`` checks the whole file before any run is trained, and without torch. For a wrong
key it raises a ``ConfigError`` that names the file, the dotted key and the remedy.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, model_validator

from models.spec import HYPER, hyper_problem, installed_model
from peer.core.metrics import METRICS_OF
from peer.core.plan import Plan, Wire
from peer.core.roster import site_name
from peer.core.tasks import MINOR
from peer.errors import ConfigError
from peer.lab.experiments.candidates import expand
from peer.lab.experiments.experiment_tables import (
    Budget,
    ExperimentData,
    Links,
    MethodSettings,
    NotRun,
    Partition,
    Reference,
    RowBudget,
    Sweep,
)
from peer.lab.experiments.result_files import CENTRALISED, UNDISTURBED
from peer.lab.partition.divide import rule
from peer.lab.statistics.further_metrics import find_further_metric, further_metric_names
from peer.methods.registry import find_plan, method_names
from peer.site.config import toml
from peer.site.config.schema import NamedParameters
from peer.site.config.site_tables import TrainingConfig
from peer.site.config.task_table import TaskConfig
from peer.site.config.toml import Count, Loose, StrictTable, key_problem, suggestion

EVERY_SITE = "*"
LEFT_OUT = "leave-out-"
"""Prefix of the links of a federation without one site, on whose data it is then tested."""
PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9+_.-]*")
"""Names of partitions, models, methods and links: they become parts of the names of runs' folders."""


class Experiment(StrictTable):
    """The content of the file; ``load`` reads it."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
    """The experiment's name, also that of its federations: lower-case letters, digits, inner hyphens, at most 32."""
    title: str = ""
    """For readers: what it is."""
    description: str = ""
    differs: str = ""
    """For readers: in one line, what differs from the paper whose figures stand beside it."""
    rounds: Count
    seeds: Annotated[tuple[int, ...], Loose, Field(min_length=1)] = (0,)
    """Each seed is a repetition: other initial weights, batches and draws of the partitions."""
    folds: Annotated[int, Field(ge=0)] = 0
    """Cross-validation inside each site, stratified by class, a subject in one fold; 0: the data's own split."""
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    """Instead of folds: the share of each site's samples that is held out for testing."""
    classes_min: Count | None = None
    """How many classes every fold, or both sides, must have at every site; left out: all that the site has."""
    evaluation_every: Annotated[int, Field(ge=0)] = 0
    metrics: Annotated[tuple[str, ...], Loose] = ()
    """Metrics beside the task's own, on test samples after the last round: those that `mhfl-peer help plugins` names,
    and those of installed packages."""
    leave_one_site_out: bool = False
    """Whether each method is also trained without each site in turn; its samples then test the others' models."""
    schedule: Literal["permutation", "derangement", "ring"] = "permutation"
    """Who receives from whom: "permutation" (a site may stay with itself), "derangement" (nobody does) or "ring"."""
    fallback: Literal["self", "stale"] = "self"
    """When a link is down: "self" (consolidate alone), or "stale" (the newest artifact held from that site)."""
    weighting: Literal["uniform", "samples"] = "uniform"
    wire: Wire = "float32"
    round_key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Decides the order of the rounds, 64 hex digits; left out: derived from name and seed. To repeat a real
    federation, take its own."""
    task: TaskConfig
    data: ExperimentData
    training: TrainingConfig = TrainingConfig(device="cpu")
    """As in site.toml; without this table on the CPU. A run has one process: several runs use a machine better."""
    budget: Budget = Budget()
    """The same work for all methods, in a round and on the network that is evaluated."""
    partitions: Annotated[dict[str, Partition], Field(min_length=1)]
    """One table a partition: how one pool becomes the sites' data. The kinds, with further keys of their own: "key" (by
    what a sample says: key, mapping or published, others), "dirichlet" (alpha, samples_min, classes_min), "shards"
    (shards), "equal", "ratio" (shares) and "resolution" (all samples at every site). With test_share a partition
    replaces the key of that name above."""
    models: Annotated[dict[str, dict[str, NamedParameters]], Field(min_length=1)]
    """One table a set of networks: each site's, or "*" for those that are not named. A method that has one model for
    all runs where all are the same."""
    proxy: NamedParameters | None = None
    """The small network that all sites share in FedDAL and ProxyFL."""
    messenger: NamedParameters | None = None
    """The messenger of MH-pFLID; left out: the task's, at its own width."""
    methods: Annotated[dict[str, MethodSettings], Field(min_length=1)]
    """One table a row of the results. "centralised" is the bound that no federation reaches: each network trained on
    the pooled data. Further keys are the method's parameters: `mhfl-peer methods` lists them."""
    sweep: Sweep | None = None
    """Parameters to choose: a row becomes a candidate for each combination of values. The report chooses, for each
    fold and seed on its own, the candidate with the best main metric on the sites' validation samples, and shows that
    one's test results."""
    links: dict[str, Links] = Field(default_factory=dict)
    """One table a disturbance, beside the undisturbed federation: each directed link is down in a round with
    probability `loss`; `removed` sites are gone for the whole run; an `insider` trains like the others, and plays its
    `act` with what it sends: "signs", "random", "scale", "replacement", "zero", "samples", "steps" or "backdoor"
    (with `boost`); `epochs` say who joins before a round, and whose last round was the one before it, by leaving or by
    expulsion."""
    reference: Reference | None = None
    """Which published table stands beside the results: only where the data set is the paper's."""
    not_run: Annotated[tuple[NotRun, ...], Loose] = ()
    """Rows of the paper that are not trained here: they are shown as published, with the reason."""

    _path: Path = PrivateAttr(Path("experiment.toml"))
    _document: Mapping[str, Any] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """Read an experiment's file. Raise ``ConfigError`` if it cannot be read or is wrong."""
        document = toml.read_extended(path)
        experiment = toml.validate(cls, document, str(path))
        if experiment.sweep is not None:
            try:
                methods = expand(document["methods"], document["sweep"])
            except ValueError as error:
                raise ConfigError(f"{path}: {error}") from error
            experiment = toml.validate(cls, document | {"methods": methods}, str(path))
        experiment._path, experiment._document = path, document
        for name, partition in experiment.partitions.items():
            rule(partition.kind, partition.sites, partition.__pydantic_extra__, where=f"{path}: partitions.{name}")
        return experiment

    @property
    def path(self) -> Path:
        return self._path

    def text(self) -> str:
        """Return the text of the experiment's file; one that extends another file is written out whole."""
        own = toml.read(self._path)
        return toml.text(self._document) if "extends" in toml.parse(own, str(self._path)) else own

    @property
    def metric(self) -> str:
        return METRICS_OF[self.task.objective][0]

    @property
    def links_by_name(self) -> dict[str, Links]:
        """The settings of the links by name, the undisturbed federation first."""
        left_out = {name: Links(removed=(site,)) for name, site in self.left_out_by_links.items()}
        return {UNDISTURBED: Links(), **self.links, **left_out}

    @property
    def left_out_by_links(self) -> dict[str, str]:
        """By the name of the links, the site that is left out as test site; see ``leave_one_site_out``."""
        sites = sorted({site for partition in self.partitions.values() for site in partition.sites})
        return {f"{LEFT_OUT}{site}": site for site in sites} if self.leave_one_site_out else {}

    @property
    def rows(self) -> list[str]:
        """The rows that the report shows; candidates of a row are one."""
        return list(dict.fromkeys(map(self.row_of, self.methods)))

    def row_of(self, label: str) -> str:
        """Return the row that the report shows for a label: its own, or the one that it is a candidate of."""
        return self.methods[label].candidate_of or label

    def plan(self, label: str) -> Plan:
        return find_plan(self.method_name(label), self.methods[label].package)

    def method_name(self, label: str) -> str:
        """Return the method of a row; the pooled bound trains as ``local`` does."""
        name = self.methods[label].method or label
        return "local" if name == CENTRALISED else name

    def is_centralised(self, label: str) -> bool:
        """Return whether the row is the pooled bound: training on the data of all sites together."""
        return (self.methods[label].method or label) == CENTRALISED

    def test_share_of(self, partition: str) -> float | None:
        """Return the share of each site's samples held out in a partition; None: the data's own split."""
        own = self.partitions[partition].test_share
        return self.test_share if own is None else own

    def model(self, network_set: str, site: str) -> NamedParameters:
        models = self.models[network_set]
        return models[site] if site in models else models[EVERY_SITE]

    def has_one_network(self, network_set: str, partition: str) -> bool:
        """Return whether all sites of a partition have the same network."""
        specs = [self.model(network_set, site).model_dump() for site in self.partitions[partition].sites]
        return all(spec == specs[0] for spec in specs)

    def reason_without_runs(self, partition: str, network_set: str, label: str) -> str:
        """Return why a row has no run in a partition with these networks; empty if it has."""
        allowed_sets = self.methods[label].models
        if allowed_sets and network_set not in allowed_sets:
            return f"only for {', '.join(allowed_sets)}"
        if self.plan(label).shared == "itself" and not self.has_one_network(network_set, partition):
            return "needs one network for all sites"
        return ""

    def rows_without_runs(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield partition, set of networks, row and reason of every combination that is left out."""
        for partition, network_set, label in itertools.product(self.partitions, self.models, self.methods):
            if reason := self.reason_without_runs(partition, network_set, label):
                yield partition, network_set, label, reason

    def missing_modules(self) -> Iterator[tuple[str, str]]:
        """Yield key and package of each network class (package.module:Class) that is not installed here."""
        for network_set, networks in self.models.items():
            for site, network in networks.items():
                module, colon, _ = network.name.partition(":")
                if colon and importlib.util.find_spec(module.partition(".")[0]) is None:
                    yield f"models.{network_set}.{site}", module.partition(".")[0]

    def combinations(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield partition, set of networks, links and row of every federation; each is run for all folds and seeds.

        A method that requires the same network at all sites is left out where the networks differ.
        """
        for partition, network_set, label, links in itertools.product(
            self.partitions, self.models, self.methods, self.links_by_name
        ):
            plan = self.plan(label)
            if self.reason_without_runs(partition, network_set, label):
                continue
            if (chosen := self.links_by_name[links].methods) and self.row_of(label) not in chosen:
                continue
            if (left_out := self.left_out_by_links.get(links)) is not None and (
                left_out not in self.partitions[partition].sites
                or (plan.pattern == "none" and not self.is_centralised(label))
            ):
                continue  # a site that trains alone has the same model without the other site
            if self.is_centralised(label) and self.links_by_name[links].epochs:
                continue  # the pooled bound has no changing members
            if links != UNDISTURBED and plan.pattern == "none" and not self.links_by_name[links].removed:
                continue  # the method sends nothing: lost links have no effect
            yield partition, network_set, links, label

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.training.processes > 1:
            raise key_problem("training.processes", "a run trains in one process; `--jobs` has several runs at a time")
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
                for network_set, models in self.models.items():
                    if site not in models and EVERY_SITE not in models:
                        raise key_problem(
                            f"models.{network_set}", f"has no network for {site!r}, and none for {EVERY_SITE!r}"
                        )
                if self.data.input_sizes and site not in self.data.input_sizes:
                    raise key_problem("data.input_sizes", f"has none for {site!r}")
        has_size = self.data.input_size is not None or bool(self.data.input_sizes)
        if has_size == (self.task.kind == "tabular"):
            raise key_problem(
                "data.input_size", "a table has none" if has_size else "give one for all sites, or input_sizes by site"
            )
        sites = {site for partition in self.partitions.values() for site in partition.sites}
        for name, models in self.models.items():
            for site in sorted(models.keys() - sites - {EVERY_SITE}):
                raise key_problem(f"models.{name}", f"{site!r} is no site{suggestion(site, sites)}")
        for name in ("scales", "input_sizes", "validation_shares"):
            for site in sorted(getattr(self.data, name).keys() - sites):
                raise key_problem(f"data.{name}", f"{site!r} is no site{suggestion(site, sites)}")
        self._check_links(sites)
        self._check_networks()
        self._check_candidates(sites)
        for name in self.metrics:
            if name not in (known := further_metric_names()):
                raise key_problem("metrics", f"unknown metric {name!r}{suggestion(name, known)}")
            if self.task.kind not in find_further_metric(name).tasks:
                raise key_problem("metrics", f"{name!r} is not defined for {self.task.kind}")
        if len(set(self.seeds)) < len(self.seeds):
            raise key_problem("seeds", "one is there twice: both would be the same run")
        if self.leave_one_site_out and any(len(partition.sites) < 3 for partition in self.partitions.values()):
            raise key_problem("leave_one_site_out", "needs three sites in every partition: one is left out, two train")
        for name in self.left_out_by_links.keys() & self.links.keys():
            raise key_problem(f"links.{name}", "is what leave_one_site_out calls its runs; give another name")
        if UNDISTURBED in self.links:
            raise key_problem(f"links.{UNDISTURBED}", "is the name of the undisturbed federation; give another")
        for name, count in Counter(map(".".join, self.combinations())).items():
            if count > 1:
                raise key_problem(
                    "partitions", f"two federations would both be called {name!r}; use fewer dots in names"
                )
        if self.folds == 1:
            raise key_problem("folds", "one fold has nothing to train on; 0 takes the data's own split or test_share")
        shares = {f"partitions.{name}.test_share": part.test_share for name, part in self.partitions.items()}
        for key, share in {"test_share": self.test_share, **shares}.items():
            if self.folds and share is not None:
                raise key_problem(key, "folds decide already what is tested on")
        return self

    def _check_links(self, sites: Collection[str]) -> None:
        """Check that links name sites and rows, and that newcomers have a place."""
        for name, links in self.links.items():
            moving = [name for change in links.epochs for name in (*change.add, *change.leave, *change.expel)]
            insider = (links.insider,) if links.insider else ()
            for key, named in (("removed", links.removed), ("insider", insider), ("epochs", moving)):
                for site in sorted(set(named).difference(sites)):
                    raise key_problem(f"links.{name}.{key}", f"{site!r} is no site{suggestion(site, sites)}")
            if links.act == "backdoor" and self.task.kind != "classification":
                raise key_problem(f"links.{name}.act", "a backdoor is a mark on images, which have one class each")
            if links.epochs and links.epochs[-1].from_round > self.rounds:
                raise key_problem(f"links.{name}.epochs", f"begin after the last round ({self.rounds})")
            for row in links.methods:
                if row not in self.rows:
                    raise key_problem(f"links.{name}.methods", f"no such row {row!r}{suggestion(row, self.rows)}")
            fixed = [
                label
                for label in self.methods
                if self.plan(label).fixed_sites and (not links.methods or self.row_of(label) in links.methods)
            ]
            if links.newcomers and fixed:
                raise key_problem(f"links.{name}.methods", f"{fixed[0]} has no place for a site that joins later")

    def _check_networks(self) -> None:
        """Check names and hyper-parameters of our own networks; packages check theirs."""
        networks: dict[str, NamedParameters | None] = {"proxy": self.proxy, "messenger": self.messenger}
        for name, models in self.models.items():
            networks |= {f"models.{name}.{site}": model for site, model in models.items()}
        networks |= {f"methods.{label}.shared_model": row.shared_model for label, row in self.methods.items()}
        for where, model in networks.items():
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

    def _check_candidates(self, sites: Collection[str]) -> None:
        """Check that a choice between candidates is possible, and that they differ in parameters alone."""
        candidates = {label: method for label, method in self.methods.items() if method.candidate_of}
        for label, method in candidates.items():
            key, row = f"methods.{label}.candidate_of", method.candidate_of
            first = next(other for other in candidates.values() if other.candidate_of == row)
            if row in self.methods or not PART.fullmatch(row):
                raise key_problem(key, f"{row!r} is the name of another row, or none; give the row a name of its own")
            if any(getattr(method, name) != getattr(first, name) for name in ("method", "package", "models")):
                raise key_problem(key, f"the candidates of {row!r} differ in method, package or models")
        for site in sorted(sites):
            if candidates and not self.data.validation_shares.get(site, self.data.validation_share):
                raise key_problem("data.validation_share", f"is 0 at {site!r}; candidates need validation samples")

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
        for network_set in method.models:
            if network_set not in self.models:
                raise key_problem(
                    f"methods.{label}.models", f"no such set {network_set!r}{suggestion(network_set, self.models)}"
                )
        if plan.public and self.data.public is None:
            raise key_problem(f"methods.{label}", "needs [data] public: the datalist of its public set of images")
        if self.budget.paper and method.budget != RowBudget():
            raise key_problem(f"methods.{label}.budget", "has no effect with paper = true; give stages.STAGE")
        parameters = plan.defaults() | method.__pydantic_extra__
        if method.staleness and (problem := plan.staleness_problem(parameters)) is not None:
            raise key_problem(f"methods.{label}.staleness", f"{name} {problem}; leave it out")
        if undefined := {self.task.kind, self.task.target} & set(plan.not_for):
            raise key_problem(f"methods.{label}", f"{name} is not defined for {undefined.pop()}")
        if (plan.artifact, plan.shared) == ("proxy", "beside") and self.proxy is None and method.shared_model is None:
            raise key_problem(f"methods.{label}", "needs the table [proxy]: the small network that all sites share")

    # --- the documents of one federation ---------------------------------------------------------------------------
    def federation_text(self, label: str, network_set: str, sites: Sequence[str], *, seed: int) -> str:
        """Build the text of ``federation.toml`` for one federation, as daemons read it.

        A row's number of visits is at most all other sites: one row is for partitions of any number of sites.
        """
        draft = self.federation_draft(label, network_set, sites[0], seed=seed)
        if (visits := self.plan(label).visits) in draft["method"]:
            draft["method"][visits] = min(draft["method"][visits], max(1, len(sites) - 1))
        return toml.text({**draft, "site": [{"name": site} for site in sites]})

    def federation_draft(self, label: str, network_set: str, site: str, *, seed: int) -> dict[str, Any]:
        """Build ``federation.toml`` as a document without a roster.

        If the method requires one network for all sites, it is the network of ``site``.
        """
        method = self.methods[label]
        package = {} if method.package is None else {"package": method.package}
        weighs = method.aggregate in ("mean", "capped")
        document: dict[str, Any] = {
            "name": self.name,
            "description": self.title,
            "rounds": method.rounds or (self.rounds if self.plan(label).predicts else 1),
            "seed": seed,
            "evaluation_every": self.evaluation_every,
            **({} if self.weighting == "uniform" or not weighs else {"weighting": self.weighting}),
            **({} if self.wire == "float32" else {"wire": self.wire}),
            "task": self.task.document(),
            "method": {"name": self.method_name(label), **package, **method.__pydantic_extra__},
        }
        if method.aggregate != "mean":
            document["aggregate"] = {"rule": method.aggregate}
        if method.secure:
            least = {} if method.members_min is None else {"members_min": method.members_min}
            document["aggregate"] = {**document.get("aggregate", {}), "secure": True, **least}
        if method.privacy.mechanism != "none":
            document["privacy"] = method.privacy.model_dump(exclude_none=True)
        if stages := self.stages(label):
            document["stages"] = stages
        if self.plan(label).pattern != "visit":  # visits are always along a ring
            document["schedule"] = {"kind": self.schedule, **({"staleness": 1} if method.staleness else {})}
        if "aggregate" not in self.plan(label).phases:
            document["fallback"] = {"kind": self.fallback}
        if (shared := self._shared_model(label, network_set, site)) is not None:
            document["shared_model"] = shared
        return document

    def stages(self, label: str) -> dict[str, dict[str, Any]]:
        """Return the work of each stage: the budget's or the paper's, overridden by the row's own keys."""
        method = self.methods[label]
        budget = self.budget.model_copy(update=method.budget.model_dump(exclude_none=True))
        work: dict[str, dict[str, Any]] = {}
        for stage in self.plan(label).stages:
            equal = {
                "unit": "step",
                "count": budget.minor_steps if stage in MINOR else budget.steps,
                "learning_rate": budget.learning_rate,
                "weight_decay": budget.weight_decay,
            }
            base = method.paper.get(stage, {}) if budget.paper else equal
            if keys := base | method.stages.get(stage, {}):
                work[stage] = keys
        return work

    def batch_size(self, label: str) -> int:
        """Return the number of samples in a batch: [training]'s, or with ``paper = true`` the row's own."""
        own = self.methods[label].paper_batch_size if self.budget.paper else None
        return self.training.batch_size if own is None else own

    def _shared_model(self, label: str, network_set: str, site: str) -> dict[str, Any] | None:
        method, plan = self.methods[label], self.plan(label)
        shared = method.shared_model
        if shared is None and plan.shared == "itself":
            shared = self.model(network_set, site)
        elif shared is None and plan.shared == "beside" and plan.artifact in ("proxy", "messenger"):
            shared = self.proxy if plan.artifact == "proxy" else self.messenger
        return None if shared is None else shared.model_dump()

    def _tells_samples(self, label: str) -> bool:
        bare_sums = self.plan(label).artifact == "sums" and self.methods[label].privacy.mechanism == "none"
        return self.weighting == "samples" or bare_sums

    def site_text(
        self,
        site: str,
        network_set: str,
        label: str,
        *,
        datalist: str = "datalist.json",
        root: str | None,
        regions: str | None,
    ) -> str:
        """Build the text of one site's ``site.toml``; paths in its datalist are relative to ``root``."""
        model = self.model(network_set, site)
        if (shared := self.methods[label].shared_model) is not None and self.plan(label).shared != "beside":
            model = shared
        hyper = dict(model.__pydantic_extra__)
        layers: dict[str, Any] = {key: hyper.pop(key) for key in ("features", "head") if key in hyper}
        data = self.data
        data_keys: dict[str, Any] = {
            "datalist": datalist,
            "root": root,
            "input_size": data.input_sizes.get(site, data.input_size),
            "normalise": data.normalise,
            "validation_share": data.validation_shares.get(site, data.validation_share),
            "cache": data.cache if data.cache != "memory" else None,
            "scale": data.scales.get(site),
            "regions": regions,
            "public": None if self.data.public is None else str((self.path.parent / self.data.public).resolve()),
            "augmentation": data.augmentation or None,
        }
        document = {
            "data": data_keys,
            "model": {"name": model.name, **layers, "parameters": hyper},
            "training": self.training.model_dump() | {"batch_size": self.batch_size(label)},
            "egress": {"training_set_size": True if self._tells_samples(label) else None},
        }
        return toml.text(
            {
                name: {key: value for key, value in table.items() if value is not None}
                for name, table in document.items()
                if any(value is not None for value in table.values())
            }
        )
