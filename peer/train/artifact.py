"""Write a worker's artifacts, and check received ones before their values reach the device."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

import models
from models import Network
from models.learning import base_tensors
from models.registry import build_head
from models.spec import HEAD_KEY, remote_spec_problem
from models.tap import Tapped
from peer.core.artifacts import Artifact, Source, TensorSpec
from peer.core.kinds import Kind
from peer.core.limits import ARTIFACT_BYTES_MAX, BUILD_S_MAX, LAYERS_BUILT_MAX
from peer.core.plan import Wire
from peer.core.roster import Sha256, SiteName
from peer.files import artifact_path, write_file
from peer.train.errors import UnusableConfigurationError, UnusableWeightsError, refuse
from peer.train.settings import TaskSettings
from peer.train.tensors import State, as_received, as_sent, describe, non_finite, pack, unpack
from peer.train.weights import fit_base, refuse_base


def write_artifact(
    folder: Path,
    state: State,
    *,
    spec: Mapping[str, Any],
    kind: Kind,
    owner: SiteName,
    steps: int,
    training_samples: int | None,
    wire: Wire = "float32",
) -> Artifact:
    """Write the state as an artifact, durably, named by its digest."""
    state = as_sent(state, wire)
    content = pack(state)
    if len(content) > ARTIFACT_BYTES_MAX:
        raise UnusableConfigurationError(
            f"the model has {len(content)} bytes, an artifact at most {ARTIFACT_BYTES_MAX}"
        )
    digest = Sha256(hashlib.sha256(content).hexdigest())
    path = artifact_path(folder, digest)
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        write_file(path, content)
    return Artifact(kind, owner, digest, len(content), steps, spec, training_samples)


def is_whole(folder: Path, artifact: Artifact) -> bool:
    """Return whether the artifact's file exists and still has the digest that it had when received.

    If not, this site's disk lost or damaged it, and a failed check of it says nothing about its origin.
    """
    try:
        with artifact_path(folder, artifact.sha256).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == artifact.sha256
    except OSError:
        return False


TOTAL_WEIGHT = "weight"
"""Name of the tensor in a total that has the sum of the contributors' weights."""

ArtifactTensors = Callable[[Network], Collection[str]]
"""Returns the names of the tensors of a network's state that its artifact contains."""

Bases = Callable[[str], State]
"""Returns the tensors of the weights file with this digest; raises ``ValueError`` if the site has none."""

BuildReceived = Callable[[nn.Module, Collection[str]], nn.Module]
"""Builds the network that travels with a head, from the head and the names in that network's state; raises
``ValueError`` if it cannot.
"""


def read_tensors(folder: Path, artifact: Artifact) -> tuple[TensorSpec, ...]:
    """Read the list of tensors in the header of the artifact's file, sorted by name.

    The daemon has compared the list of a received artifact with its manifest. Raises ``ValueError`` if the file cannot
    be read, or has another size.
    """
    path = artifact_path(folder, artifact.sha256)
    try:
        if path.stat().st_size != artifact.bytes:
            raise ValueError(f"its file has {path.stat().st_size} bytes, the manifest says {artifact.bytes}")
        with safetensors.safe_open(path, framework="pt") as file:
            slices = {name: file.get_slice(name) for name in sorted(file.keys())}
            return tuple(TensorSpec(name, at.get_dtype(), tuple(at.get_shape())) for name, at in slices.items())
    except OSError as error:
        raise ValueError(f"its file cannot be read: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        raise ValueError(f"its file is no safetensors of known types: {error}") from error


def read_network(
    folder: Path,
    source: Source,
    task: TaskSettings,
    *,
    allow: Collection[str],
    bases: Bases = refuse_base,
    check: Callable[[Network], None] = lambda network: None,
    wire: Wire = "float32",
) -> Network:
    """Build a received model on the CPU and load it.

    The checks run in this order: this site allows the spec's name; the spec is for this federation's task; the network,
    built on the meta device, where it takes no memory, has exactly the manifest's tensors, and the site's weights
    contain what the artifact omits; the file has the manifest's digest and exactly those tensors; all values are
    finite. Only then is the network allocated.

    Args:
        folder: the folder of the artifact's file.
        source: the artifact and its origin.
        task: the federation's task.
        allow: classes beyond the registry that its spec may name.
        bases: the site's weights; the artifact omits the tensors that do not learn.
        check: raises ``ValueError`` for a network, still on the meta device, that is too expensive.
        wire: the federation's type of the file's floating tensors.

    Raises:
        UnusableArtifact: a check failed; the message names the first one.
        UnusableWeightsError: a weights file of this site does not match site.toml.
    """
    with _blame_artifact(source):
        network = _build_on_meta(source.artifact, task, allow)
        check(network)
        base = fit_base(network, bases(source.artifact.spec["base"])) if base_tensors(network) else {}
        expected = _select(network, _all_names)
        state = _read_state_file(folder, source.artifact, expected, wire)
        network = models.build(source.artifact.spec)
    network.load_state_dict(network.state_dict() | base | state)
    return network


def read_head(
    folder: Path,
    source: Source,
    task: TaskSettings,
    *,
    allow: Collection[str],
    with_head: tuple[str, BuildReceived] | None = None,
    wire: Wire = "float32",
) -> tuple[nn.Module, nn.Module | None]:
    """Read a received head on the CPU, without the network around it, after the checks of a whole model.

    Args:
        allow: classes beyond the registry that its spec may name.
        with_head: the name and the builder of the network that must accompany the head.
        wire: as in ``read_network``.

    Returns:
        The head, and the network that accompanied it.

    Raises:
        UnusableArtifact: a check failed.
    """
    with _blame_artifact(source):
        prefix, built = _build_head_on_meta(source.artifact, task, allow)
        parts, expected = {prefix: built}, {prefix + name: tensor for name, tensor in built.state_dict().items()}
        if with_head is not None:
            name, build = with_head
            prefix = f"{name}/"
            sent = [spec.name for spec in read_tensors(folder, source.artifact)]
            names = [name.removeprefix(prefix) for name in sent if name.startswith(prefix)]
            with torch.device("meta"):
                parts[prefix] = build(built, names)
            expected |= {prefix + name: tensor for name, tensor in parts[prefix].state_dict().items()}
        state = _read_state_file(folder, source.artifact, expected, wire)
        head, *others = [_load_part(part, state, prefix) for prefix, part in parts.items()]
    return head, (others[0] if others else None)


def _spec_difference(theirs: Mapping[str, Any], ours: Mapping[str, Any], meanings: Mapping[str, str]) -> str:
    """Name the keys in which two specs differ, those of ``hyper`` singly, or say what such a difference means."""
    flat = [
        {**spec, **{f"hyper.{key}": value for key, value in spec.get("hyper", {}).items()}, "hyper": None}
        for spec in (theirs, ours)
    ]
    keys = sorted(key for key in flat[0].keys() | flat[1].keys() if flat[0].get(key) != flat[1].get(key))
    known = [meanings[key] for key in keys if key in meanings]
    return "; ".join(known) or f"{', '.join(keys)} differ"


def read_state(
    folder: Path,
    source: Source,
    task: TaskSettings,
    *,
    own: Network,
    artifact_tensors: ArtifactTensors,
    allow: Collection[str],
    any_body: bool = False,
    beside: State | None = None,
    wire: Wire = "float32",
) -> State:
    """Read a received state to average with that of ``own``.

    The checks are those of a model, and the specs must be equal. With ``any_body`` the specs may differ, but the head's
    tensors must have the names, types and shapes of this site's head. The tensors of ``beside`` must be present, too.
    """
    with _blame_artifact(source):
        if not any_body and source.artifact.spec != own.spec:
            theirs, ours = source.artifact.spec, own.spec
            raise ValueError(
                f"its spec is not this site's {ours['name']}, with which it is averaged: "
                + _spec_difference(theirs, ours, getattr(getattr(own, "network", own), "differences", {}))
            )
        if any_body:
            prefix, head = _build_head_on_meta(source.artifact, task, allow)
            expected = {prefix + name: tensor for name, tensor in head.state_dict().items()} | (beside or {})
        else:
            expected = _select(_build_on_meta(source.artifact, task, allow), artifact_tensors) | (beside or {})
        if any_body:
            _compare("its head", describe(expected), "this site's head", describe(_select(own, artifact_tensors)))
        return _read_state_file(folder, source.artifact, expected, wire)


def read_total(folder: Path, source: Source, own: State) -> tuple[State, int]:
    """Read the total of a secure sum of states with the names and shapes of ``own``.

    Returns:
        The sums, float64 and int64, and the sum of the weights.

    Raises:
        UnusableArtifact: the file is gone or damaged, has other tensors, or a value is not finite.
    """
    sums = {
        name: torch.empty_like(
            tensor, dtype=torch.float64 if tensor.is_floating_point() else torch.int64, device="meta"
        )
        for name, tensor in own.items()
    }
    weight_spec = torch.empty((), dtype=torch.int64, device="meta")
    with _blame_artifact(source):
        state = _read_state_file(folder, source.artifact, sums | {TOTAL_WEIGHT: weight_spec}, "float32")
        weight = int(state.pop(TOTAL_WEIGHT))
        if weight < 1:
            raise ValueError(f"the weights of its contributors add up to {weight}")
    return state, weight


def _all_names(network: Network) -> list[str]:
    return [name for name in network.state_dict() if name not in base_tensors(network)]


@contextmanager
def _blame_artifact(source: Source) -> Iterator[None]:
    """Convert errors into an ``UnusableArtifact`` of this source, except those of this site's files."""
    try:
        yield
    except UnusableWeightsError:
        raise
    except (UnusableConfigurationError, ValueError, MemoryError) as error:
        raise refuse(source, error) from error


def _build_head_on_meta(artifact: Artifact, task: TaskSettings, allow: Collection[str]) -> tuple[str, nn.Module]:
    """Return the prefix of the head's tensor names, and the head on the meta device.

    If the spec describes the head as one layer, the body's class is not needed.
    """
    if HEAD_KEY not in artifact.spec:
        network = _build_on_meta(artifact, task, allow)
        return f"{network.head_name}.", network.head
    _check_spec(artifact, task, remote_spec_problem(artifact.spec, head_only=True))
    with torch.device("meta"):
        return f"{Tapped.layer_prefix}{artifact.spec['head']}.", build_head(artifact.spec)


def _check_spec(artifact: Artifact, task: TaskSettings, reason: str | None) -> None:
    """Raise ``ValueError`` for a spec with this problem, or for another task."""
    if reason is not None:
        raise ValueError(reason)
    for key in ("spatial_dims", "in_channels", "classes"):
        if artifact.spec[key] != getattr(task, key):
            raise ValueError(f"{key} = {artifact.spec[key]} is not this federation's {getattr(task, key)}")


def _build_on_meta(artifact: Artifact, task: TaskSettings, allow: Collection[str]) -> Network:
    """Build the network of the artifact's spec on the meta device, where it takes no memory."""
    _check_spec(artifact, task, remote_spec_problem(artifact.spec, allow=allow))
    try:
        with torch.device("meta"), _bounded_construction():
            return models.build(artifact.spec)
    except Exception as error:
        raise ValueError(f"its spec cannot be built: {error}") from error


@contextmanager
def _bounded_construction() -> Iterator[None]:
    """Raise ``ValueError`` during a network's construction once it has too many layers or takes too long.

    The meta device bounds memory only: a spec of a few bytes can describe enough layers to build for minutes.
    """
    began_s, count = time.monotonic(), 0

    def count_layer(*registered: object) -> None:
        nonlocal count
        count += 1
        if count > LAYERS_BUILT_MAX:
            raise ValueError(f"it has more than {LAYERS_BUILT_MAX} layers")
        if time.monotonic() - began_s > BUILD_S_MAX:
            raise ValueError(f"it takes more than {BUILD_S_MAX:g} s")

    hook = register_module_module_registration_hook(count_layer)
    try:
        yield
    finally:
        hook.remove()


def _select(network: Network, artifact_tensors: ArtifactTensors) -> State:
    """Return the part of the network's state that its artifact contains."""
    names = set(artifact_tensors(network)) - base_tensors(network)
    return {name: tensor for name, tensor in network.state_dict().items() if name in names}


def _load_part(part: nn.Module, state: State, prefix: str) -> nn.Module:
    """Move the part to the CPU and load the state's tensors whose names begin with the prefix."""
    part = part.to_empty(device="cpu")
    part_state = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if part_state.keys() != {name for name, _ in (*part.named_parameters(), *part.named_buffers())}:
        raise ValueError("its head has values that its state does not hold")
    part.load_state_dict(part_state)
    return part


def _read_state_file(folder: Path, artifact: Artifact, expected: State, wire: Wire) -> State:
    """Read the state in the artifact's file; check that spec and file agree and all values are finite.

    No tensor is read before its name, type and shape have been compared.
    """
    due = f"the spec, sent as {wire}" if wire != "float32" else "the spec"
    _compare("the manifest", read_tensors(folder, artifact), due, describe(as_sent(expected, wire)))
    try:
        content = artifact_path(folder, artifact.sha256).read_bytes()
    except OSError as error:
        raise ValueError(f"its file cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise ValueError("its file does not have its digest")
    try:
        state = unpack(content)
    except Exception as error:
        raise ValueError(f"its file is no safetensors of known types: {error}") from error
    bad = non_finite(state)
    if bad is not None:
        raise ValueError(f"tensor {bad!r} holds a NaN or an infinity")
    return as_received(state, expected)


def _compare(first: str, these: tuple[TensorSpec, ...], second: str, those: tuple[TensorSpec, ...]) -> None:
    mine, theirs = {tensor.name: tensor for tensor in these}, {tensor.name: tensor for tensor in those}
    odd = sorted(mine.keys() ^ theirs.keys())
    if odd:
        raise ValueError(f"tensor {odd[0]!r} is only in {first if odd[0] in mine else second}")
    for name, tensor in mine.items():
        if tensor != theirs[name]:
            raise ValueError(
                f"tensor {name!r} is {tensor.dtype} {list(tensor.shape)} in {first}, "
                f"{theirs[name].dtype} {list(theirs[name].shape)} in {second}"
            )
