"""Folders of synthetic runs: what `simulate` leaves, with random numbers instead of training."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SITES = ("africa", "america", "asia", "europe")
QUALITY = {"local": 0.70, "centralised": 0.86, "fedskd": 0.84, "fedcross": 0.78, "dflmoe": 0.8, "feddal": 0.77}
"""How far apart the classes are for a method."""
METHODS = {
    "Centralised": "centralised", "Local": "local", "FedCross": "fedcross", "FedSKD": "fedskd", "dFLMoE": "dflmoe",
    "FedDAL": "feddal", "ProxyFL": "proxyfl", "MH-pFLID": "mh_pflid",
}  # fmt: skip
UNDISTURBED_LINKS = ({"name": "all", "loss": 0.0, "removed": []},)
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
    links: Sequence[Mapping[str, Any]] = UNDISTURBED_LINKS,
    spatial_dims: int = 2,
    insight: bool = True,
    **experiment: Any,
) -> Path:
    """Write a folder whose every number is drawn at random; the same arguments give the same folder.

    Args:
        folder: to be made.
        kind: of the task.
        classes: of the task; of label maps with the background.
        folds: of a cross-validation; 0 is one split.
        seeds: of the runs.
        sites: who takes part.
        methods: method by label.
        partitions: their names.
        models: names of the sets of networks.
        links: what is lost.
        spatial_dims: of dense tasks' images.
        insight: whether runs keep features and diagnosis.
        experiment: further or other keys of ``experiment.json``.
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
    combinations = [
        (partition, network_set, link, label, fold, seed)
        for partition in partitions
        for network_set in models
        for link in links
        for label in methods
        for fold in range(max(folds, 1))
        for seed in seeds
    ]
    for combination in combinations:
        _run(folder, document, combination, sites, insight=insight)
    return folder


def _run(
    folder: Path, document: Mapping[str, Any], combination: tuple[Any, ...], sites: Sequence[str], *, insight: bool
) -> None:
    partition, network_set, link, label, fold, seed = combination
    name = f"{partition}.{network_set}.{link['name']}.{label}.fold-{fold}.seed-{seed}"
    home = folder / "runs" / name
    home.mkdir(parents=True)
    present = [site for site in sites if site not in link["removed"]]
    method, task = document["methods"][label]["method"], document["task"]
    data = np.random.default_rng([fold, seed])
    draw = np.random.default_rng([fold, seed, list(document["methods"]).index(label)])
    quality = QUALITY.get(method, 0.75) - 0.1 * link["loss"]
    facts: dict[str, Any] = {"matrix": {}, "samples": {site: _samples(site, data) for site in present}}
    if task["kind"] in ("classification", "time_series"):
        _classify(home, facts, task["classes"], quality, data, draw)
    else:
        _dense(home, facts, task, quality, data, draw)
    if insight:
        _look_inside(home, method, present, task["classes"], data, draw)
    _write(home / "samples.json", facts["samples"])
    _write(home / "manifest.json", {"versions": {"torch": "2.13.0"}, "digest": "ab" * 32, "seconds": 12.3})
    result = {
        "format": 1,
        "id": name,
        "partition": partition,
        "models": network_set,
        "links": link["name"],
        "method": label,
        "fold": fold,
        "seed": seed,
        "task": task["kind"],
        "metric": document["metric"],
        "sites": {site: _site(site, facts, document["metric"], method, draw) for site in present},
        "matrix": facts["matrix"],
        "single_model": method in ("fedavg", "fedprox"),
    }
    _write(home / "result.json", result)


def _samples(site: str, data: np.random.Generator) -> list[dict[str, Any]]:
    return [
        {
            "image": f"{site}-{index}.npy",
            "subject": f"{site}-{index // 2}",
            "sex": ("female", "male")[index % 2],
            "institution": f"{site} {'north' if index % 3 else 'south'}",
        }
        for index in range(TEST)
    ]


def _classify(
    home: Path,
    facts: dict[str, Any],
    classes: int,
    quality: float,
    data: np.random.Generator,
    draw: np.random.Generator,
) -> None:
    arrays: dict[str, Any] = {}
    for site in facts["samples"]:
        labels = data.permutation(np.arange(TEST) % classes)
        arrays[f"y/{site}"] = labels.astype(np.int64)
        facts.setdefault("classes", {})[site] = {str(k): int((labels == k).sum()) for k in range(classes)}
    for model in facts["samples"]:
        facts["matrix"][model] = {}
        for site in facts["samples"]:
            strength = 4 * (quality - 0.5) * (1.0 if site == model else 0.6)
            labels = arrays[f"y/{site}"]
            logits = draw.normal(size=(TEST, classes)) + strength * np.eye(classes)[labels]
            chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            arrays[f"p/{model}/{site}"] = chances.astype(np.float32)
            score = quality * (1.0 if site == model else 0.9) + float(draw.normal(0, 0.02))
            facts["matrix"][model][site] = {
                "auc": score, "accuracy": score - 0.1, "f1_macro": score - 0.12, "loss": 0.5, "samples": float(TEST),
            }  # fmt: skip
    np.savez_compressed(home / "predictions.npz", **arrays)


def _dense(
    home: Path,
    facts: dict[str, Any],
    task: Mapping[str, Any],
    quality: float,
    data: np.random.Generator,
    draw: np.random.Generator,
) -> None:
    arrays, scores, is_super_resolution = {}, {}, task["kind"] == "super_resolution"
    for index, site in enumerate(facts["samples"]):
        shape = (24,) * task["spatial_dims"]
        grid = np.stack(np.meshgrid(*[np.linspace(-1, 1, 24)] * task["spatial_dims"], indexing="ij"))
        distance = np.sqrt((grid**2).sum(axis=0)) + 0.1 * data.normal()
        if is_super_resolution:
            truth = np.clip(np.stack([0.5 + 0.5 * np.cos(6 * distance + 0.3 * index)] * 3), 0, 1)
            source = truth[:, ::2, ::2]
            guess = np.clip(truth + draw.normal(0, 0.4 * (1 - quality), truth.shape), 0, 1)
        else:
            truth = sum((distance < limit).astype(np.int64) for limit in np.linspace(0.8, 0.3, task["classes"] - 1))
            source = (truth + 0.4 * data.normal(size=shape))[None]
            noisy_distance = distance + draw.normal(0, 0.3 * (1 - quality), shape)
            guess = sum(
                (noisy_distance < limit).astype(np.int64) for limit in np.linspace(0.8, 0.3, task["classes"] - 1)
            )
        pairs = {"input": source, "truth": truth, "prediction": guess}
        arrays |= {f"{site}/{part}": np.stack([image, image]) for part, image in pairs.items()}
        value = (
            {"psnr": 20 + 10 * quality, "ssim": quality}
            if is_super_resolution
            else {"dice": quality, "pixel_accuracy": 0.9}
        )
        scores[site] = [{key: mean + float(draw.normal(0, 0.03)) for key, mean in value.items()} for _ in range(TEST)]
        facts["matrix"][site] = {
            other: {} if is_super_resolution and other != site else {**value, "samples": float(TEST)}
            for other in facts["samples"]
        }
        facts.setdefault("classes", {})[site] = {}
    np.savez_compressed(home / "panels.npz", **arrays)
    _write(home / "scores.json", scores)


def _look_inside(
    home: Path,
    method: str,
    sites: Sequence[str],
    classes: int,
    data: np.random.Generator,
    draw: np.random.Generator,
) -> None:
    features, diagnosis = {}, {}
    for site in sites:
        labels = np.tile(np.arange(12) % max(classes, 2), len(sites))
        centres = draw.normal(0, 2, size=(max(classes, 2), 8))
        features[f"{site}/features"] = (centres[labels] + draw.normal(size=(len(labels), 8))).astype(np.float32)
        features[f"{site}/labels"] = labels.astype(np.int64)
        features[f"{site}/origins"] = np.repeat(np.arange(len(sites)), 12)
        if method == "fedskd":
            for kind, side in (("batch", 16), ("position", 36), ("region", 10)):
                rows = data.normal(size=(side, 6))
                for role in ("dam", "ktm"):
                    noisy = rows + draw.normal(0, 0.5, rows.shape)
                    gram = noisy @ noisy.T
                    square = gram / np.linalg.norm(gram, axis=1, keepdims=True)
                    diagnosis[f"similarity/{site}/{kind}/{role}"] = square.astype(np.float32)
        if method == "dflmoe":
            weights = draw.dirichlet(np.ones(len(sites)))
            diagnosis[f"experts/{site}"] = weights.astype(np.float32)
            diagnosis[f"experts/{site}/names"] = np.array(sites)
        if method == "mh_pflid":
            diagnosis[f"basis/{site}"] = np.float32(0.1 + 0.3 * draw.random()) * np.ones((), np.float32)
    np.savez_compressed(home / "features.npz", **features)
    if diagnosis:
        np.savez_compressed(home / "diagnosis.npz", **diagnosis)


def _site(site: str, facts: Mapping[str, Any], metric: str, method: str, draw: np.random.Generator) -> dict[str, Any]:
    own = facts["matrix"][site][site]
    rounds = []
    for number in range(1, ROUNDS + 1):
        share = 1 - np.exp(-number / 3)
        metrics = {"train_total": 1 - 0.5 * share}
        if number % 2 == 0:
            metrics |= {name: float(value * share) for name, value in own.items() if name not in ("samples", "loss")}
        if method == "feddal":
            metrics["train_consensus"] = float(0.4 + 0.5 * share + draw.normal(0, 0.02))
        rounds.append({"round": number, "metrics": metrics})
    classes = facts["classes"][site]
    training = {name: 3 * count for name, count in classes.items()}
    return {
        "model": {"name": "resnet10", "width": 8},
        "parameters": 1_234_567,
        "multiply_accumulates": None if site == "asia" else 98_765_432,
        "samples": {"training": 3 * TEST, "validation": 0, "test": TEST},
        "classes": {"training": training, "test": classes} if classes else {},
        "steps": 20 * ROUNDS,
        "sent_bytes": 0 if method in ("local", "centralised") else int(1e5 * (2 + len(method)) ** 2),
        "received_bytes": 0 if method in ("local", "centralised") else int(1e5 * (2 + len(method)) ** 2),
        "training_s": 3.5,
        "rounds": rounds,
    }


def _write(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), "utf-8")
