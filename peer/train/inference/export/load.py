"""Load an exported model, and compute the SHA-256 that identifies its file or bundle."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from peer.core.limits import ARTIFACT_BYTES_MAX
from peer.train.errors import UnusableConfigurationError
from peer.train.inference.export import graph, model_card, monai_bundle
from peer.train.inference.export.predictor import Predictor, Shares, build, find_problem
from peer.train.tensors import load_checkpoint_file, refuse_expanded

BLOCK_BYTES = 1 << 20


def digest(path: Path) -> tuple[str, int]:
    """Compute the SHA-256 in hex and the size in bytes; raise ``OSError`` if a file cannot be read.

    For a folder, hash the text that ``sha256sum`` writes for its files, sorted by name: one line ``<digest>  <name>``
    each, with names relative to the folder. The size is that of all files. A folder with a link, or with a line break
    in a name, has no digest (``ValueError``), because the text would not describe its content.
    """
    if not path.is_dir():
        return _digest_file(path)
    lines, total = [], 0
    names = []
    for entry in path.rglob("*"):
        name = entry.relative_to(path).as_posix()
        if entry.is_symlink() or len(name.splitlines()) != 1:
            raise ValueError(f"it holds {name!r}, a link or a name of several lines, and has no digest")
        if entry.is_file():
            names.append(name)
    for name in sorted(names):
        sha256, size = _digest_file(path / name)
        lines.append(f"{sha256}  {name}\n")
        total += size
    return hashlib.sha256("".join(lines).encode()).hexdigest(), total


def _digest_file(path: Path) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            hashed.update(block)
            size += len(block)
    return hashed.hexdigest(), size


CARD_BYTES_MAX = 1 << 24
"""Maximum size of a bundle's model card; enough for thousands of rounds of a large federation."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A model from a file."""

    settings: model_card.CardFacts
    card: Mapping[str, Any]
    _run: Callable[[Tensor], Tensor]

    def outputs(self, images: Tensor) -> Tensor:
        """Return the file's outputs: see ``peer.train.outputs.final_outputs``."""
        return self._run(images)


def open_model(path: Path, *, sha256: str = "") -> Exported:
    """Open the model in a ``.pt2`` or ``.onnx`` file, a bundle's folder or its ``.zip``.

    Args:
        sha256: the expected digest in hex; required for a ``.pt2``.

    Raises:
        UnusableConfigurationError: the path is none of these, is damaged, has another digest, or must not
            be opened.
    """
    try:
        if path.is_dir() or path.suffix == ".zip":
            if sha256:
                _check_digest(digest(path)[0], sha256)
            text, run = _load_bundle(path)
        elif path.suffix in (".pt2", ".onnx"):
            content = path.read_bytes()
            if sha256:
                _check_digest(hashlib.sha256(content).hexdigest(), sha256)
            elif path.suffix == ".pt2":
                raise ValueError("to open a .pt2 can run code that is in it: give the SHA-256 that its author tells")
            run, text = graph.run_pt2(content) if path.suffix == ".pt2" else graph.run_onnx(content)
        else:
            raise ValueError("it is no .onnx, no .pt2, and no bundle's folder or .zip")
        facts, settings = model_card.read(text, path)
    except UnusableConfigurationError:
        raise
    except Exception as error:  # any error of a reader for a broken file
        raise UnusableConfigurationError(f"{path} cannot be used as a model: {error}") from error
    return Exported(settings, facts, run)


def _check_digest(actual: str, expected: str) -> None:
    if actual != expected.lower():
        raise ValueError(f"its SHA-256 is {actual}, not {expected.lower()}")


def _load_bundle(path: Path) -> tuple[str, Callable[[Tensor], Tensor]]:
    """Return the card's text, and the function of a bundle's network."""
    text = _read_member(path, monai_bundle.CARD, CARD_BYTES_MAX).decode()
    facts, settings = model_card.read(text, path)
    description = facts["network"]
    if (problem := find_problem(description)) is not None:
        raise ValueError(f"its network is not built here: {problem}; export it as ONNX")
    weights = load_checkpoint_file(_read_member(path, monai_bundle.WEIGHTS, ARTIFACT_BYTES_MAX))
    refuse_expanded(weights)
    plain = facts["definition"] != monai_bundle.BUILD
    with torch.device("meta"):  # allocate the card's network only once its weights are known to fit
        expected = _weighted_module(build(**description), plain).state_dict()
    if {name: tensor.shape for name, tensor in weights.items()} != {name: t.shape for name, t in expected.items()}:
        raise ValueError("its weights are not those of the network that its model card describes")
    predictor = build(**description)
    _weighted_module(predictor, plain).load_state_dict(weights)
    module = Shares(predictor, settings.task).eval()

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = module(images)
        return output

    return text, run


def _weighted_module(predictor: Predictor, plain: bool) -> nn.Module:
    """Return the predictor's part that a bundle's weights cover: all of it, or only MONAI's network."""
    return predictor.dam.get_submodule("network") if plain else predictor


def _read_member(path: Path, name: str, bytes_max: int) -> bytes:
    """Read a file of the bundle; raise ``ValueError`` if it exceeds the size limit."""
    if path.is_dir():
        if not (path / name).is_file():  # reading a pipe or a device may never end
            raise ValueError(f"its {name} is no file")
        size = (path / name).stat().st_size
        if size <= bytes_max:
            return (path / name).read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            parts = PurePosixPath(name).parts
            entries = [entry for entry in archive.infolist() if PurePosixPath(entry.filename).parts[1:] == parts]
            if len(entries) != 1:
                raise ValueError(f"it holds {len(entries)} files {name} in a folder, not one")
            if (size := entries[0].file_size) <= bytes_max:
                return archive.read(entries[0])
    raise ValueError(f"its {name} has {size} bytes, over the limit of {bytes_max}")
