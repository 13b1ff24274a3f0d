"""Artifacts as a worker makes and takes them: what comes from another site is judged before it reaches the device."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

import models
from models import Network
from models.spec import remote_spec_problem
from peer.core.commands import Source
from peer.core.limits import ARTIFACT_BYTES_MAX
from peer.core.messages import Artifact, TensorSpec
from peer.core.plan import Kind
from peer.core.roster import Sha256, SiteName
from peer.files import artifact_path, write_file
from peer.training.errors import UnusableArtifact, UnusableConfigurationError
from peer.training.settings import TaskSettings
from peer.training.tensors import State, describe, non_finite, pack, unpack


def write_artifact(
    folder: Path,
    state: State,
    *,
    spec: Mapping[str, Any],
    kind: Kind,
    owner: SiteName,
    steps: int,
    training_samples: int | None,
) -> Artifact:
    """Write the state as an artifact, durably, under its digest; one that is there already is the same bytes."""
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
    return Artifact(kind, owner, digest, len(content), steps, spec, describe(state), training_samples)


Sent = Callable[[Network], Collection[str]]
"""Which names of a network's state its artifact holds."""

Theirs = Callable[[nn.Module, Collection[str]], nn.Module]
"""What comes beside a head, made for that head and the names of its state; ``ValueError`` says why it cannot be."""


def read_network(folder: Path, source: Source, task: TaskSettings, *, allow: Collection[str]) -> Network:
    """A received model, built on the CPU and loaded.

    In this order: the spec may be named here; it is of this federation's task; the network built on the meta device,
    where it takes no memory, has exactly the manifest's tensors; the file has its digest and exactly those tensors; all
    values are finite. Only then is anything of that size built.

    Raises:
        UnusableArtifact: the first of these that does not hold.
    """
    with _blaming(source):
        expected = _expected(_imagined(source.artifact, task, allow), _whole)
        state = _read(folder, source.artifact, expected)
    network = models.build(source.artifact.spec)
    network.load_state_dict(state)
    return network


def read_head(
    folder: Path,
    source: Source,
    task: TaskSettings,
    *,
    allow: Collection[str],
    beside: tuple[str, Theirs] | None = None,
) -> tuple[nn.Module, nn.Module | None]:
    """A received head, on the CPU and loaded; of the network around it nothing is built. Judged as a whole model is.

    Args:
        folder: where the artifact's file is.
        source: the artifact.
        task: of the federation.
        allow: classes beyond the registry that its spec may name.
        beside: what must come with the head: what its tensors' names begin with, and what makes it.

    Returns:
        The head, and what came beside it.

    Raises:
        UnusableArtifact: the artifact is not exactly that.
    """
    with _blaming(source):
        network = _imagined(source.artifact, task, allow)
        parts, expected = {network.head_name + ".": network.head}, _expected(network, head_names)
        if beside is not None:
            prefix = f"{beside[0]}/"
            names = [spec.name.removeprefix(prefix) for spec in source.artifact.tensors if spec.name.startswith(prefix)]
            with torch.device("meta"):
                parts[prefix] = beside[1](network.head, names)
            expected |= {prefix + name: tensor for name, tensor in parts[prefix].state_dict().items()}
        state = _read(folder, source.artifact, expected)
        head, *others = [_loaded(part, state, prefix) for prefix, part in parts.items()]
    return head, (others[0] if others else None)


def read_state(
    folder: Path,
    source: Source,
    task: TaskSettings,
    *,
    like: Network,
    sent: Sent,
    allow: Collection[str],
    any_body: bool = False,
) -> State:
    """A received state that is to be averaged with what ``like`` sends; judged as a model is, and of the same spec.

    With ``any_body`` the spec may be another, but the head's tensors must have the names, types and shapes of this one.
    """
    with _blaming(source):
        if not any_body and source.artifact.spec != like.spec:
            raise ValueError(f"its spec is not this site's {like.spec['name']}, with which it is averaged")
        expected = _expected(_imagined(source.artifact, task, allow), sent)
        if any_body:
            _compare("its head", describe(expected), "this site's head", describe(_expected(like, sent)))
        return _read(folder, source.artifact, expected)


def head_names(network: Network) -> list[str]:
    """The names of the head's state in the network's."""
    return [name for name in network.state_dict() if name.startswith(f"{network.head_name}.")]


def _whole(network: Network) -> list[str]:
    return list(network.state_dict())


@contextmanager
def _blaming(source: Source) -> Iterator[None]:
    """What is wrong with the artifact is an ``UnusableArtifact`` that says why it must not be used."""
    try:
        yield
    except (UnusableConfigurationError, ValueError) as error:
        raise UnusableArtifact(source, str(error)) from error


def _imagined(artifact: Artifact, task: TaskSettings, allow: Collection[str]) -> Network:
    """The network of the artifact's spec on the meta device, where it takes no memory."""
    reason = remote_spec_problem(artifact.spec, allow=allow)
    if reason is not None:
        raise ValueError(reason)
    for key in ("spatial_dims", "in_channels", "classes"):
        if artifact.spec[key] != getattr(task, key):
            raise ValueError(f"{key} = {artifact.spec[key]} is not this federation's {getattr(task, key)}")
    try:
        with torch.device("meta"):
            return models.build(artifact.spec)
    except Exception as error:
        raise ValueError(f"its spec cannot be built: {error}") from error


def _expected(network: Network, sent: Sent) -> State:
    """The part of the network's state that is sent, as the network has it."""
    names = set(sent(network))
    return {name: tensor for name, tensor in network.state_dict().items() if name in names}


def _loaded(part: nn.Module, state: State, prefix: str) -> nn.Module:
    """The part on the CPU, with its values from the state, where their names begin with the prefix."""
    part = part.to_empty(device="cpu")
    found = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    if found.keys() != {name for name, _ in (*part.named_parameters(), *part.named_buffers())}:
        raise ValueError("its head has values that its state does not hold")
    part.load_state_dict(found)
    return part


def _read(folder: Path, artifact: Artifact, expected: State) -> State:
    """The state in the artifact's file, if that is what is expected, and the file and the state of the manifest."""
    _compare("the manifest", artifact.tensors, "the spec", describe(expected))
    path = artifact_path(folder, artifact.sha256)
    try:
        if path.stat().st_size != artifact.bytes:
            raise ValueError(f"its file has {path.stat().st_size} bytes, the manifest says {artifact.bytes}")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"its file cannot be read: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise ValueError("its file does not have its digest")
    try:
        state = unpack(content)
        found = describe(state)
    except Exception as error:
        raise ValueError(f"its file is no safetensors of known types: {error}") from error
    _compare("the file", found, "the manifest", artifact.tensors)
    bad = non_finite(state)
    if bad is not None:
        raise ValueError(f"tensor {bad!r} holds a NaN or an infinity")
    return state


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
