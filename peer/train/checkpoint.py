"""Crash-safe checkpoints of finished stages, and one partial checkpoint of the stage in progress.

``checkpoints/round-000012/train/`` holds ``<network>.safetensors`` and ``<network>.adam.safetensors`` of each of the
site's networks, and ``record.json``. A checkpoint's name is its path under ``checkpoints/``. It holds no state of a
random generator: seeds are functions of round and step (``peer.core.seeds``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.core.artifacts import Artifact
from peer.core.limits import CHECKPOINTS_KEPT
from peer.core.worker_protocol import from_json
from peer.files import artifact_path, clear_unfinished, remove_folder, write_folder
from peer.train.errors import UnusableConfigurationError
from peer.train.tensors import State, pack, unpack

RECORD = "record.json"
WEIGHTS, MOMENTS = ".safetensors", ".adam.safetensors"
PARTIAL = "partial"
ROUND = re.compile(r"round-[0-9]{6,}")
NAME = re.compile(rf"{ROUND.pattern}/[a-z_-]+")


def checkpoint_name(round: int, stage: str) -> str:
    """Return the name of the checkpoint after a stage of a round."""
    return f"round-{round:06d}/{stage}"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """States of networks and of their optimisers, by network, and a record of plain JSON values."""

    record: Mapping[str, Any]
    networks: Mapping[str, State] = field(default_factory=dict)
    optimisers: Mapping[str, State] = field(default_factory=dict)


def artifact_of(record: Mapping[str, Any]) -> Artifact | None:
    """Return the artifact that the stage of a record has written."""
    document = record["artifact"]
    return None if document is None else from_json(Artifact, document)


def returned_of(record: Mapping[str, Any]) -> tuple[Artifact, ...]:
    """Return the visiting models that the stage of a record has trained."""
    return tuple(from_json(Artifact, document) for document in record.get("returned", ()))


class Checkpoints:
    """The checkpoints of one generation of a site.

    Only the site's worker writes and cleans the folder. A process that reads beside it passes ``clean=False``.
    """

    def __init__(self, folder: Path, *, clean: bool = True) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._artifacts = folder, folder.parent / "artifacts"
        if clean:
            clear_unfinished(folder)

    def write(self, name: str, checkpoint: Checkpoint) -> None:
        """Write the checkpoint of a finished stage durably; replace one of that name."""
        write_folder(self._path(name), _files(checkpoint))

    def read(self, name: str) -> Checkpoint:
        """Read the checkpoint of that name; raise ``UnusableConfigurationError`` if there is none."""
        if self.record(name) is None:
            raise UnusableConfigurationError(
                f"checkpoint {name!r} is not in {self.folder}; restore it or start a new generation"
            )
        return _read(self._path(name))

    def record(self, name: str) -> dict[str, Any] | None:
        """Read the record of a checkpoint; ``None`` if there is no such checkpoint."""
        return _record(self._path(name))

    def existing_record(self, name: str) -> dict[str, Any]:
        """Read the record of a checkpoint; raise ``UnusableConfigurationError`` if there is none."""
        record = self.record(name)
        return record if record is not None else dict(self.read(name).record)

    def finished_record(self, name: str, work: str) -> dict[str, Any] | None:
        """Return the checkpoint's record if this ``work`` is done and its artifacts are still on disk."""
        record = self.record(name)
        if record is None or record["work"] != work:
            return None
        written = [artifact for artifact in (artifact_of(record), *returned_of(record)) if artifact is not None]
        complete = all(artifact_path(self._artifacts, artifact.sha256).exists() for artifact in written)
        return record if complete else None

    def write_partial(self, step: int, checkpoint: Checkpoint) -> None:
        """Write the stage in progress, then delete older partial checkpoints."""
        name = f"step-{step:08d}"
        write_folder(self.folder / PARTIAL / name, _files(checkpoint))
        for older in self._partial():
            if older.name != name:
                remove_folder(older)

    def read_partial(self, work: str) -> Checkpoint | None:
        """Read the newest partial checkpoint whose record has this ``work``."""
        matching = [path for path in self._partial() if (_record(path) or {}).get("work") == work]
        return _read(max(matching)) if matching else None

    def clear_partial(self) -> None:
        """Delete the partial checkpoints of a finished stage."""
        remove_folder(self.folder / PARTIAL)

    def prune(self, keep: Iterable[str]) -> None:
        """Remove all rounds except the newest ``CHECKPOINTS_KEPT`` and the named ones."""
        rounds = sorted(path for path in self.folder.iterdir() if ROUND.fullmatch(path.name))
        rounds_to_keep = {path.name for path in rounds[-CHECKPOINTS_KEPT:]} | {name.partition("/")[0] for name in keep}
        for path in rounds:
            if path.name not in rounds_to_keep:
                remove_folder(path)

    def _path(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise UnusableConfigurationError(f"{name!r} is no name of a checkpoint (round-000012/train is one)")
        return self.folder / name

    def _partial(self) -> list[Path]:
        folder = self.folder / PARTIAL
        return sorted(path for path in folder.iterdir() if path.name.startswith("step-")) if folder.exists() else []


def _files(checkpoint: Checkpoint) -> dict[str, bytes]:
    files = {f"{name}{WEIGHTS}": pack(state) for name, state in checkpoint.networks.items()}
    files |= {f"{name}{MOMENTS}": pack(state) for name, state in checkpoint.optimisers.items()}
    return {**files, RECORD: json.dumps(checkpoint.record, indent=1, sort_keys=True).encode()}


def _read(path: Path) -> Checkpoint:
    moments = {file.name.removesuffix(MOMENTS): file for file in path.glob(f"*{MOMENTS}")}
    weights = {file.name.removesuffix(WEIGHTS): file for file in path.glob(f"*{WEIGHTS}")}
    return Checkpoint(
        record=_record(path) or {},
        networks={name: unpack(file.read_bytes()) for name, file in weights.items() if file not in moments.values()},
        optimisers={name: unpack(file.read_bytes()) for name, file in moments.items()},
    )


def _record(path: Path) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = json.loads((path / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    return record
