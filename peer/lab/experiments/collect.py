"""Carry out one run of an experiment, and collect its results in the run's folder."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import importlib.metadata
import json
import platform
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.footprint import describe
from peer import __version__
from peer.core.roster import SiteName
from peer.core.tasks import CLASSIFYING, VECTORS
from peer.errors import LockedError
from peer.files import STATISTICS_FILE
from peer.lab.experiments.diagnosis import diagnose
from peer.lab.experiments.insider import Insider, attack_success
from peer.lab.experiments.result_files import ATTACK_SUCCESS, FORMAT
from peer.lab.experiments.runs import RESULT
from peer.lab.experiments.simulation import FinishedSite, Simulation
from peer.lab.statistics.further_metrics import find_further_metric
from peer.lab.statistics.means import mean
from peer.site.config.site_folder import write_atomically
from peer.site.records.history import Transfer, committed_rounds
from peer.train.guest import evaluate_split
from peer.train.outputs import final_outputs
from peer.train.samples import DataSplit
from peer.train.trainer import Trainer

WATCH_S = 0.5
"""Interval between two writes of the file ``progress``, which `simulate` shows."""


def execute(folder: Path, *, keep: bool = False) -> dict[str, Any]:
    """Carry out the run that ``run.json`` in the folder describes, and write its result.

    Args:
        keep: leave journals, checkpoints and artifacts in the folder, for `predict` or another
            federation.

    Raises:
        LockedError: another process carries out this run.
        PeerError: a site cannot train; the message names it.
    """
    with _locked(folder):
        result = folder / RESULT
        if result.exists():  # another process finished the run meanwhile
            finished: dict[str, Any] = json.loads(result.read_text())
            return finished
        return _execute(folder, keep=keep)


def simulation_of(folder: Path) -> Simulation:
    """Return the simulation of the run that ``run.json`` in the folder describes."""
    run_document = json.loads((folder / "run.json").read_text())
    insider = run_document.get("insider")
    return Simulation(
        folder,
        round_key=bytes.fromhex(run_document["round_key"]),
        loss=run_document["loss"],
        pooled=run_document["pooled"],
        insider=Insider(*insider) if insider else None,
        epochs=run_document.get("epochs", ()),
    )


def _execute(folder: Path, *, keep: bool) -> dict[str, Any]:
    gc.collect()  # garbage of this process' previous run
    gc.freeze()  # the garbage collection after each stage need not scan imported modules
    run_document = json.loads((folder / "run.json").read_text())
    started_s = shown_s = time.monotonic()
    simulation = simulation_of(folder)
    progress = folder / "progress"

    def watch(committed: int, rounds: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= WATCH_S:
            shown_s = time.monotonic()
            progress.write_text(f"{committed} {rounds}")

    members = simulation.run(watch)
    for name in members:  # what sites counted, where the method has no model
        counted = simulation.home(name) / STATISTICS_FILE
        if counted.exists():
            write_atomically(folder / "sites" / name / STATISTICS_FILE, counted.read_bytes(), 0o644)
    result = collect(simulation, members, run_document, folder, seconds=time.monotonic() - started_s)
    progress.unlink(missing_ok=True)
    if not keep:
        simulation.clear()
    return result


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the run for this process; the kernel releases the lock however the process ends.

    When `simulate` is killed, its runs continue in their own processes. A second `simulate` must not
    carry out the same run.
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
"""Number of a site's test samples that are stored as images."""

Arrays = dict[str, NDArray[Any]]


@dataclass
class RunFiles:
    """The contents of a run's result files: an attribute for each file, by its stem."""

    matrix: dict[str, dict[str, Mapping[str, float]]] = field(default_factory=dict)
    predictions: Arrays = field(default_factory=dict)
    scores: dict[str, list[Mapping[str, float]]] = field(default_factory=dict)
    panels: Arrays = field(default_factory=dict)
    features: Arrays = field(default_factory=dict)
    diagnosis: Arrays = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write every file that has content; the matrix belongs to ``result.json``."""
        for name in ("predictions", "panels", "features", "diagnosis"):
            arrays: Any = getattr(self, name)
            if arrays:
                np.savez_compressed(folder / f"{name}.npz", **arrays)
        if self.scores:
            _write(folder / "scores.json", self.scores)


def collect(
    simulation: Simulation,
    members: Mapping[SiteName, FinishedSite],
    run_document: Mapping[str, Any],
    folder: Path,
    *,
    seconds: float,
) -> dict[str, Any]:
    """Evaluate every site's model on every site's test split; write the run's files, ``result.json`` last.

    Args:
        simulation: the finished simulation; the samples must still exist.
    """
    own_trainers = {name: simulation.trainer(name) for name in members}
    left_out = [SiteName(name) for name in (run_document.get("left_out"),) if name]
    outsiders = {name: simulation.trainer(name) for name in left_out}
    run_files = RunFiles()
    sites: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for name, member in members.items():
        member.load_final_state()
        digests[name] = member.digest
        _evaluate_everywhere(run_files, name, member.trainer, own_trainers, outsiders)
        for other, owner in {**own_trainers, **outsiders}.items():
            if run_files.matrix[name][other]:
                further = measure_further(member.trainer, owner.data.test, run_document.get("further_metrics", ()))
                run_files.matrix[name][other] = {**run_files.matrix[name][other], **further}
        if run_document.get("backdoor"):
            success = attack_success(member.trainer.predict, own_trainers[name].data.test)
            measured = {} if success is None else {ATTACK_SUCCESS: success}
            run_files.matrix[name][name] = {**run_files.matrix[name][name], **measured}
        sites[name] = _site_document(member, members, name, own_trainers[name])
        diagnose(run_files.diagnosis, name, members, own_trainers[name].data.test)
    result = {
        "format": FORMAT,
        **{
            key: run_document[key] for key in ("id", "partition", "models", "links", "method", "fold", "seed", "metric")
        },
        "task": simulation.federation.task.objective,
        "sites": sites,
        "matrix": run_files.matrix,
        "single_model": len(digests) > 1 and len(set(digests.values())) == 1 and not run_document["pooled"],
    }
    run_files.write(folder)
    _write(
        folder / "samples.json", {name: _test_entries(folder, name, trainer) for name, trainer in own_trainers.items()}
    )
    _write(folder / "manifest.json", _run_manifest(simulation, run_document, folder, digests, seconds))
    _write(folder / RESULT, result)
    return result


def _evaluate_everywhere(
    run_files: RunFiles,
    name: SiteName,
    trainer: Trainer,
    own_trainers: Mapping[SiteName, Trainer],
    outsiders: Mapping[SiteName, Trainer],
) -> None:
    """Evaluate one site's model on all sites' data, and add the results to the run's files.

    Args:
        outsiders: sites that did not take part; the model is also tested on their data.
    """
    run_files.matrix[name] = {}
    task = trainer.settings.task
    classifies, is_vector = task.objective in CLASSIFYING, task.objective in VECTORS
    for other, owner in {**own_trainers, **outsiders}.items():
        if owner.settings.data.scale != trainer.settings.data.scale:
            run_files.matrix[name][other] = {}
            continue
        run_files.matrix[name][other], outputs = evaluate(trainer, owner.data.test, keep_outputs=is_vector)
        if outputs:
            run_files.predictions[f"p/{name}/{other}"] = final_outputs(torch.cat(outputs).double(), task).numpy()
    own = own_trainers[name].data.test
    if classifies:
        for other, owner in {name: own_trainers[name], **outsiders}.items():
            labels = [sample.label for sample in owner.data.test.samples]
            run_files.predictions[f"y/{other}"] = np.array(labels, dtype=np.int64)
        _collect_features(run_files.features, name, trainer, own_trainers)
    elif task.objective == "survival":
        for other, owner in {name: own_trainers[name], **outsiders}.items():
            people = [sample.label for sample in owner.data.test.samples]
            run_files.predictions[f"t/{other}"] = np.array(people, dtype=np.float64).reshape(-1, 2)
    elif not is_vector:
        run_files.scores[name] = [
            evaluate(trainer, _single_sample(own, index), keep_outputs=False)[0] for index in range(len(own))
        ]
        _collect_panels(run_files.panels, name, trainer, own)


def evaluate(trainer: Trainer, split: DataSplit, *, keep_outputs: bool) -> tuple[dict[str, float], list[Tensor]]:
    """Compute the metrics of a trainer's predictions; with ``keep_outputs`` also return the batches."""
    outputs: list[Tensor] = []

    def predict(images: Tensor) -> Tensor:
        output = trainer.predict(images)
        if keep_outputs:  # not for label maps and images: a whole split of them does not fit into memory
            outputs.append(output)
        return output

    return evaluate_split(predict, split, trainer.settings), outputs


def measure_further(trainer: Trainer, split: DataSplit, names: Sequence[str]) -> dict[str, float]:
    """Compute further metrics of label maps or images: the mean over the samples that have each one.

    Returns:
        Of each metric its value, absent if no sample has one, and as ``<name>_undefined`` the number of
        samples without.
    """
    values: dict[str, list[float | None]] = {name: [] for name in names}
    for images, targets in split.batches(trainer.settings.training.batch_size) if names else ():
        predicted = trainer.predict(images)
        if trainer.settings.task.kind == "segmentation":
            predicted = predicted.argmax(1)
        for pair in zip(predicted.cpu().numpy(), targets.cpu().numpy(), strict=True):
            for name in names:
                values[name].append(find_further_metric(name).value(*pair))
    means = {name: mean(values[name]) for name in names}
    return {name: value for name, value in means.items() if value is not None} | {
        f"{name}_undefined": float(values[name].count(None)) for name in names
    }


def _single_sample(split: DataSplit, index: int) -> DataSplit:
    return DataSplit([split.samples[index]], lambda _: split.load(index), split.in_memory, split.class_counts)


def _collect_panels(panels: Arrays, name: str, trainer: Trainer, split: DataSplit) -> None:
    """Add the first test samples in the network's input form, their truth and the predictions."""
    indices = list(range(min(PANELS, len(split))))
    if not indices:
        return
    images, targets = split.read(indices)
    predicted = trainer.predict(images)
    if trainer.settings.task.kind == "segmentation":
        predicted = predicted.argmax(1)
    panels[f"{name}/input"], panels[f"{name}/truth"] = images.numpy(), targets.numpy()
    panels[f"{name}/prediction"] = predicted.numpy()


def _collect_features(features: Arrays, name: str, trainer: Trainer, own_trainers: Mapping[SiteName, Trainer]) -> None:
    """Add the features before the head, pooled over space, for every site's test samples."""
    batches, labels, origins = [], [], []
    with torch.inference_mode():
        for index, other in enumerate(sorted(own_trainers)):
            split = own_trainers[other].data.test
            for images, targets in split.batches(trainer.settings.training.batch_size):
                penultimate = trainer.site_networks.dam(images.to(trainer.device)).penultimate
                batches.append(penultimate.flatten(2).mean(2).cpu() if penultimate.ndim > 2 else penultimate.cpu())
                labels.append(targets)
                origins += [index] * len(targets)
    if batches:
        features[f"{name}/features"] = torch.cat(batches).float().numpy()
        features[f"{name}/labels"] = torch.cat(labels).numpy()
        features[f"{name}/origins"] = np.array(origins, dtype=np.int64)


def _site_document(
    member: FinishedSite, members: Mapping[SiteName, FinishedSite], name: SiteName, own: Trainer
) -> dict[str, Any]:
    settings = own.settings
    network = member.trainer.site_networks.dam
    spec = dict(network.spec)
    try:
        cost = describe(spec, settings.data.input_size)["multiply_accumulates"]
    except ValueError:  # a third-party network that needs other input shapes
        cost = None
    received = _received_transfers(member)
    sent = [
        transfer
        for other in members.values()
        if other is not member
        for transfer in _received_transfers(other)
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
            if settings.task.objective in CLASSIFYING
        },
        "steps": member.steps,
        "sent_bytes": sum(transfer.bytes for transfer in sent),
        "sent_bytes_by_round": _sum_by_round(sent),
        "received_bytes": sum(transfer.bytes for transfer in received),
        "training_s": sum(record["duration_s"] for record in rounds),
        "rounds": rounds,
    }


def _sum_by_round(transfers: Sequence[Transfer]) -> dict[str, int]:
    """Sum the bytes by round; the keys of a JSON object are texts."""
    sizes: Counter[int] = Counter()
    for transfer in transfers:
        sizes[transfer.round] += transfer.bytes
    return {str(round): sizes[round] for round in sorted(sizes)}


def _received_transfers(member: FinishedSite) -> list[Transfer]:
    """Return the artifacts that a site received. One that it fetched again after a kill counts once."""
    transfers = [
        Transfer.received(member.memory.generation, round, body, time_s=0.0)
        for kind, round, body in member.rows
        if kind == "received"
    ]
    return list(
        {
            (transfer.peer, transfer.round, transfer.purpose, transfer.sha256): transfer for transfer in transfers
        }.values()
    )


def _test_entries(folder: Path, name: str, trainer: Trainer) -> list[dict[str, Any]]:
    """Return the datalist's entries of the test samples, with all keys that may define subgroups."""
    test_entries = json.loads((folder / "sites" / name / "datalist.json").read_text())["test"]
    entries = {_image_name(entry): entry for entry in test_entries}
    return [
        {"image": sample.name, **{key: value for key, value in entries[sample.name].items() if key != "image"}}
        for sample in trainer.data.test.samples
    ]


def _image_name(entry: Mapping[str, Any]) -> str:
    image = entry["image"]
    return str(image[0] if isinstance(image, list) else image)


def _run_manifest(
    simulation: Simulation, run_document: Mapping[str, Any], folder: Path, digests: Mapping[str, str], seconds: float
) -> dict[str, Any]:
    lists = {name: folder / "sites" / name / "datalist.json" for name in simulation.sites}
    return {
        "version": __version__,
        "versions": {
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "monai": importlib.metadata.version("monai"),
            "numpy": str(np.__version__),
        },
        "platform": platform.platform(),
        "threads": {name: site.training.threads for name, site in simulation.sites.items()},
        "digest": run_document["digest"],
        "federation": simulation.federation.digest,
        "round_key": run_document["round_key"],
        "datalists": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in lists.items()},
        "states": dict(digests),
        "seconds": round(seconds, 1),
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "source": _program_digest(),
    }


@cache
def _program_digest() -> str:
    """Compute the SHA-256 over the names and contents of the program's modules."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[3]
    for package in ("losses", "models", "peer"):
        for path in sorted((root / package).rglob("*.py")):
            digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _write(path: Path, document: Any) -> None:
    write_atomically(path, json.dumps(document).encode(), 0o644)
