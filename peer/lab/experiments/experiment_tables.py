"""The tables of ``EXPERIMENT.toml``."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, model_validator

from peer.core.plan import AggregateRule
from peer.lab.datasets import DATASETS, installed_datasets
from peer.lab.partition.groups import SUBJECT
from peer.site.config.privacy_table import NoiseConfig
from peer.site.config.schema import NamedParameters
from peer.site.config.toml import Count, Loose, Share, StrictTable, key_problem, suggestion

Size = Annotated[tuple[Count, ...], Loose, Field(min_length=1, max_length=3)]
ValidationShare = Annotated[float, Field(ge=0, lt=1)]
Act = Literal["signs", "random", "scale", "replacement", "zero", "samples", "steps", "backdoor"]
"""A Byzantine site's attack on the artifacts that it sends; see ``peer.lab.experiments.insider``."""


class ExperimentData(StrictTable):
    """``[data]``: the samples, and how every site reads them; paths are relative to the experiment's file."""

    dataset: str | None = None
    """A set that `mhfl-peer data prepare` knows; it is prepared once, into the folder of results."""
    options: dict[str, JsonValue] = Field(default_factory=dict)
    """Options of its preparation."""
    source: str | None = None
    """Where a public set was unpacked; `simulate --data` stands above it."""
    pool: str | None = None
    """Instead of a data set, your own samples: a datalist, or a folder of one datalist a site."""
    subject: Annotated[str, Field(min_length=1)] = SUBJECT
    """The key of a sample whose value must not be divided between training and test, or between sites. Some papers
    split by "image"; then pictures of one patient are on both sides."""
    duplicates: Literal["refuse", "drop"] = "refuse"
    """Images with the same content under several names: "refuse" where they would be on two sides, or "drop" all but
    one."""
    part: Literal["all", "reported", "tuning"] = "all"
    """Which subjects are used: "all", every third for "tuning", or the others, "reported": what is chosen on the one
    part can be reported on the other."""
    input_size: Size | None = None
    input_sizes: dict[str, Size] = Field(default_factory=dict)
    """Instead of one size, each site's."""
    scales: dict[str, Literal[2, 4, 8]] = Field(default_factory=dict)
    """Super-resolution alone: how many times larger each site's target is than its image."""
    regions: bool = False
    """Whether FedSKD has region masks: regions.nii.gz, from the set's preparation or beside its files."""
    public: str | None = None
    """FedMD, FedDF, pFedDF, DS-pFL, KT-pFL: the datalist of the public set, relative to this file; its digest is
    public_sha256 of the rows."""
    normalise: Literal["none", "zscore", "unit"] = "none"
    cache: Literal["memory", "disk", "none"] = "memory"
    validation_share: ValidationShare = 0.0
    validation_shares: dict[str, ValidationShare] = Field(default_factory=dict)
    """Instead of that share, those of the sites that are named here."""
    augmentation: dict[str, float] = Field(default_factory=dict)
    """Random changes of training samples, at every site; all zero: none."""

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if (self.dataset is None) == (self.pool is None):
            raise key_problem("dataset", "name either a dataset or a pool")
        if self.dataset is not None and self.dataset not in (known := {*DATASETS, *installed_datasets()}):
            raise key_problem("dataset", f"unknown data set {self.dataset!r}{suggestion(self.dataset, known)}")
        if self.input_size is not None and self.input_sizes:
            raise key_problem("input_size", "give one for all sites, or input_sizes by site")
        return self

    @property
    def compares_values(self) -> bool:
        """Whether copies may lie in other containers; what prepares a data set writes equal images alike."""
        return self.pool is not None


class Partition(StrictTable):
    """Division of the pool among sites; further keys are the options of the kind."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    kind: str
    sites: Annotated[tuple[str, ...], Loose, Field(min_length=1)]
    test_share: Annotated[float, Field(gt=0, lt=1)] | None = None


class EpochChange(StrictTable):
    """The sites that join before a round, and those that leave or are expelled after the round before it."""

    from_round: Annotated[int, Field(ge=2)]
    add: Annotated[tuple[str, ...], Loose] = ()
    leave: Annotated[tuple[str, ...], Loose] = ()
    expel: Annotated[tuple[str, ...], Loose] = ()


class Links(StrictTable):
    """Failures: links that are down, missing sites, changes of members, and a Byzantine insider."""

    loss: Share = 0.0
    removed: Annotated[tuple[str, ...], Loose] = ()
    insider: str | None = None
    act: Act | None = None
    boost: Annotated[float, Field(ge=1)] = 1.0
    """What an insider with a backdoor multiplies the changes of its training by."""
    epochs: Annotated[tuple[EpochChange, ...], Loose] = ()
    methods: Annotated[tuple[str, ...], Loose] = ()
    """The rows that are run under these links; left out: all."""

    @model_validator(mode="after")
    def _insider_acts(self) -> Self:
        if (self.insider is None) != (self.act is None):
            raise key_problem("insider", "an insider has an act, and an act an insider; give both or none")
        if self.boost != 1 and self.act != "backdoor":
            raise key_problem("boost", 'is of the act "backdoor" alone')
        if self.insider in self.removed:
            raise key_problem("insider", f"{self.insider!r} is removed")
        return self

    @model_validator(mode="after")
    def _epochs_follow(self) -> Self:
        rounds = [change.from_round for change in self.epochs]
        if rounds != sorted(rounds):
            raise key_problem("epochs", f"from_round never falls, and does in {rounds}")
        added, gone = list[str](), list[str]()
        for number, change in enumerate(self.epochs):
            added += change.add
            for name in (*change.leave, *change.expel):
                if name in gone:
                    raise key_problem(f"epochs[{number}]", f"{name!r} is gone already")
                gone.append(name)
            if again := next((name for name in change.add if added.count(name) > 1 or name in gone), None):
                raise key_problem(f"epochs[{number}].add", f"{again!r} was a member before: no name is used twice")
        if removed := sorted({*added, *gone} & set(self.removed)):
            raise key_problem("epochs", f"{removed[0]!r} is removed")
        return self

    @property
    def newcomers(self) -> tuple[str, ...]:
        """The sites that join later."""
        return tuple(name for change in self.epochs for name in change.add)


class Budget(StrictTable):
    """Equal work for all methods, in a round and on the network that is evaluated."""

    steps: Count = 20
    """Optimiser steps."""
    minor_steps: Count = 5
    """Steps of stages that only distil or decide."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Adam's learning rate."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Adam's weight decay; a method's own holds with paper = true alone."""
    paper: bool = False
    """Instead, every method has the stages of its paper, which are not equal work."""


class RowBudget(StrictTable):
    """One row's differences from [budget]."""

    learning_rate: Annotated[float, Field(gt=0)] | None = None
    weight_decay: Annotated[float, Field(ge=0)] | None = None


class MethodSettings(StrictTable):
    """A row of the tables: a method with parameters."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, JsonValue]

    method: str = ""
    """The row's method, where it is not the row's name."""
    package: str | None = None
    """The installed package of a method that is not built in, with its version."""
    models: Annotated[tuple[str, ...], Loose] = ()
    """Only with these sets of networks; left out: all."""
    rounds: Count | None = None
    """The row's own number of rounds, such as the one that sums need; left out: the experiment's."""
    candidate_of: str = ""
    """The row that the report shows in place of this one and its other candidates: the best on validation samples."""
    budget: RowBudget = RowBudget()
    """The row's own learning_rate and weight_decay in place of [budget]'s."""
    stages: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """What its stages do, whatever the budget says."""
    paper: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    """What they do with paper = true alone."""
    paper_batch_size: Count | None = None
    """Samples in its batches with paper = true alone, where its paper has other ones than [training]."""
    aggregate: AggregateRule = "mean"
    """The rule of its averages, as in federation.toml; those without weights ignore `weighting`."""
    secure: bool = False
    """Whether its sites add up under masks, so that none sees another's artifact: [aggregate] secure."""
    members_min: Count | None = None
    """With `secure`: [aggregate] members_min, which also lets sites share the noise of sums."""
    privacy: NoiseConfig = NoiseConfig()
    """The row's noise on what leaves, as in federation.toml; left out: none."""
    staleness: Literal[0, 1] = 0
    """By how many rounds the artifacts that it uses are older than its method needs, as in federation.toml."""
    shared_model: NamedParameters | None = None
    """The row's proxy or messenger; for methods that have none, all sites then have this network and start alike."""


class Sweep(StrictTable):
    """``[sweep]``: values to choose from on validation samples; ``peer.lab.experiments.candidates`` applies it."""

    candidates: Count | None = None
    """The same bound for every row: how many of its combinations it tries, drawn from all of them. Needed where the
    rows have different numbers of combinations."""
    methods: dict[str, dict[str, JsonValue]]
    """By row, or "*" for every row, keys as in [methods] with a list of values in place of each value."""


class Reference(StrictTable):
    """The published table beside which the report shows ours."""

    paper: str
    table: str
    dataset: str
    setting: str | None = None


class NotRun(StrictTable):
    """A method of the paper that is not implemented here; the report shows it as published."""

    method: str
    reason: str
