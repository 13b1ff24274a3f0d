"""The settings that training reads from the two configuration documents.

The tables of ``peer.site.config`` validate them and have the defaults. A caller that uses a trainer without a daemon
passes the same documents.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.core.columns import TableColumn
from peer.core.plan import Plan, Value, Wire, Work
from peer.core.privacy import Noise
from peer.core.roster import Sha256, SiteName
from peer.core.targets import CLASS, Target
from peer.core.tasks import objective_of
from peer.core.worker_protocol import WorkerSetting
from peer.site.config import toml
from peer.site.config.aggregate_table import AggregateConfig
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_tables import AugmentationConfig, DataConfig, EgressConfig, TrainingConfig
from peer.site.config.task_table import TaskConfig
from peer.train.device_queue import gpu_folder

FLIP = 0.5
"""Probability that an axis of an image is flipped where ``[data.augmentation]`` has no ``flip``."""
SUPERVISION_KEYS = ("class_weights", "class_sampling", "label_smoothing", "clip_norm")
"""Keys of ``[training]`` that change a site's own gradients."""

ROW_SIZE = (1,)
"""The input size of a table's row, whose columns are channels."""


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The kind of prediction and the dimensions that every model of the federation shares."""

    kind: str
    spatial_dims: int
    in_channels: int
    classes: int
    class_names: tuple[str, ...] = ()
    columns: tuple[TableColumn, ...] = ()
    target: Target = CLASS

    @classmethod
    def of(cls, table: TaskConfig) -> TaskSettings:
        columns = tuple(column.to_column() for column in table.column)
        keys = ("kind", "spatial_dims", "in_channels", "classes", "class_names")
        return cls(**{key: getattr(table, key) for key in keys}, columns=columns, target=table.to_target())

    @property
    def objective(self) -> str:
        """The objective, which decides losses and metrics: the kind, or the target if that is no class."""
        return objective_of(self.kind, self.target.kind)


@dataclass(frozen=True, slots=True)
class AugmentationSettings:
    """``[data.augmentation]`` for a number of dimensions.

    ``probability`` is that of the rotation, translation and scaling, which are drawn together.
    """

    flip: float
    rotate_degrees: float
    translate_share: float
    scale_share: float
    probability: float

    @classmethod
    def of(cls, table: AugmentationConfig, dims: int) -> AugmentationSettings:
        usual = FLIP if dims > 1 else 0.0  # a signal reversed in time is another signal
        return cls(**table.model_dump() | {"flip": usual if table.flip is None else table.flip})

    @property
    def active(self) -> bool:
        """Whether it changes any image."""
        geometry = max(self.rotate_degrees, self.translate_share, self.scale_share)
        return self.flip > 0 or (self.probability > 0 and geometry > 0)


@dataclass(frozen=True, slots=True)
class IntensitySettings:
    """The values that become 0 and 1; as ``percentiles`` those of each channel of each image."""

    low: float
    high: float
    percentiles: bool = False

    @classmethod
    def of(cls, kind: str, first: float, second: float) -> IntensitySettings:
        """``[data] intensity``: a ``window`` is its centre and width, as DICOM has it."""
        if kind == "window":
            return cls(first - second / 2, first + second / 2)
        return cls(float(first), float(second), percentiles=kind == "percentiles")

    def describe(self) -> str:
        """In words, without an article."""
        return f"{'percentiles' if self.percentiles else 'the range'} {self.low:g} to {self.high:g}"


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Where the site's samples are, and how an image is prepared for the network.

    In super-resolution, the target is ``scale`` times as large as its image, whose size is
    ``input_size``. ``orientation`` has the directions to which volumes are turned, such as ``RAS``;
    ``stored`` leaves them; None does, too, where all run alike. ``spacing`` is in mm, along the
    axes of ``input_size``. ``nan`` is ``background``, or None where an image with a NaN is refused.
    """

    datalist: Path
    root: Path
    input_size: tuple[int, ...]
    regions: Path | None
    normalise: str
    unreadable_share_max: float
    validation_share: float
    cache: str
    scale: int | None
    public: Path | None
    orientation: str | None
    spacing: tuple[float, ...] | None
    intensity: IntensitySettings | None
    augmentation: AugmentationSettings
    nan: str | None = field(default=None, repr=False)  # digests of sites without it stay the same
    columns: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the tables to import and to predict

    @classmethod
    def of(cls, table: DataConfig, folder: Path) -> DataSettings:
        """Resolve the table's paths from the folder of site.toml, and what depends on the number of dimensions."""
        paths = {key: getattr(table, key) for key in ("datalist", "root", "regions", "public")}
        paths = {key: None if name is None else folder / name for key, name in paths.items()}
        return cls(
            **{key: getattr(table, key) for key in DataConfig.model_fields}
            | paths
            | {"root": paths["root"] or paths["datalist"].parent}
            | {"input_size": table.input_size or ROW_SIZE}
            | {"intensity": None if table.intensity is None else IntensitySettings.of(*table.intensity)}
            | {"augmentation": AugmentationSettings.of(table.augmentation, len(table.input_size or ROW_SIZE))}
        )


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """All settings that training needs; none changes while it runs.

    ``hides_counters``: the site's policy hides the size of the training set, which a layer's count of
    batches would reveal. ``base_weights`` are files of weights by SHA-256. ``gpu_folder`` holds the queues
    of this machine's devices if workers take turns. ``leak`` says in which rounds the worker measures the leak of its
    artifacts, and ``egress`` which of them then stay here. ``noise`` is that of a private federation, ``noise_key``
    the secret from which it derives, ``budget`` the folder in which the site records what it spends, up to
    ``epsilon_max``; ``spent_mu`` is what its ledger knows of.
    """

    site: SiteName
    federation: Sha256
    federation_name: str
    seed: int
    home: Path
    method: str
    plan: Plan
    parameters: Mapping[str, Value]
    works: Mapping[str, Work]
    task: TaskSettings
    data: DataSettings
    model: Mapping[str, Any]
    allow_models: tuple[str, ...]
    training: TrainingConfig
    aggregate: AggregateConfig
    tells_samples: bool
    count_min: int
    hides_counters: bool
    weighted: bool
    wire: Wire
    received_ratio_max: float
    shared_model: Mapping[str, Any] | None
    sites: tuple[str, ...]
    base_weights: Mapping[str, Path]
    gpu_folder: Path | None
    rounds: int
    leak: str
    egress: EgressConfig
    noise: Noise | None = None
    noise_key: bytes = field(default=b"", repr=False)
    budget: Path | None = None
    epsilon_max: float = math.inf
    population: str = ""
    spent_mu: float = 0.0

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    def digest(self, *parts: object) -> str:
        """Return a digest that identifies a piece of work: equal digests mean equal results."""
        training = self.training
        fixed_by = (
            self.parameters,
            self.works,
            self.model,
            self.data,
            training.batch_size,
            training.precision,
            *(["channels_last"] if training.channels_last else []),
            *(f"{key} = {value}" for key in SUPERVISION_KEYS if (value := getattr(training, key))),
            *(["NaN is background"] if self.data.nan else []),
            *([f"{training.processes} processes"] if training.processes > 1 else []),
            *([repr(self.noise)] if self.noise is not None else []),
            *([f"{self.noise.sharers} sharers"] if self.noise is not None and self.noise.sharers > 1 else []),
            *([] if self.plan.predicts else [f"count_min = {self.count_min}"]),
        )
        text = json.dumps([self.federation, self.site, *map(repr, fixed_by), *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def of(cls, setting: WorkerSetting) -> TrainingSettings:
        """Validate the worker's documents, and read from them. Raises ``ConfigError`` naming a wrong key."""
        federation = toml.validate(FederationConfig, setting.federation, "federation.toml")
        site = toml.validate(SiteConfig, setting.site, "site.toml")
        plan, folder = federation.plan, Path(setting.base_folder)
        works = {stage: federation.work(stage) for stage in plan.stages}
        weighted, tells_size = federation.weighting == "samples", site.egress.training_set_size
        values: dict[str, Any] = federation.method.__pydantic_extra__
        model = site.model.model_dump(mode="json", exclude_none=True)
        return cls(
            site=SiteName(setting.site_name),
            federation=Sha256(setting.federation_digest),
            federation_name=federation.name,
            seed=federation.seed,
            home=Path(setting.home),
            method=federation.method.name,
            plan=plan,
            parameters={name: values[name] for name in plan.parameters},
            works=works,
            task=TaskSettings.of(federation.task),
            data=DataSettings.of(site.data, folder),
            model={key: value for key, value in model.items() if key != "freeze" or value},
            allow_models=site.allow_models,
            training=site.training,
            aggregate=federation.aggregate,
            tells_samples=weighted and tells_size,
            count_min=site.egress.count_min,
            hides_counters=not tells_size and any(work.unit == "epoch" for work in works.values()),
            weighted=weighted,
            wire=federation.wire,
            received_ratio_max=site.limits.received_ratio_max,
            shared_model=_shared(federation),
            sites=tuple(entry.name for entry in federation.site),
            base_weights=_base_weights(site, folder),
            gpu_folder=gpu_folder(site.training, folder),
            rounds=federation.rounds,
            leak=site.privacy.leak if site.egress.leak_auc_max is None else "every",
            egress=site.egress,
            noise=federation.noise,
            noise_key=bytes.fromhex(setting.noise_key),
            budget=Path(setting.budget_folder) if setting.budget_folder else None,
            population=site.privacy.population,
            spent_mu=setting.spent_mu,
            epsilon_max=min(federation.privacy.epsilon or math.inf, site.privacy.epsilon_max or math.inf),
        )


def _base_weights(site: SiteConfig, folder: Path) -> dict[str, Path]:
    """Return the files of weights by digest: those of ``[base_weights]``, and the own model's."""
    files, model = dict(site.base_weights), site.model
    if model.weights is not None and model.weights_sha256 is not None:
        files[model.weights_sha256] = model.weights
    return {digest: folder / file for digest, file in files.items()}


def _shared(federation: FederationConfig) -> dict[str, Any] | None:
    """Return the table ``[shared_model]``, or the method's own choice for the task."""
    if federation.shared_model is not None:
        return federation.shared_model.model_dump()
    name = federation.plan.shared_default.get(federation.task.kind)
    return None if name is None else {"name": name}
