"""The SHA-256 by which an export is known: of a file its own, of a bundle's folder that of the list of its files."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn

from peer.core.limits import ARTIFACT_BYTES_MAX
from peer.inference.export import graph, model_card, monai_bundle
from peer.inference.export.predictor import Predictor, Shares, build, problem_of
from peer.training.errors import UnusableConfigurationError

BLOCK_BYTES = 1 << 20


def digest(path: Path) -> tuple[str, int]:
    """SHA-256 in hex and size in bytes; ``OSError`` where something cannot be read.

    Of a folder: of the text that ``sha256sum`` writes of its files in the order of their names, a line
    ``<digest>  <name>`` each, names relative to the folder; the size is that of all files. One that holds a link, or a
    name with a line's end, has none (``ValueError``): that text would not say what is in it.
    """
    if not path.is_dir():
        return _of_file(path)
    lines, total = [], 0
    names = []
    for entry in path.rglob("*"):
        name = entry.relative_to(path).as_posix()
        if entry.is_symlink() or len(name.splitlines()) != 1:
            raise ValueError(f"it holds {name!r}, a link or a name of several lines, and has no digest")
        if entry.is_file():
            names.append(name)
    for name in sorted(names):
        found, size = _of_file(path / name)
        lines.append(f"{found}  {name}\n")
        total += size
    return hashlib.sha256("".join(lines).encode()).hexdigest(), total


def _of_file(path: Path) -> tuple[str, int]:
    hashed, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            hashed.update(block)
            size += len(block)
    return hashed.hexdigest(), size


CARD_BYTES_MAX = 1 << 24
"""Of a bundle's model card: thousands of rounds of a large federation fit."""


@dataclass(frozen=True, slots=True)
class Exported:
    """A model from a file.

    Attributes:
        settings: how images are prepared for it.
        card: the model card's facts.
    """

    settings: model_card.CardFacts
    card: Mapping[str, Any]
    _run: Callable[[Tensor], Tensor]

    def predict(self, images: Tensor) -> Tensor:
        """Logits (their softmax are the file's probabilities) or images, as a site's own model gives them."""
        found = self._run(images)
        return found if self.settings.task.kind == "super_resolution" else found.log()


def opened(path: Path, *, sha256: str = "") -> Exported:
    """The model in a ``.pt2`` or ``.onnx`` file, a bundle's folder or its ``.zip``.

    Args:
        path: the file or folder.
        sha256: in hex, which it must have; a ``.pt2`` is not opened without.

    Raises:
        ConfigurationError: it is none of these, is not what it should be, or must not be opened.
    """
    try:
        if path.is_dir() or path.suffix == ".zip":
            if sha256:
                _expect(digest(path)[0], sha256)
            text, run = _bundle(path)
        elif path.suffix in (".pt2", ".onnx"):
            content = path.read_bytes()
            if sha256:
                _expect(hashlib.sha256(content).hexdigest(), sha256)
            elif path.suffix == ".pt2":
                raise ValueError("to open a .pt2 can run code that is in it: give the SHA-256 that its author tells")
            run, text = graph.run_pt2(content) if path.suffix == ".pt2" else graph.run_onnx(content)
        else:
            raise ValueError("it is no .onnx, no .pt2, and no bundle's folder or .zip")
        facts, reading = model_card.read(text, path)
    except UnusableConfigurationError:
        raise
    except Exception as error:  # whatever a reader says of a file that is broken
        raise UnusableConfigurationError(f"{path} cannot be used as a model: {error}") from error
    return Exported(reading, facts, run)


def _expect(found: str, sha256: str) -> None:
    if found != sha256.lower():
        raise ValueError(f"its SHA-256 is {found}, not {sha256.lower()}")


def _bundle(path: Path) -> tuple[str, Callable[[Tensor], Tensor]]:
    """The card's text, and what the network of a bundle computes."""
    text = _member(path, monai_bundle.CARD, CARD_BYTES_MAX).decode()
    facts, _ = model_card.read(text, path)
    description = facts["network"]
    if (problem := problem_of(description)) is not None:
        raise ValueError(f"its network is not built here: {problem}; export it as ONNX")
    weights = torch.load(
        io.BytesIO(_member(path, monai_bundle.WEIGHTS, ARTIFACT_BYTES_MAX)), map_location="cpu", weights_only=True
    )
    plain = facts["definition"] != monai_bundle.BUILD
    with torch.device("meta"):  # no memory is taken for what the card says before the weights are seen to be of it
        imagined = _weighed(build(**description), plain).state_dict()
    if {name: tensor.shape for name, tensor in weights.items()} != {name: t.shape for name, t in imagined.items()}:
        raise ValueError("its weights are not those of the network that its model card describes")
    predictor = build(**description)
    _weighed(predictor, plain).load_state_dict(weights)
    module = Shares(predictor, classes=facts["task"]["kind"] != "super_resolution").eval()

    def run(images: Tensor) -> Tensor:
        with torch.no_grad():
            output: Tensor = module(images)
        return output

    return text, run


def _weighed(predictor: Predictor, plain: bool) -> nn.Module:
    """What of a predictor the weights of a bundle are: all of it, or a network of MONAI's alone."""
    return predictor.dam.get_submodule("network") if plain else predictor


def _member(path: Path, name: str, bytes_max: int) -> bytes:
    """A file of the bundle, if it has no more bytes than that."""
    if path.is_dir():
        if not (path / name).is_file():  # a pipe or a device would be read for ever
            raise ValueError(f"its {name} is no file")
        size = (path / name).stat().st_size
        if size <= bytes_max:
            return (path / name).read_bytes()
    else:
        with zipfile.ZipFile(path) as archive:
            wanted = PurePosixPath(name).parts
            found = [entry for entry in archive.infolist() if PurePosixPath(entry.filename).parts[1:] == wanted]
            if len(found) != 1:
                raise ValueError(f"it holds {len(found)} files {name} in a folder, not one")
            if (size := found[0].file_size) <= bytes_max:
                return archive.read(found[0])
    raise ValueError(f"its {name} has {size} bytes, over the limit of {bytes_max}")
