"""Check an installed package of methods, networks, data sets and metrics as the program would use them.

Each method and network is trained for two rounds at two simulated sites, on images drawn at random.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.spec import ENTRY_POINTS as NETWORKS
from models.spec import HYPER, INTERFACE, INTERFACE_ENTRY_POINTS, interface_problem, named_interfaces
from peer.core.tasks import CLASSIFYING
from peer.errors import PeerError, UsageError
from peer.lab.datasets import DATASETS, dataset_module
from peer.lab.datasets import ENTRY_POINTS as DATA_SETS
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.sweep import SweepProgress, prepare, sweep
from peer.lab.statistics.further_metrics import ENTRY_POINTS as METRICS
from peer.lab.statistics.further_metrics import FURTHER_METRICS, find_further_metric
from peer.methods.registry import ENTRY_POINTS as METHODS
from peer.methods.registry import PLANS, find_plan
from peer.site.config import toml

KINDS: Mapping[str, str] = {
    INTERFACE_ENTRY_POINTS: "interface",
    METHODS: "method",
    NETWORKS: "network",
    DATA_SETS: "data set",
    METRICS: "metric",
}
"""Group of entry points -> what each of its entry points is."""
TASKS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "classification": (2, {"name": "resnet5", "width": 4, "max_pool": False}),
    "segmentation": (2, {"name": "unet", "width": 4, "depth": 1}),
    "time_series": (1, {"name": "tcn", "width": 4}),
}
"""Kind of task -> number of spatial dimensions, and the network that a method is tried with."""
SIDE, SAMPLES, CLASSES = 16, 24, 2
LOADS_NO_TORCH = """
import sys
from peer.methods.registry import find_plan
find_plan(sys.argv[1], sys.argv[2])
print(" and ".join(sorted({"monai", "torch"} & sys.modules.keys())))
"""


@dataclass(frozen=True, slots=True)
class CheckedPart:
    """One entry point: the checks of it, and its faults."""

    kind: str
    name: str
    trial: str
    problem: str | None = None


def find_distribution(package: str) -> importlib.metadata.Distribution:
    """Find an installed package by its own name or that of its module. Raise ``UsageError`` if there is none."""
    names = importlib.metadata.packages_distributions().get(package, [package])
    try:
        return importlib.metadata.distribution(names[0])
    except (importlib.metadata.PackageNotFoundError, ValueError):
        raise UsageError(
            f"no package {package!r} is installed here", "run `pip install -e FOLDER` with the package's folder"
        ) from None


def check_package(distribution: importlib.metadata.Distribution, folder: Path) -> Iterator[CheckedPart]:
    """Check every part of a package, one after the other.

    Args:
        folder: an empty folder for data and results of the trials.
    """
    package = f"{distribution.name}=={distribution.version}"
    write_data(folder)
    problem = interface_problem(distribution)
    if not named_interfaces(distribution):
        problem = f'names no version of the interface: add {INTERFACE} = "MODULE" to the group {INTERFACE_ENTRY_POINTS}'
    yield CheckedPart("interface", str(INTERFACE), "read", problem)
    checks: Mapping[str, Callable[[str], CheckedPart]] = {
        METHODS: lambda name: _check_method(name, package, folder),
        NETWORKS: lambda name: _check_network(name, folder),
        DATA_SETS: _check_data_set,
        METRICS: _check_metric,
    }
    points = sorted((point.group, point.name) for point in distribution.entry_points)
    for group, name in points:
        if group in checks:
            yield checks[group](name)
        elif group.startswith("mhfl_peer") and group not in KINDS:
            yield CheckedPart("group", group, "read", f"unknown group of entry points{toml.suggestion(group, KINDS)}")


def _check_method(name: str, package: str, folder: Path) -> CheckedPart:
    if name in PLANS:
        return CheckedPart("method", name, "read", "is the name of a built-in method")
    try:
        plan = find_plan(name, package)
    except PeerError as error:
        return CheckedPart("method", name, "import", error.message)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", LOADS_NO_TORCH, name, package]
    loaded = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout.strip()
    if loaded:
        return CheckedPart("method", name, "import", f"the plan's module loads {loaded}, which daemons do without")
    kinds = [kind for kind in TASKS if kind not in plan.not_for]
    if plan.public or not kinds:
        return CheckedPart("method", name, "import; not trained, as its data cannot be drawn")
    kind = kinds[0]
    problem = train(folder / f"method-{name}", kind, TASKS[kind][1], {name: {"package": package}})
    return CheckedPart("method", name, f"two rounds of {kind}", problem)


def _check_network(name: str, folder: Path) -> CheckedPart:
    """Train the network with the first kind of task that it can be built for."""
    if name in HYPER:
        return CheckedPart("network", name, "read", "is the name of a built-in network")
    problems = []
    for kind in TASKS:
        problem = train(folder / f"network-{name}-{kind}", kind, {"name": name}, {"local": {}})
        if problem is None:
            return CheckedPart("network", name, f"two rounds of {kind}")
        problems.append(f"{kind}: {problem}")
    return CheckedPart("network", name, "two rounds of each task", "; ".join(problems))


def _check_data_set(name: str) -> CheckedPart:
    if name in DATASETS:
        return CheckedPart("data set", name, "read", "is the name of a built-in data set")
    try:
        dataset_module(name)
    except (PeerError, ImportError, AttributeError) as error:
        return CheckedPart("data set", name, "import", str(error))
    return CheckedPart("data set", name, "import; nothing was prepared")


def _check_metric(name: str) -> CheckedPart:
    if name in FURTHER_METRICS:
        return CheckedPart("metric", name, "read", "is the name of a built-in metric")
    random = np.random.default_rng(0)
    labels = np.arange(SAMPLES) % CLASSES
    scores = random.random(SAMPLES)
    maps = [random.integers(0, CLASSES, (SIDE, SIDE)) for _ in range(2)]
    images = [random.random((1, SIDE, SIDE)) for _ in range(2)]
    pairs: dict[str, list[Any]] = {"segmentation": maps, "super_resolution": images}
    pairs |= {kind: [np.stack([1 - scores, scores], axis=1), labels] for kind in CLASSIFYING}
    try:
        metric = find_further_metric(name)
        for kind in sorted(metric.tasks):
            metric.value(*pairs[kind])
    except Exception as error:  # a third party's function
        return CheckedPart("metric", name, "one value", error.message if isinstance(error, PeerError) else repr(error))
    return CheckedPart("metric", name, f"one value of {' and '.join(sorted(metric.tasks))}")


def write_data(folder: Path) -> None:
    """Write images of noise with labels and label maps, and a datalist for each kind of task."""
    random = np.random.default_rng(0)
    for kind, (dims, _) in TASKS.items():
        home = folder / kind
        home.mkdir(parents=True)
        entries = []
        for index in range(SAMPLES):
            image = random.random((SIDE,) * dims, dtype=np.float32)
            np.save(home / f"{index}.npy", image)
            np.save(home / f"{index}-label.npy", (image > 0.5).astype(np.uint8))
            label: object = f"{index}-label.npy" if kind == "segmentation" else index % CLASSES
            entries.append({"image": f"{index}.npy", "label": label})
        (home / "pool.json").write_text(json.dumps({"training": entries}))


def train(out: Path, kind: str, network: Mapping[str, Any], methods: Mapping[str, Any]) -> str | None:
    """Train two sites for two rounds in the simulator; return the reason if that fails.

    Args:
        out: the folder of results, beside those of :func:`write_data`.
    """
    dims = TASKS[kind][0]
    document = {
        "name": "plugin-check",
        "rounds": 2,
        "test_share": 0.25,
        "task": {"kind": kind, "spatial_dims": dims, "in_channels": 1, "classes": CLASSES},
        "data": {"pool": f"{kind}/pool.json", "input_size": [SIDE] * dims},
        "training": {"device": "cpu", "batch_size": 4},
        "budget": {"steps": 2, "minor_steps": 1},
        "partitions": {"equal": {"kind": "equal", "sites": ["asia", "europe"]}},
        "models": {"own": {"*": dict(network)}},
        "proxy": dict(TASKS[kind][1]),
        "methods": dict(methods),
    }
    path = out.with_suffix(".toml")
    path.write_text(toml.text(document))
    try:
        failed = sweep(prepare(Experiment.load(path), out), jobs=1, keep=False, watch=_ignore)
    except PeerError as error:
        return error.message
    return next(iter(failed.values()), None)


def _ignore(progress: SweepProgress) -> None:
    """Show nothing."""
