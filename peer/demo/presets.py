"""What the demonstration trains on: real data that ships in packages, with networks of several families in each study.

Differs: the schedule is scaled. The papers train 40 to 100 rounds; here a round's main stage has as many steps for
every method, stages that only distil or decide have a quarter of them, and all have one learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.config import toml
from peer.core.plan import PLANS
from peer.core.tasks import METRICS, MINOR


@dataclass(frozen=True, slots=True)
class PresetSize:
    """How much the demonstration trains.

    ``gamma`` and ``learning_rate`` were chosen from {1, 10, 100} and {1e-3, 1e-4} by the mean AUC on a quarter of the
    nodules' training patients, with one seed; the learning rate is that of all methods.
    """

    rounds: int = 15
    steps: int = 20
    seed: int = 0
    gamma: float = 100.0
    learning_rate: float = 1e-3


@dataclass(frozen=True)
class DemoPreset:
    """One data set, divided among sites, and the networks of each.

    Attributes:
        title: what is learnt from what.
        dataset: whose ``prepare`` makes the data, a key of ``peer.data.adapters.DATASETS``.
        task: the table ``[task]``.
        models: every site's ``[model]``.
        input_sizes: of every site.
        proxy: ``[shared_model]`` of FedDAL and ProxyFL.
        one: the model of all sites where the method has one.
        messenger: hyper-parameters of MH-pFLID's.
        options: of ``prepare``.
        data: further keys of every site's ``[data]``.
        batch_size: of every site.
        regions: whether the data comes with region masks.
    """

    title: str
    dataset: str
    task: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    input_sizes: Mapping[str, tuple[int, ...]]
    proxy: Mapping[str, Any]
    one: Mapping[str, Any]
    messenger: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    batch_size: int = 8
    regions: bool = False

    @property
    def metric(self) -> str:
        return METRICS[self.task["kind"]][0]

    def model(self, site: str, method: str) -> Mapping[str, Any]:
        """The site's ``[model]`` under a method."""
        return self.one if PLANS[method].shared == "itself" else self.models[site]

    def draft(self, method: str, size: PresetSize) -> str:
        """The ``federation.toml`` without its sites."""
        stages = {
            stage: {"unit": "step", "count": max(1, size.steps // 4 if stage in MINOR else size.steps)}
            for stage in PLANS[method].stages
        }
        tables: dict[str, Mapping[str, Any]] = {"task": self.task, "method": {"name": method}}
        if method == "fedskd":
            tables["method"] = {"name": method, "gamma": size.gamma}
        for stage, work in stages.items():
            tables[f"stages.{stage}"] = {**work, "learning_rate": size.learning_rate}
        if PLANS[method].shared == "itself":
            tables["shared_model"] = {"name": self.one["name"], **self.one["parameters"]}
        elif PLANS[method].artifact == "proxy":
            tables["shared_model"] = self.proxy
        elif PLANS[method].artifact == "messenger":
            tables["shared_model"] = {"name": f"messenger_{self.task['kind']}", **self.messenger}
        tables["pace"] = {"linger_s": 60.0}
        head = {"name": self.dataset, "description": self.title, "rounds": size.rounds, "seed": size.seed}
        return toml.text(head, tables)

    def site(self, site: str, method: str, folder: Path) -> str:
        """The ``site.toml`` of a site whose data is in a folder, without its address."""
        data = {"datalist": str((folder / "datalist.json").resolve()), "input_size": self.input_sizes[site]}
        if self.regions:
            data["regions"] = str((folder / "regions.nii.gz").resolve())
        parameters = self.model(site, method)["parameters"]
        if "scale" in parameters:
            data["scale"] = parameters["scale"]
        tables = {
            "data": {**data, **self.data},
            "model": {"name": self.model(site, method)["name"]},
            "model.parameters": parameters,
            "training": {"device": "cpu", "threads": 1, "batch_size": self.batch_size},
        }
        return toml.text({}, tables)


def _named(name: str, **parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


HOSPITALS = ("africa", "america", "asia", "europe")
VIEWS = ("axial", "axial-inverted", "coronal", "sagittal")

WIDTHS = {"africa": 16, "america": 15, "asia": 14, "europe": 13}
FAMILIES = DemoPreset(
    title="Malignancy of lung nodules from the shape that radiologists outlined (LIDC-IDRI).",
    dataset="lidc",
    task={"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
    models={
        "africa": _named("resnet10", width=16, stem_stride=2),
        "america": _named("densenet50", width=16),
        "asia": _named("vgg11", width=8),
        "europe": _named("resnet10", width=13, stem_stride=2),
    },
    input_sizes=dict.fromkeys(HOSPITALS, (32, 32, 32)),
    proxy={"name": "resnet10", "width": 8, "stem_stride": 2},
    one=_named("resnet10", width=16, stem_stride=2),
    messenger={"width": 32},
    regions=True,
)
_EEG = DemoPreset(
    title="",
    dataset="eeg",
    task={"kind": "time_series", "spatial_dims": 1, "in_channels": 6, "classes": 2},
    models={
        "africa": _named("tcn", width=16, projection=64),
        "america": _named("transformer", width=16, projection=64),
        "asia": _named("rnn", width=16, projection=64),
        "europe": _named("tcn", width=24, projection=64),
    },
    input_sizes=dict.fromkeys(HOSPITALS, (896,)),
    proxy={"name": "tcn", "width": 8, "projection": 32},
    one=_named("tcn", width=16, projection=64),
    messenger={"width": 64},
    batch_size=16,
)
TISSUE = DemoPreset(
    title="Grey and white matter on slices of ONE template brain (MNI152), a view a site.",
    dataset="mni-tissue",
    task={"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 3},
    models={
        "axial": _named("unet", width=8, depth=3),
        "axial-inverted": _named("unet_plus_plus", width=8, depth=3),
        "coronal": _named("res_unet", width=8, depth=3),
        "sagittal": _named("fcn8s", width=16),
    },
    input_sizes=dict.fromkeys(VIEWS, (64, 64)),
    proxy={"name": "unet", "width": 4, "depth": 3},
    one=_named("unet", width=8, depth=3),
    messenger={"width": 16},
)
DERMOSCOPY = DemoPreset(
    title="Dermoscopy patches, enlarged by the factor that is the site's.",
    dataset="dermoscopy-sr",
    task={
        "kind": "super_resolution",
        "spatial_dims": 2,
        "in_channels": 3,
        "classes": 3,
        "same_input_size": False,
    },
    models={
        "scale-2": _named("srresnet6", width=16, scale=2),
        "scale-4": _named("srresnet12", width=16, scale=4),
        "scale-8": _named("srresnet18", width=16, scale=8),
    },
    input_sizes={"scale-2": (16, 16), "scale-4": (8, 8), "scale-8": (4, 4)},
    proxy={},
    one={},
    messenger={},
    batch_size=16,
)
STUDIES: Mapping[str, DemoPreset] = {
    "nodules": dataclasses.replace(
        FAMILIES,
        models={site: _named("resnet10", width=width, stem_stride=2) for site, width in WIDTHS.items()},
    ),
    "nodules-families": FAMILIES,
    "eeg-scp1": dataclasses.replace(
        _EEG, title="EEG: slow cortical potentials up or down (SelfRegulationSCP1).", options={"recordings": "scp1"}
    ),
    "eeg-blink": dataclasses.replace(
        _EEG,
        title="EEG: blinks, short or long (Blink).",
        options={"recordings": "blink"},
        task={**_EEG.task, "in_channels": 4},
        input_sizes=dict.fromkeys(HOSPITALS, (510,)),
        data={"normalise": "zscore"},
    ),
    "tissue": TISSUE,
    "dermoscopy": DERMOSCOPY,
}


def usual(methods: Collection[str]) -> str:
    """The study for these methods where none is named: FedSKD alone has four widths of one family, as its paper."""
    return "nodules" if set(methods) == {"fedskd"} else "nodules-families"


def problem(study: str, method: str) -> str | None:
    """Why a method cannot be shown on a study, or nothing."""
    plan = PLANS[method]
    if study == "dermoscopy" and (plan.shared != "maybe" or plan.artifact == "model"):
        return f"{method} does not fit sites that enlarge by different factors; dflmoe and local do"
    return None
