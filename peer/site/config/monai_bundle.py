"""A MONAI bundle as input: the network that its configuration names, read as plain data.

No code of a bundle runs. ``network_def`` must name a class of ``monai.networks.nets`` with literal
arguments; a reference (``@name``) to a literal of the same file is followed, an expression (``$...``)
and a macro (``%...``) refused. The file is JSON or YAML, of which only plain values are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.spec import MONAI_PREFIX
from peer.errors import ConfigError, one_line

CONFIGS = tuple(f"configs/{name}.{suffix}" for name in ("inference", "train") for suffix in ("json", "yaml", "yml"))
BYTES_MAX = 4 << 20
"""A configuration is text of a few pages."""
NETWORK_KEYS = ("network_def", "network")
WEIGHTS = ("models/model.safetensors", "models/model.pt")
"""Where the bundle specification has the weights; ``peer.train.weights`` looks there, too."""
REFERENCES_MAX = 8
VALUES_MAX = 10_000
"""References and YAML's aliases may repeat a list again and again."""
SIZES = {
    "spatial_dims": ("spatial_dims", "dimensions"),
    "in_channels": ("in_channels", "n_input_channels"),
    "classes": ("out_channels", "num_classes"),
}
"""Arguments that a federation fixes: what a bundle's network calls them."""


@dataclass(frozen=True, slots=True)
class BundleNetwork:
    """The network of a bundle: its name, the sizes that it was trained with, and its other arguments."""

    name: str
    sizes: Mapping[str, int]
    hyper: Mapping[str, Any]
    weights_sha256: str | None


def is_bundle(folder: Path) -> bool:
    """Return whether the path is a folder with a bundle's configuration."""
    return any((folder / name).is_file() for name in CONFIGS)


def read_bundle(folder: Path) -> BundleNetwork:
    """Read the network of the bundle in a folder. Raises ``ConfigError`` naming the file, the key and the reason."""
    file = next(folder / name for name in CONFIGS if (folder / name).is_file())
    document = _parse(file)
    key = next((key for key in NETWORK_KEYS if isinstance(document, dict) and key in document), None)
    if key is None or not isinstance(document[key], Mapping):
        raise ConfigError(f"{file} has no table {NETWORK_KEYS[0]!r}", "name the network in site.toml instead")
    left = iter(range(VALUES_MAX))
    definition = {
        str(name): _literal(value, document, f"{file}: {key}.{name}", left) for name, value in document[key].items()
    }
    target = str(definition.pop("_target_", ""))
    name = target.removeprefix(MONAI_PREFIX).rpartition(".")[2] if target.startswith(MONAI_PREFIX) else target
    if not name.isidentifier():
        raise ConfigError(
            f"{file}: {key}._target_ = {target!r} is no class of monai.networks.nets; no other code of a bundle runs",
            "install that class and name it in [model] as package.module:Class",
        )
    definition = {name: value for name, value in definition.items() if not name.startswith("_")}
    sizes = {}
    for size, aliases in SIZES.items():
        for alias in aliases:
            if isinstance(value := definition.pop(alias, None), int):
                sizes[size] = value
    return BundleNetwork(MONAI_PREFIX + name, sizes, definition, _digest(folder))


def _parse(file: Path) -> Any:
    import yaml

    try:
        if file.stat().st_size > BYTES_MAX:
            raise ConfigError(f"{file} is larger than {BYTES_MAX >> 20} MiB, and no bundle's configuration")
        text = file.read_text("utf-8")
        if file.suffix == ".json":
            return json.loads(text)
        return yaml.safe_load(text)  # plain values alone: a tag such as !!python/object is an error
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{file} is not plain YAML: {one_line(str(error))}") from error


def _literal(value: Any, document: Mapping[str, Any], where: str, left: Iterator[int], *, depth: int = 0) -> Any:
    """Return the value with references followed. Raises ``ConfigError`` for what is not plain data.

    Args:
        left: has an item for each value that may still be read.
    """
    if depth > REFERENCES_MAX or next(left, None) is None:
        raise ConfigError(f"{where} refers to itself, or too deep")
    if isinstance(value, list):
        return [_literal(item, document, where, left, depth=depth + 1) for item in value]
    if isinstance(value, Mapping):
        raise ConfigError(f"{where} is a table, and only numbers, texts and lists of them are taken")
    if isinstance(value, str) and value.startswith(("$", "%")):
        kind = "an expression" if value.startswith("$") else "a macro"
        raise ConfigError(
            f"{where} = {value!r} is {kind}, and no code of a bundle runs", "write its value into the file"
        )
    if isinstance(value, str) and value.startswith("@"):
        if value[1:] not in document:
            raise ConfigError(f"{where} = {value!r} refers to nothing at the top of the file")
        return _literal(document[value[1:]], document, where, left, depth=depth + 1)
    if not isinstance(value, int | float | str | None):  # YAML has dates, too
        raise ConfigError(f"{where} = {value} is a {type(value).__name__}, and only numbers and texts are taken")
    return value


def _digest(folder: Path) -> str | None:
    for name in WEIGHTS:
        if (folder / name).is_file():
            with (folder / name).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
    return None
