"""The studies of the demonstration: real data from packages, networks of several families.

Differs: the schedule is scaled. The papers train 40 to 100 rounds. Here a round's main stage has
the same number of steps for every method, stages that only distil, decide or fit a head have a quarter of it,
and all methods have one learning rate.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from peer.methods.registry import PLANS
from peer.research.experiment import EVERY_SITE, Experiment

FAMILIES, ONE = "families", "one"
"""The sets of networks of a study: one network a site, and one for methods that share it."""


@dataclass(frozen=True, slots=True)
class PresetSize:
    """The amount of training in the demonstration.

    ``gamma`` and ``learning_rate`` were chosen from {1, 10, 100} and {1e-3, 1e-4} by the mean AUC
    on a quarter of the nodules' training patients, with one seed. All methods have this learning
    rate.
    """

    rounds: int = 15
    steps: int = 20
    seed: int = 0
    gamma: float = 100.0
    learning_rate: float = 1e-3


def study(name: str, size: PresetSize) -> Experiment:
    """The study as an experiment with one partition, and a row for every method that fits it."""
    methods: dict[str, dict[str, Any]] = {method: {} for method in PLANS if problem(name, method) is None}
    if "fedskd" in methods:
        methods["fedskd"] = {"gamma": size.gamma}
    budget = {"steps": size.steps, "minor_steps": max(1, size.steps // 4), "learning_rate": size.learning_rate}
    document = {"rounds": size.rounds, "budget": budget, "methods": methods, **STUDIES[name]}
    return Experiment.model_validate(document)


def networks(method: str) -> str:
    """The set of networks of a study that a method trains."""
    return ONE if PLANS[method].shared == "itself" else FAMILIES


HOSPITALS = ("africa", "america", "asia", "europe")


def _study(
    title: str,
    *,
    task: Mapping[str, Any],
    data: Mapping[str, Any],
    networks: Mapping[str, Mapping[str, Any]],
    shared_network: Mapping[str, Any] | None = None,
    batch_size: int = 8,
    **shared: Mapping[str, Any],
) -> dict[str, Any]:
    """An experiment's document without its size; ``shared``: tables ``proxy``, ``messenger``."""
    return {
        "name": data["dataset"],
        "title": title,
        "task": task,
        "data": data,
        "training": {"device": "cpu", "threads": 1, "batch_size": batch_size},
        "partitions": {"sites": {"kind": "key", "sites": list(networks)}},
        "models": {FAMILIES: networks} | ({ONE: {EVERY_SITE: shared_network}} if shared_network else {}),
        **shared,
    }


def _nodules(networks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return _study(
        "Malignancy of lung nodules from the shape that radiologists outlined (LIDC-IDRI).",
        task={"kind": "classification", "spatial_dims": 3, "in_channels": 1, "classes": 2},
        data={"dataset": "lidc", "input_size": [32, 32, 32], "regions": True},
        networks=networks,
        shared_network={"name": "resnet10", "width": 16, "stem_stride": 2},
        proxy={"name": "resnet10", "width": 8, "stem_stride": 2},
        messenger={"name": "messenger_classification", "width": 32},
    )


def _eeg(title: str, recordings: str, *, channels: int, samples: int, normalise: str) -> dict[str, Any]:
    return _study(
        title,
        task={"kind": "time_series", "spatial_dims": 1, "in_channels": channels, "classes": 2},
        data={"dataset": "eeg", "options": {"recordings": recordings}, "input_size": [samples], "normalise": normalise},
        networks={
            "africa": {"name": "tcn", "width": 16, "projection": 64},
            "america": {"name": "transformer", "width": 16, "projection": 64},
            "asia": {"name": "rnn", "width": 16, "projection": 64},
            "europe": {"name": "tcn", "width": 24, "projection": 64},
        },
        shared_network={"name": "tcn", "width": 16, "projection": 64},
        proxy={"name": "tcn", "width": 8, "projection": 32},
        messenger={"name": "messenger_time_series", "width": 64},
        batch_size=16,
    )


STUDIES: Mapping[str, Mapping[str, Any]] = {
    "nodules": _nodules(
        {
            site: {"name": "resnet10", "width": width, "stem_stride": 2}
            for site, width in zip(HOSPITALS, (16, 15, 14, 13), strict=True)
        }
    ),
    "nodules-families": _nodules(
        {
            "africa": {"name": "resnet10", "width": 16, "stem_stride": 2},
            "america": {"name": "densenet50", "width": 16},
            "asia": {"name": "vgg11", "width": 8},
            "europe": {"name": "resnet10", "width": 13, "stem_stride": 2},
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


def default_study(methods: Collection[str]) -> str:
    """The default study of these methods; FedSKD alone takes widths of one family."""
    return "nodules" if set(methods) == {"fedskd"} else "nodules-families"


def problem(study: str, method: str) -> str | None:
    """The reason why a method does not fit a study; None where it fits."""
    plan, kind = PLANS[method], STUDIES[study]["task"]["kind"]
    if study == "dermoscopy" and (plan.shared != "maybe" or plan.artifact == "model"):
        return f"{method} does not fit sites that enlarge by different factors; dflmoe and local do"
    return f"{method} is not defined for {kind}" if kind in plan.not_for else None
