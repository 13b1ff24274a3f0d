"""Folders of synthetic runs: what `simulate` leaves, with random numbers instead of training."""

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fakes.report_folders import link

SITES = ("africa", "america", "asia", "europe")
QUALITY = {"local": 0.70, "centralised": 0.86, "fedskd": 0.84, "fedcross": 0.78, "dflmoe": 0.8, "feddal": 0.77}
"""How far apart the classes are for a method."""
METHODS = {
    "Centralised": "centralised", "Local": "local", "FedCross": "fedcross", "FedSKD": "fedskd", "dFLMoE": "dflmoe",
    "FedDAL": "feddal", "ProxyFL": "proxyfl", "MH-pFLID": "mh_pflid",
}  # fmt: skip
ROUNDS = 12
TEST = 36
"""Samples of a site."""

Make = Callable[..., Path]


@pytest.fixture(scope="session")
def runs() -> Make:
    """:func:`synthetic`, for fixtures that live longer than a test."""
    return synthetic


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(kind=..., folds=..., ...)``: a folder of runs; see :func:`synthetic`."""
    return lambda **options: synthetic(tmp_path / "out", **options)


def synthetic(
    folder: Path,
    *,
    kind: str = "classification",
    classes: int = 3,
    folds: int = 0,
    seeds: Sequence[int] = (0, 1),
    sites: Sequence[str] = SITES,
    methods: Mapping[str, str] = METHODS,
    partitions: Sequence[str] = ("sites",),
    models: Sequence[str] = ("heterogeneous",),
    links: Sequence[Mapping[str, Any]] = (link("all"),),
    spatial_dims: int = 2,
    insight: bool = True,
    **experiment: Any,
) -> Path:
    """Write a folder whose every number is drawn at random; the same arguments give the same folder.

    Of label maps, the background is one of the ``classes``; 0 ``folds`` are one split. ``methods`` are by
    label. Runs without ``insight`` keep no features and no diagnosis. ``experiment`` has further or other
    keys of ``experiment.json``.
    """
    metric = {"segmentation": "dice", "super_resolution": "psnr"}.get(kind, "auc")
    task = {"kind": kind, "spatial_dims": spatial_dims, "in_channels": 1, "classes": classes}
    document = {
        "format": 1,
        "version": "0.1.0",
        "name": "synthetic",
        "title": "Synthetic runs <&>",
        "description": "Numbers drawn at random; nothing was trained.",
        "differs": "everything",
        "reference": None,
        "metric": metric,
        "task": task,
        "seeds": list(seeds),
        "folds": folds,
        "rounds": ROUNDS,
        "budget": {"steps": 20},
        "methods": {label: {"method": name, "parameters": {}, "stages": {}} for label, name in methods.items()},
        "models": {name: {site: {"name": "resnet10"} for site in sites} for name in models},
        "partitions": {name: {"kind": "key"} for name in partitions},
        "links": list(links),
        "not_run": [],
        **experiment,
    }
    _write(folder / "experiment.json", document)
    for partition, network_set, connection, label, fold, seed in itertools.product(
        partitions, models, links, methods, range(max(folds, 1)), seeds
    ):
        name = f"{partition}.{network_set}.{connection['name']}.{label}.fold-{fold}.seed-{seed}"
        run = SyntheticRun(
            home=folder / "runs" / name,
            method=methods[label],
            task=task,
            sites=[site for site in sites if site not in connection["removed"]],
            quality=QUALITY.get(methods[label], 0.75) - 0.1 * connection["loss"],
            data=np.random.default_rng([fold, seed]),
            draw=np.random.default_rng([fold, seed, list(methods).index(label)]),
        )
        which = {"partition": partition, "models": network_set, "links": connection["name"], "fold": fold, "seed": seed}
        run.write({"id": name, **which, "method": label, "metric": metric}, insight=insight)
    return folder


@dataclass
class SyntheticRun:
    """One run; ``data`` is alike for all methods of a fold and seed, and ``draw`` is the method's own."""

    home: Path
    method: str
    task: Mapping[str, Any]
    sites: Sequence[str]
    quality: float
    data: np.random.Generator
    draw: np.random.Generator
    matrix: dict[str, dict[str, Any]] = field(default_factory=dict)
    classes: dict[str, dict[str, int]] = field(default_factory=dict)

    def write(self, known: Mapping[str, Any], *, insight: bool) -> None:
        self.home.mkdir(parents=True)
        if self.task["kind"] in ("classification", "time_series"):
            self.classify()
        else:
            self.predict_images()
        if insight:
            self.look_inside()
        _write(self.home / "samples.json", {site: _samples(site) for site in self.sites})
        _write(self.home / "manifest.json", {"versions": {"torch": "2.13.0"}, "digest": "ab" * 32, "seconds": 12.3})
        result = {
            "format": 1,
            **known,
            "task": self.task["kind"],
            "sites": {site: self.site(site) for site in self.sites},
            "matrix": self.matrix,
            "single_model": self.method in ("fedavg", "fedprox"),
        }
        _write(self.home / "result.json", result)

    def classify(self) -> None:
        arrays: dict[str, Any] = {}
        count = self.task["classes"]
        for site in self.sites:
            labels = self.data.permutation(np.arange(TEST) % count)
            arrays[f"y/{site}"] = labels.astype(np.int64)
            self.classes[site] = {str(k): int((labels == k).sum()) for k in range(count)}
        for model in self.sites:
            self.matrix[model] = {}
            for site in self.sites:
                strength = 4 * (self.quality - 0.5) * (1.0 if site == model else 0.6)
                labels = arrays[f"y/{site}"]
                logits = self.draw.normal(size=(TEST, count)) + strength * np.eye(count)[labels]
                chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
                arrays[f"p/{model}/{site}"] = chances.astype(np.float32)
                score = self.quality * (1.0 if site == model else 0.9) + float(self.draw.normal(0, 0.02))
                self.matrix[model][site] = {
                    "auc": score, "accuracy": score - 0.1, "f1_macro": score - 0.12, "loss": 0.5,
                    "samples": float(TEST),
                }  # fmt: skip
        np.savez_compressed(self.home / "predictions.npz", **arrays)

    def predict_images(self) -> None:
        arrays, scores, is_super_resolution = {}, {}, self.task["kind"] == "super_resolution"
        limits = np.linspace(0.8, 0.3, self.task["classes"] - 1)
        for index, site in enumerate(self.sites):
            shape = (24,) * self.task["spatial_dims"]
            grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 24)] * self.task["spatial_dims"], indexing="ij"))
            distance = np.sqrt((grid**2).sum(axis=0)) + 0.1 * self.data.normal()
            if is_super_resolution:
                truth = np.clip(np.stack([0.5 + 0.5 * np.cos(6 * distance + 0.3 * index)] * 3), 0, 1)
                source = truth[:, ::2, ::2]
                guess = np.clip(truth + self.draw.normal(0, 0.4 * (1 - self.quality), truth.shape), 0, 1)
                value = {"psnr": 20 + 10 * self.quality, "ssim": self.quality}
            else:
                truth = sum((distance < limit).astype(np.int64) for limit in limits)
                source = (truth + 0.4 * self.data.normal(size=shape))[None]
                noisy_distance = distance + self.draw.normal(0, 0.3 * (1 - self.quality), shape)
                guess = sum((noisy_distance < limit).astype(np.int64) for limit in limits)
                value = {"dice": self.quality, "pixel_accuracy": 0.9}
            pairs = {"input": source, "truth": truth, "prediction": guess}
            arrays |= {f"{site}/{part}": np.stack([image, image]) for part, image in pairs.items()}
            scores[site] = [
                {key: mean + float(self.draw.normal(0, 0.03)) for key, mean in value.items()} for _ in range(TEST)
            ]
            self.matrix[site] = {
                other: {} if is_super_resolution and other != site else {**value, "samples": float(TEST)}
                for other in self.sites
            }
            self.classes[site] = {}
        np.savez_compressed(self.home / "panels.npz", **arrays)
        _write(self.home / "scores.json", scores)

    def look_inside(self) -> None:
        features, diagnosis = {}, {}
        classes, draw = max(self.task["classes"], 2), self.draw
        for site in self.sites:
            labels = np.tile(np.arange(12) % classes, len(self.sites))
            centres = draw.normal(0, 2, size=(classes, 8))
            features[f"{site}/features"] = (centres[labels] + draw.normal(size=(len(labels), 8))).astype(np.float32)
            features[f"{site}/labels"] = labels.astype(np.int64)
            features[f"{site}/origins"] = np.repeat(np.arange(len(self.sites)), 12)
            if self.method == "fedskd":
                for kind, side in (("batch", 16), ("position", 36), ("region", 10)):
                    rows = self.data.normal(size=(side, 6))
                    for role in ("dam", "ktm"):
                        noisy = rows + draw.normal(0, 0.5, rows.shape)
                        gram = noisy @ noisy.T
                        square = gram / np.linalg.norm(gram, axis=1, keepdims=True)
                        diagnosis[f"similarity/{site}/{kind}/{role}"] = square.astype(np.float32)
            if self.method == "dflmoe":
                weights = draw.dirichlet(np.ones(len(self.sites)))
                diagnosis[f"experts/{site}"] = weights.astype(np.float32)
                diagnosis[f"experts/{site}/names"] = np.array(self.sites)
            if self.method == "mh_pflid":
                diagnosis[f"basis/{site}"] = np.float32(0.1 + 0.3 * draw.random()) * np.ones((), np.float32)
        np.savez_compressed(self.home / "features.npz", **features)
        if diagnosis:
            np.savez_compressed(self.home / "diagnosis.npz", **diagnosis)

    def site(self, name: str) -> dict[str, Any]:
        rounds = []
        for number in range(1, ROUNDS + 1):
            share = 1 - np.exp(-number / 3)
            metrics = {"train_total": 1 - 0.5 * share}
            if number % 2 == 0:
                own = self.matrix[name][name].items()
                metrics |= {key: float(value * share) for key, value in own if key not in ("samples", "loss")}
            if self.method == "feddal":
                metrics["train_consensus"] = float(0.4 + 0.5 * share + self.draw.normal(0, 0.02))
            rounds.append({"round": number, "metrics": metrics})
        classes = self.classes[name]
        training = {label: 3 * count for label, count in classes.items()}
        moved_bytes = 0 if self.method in ("local", "centralised") else int(1e5 * (2 + len(self.method)) ** 2)
        return {
            "model": {"name": "resnet10", "width": 8},
            "parameters": 1_234_567,
            "multiply_accumulates": None if name == "asia" else 98_765_432,
            "samples": {"training": 3 * TEST, "validation": 0, "test": TEST},
            "classes": {"training": training, "test": classes} if classes else {},
            "steps": 20 * ROUNDS,
            "sent_bytes": moved_bytes,
            "received_bytes": moved_bytes,
            "training_s": 3.5,
            "rounds": rounds,
        }


def _samples(site: str) -> list[dict[str, Any]]:
    return [
        {
            "image": f"{site}-{index}.npy",
            "subject": f"{site}-{index // 2}",
            "sex": ("female", "male")[index % 2],
            "institution": f"{site} {'north' if index % 3 else 'south'}",
        }
        for index in range(TEST)
    ]


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")
