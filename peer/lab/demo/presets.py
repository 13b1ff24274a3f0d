"""The studies of the demonstration: real data from packages, networks of several families.

Differs: the schedule is scaled. The papers train 40 to 100 rounds. Here a round's main stage has
the same number of steps for every method, stages that only distil, decide or fit a head have a quarter of it,
and all methods have one learning rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from peer.core.columns import TableColumn
from peer.core.privacy import auc_max, percent_up, power_of_ten
from peer.lab.datasets import heart_disease
from peer.lab.experiments.experiment import EVERY_SITE, Experiment
from peer.lab.experiments.result_files import CENTRALISED
from peer.methods.registry import PLANS
from peer.site.config import toml
from peer.site.config.aggregate_table import AggregateConfig
from peer.site.config.privacy_table import NoiseConfig

FAMILIES, ONE = "families", "one"
"""The sets of networks of a study: one network a site, and one for methods that share it."""


@dataclass(frozen=True, slots=True)
class PresetSize:
    """The amount of training in the demonstration; all methods have this learning rate.

    Rounds, steps and the 20 training samples of a site in the default study were chosen on seeds 11
    and 12: with 30 samples or 120 steps there was less room. The demonstration shows another seed.
    """

    rounds: int = 15
    steps: int = 12
    seed: int = 0
    learning_rate: float = 1e-3


@dataclass(frozen=True, slots=True)
class StudyDefaults:
    """Defaults of the demonstration's options for a study.

    Attributes:
        methods: beside ``local``.
        splits: how many divisions into training and test samples the simulator goes through; 1: only that of the
            daemons.
    """

    methods: tuple[str, ...] = ("fedvisit",)
    size: PresetSize = PresetSize()
    splits: int = 1


DEFAULT_STUDY = "heart-disease"
PRIVATE_HEAD = "pooled_head-epsilon-1"
ROWS: Mapping[str, Mapping[str, Any]] = {
    PRIVATE_HEAD: {
        "method": "pooled_head",
        "secure": True,
        "members_min": 4,
        "privacy": {"mechanism": "noise", "epsilon": 1.0},
    }
}
"""Rows that are no method with its defaults, by label."""
RATE_FACTORS = {"fedvisit": 6.0}
"""By method, its learning rate over that of the others: FedVisit's falls to a tenth of that until the last round."""
ONE_ROUND = frozenset({"pooled_head"})
"""Methods that have nothing to add in a second round."""


def study(name: str, methods: Iterable[str], size: PresetSize, settings: Mapping[str, Any] | None = None) -> Experiment:
    """Check the study's experiment. Raise ``ConfigError`` if a setting has a wrong value."""
    return toml.validate(Experiment, study_document(name, methods, size, settings), f"the study {name}")


def study_document(
    name: str, methods: Iterable[str], size: PresetSize, settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Build the study's experiment: one partition, one seed, a row for each method, and one for the pooled bound.

    The row of the pooled bound is absent if the sites' samples cannot be pooled.

    Args:
        settings: parameters of the methods; each goes to all methods that have it.
    """
    rows = {
        label: {
            "models": [networks(label)],
            **({"rounds": 1} if method_of(label) in ONE_ROUND else {}),
            **{key: value for key, value in (settings or {}).items() if key in PLANS[method_of(label)].parameters},
            **_rate(label, size),
            **ROWS.get(label, {}),
        }
        for label in methods
    }
    document = dict(STUDIES[name])
    data = document["data"]
    if "input_sizes" not in data:  # images of different sizes cannot be one site's
        rows[CENTRALISED] = {"models": [FAMILIES]}
    return document | {
        "rounds": size.rounds,
        "seeds": [size.seed],
        "evaluation_every": 1,
        "budget": {
            "steps": size.steps,
            "minor_steps": max(1, size.steps // 4),
            "learning_rate": size.learning_rate,
        },
        "methods": rows,
        "data": {**data, "options": {**data.get("options", {}), "seed": size.seed}},
    }


def _rate(label: str, size: PresetSize) -> dict[str, Any]:
    """Return the learning rates of a row that has others than the study."""
    if (factor := RATE_FACTORS.get(method_of(label))) is None:
        return {}
    rate = {"learning_rate": factor * size.learning_rate}
    return {"stages": dict.fromkeys(PLANS[method_of(label)].stages, rate)}


def method_of(label: str) -> str:
    """Return the method of a row: most are called like it."""
    return str(ROWS.get(label, {"method": label})["method"])


def describe_noise(label: str) -> str:
    """Say what the noise of a row guarantees to each person; empty without noise."""
    row = ROWS.get(label, {})
    sums = AggregateConfig(secure=row.get("secure", False), members_min=row.get("members_min"))
    noise = NoiseConfig(**row.get("privacy", {})).noise(PLANS[method_of(label)], {}, 1, sums)
    if noise is None:
        return ""
    return (
        f"{label} has noise: ε {noise.epsilon:g} (δ {power_of_ten(noise.delta)}) for each person against any "
        f"{noise.colluders} other site, ε {noise.epsilon_alone:.2f} if all others conspire; no attack on a person by "
        f"one site has an AUC above {percent_up(auc_max(noise.mu)):.2f}."
    )


def networks(label: str) -> str:
    """Return the name of the set of networks that a row trains."""
    return ONE if PLANS[method_of(label)].shared == "itself" else FAMILIES


HOSPITALS = ("africa", "america", "asia", "europe")


def _study(
    title: str,
    *,
    task: Mapping[str, Any],
    data: Mapping[str, Any],
    networks: Mapping[str, Mapping[str, Any]],
    shared_network: Mapping[str, Any] | None = None,
    partition: Mapping[str, Any] | None = None,
    test_share: float | None = None,
    batch_size: int = 8,
    **shared: Mapping[str, Any],
) -> dict[str, Any]:
    """Build an experiment's document without its size.

    Args:
        partition: how the samples are divided among the sites; by default as the data set does it.
        test_share: of each site's samples; by default the data set's own split.
        shared: tables ``proxy``, ``messenger``.
    """
    return {
        "name": data["dataset"],
        "title": title,
        "task": task,
        "data": data,
        "test_share": test_share,
        "training": {"device": "cpu", "threads": 1, "batch_size": batch_size},
        "partitions": {"sites": {"kind": "key", "sites": list(networks), **(partition or {})}},
        "models": {FAMILIES: networks} | ({ONE: {EVERY_SITE: shared_network}} if shared_network else {}),
        **shared,
    }


def _nodules(networks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Build the study of small sites with one task: each trains on some 30 of its 120 nodules.

    A network that fits the images reads the nodule's size from that few, and size alone has an AUC of
    0.9: the pooled bound is about one point better than training alone.
    """
    return _study(
        "Malignancy of lung nodules from what radiologists outlined (LIDC-IDRI), a voxel a millimetre.",
        task={"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
        data={
            "dataset": "lidc",
            "options": {"skew": False, "scaled": False, "training_max": 1000},
            "input_size": [32, 32, 32],
            "regions": True,
        },
        partition={"kind": "equal", "per_site": 120},
        test_share=0.75,
        networks=networks,
        shared_network={"name": "resnet11", "width": 8, "stem_stride": 2},
        proxy={"name": "resnet11", "width": 4, "stem_stride": 2},
        messenger={"name": "messenger_classification", "width": 32},
    )


THREE_FAMILIES = {
    "africa": {"name": "tcn", "width": 16, "projection": 64},
    "america": {"name": "transformer", "width": 16, "projection": 64},
    "asia": {"name": "rnn", "width": 16, "projection": 64},
    "europe": {"name": "tcn", "width": 24, "projection": 64},
}
FOUR_WIDTHS = {
    site: {"name": "transformer", "width": width, "projection": 64}
    for site, width in zip(HOSPITALS, (16, 12, 20, 8), strict=True)
}


def _eeg(
    title: str,
    recordings: str,
    *,
    channels: int,
    samples: int,
    normalise: str,
    networks: Mapping[str, Mapping[str, Any]] = THREE_FAMILIES,
    batch_size: int = 16,
    **division: Any,
) -> dict[str, Any]:
    return _study(
        title,
        task={"kind": "time_series", "spatial_dims": 1, "in_channels": channels, "classes": 2},
        data={"dataset": "eeg", "options": {"recordings": recordings}, "input_size": [samples], "normalise": normalise},
        networks=networks,
        shared_network={"name": "tcn", "width": 16, "projection": 64},
        proxy={"name": "tcn", "width": 8, "projection": 32},
        messenger={"name": "messenger_time_series", "width": 64},
        batch_size=batch_size,
        **division,
    )


def _columns(columns: Iterable[TableColumn]) -> list[dict[str, Any]]:
    """Write columns as the tables ``[[task.column]]``."""
    return [
        {key: value for key, value in dataclasses.asdict(column).items() if value not in (None, (), "")}
        for column in columns
    ]


STUDIES: Mapping[str, Mapping[str, Any]] = {
    "heart-disease": _study(
        "Heart disease: 920 patients of Cleveland, Hungary, Switzerland and VA Long Beach, a row each.",
        task={
            "kind": "tabular",
            "classes": 2,
            "class_names": heart_disease.TABLE.classes,
            "column": _columns(heart_disease.COLUMNS.values()),
        },
        data={"dataset": "heart-disease"},
        networks={
            "cleveland": {"name": "tabular_resnet", "width": 32, "projection": 16},
            "hungary": {"name": "mlp", "width": 32, "projection": 16},
            "switzerland": {"name": "linear", "projection": 16},
            "va-long-beach": {"name": "ft_transformer", "width": 16, "projection": 16},
        },
        shared_network={"name": "linear", "projection": 16},
        proxy={"name": "mlp", "width": 8, "projection": 16},
        messenger={"name": "messenger_tabular", "width": 16},
        test_share=0.4,
        batch_size=16,
    ),
    # Small sites with one task, and no trivial number that separates the classes: there is room.
    "blinks": _eeg(
        "EEG of six persons: was the blink short or long (Blink)?",
        "blink",
        channels=4,
        samples=510,
        normalise="zscore",
        networks=FOUR_WIDTHS,
        batch_size=8,
        partition={"kind": "equal", "per_site": 120},
        test_share=5 / 6,
    ),
    "nodules": _nodules(
        {
            site: {"name": "resnet11", "width": width, "stem_stride": 2}
            for site, width in zip(HOSPITALS, (8, 7, 6, 5), strict=True)
        }
    ),
    "nodules-families": _nodules(
        {
            "africa": {"name": "resnet11", "width": 8, "stem_stride": 2},
            "america": {"name": "densenet50", "width": 16},
            "asia": {"name": "vgg11", "width": 8},
            "europe": {"name": "resnet11", "width": 5, "stem_stride": 2},
        }
    ),
    "eeg-scp1": _eeg(
        "EEG: slow cortical potentials up or down (SelfRegulationSCP1).",
        "scp1",
        channels=6,
        samples=896,
        normalise="none",
    ),
    "eeg-blink": _eeg("EEG: blinks, short or long (Blink).", "blink", channels=4, samples=510, normalise="zscore"),
    "tissue": _study(
        "Grey and white matter on slices of ONE template brain (MNI152), a view a site.",
        task={"kind": "segmentation", "spatial_dims": 2, "in_channels": 1, "classes": 3},
        data={"dataset": "mni-tissue", "input_size": [64, 64]},
        networks={
            "axial": {"name": "unet", "width": 8, "depth": 3},
            "axial-inverted": {"name": "unet_plus_plus", "width": 8, "depth": 3},
            "coronal": {"name": "res_unet", "width": 8, "depth": 3},
            "sagittal": {"name": "fcn8s", "width": 16},
        },
        shared_network={"name": "unet", "width": 8, "depth": 3},
        proxy={"name": "unet", "width": 4, "depth": 3},
        messenger={"name": "messenger_segmentation", "width": 16},
    ),
    "dermoscopy": _study(
        "Dermoscopy patches, enlarged by the factor that is the site's.",
        task={"kind": "super_resolution", "spatial_dims": 2, "in_channels": 3, "classes": 3, "same_input_size": False},
        data={
            "dataset": "dermoscopy-sr",
            "input_sizes": {"scale-2": [16, 16], "scale-4": [8, 8], "scale-8": [4, 4]},
            "scales": {"scale-2": 2, "scale-4": 4, "scale-8": 8},
        },
        networks={
            "scale-2": {"name": "srresnet6", "width": 16, "scale": 2},
            "scale-4": {"name": "srresnet12", "width": 16, "scale": 4},
            "scale-8": {"name": "srresnet18", "width": 16, "scale": 8},
        },
        batch_size=16,
    ),
}
"""The studies' documents, which ``study`` completes."""

DEFAULTS: Mapping[str, StudyDefaults] = {
    "heart-disease": StudyDefaults(("fedvisit", "pooled_head", PRIVATE_HEAD), PresetSize(rounds=8, steps=15), splits=5)
}
"""Of the studies that have some of their own.

Of heart disease, rounds and learning rate were chosen on validation samples of the splits 100 to 103: neither training
alone nor the pooled bound became better after round 8.
"""


def defaults_of(study: str) -> StudyDefaults:
    return DEFAULTS.get(study, StudyDefaults())


def problem(study: str, method: str) -> str | None:
    """Return the reason why a method does not fit a study; None if it fits."""
    plan, kind = PLANS[method_of(method)], STUDIES[study]["task"]["kind"]
    if study == "dermoscopy" and (plan.shared != "maybe" or plan.artifact == "model" or plan.pattern == "visit"):
        return f"{method} does not fit sites that enlarge by different factors; dflmoe and local do"
    if not plan.predicts:
        return f"{method} trains no model"
    if plan.public:
        return f"{method} needs a public set of images"
    return f"{method} is not defined for {kind}" if kind in plan.not_for else None
