"""One run, from its folder to its result."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import json
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import monai
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.footprint import describe
from peer import __version__
from peer.config.site_folder import write_atomically
from peer.core.roster import SiteName
from peer.core.tasks import CLASSIFYING
from peer.errors import LockedError
from peer.records.history import Transfer, committed_rounds
from peer.research.diagnosis import diagnose
from peer.research.result_files import FORMAT
from peer.research.runs import RESULT
from peer.research.simulation import Member, Simulation
from peer.training.data import DataSplit
from peer.training.guest import evaluate_split
from peer.training.trainer import Trainer

WATCH_S = 0.5
"""How often a watcher's file is written."""


def execute(folder: Path, *, keep: bool = False) -> dict[str, Any]:
    """Run what ``run.json`` in the folder says, and write its result.

    Args:
        folder: of ``peer.research.runs.Run``.
        keep: leave journals, checkpoints and artifacts, so that `predict` or another federation can use them.

    Returns:
        The document of ``result.json``.

    Raises:
        LockedError: another process carries out this run.
        PeerError: a site cannot train; the message names it.
    """
    with _alone(folder):
        result = folder / RESULT
        if result.exists():  # another process finished it meanwhile
            finished: dict[str, Any] = json.loads(result.read_text())
            return finished
        return _execute(folder, keep=keep)


def _execute(folder: Path, *, keep: bool) -> dict[str, Any]:
    gc.collect()  # of the run before, if there was one
    gc.freeze()  # what was imported stays: the collection after each stage need not look at it
    asked = json.loads((folder / "run.json").read_text())
    started_s = shown_s = time.monotonic()
    key = bytes.fromhex(asked["round_key"])
    simulation = Simulation(folder, round_key=key, loss=asked["loss"], pooled=asked["pooled"])
    progress = folder / "progress"

    def watch(committed: int, rounds: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= WATCH_S:
            shown_s = time.monotonic()
            progress.write_text(f"{committed} {rounds}")

    members = simulation.run(watch)
    result = harvest(simulation, members, asked, folder, seconds=time.monotonic() - started_s)
    progress.unlink(missing_ok=True)
    if not keep:
        simulation.clear()
    return result


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the run for this process; the kernel lets go when the process ends, however it ends.

    A run goes on in its own process when the one that started it is killed: who starts it again must not join in.
    """
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"{folder}: another process carries out this run", "wait until it ends, or end it, and run it again"
            ) from None
        yield


PANELS = 2
"""Test samples of a site that are kept as pictures."""

Arrays = dict[str, NDArray[Any]]


@dataclass
class RunFiles:
    """What is gathered from one run, by the name of the file that takes it."""

    matrix: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    scores: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    panels: Arrays = field(default_factory=dict)
    features: Arrays = field(default_factory=dict)
    diagnosis: Arrays = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write what there is, the matrix apart."""
        for name in ("predictions", "panels", "features", "diagnosis"):
            arrays: Any = getattr(self, name)
            if arrays:
                np.savez_compressed(folder / f"{name}.npz", **arrays)
        if self.scores:
            _write(folder / "scores.json", self.scores)


def harvest(
    simulation: Simulation,
    members: Mapping[SiteName, Member],
    asked: Mapping[str, Any],
    folder: Path,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Try every site's model on every site's test split, and write the run's files; ``result.json`` last.

    Args:
        simulation: the federation, its data still there.
        members: of :meth:`Simulation.run`.
        asked: the document ``run.json``.
        folder: takes the files.
        seconds: how long the run took.

    Returns:
        The document of ``result.json``.
    """
    data = {name: simulation.data(name) for name in members}
    run_files = RunFiles()
    sites: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for name, member in members.items():
        member.hold()
        digests[name] = member.digest
        _try_everywhere(run_files, name, member.trainer, data)
        sites[name] = _site(member, members, name, data[name])
        diagnose(run_files.diagnosis, name, members, data[name].data.test)
    result = {
        "format": FORMAT,
        **{key: asked[key] for key in ("id", "partition", "models", "links", "method", "fold", "seed", "metric")},
        "task": simulation.federation.task.kind,
        "sites": sites,
        "matrix": run_files.matrix,
        "single_model": len(digests) > 1 and len(set(digests.values())) == 1 and not asked["pooled"],
    }
    run_files.write(folder)
    _write(folder / "samples.json", {name: _samples(folder, name, trainer) for name, trainer in data.items()})
    _write(folder / "manifest.json", _manifest(simulation, asked, folder, digests, seconds))
    _write(folder / RESULT, result)
    return result


def _try_everywhere(run_files: RunFiles, name: SiteName, trainer: Trainer, data: Mapping[SiteName, Trainer]) -> None:
    """One site's row of the matrix, with what can be scored again or looked at."""
    run_files.matrix[name] = {}
    classes = trainer.settings.task.kind in CLASSIFYING
    for other, owner in data.items():
        if owner.settings.data.scale != trainer.settings.data.scale:
            run_files.matrix[name][other] = {}
            continue
        run_files.matrix[name][other], outputs = tried(trainer, owner.data.test, keep=classes)
        if outputs:
            run_files.predictions[f"p/{name}/{other}"] = torch.cat(outputs).double().softmax(1).float().numpy()
    own = data[name].data.test
    if classes:
        run_files.predictions[f"y/{name}"] = np.array([sample.label for sample in own.samples], dtype=np.int64)
        _describe(run_files.features, name, trainer, data)
    else:
        run_files.scores[name] = [tried(trainer, _one(own, index), keep=False)[0] for index in range(len(own))]
        _picture(run_files.panels, name, trainer, own)


def tried(trainer: Trainer, split: DataSplit, *, keep: bool) -> tuple[dict[str, float], list[Tensor]]:
    """The metrics of what a trainer predicts for a split, and its predictions ``(b, ...)`` if they are kept."""
    outputs: list[Tensor] = []

    def predict(images: Tensor) -> Tensor:
        output = trainer.predict(images)
        if keep:  # label maps and images of a whole split would not fit into memory
            outputs.append(output)
        return output

    return evaluate_split(predict, split, trainer.settings), outputs


def _one(split: DataSplit, index: int) -> DataSplit:
    return DataSplit([split.samples[index]], lambda _: split.load(index), split.in_memory, split.present)


def _picture(panels: Arrays, name: str, trainer: Trainer, split: DataSplit) -> None:
    """The first test samples as the network sees them, their truth, and what the site makes of them."""
    chosen = list(range(min(PANELS, len(split))))
    if not chosen:
        return
    images, targets = split.read(chosen)
    predicted = trainer.predict(images)
    if trainer.settings.task.kind == "segmentation":
        predicted = predicted.argmax(1)
    panels[f"{name}/input"], panels[f"{name}/truth"] = images.numpy(), targets.numpy()
    panels[f"{name}/prediction"] = predicted.numpy()


def _describe(features: Arrays, name: str, trainer: Trainer, data: Mapping[SiteName, Trainer]) -> None:
    """What the head of a site's model takes, pooled over space, for every site's test samples."""
    found, labels, origins = [], [], []
    with torch.inference_mode():
        for index, other in enumerate(sorted(data)):
            split = data[other].data.test
            for images, targets in split.batches(trainer.settings.batch_size):
                penultimate = trainer.site_networks.dam(images.to(trainer.device)).penultimate
                found.append(penultimate.flatten(2).mean(2).cpu() if penultimate.ndim > 2 else penultimate.cpu())
                labels.append(targets)
                origins += [index] * len(targets)
    if found:
        features[f"{name}/features"] = torch.cat(found).float().numpy()
        features[f"{name}/labels"] = torch.cat(labels).numpy()
        features[f"{name}/origins"] = np.array(origins, dtype=np.int64)


def _site(member: Member, members: Mapping[SiteName, Member], name: SiteName, own: Trainer) -> dict[str, Any]:
    settings = own.settings
    network = member.trainer.site_networks.dam
    spec = dict(network.spec)
    try:
        cost = describe(spec, settings.data.input_size)["multiply_accumulates"]
    except ValueError:  # a network from elsewhere that takes other shapes
        cost = None
    received = _received(member)
    sent = [
        transfer
        for other in members.values()
        if other is not member
        for transfer in _received(other)
        if transfer.peer == name
    ]
    rounds = [committed.document() for committed in committed_rounds(member.rows)]
    splits = {"training": own.data.training, "validation": own.data.validation, "test": own.data.test}
    return {
        "model": {"name": spec["name"], **spec.get("hyper", {})},
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "multiply_accumulates": cost,
        "samples": {purpose: len(split) for purpose, split in splits.items()},
        "classes": {
            purpose: dict(sorted(Counter(str(sample.label) for sample in split.samples).items()))
            for purpose, split in splits.items()
            if settings.task.kind in CLASSIFYING
        },
        "steps": member.steps,
        "sent_bytes": sum(transfer.bytes for transfer in sent),
        "received_bytes": sum(transfer.bytes for transfer in received),
        "training_s": sum(record["duration_s"] for record in rounds),
        "rounds": rounds,
    }


def _received(member: Member) -> list[Transfer]:
    """What came: a run that was killed may have asked for an artifact again, which counts once."""
    transfers = [
        Transfer.received(member.memory.generation, round, body, time_s=0.0)
        for kind, round, body in member.rows
        if kind == "received"
    ]
    return list({(one.peer, one.round, one.purpose, one.sha256): one for one in transfers}.values())


def _samples(folder: Path, name: str, trainer: Trainer) -> list[dict[str, Any]]:
    """The test entries as the datalist has them, with every key that a table may divide them by."""
    listed = json.loads((folder / "sites" / name / "datalist.json").read_text())["test"]
    entries = {_name(entry): entry for entry in listed}
    return [
        {"image": sample.name, **{key: value for key, value in entries[sample.name].items() if key != "image"}}
        for sample in trainer.data.test.samples
    ]


def _name(entry: Mapping[str, Any]) -> str:
    image = entry["image"]
    return str(image[0] if isinstance(image, list) else image)


def _manifest(
    simulation: Simulation, asked: Mapping[str, Any], folder: Path, digests: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    lists = {name: folder / "sites" / name / "datalist.json" for name in simulation.sites}
    return {
        "version": __version__,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "monai": str(monai.__version__),
            "numpy": str(np.__version__),
        },
        "platform": platform.platform(),
        "threads": {name: site.training.threads for name, site in simulation.sites.items()},
        "digest": asked["digest"],
        "federation": simulation.federation.digest,
        "round_key": asked["round_key"],
        "datalists": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in lists.items()},
        "states": dict(digests),
        "seconds": round(seconds, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "source": _source(),
    }


@cache
def _source() -> str:
    """SHA-256 of the program: of every module's name and content."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for package in ("losses", "models", "peer"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _write(path: Path, document: Any) -> None:
    write_atomically(path, json.dumps(document).encode(), 0o644)
