"""The two configuration documents as training reads them: typed, with the plan's defaults filled
in.

The daemon has validated them (``peer.site.config.schema``). A caller that uses a trainer without a
daemon passes the same documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.core.limits import CHECKPOINT_S, PROBE_RATIO_MAX, RECEIVED_RATIO_MAX
from peer.core.plan import AggregateRule, Plan, Value, Wire, Work
from peer.core.roster import Sha256, SiteName
from peer.core.worker_protocol import WorkerSetting
from peer.methods.registry import find_plan
from peer.train.device_queue import gpu_folder


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """The kind of prediction and the dimensions that every model of the federation shares."""

    kind: str
    spatial_dims: int
    in_channels: int
    classes: int


@dataclass(frozen=True, slots=True)
class AugmentationSettings:
    """Random geometry of training images; shares are of the image's size, ``flip`` is a probability
    an axis.

    ``probability`` is that of the rotation, translation and scaling, which are drawn together.
    """

    flip: float = 0.5
    rotate_degrees: float = 15.0
    translate_share: float = 0.05
    scale_share: float = 0.1
    probability: float = 0.8

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
    axes of ``input_size``.
    """

    datalist: Path
    root: Path
    input_size: tuple[int, ...]
    regions: Path | None = None
    normalise: str = "none"
    unreadable_share_max: float = 0.05
    validation_share: float = 0.0
    cache: str = "memory"
    scale: int | None = None
    public: Path | None = None
    orientation: str | None = None
    spacing: tuple[float, ...] | None = None
    intensity: IntensitySettings | None = None
    augmentation: AugmentationSettings = AugmentationSettings()


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """All settings that training needs; none changes while it runs.

    ``hides_counters``: the number of batches that a layer has seen tells the size of the training
    set, which the site's policy does not tell. ``base_weights`` are files of weights by SHA-256.
    ``gpu_folder`` holds the queues of this machine's devices where workers take turns.
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
    device: str
    precision: str
    threads: int
    batch_size: int
    checkpoint_s: float
    tells_samples: bool
    processes: int = 1
    readers: int = 1
    channels_last: bool = False
    hides_counters: bool = False
    weighted: bool = False
    wire: Wire = "float32"
    aggregate_rule: AggregateRule = "mean"
    aggregate_bounds: bool = True
    probe_ratio_max: float = PROBE_RATIO_MAX
    received_ratio_max: float = RECEIVED_RATIO_MAX
    shared_model: Mapping[str, Any] | None = None
    sites: tuple[str, ...] = ()
    base_weights: Mapping[str, Path] = field(default_factory=dict)
    gpu_folder: Path | None = None

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

    def digest(self, *parts: object) -> str:
        """What identifies a piece of work: the same digest is the same result."""
        fixed_by = (
            self.parameters,
            self.works,
            self.model,
            self.data,
            self.batch_size,
            self.precision,
            *(["channels_last"] if self.channels_last else []),
            *([f"{self.processes} processes"] if self.processes > 1 else []),
        )
        text = json.dumps([self.federation, self.site, *map(repr, fixed_by), *parts])
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def of(cls, setting: WorkerSetting) -> TrainingSettings:
        """The settings in the worker's documents, with the defaults of ``peer.site.config.schema``."""
        federation, site = setting.federation, setting.site
        method = dict(federation["method"])
        name = method.pop("name")
        plan = find_plan(name, method.pop("package", None))
        training, egress = _without_nulls(site.get("training")), _without_nulls(site.get("egress"))
        limits = _without_nulls(site.get("limits"))
        weighted = federation.get("weighting", "uniform") == "samples"
        tells_size = bool(egress.get("training_set_size", False))
        works = {stage: _work(work, federation.get("stages"), stage) for stage, work in plan.stages.items()}
        aggregate = _without_nulls(federation.get("aggregate"))
        return cls(
            site=SiteName(setting.site_name),
            federation=Sha256(setting.federation_digest),
            federation_name=str(federation.get("name", "")),
            seed=int(federation.get("seed", 0)),
            home=Path(setting.home),
            method=name,
            plan=plan,
            parameters={**plan.defaults(), **_without_nulls(method)},
            works=works,
            task=TaskSettings(
                **{key: federation["task"][key] for key in ("kind", "spatial_dims", "in_channels", "classes")}
            ),
            data=_data(_without_nulls(site["data"]), Path(setting.base_folder)),
            model={key: value for key, value in _without_nulls(site["model"]).items() if key != "freeze" or value},
            allow_models=tuple(site.get("allow_models", ())),
            device=training.get("device", "auto"),
            precision=training.get("precision", "fp32"),
            threads=training.get("threads", 1),
            processes=training.get("processes", 1),
            readers=training.get("readers", 1),
            channels_last=training.get("channels_last", False),
            batch_size=training.get("batch_size", 8),
            checkpoint_s=training.get("checkpoint_s", CHECKPOINT_S),
            tells_samples=weighted and tells_size,
            hides_counters=not tells_size and any(work.unit == "epoch" for work in works.values()),
            weighted=weighted,
            wire=federation.get("wire", "float32"),
            aggregate_rule=aggregate.get("rule", "mean"),
            probe_ratio_max=float(training.get("probe_ratio_max", PROBE_RATIO_MAX)),
            received_ratio_max=float(limits.get("received_ratio_max", RECEIVED_RATIO_MAX)),
            aggregate_bounds=aggregate.get("bounds", True),
            sites=tuple(entry["name"] for entry in federation.get("site", ())),
            base_weights=_base_weights(site, Path(setting.base_folder)),
            gpu_folder=gpu_folder(training, Path(setting.base_folder)),
            shared_model=_shared(federation.get("shared_model"), plan, federation["task"]["kind"]),
        )


def _base_weights(site: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """The files of weights by digest: those of ``[base_weights]``, and the own model's."""
    files = dict(site.get("base_weights") or {})
    if (own := site["model"].get("weights_sha256")) is not None:
        files[own] = site["model"]["weights"]
    return {digest: folder / file for digest, file in files.items()}


def _without_nulls(document: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys that have a value: pydantic dumps absent options as null."""
    return {key: value for key, value in (document or {}).items() if value is not None}


def _shared(table: Mapping[str, Any] | None, plan: Plan, task: str) -> dict[str, Any] | None:
    """The table ``[shared_model]``, or the method's own choice for the task."""
    if table is not None:
        return _without_nulls(table)
    return {"name": plan.shared_default[task]} if task in plan.shared_default else None


def _work(default: Work, stages: Mapping[str, Any] | None, stage: str) -> Work:
    table = _without_nulls((stages or {}).get(stage))
    return Work(
        unit=table.get("unit", default.unit),
        count=table.get("count", default.count),
        learning_rate=float(table.get("learning_rate", default.learning_rate)),
        weight_decay=float(table.get("weight_decay", default.weight_decay)),
        decay=float(table.get("decay", default.decay)),
    )


def _data(document: Mapping[str, Any], base_folder: Path) -> DataSettings:
    datalist = base_folder / document.get("datalist", "datalist.json")
    options = {
        key: document[key]
        for key in ("normalise", "unreadable_share_max", "validation_share", "cache", "scale", "orientation")
        if key in document
    }
    # A signal reversed in time is another signal.
    no_flip = {"flip": 0.0} if len(document["input_size"]) == 1 else {}
    return DataSettings(
        datalist=datalist,
        public=base_folder / document["public"] if "public" in document else None,
        root=base_folder / document["root"] if "root" in document else datalist.parent,
        input_size=tuple(document["input_size"]),
        regions=base_folder / document["regions"] if "regions" in document else None,
        spacing=tuple(map(float, document["spacing"])) if "spacing" in document else None,
        intensity=IntensitySettings.of(*document["intensity"]) if "intensity" in document else None,
        augmentation=AugmentationSettings(**no_flip | _without_nulls(document.get("augmentation"))),
        **options,
    )
