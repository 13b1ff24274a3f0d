"""Artifacts: a site reads its own ones, and refuses every unusable one with the reason."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import models
from peer.core.artifacts import Artifact, Source
from peer.core.plan import Wire
from peer.core.roster import Sha256, SiteName
from peer.files import artifact_path
from peer.train.artifact import is_whole, read_network, read_tensors, write_artifact
from peer.train.errors import UnusableArtifact
from peer.train.settings import TaskSettings
from peer.train.tensors import State, as_received, as_sent, describe, state_of

TASK = TaskSettings("classification", spatial_dims=1, in_channels=2, classes=3)


@pytest.fixture
def network() -> models.Network:
    torch.manual_seed(3)
    return models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=4)


def write(folder: Path, network: models.Network, state: State | None = None, *, wire: Wire = "float32") -> Artifact:
    return write_artifact(
        folder,
        state_of(network) if state is None else state,
        spec=network.spec,
        kind="model",
        owner=SiteName("beta"),
        steps=5,
        training_samples=None,
        wire=wire,
    )


def source(artifact: Artifact) -> Source:
    return Source(SiteName("beta"), 2, artifact)


def test_what_was_written_is_read_back(tmp_path: Path, network: models.Network) -> None:
    artifact = write(tmp_path / "new", network)
    assert (artifact.owner, artifact.steps, artifact.kind) == ("beta", 5, "model")
    assert artifact.bytes == artifact_path(tmp_path / "new", artifact.sha256).stat().st_size
    received = read_network(tmp_path / "new", source(artifact), TASK, allow=())
    assert all(torch.equal(tensor, received.state_dict()[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.requires_grad for parameter in received.parameters())
    assert write(tmp_path / "new", received) == artifact


def test_what_does_not_travel_takes_no_memory_before_the_base_is_known_to_hold_it(
    tmp_path: Path, network: models.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = models.build({**network.spec, "frozen": ["layer1"], "base": "ab" * 32})
    base = {name: tensor for name, tensor in state_of(network).items() if name in network.frozen_tensors}
    sent = {name: tensor for name, tensor in state_of(network).items() if name not in base}
    artifact, build, devices = write(tmp_path, network, sent), models.build, []

    def build_and_note(spec: Any) -> models.Network:
        built = build(spec)
        devices.append(next(built.parameters()).device.type)
        return built

    monkeypatch.setattr(models, "build", build_and_note)
    received = read_network(tmp_path, source(artifact), TASK, allow=(), bases=lambda _: base)
    assert all(torch.equal(tensor, received.state_dict()[name]) for name, tensor in network.state_dict().items())
    assert devices == ["meta", "cpu"]
    del base["layer1.0.conv1.weight"], devices[:]
    with pytest.raises(UnusableArtifact, match=r"its base does not hold layer1\.0\.conv1\.weight"):
        read_network(tmp_path, source(artifact), TASK, allow=(), bases=lambda _: base)
    assert devices == ["meta"]


WIRE_VECTORS = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "wire.json").read_text())


def test_bfloat16_is_rounded_to_the_nearest_and_widened_exactly() -> None:
    bits = [(int(pair["float32"], 16), int(pair["bfloat16"], 16)) for pair in WIRE_VECTORS]
    state = {"w": torch.tensor([wide for wide, _ in bits], dtype=torch.int64).to(torch.int32).view(torch.float32)}
    sent = as_sent(state, "bfloat16")
    assert [value & 0xFFFF for value in sent["w"].view(torch.int16).tolist()] == [narrow for _, narrow in bits]
    received = as_received(sent, state)["w"].view(torch.int32).tolist()
    assert [value & 0xFFFFFFFF for value in received] == [narrow << 16 for _, narrow in bits]


def test_a_model_sent_as_bfloat16_takes_half_the_bytes_and_comes_back_rounded(
    tmp_path: Path, network: models.Network
) -> None:
    own = state_of(network)
    whole, half = write(tmp_path, network), write(tmp_path, network, wire="bfloat16")
    assert {tensor.dtype for tensor in read_tensors(tmp_path, half)} == {"BF16", "I64"}
    assert half.bytes < 0.6 * whole.bytes
    received = read_network(tmp_path, source(half), TASK, allow=(), wire="bfloat16").state_dict()
    for name, tensor in own.items():
        assert received[name].dtype == tensor.dtype
        assert torch.equal(received[name], tensor.bfloat16().to(tensor.dtype) if tensor.is_floating_point() else tensor)
    assert not torch.equal(received["layer1.0.conv1.weight"], own["layer1.0.conv1.weight"])


@pytest.mark.parametrize(("sent", "due", "types"), [("float32", "bfloat16", "F32"), ("bfloat16", "float32", "BF16")])
def test_an_artifact_of_the_other_element_type_is_refused(
    tmp_path: Path, network: models.Network, sent: Any, due: Any, types: str
) -> None:
    artifact = write(tmp_path, network, wire=sent)
    with pytest.raises(UnusableArtifact, match=rf"is {types} \[4\] in the manifest, (BF16|F32) \[4\] in the spec"):
        read_network(tmp_path, source(artifact), TASK, allow=(), wire=due)


Change = Callable[[Path, models.Network], Artifact]


def with_spec(**changes: Any) -> Change:
    def change(folder: Path, network: models.Network) -> Artifact:
        return dataclasses.replace(write(folder, network), spec={**network.spec, **changes})

    return change


def with_state(edit: Callable[[State], object]) -> Change:
    def change(folder: Path, network: models.Network) -> Artifact:
        state = state_of(network)
        edit(state)
        return write(folder, network, state)

    return change


def with_manifest(edit: Callable[[Artifact], Artifact]) -> Change:
    return lambda folder, network: edit(write(folder, network))


def corrupt(folder: Path, network: models.Network) -> Artifact:
    artifact = write(folder, network)
    path = artifact_path(folder, artifact.sha256)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    return artifact


def no_safetensors(folder: Path, network: models.Network) -> Artifact:
    import hashlib

    content = b"\xff" * 64
    digest = Sha256(hashlib.sha256(content).hexdigest())
    artifact_path(folder, digest).write_bytes(content)
    return dataclasses.replace(write(folder, network), sha256=digest, bytes=64)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (with_spec(name="os:system"), "is not one that another site may name here"),
        (with_spec(classes=4), "classes = 4 is not this federation's 3"),
        (with_spec(in_channels=1), "in_channels = 1 is not this federation's 2"),
        (with_spec(spatial_dims=2), "spatial_dims = 2 is not this federation's 1"),
        (with_spec(hyper={"width": 8}), "in the manifest, F32"),
        (with_spec(hyper={"stem_stride": 7}), "its spec cannot be built: .*stem_stride"),
        (with_manifest(lambda a: dataclasses.replace(a, bytes=9)), "bytes, the manifest says 9"),
        (with_manifest(lambda a: dataclasses.replace(a, sha256=Sha256("0" * 64))), "cannot be read: No such file"),
        (with_state(lambda state: state.pop("fc.bias")), "tensor 'fc.bias' is only in the spec"),
        (with_state(lambda state: state.update({"z": torch.zeros(())})), "tensor 'z' is only in the manifest"),
        (
            with_state(lambda state: state.update({"bn1.bias": torch.zeros(5)})),
            r"tensor 'bn1.bias' is F32 \[5\] in the manifest, F32 \[4\] in the spec",
        ),
        (
            with_state(lambda state: state.update({"fc.bias": torch.zeros(3).half()})),
            r"'fc.bias' is F16 \[3\] in the manifest",
        ),
        (with_state(lambda state: state["fc.bias"].fill_(float("nan"))), "tensor 'fc.bias' holds a NaN or an infinity"),
        (with_state(lambda state: state["bn1.running_var"].fill_(float("inf"))), "'bn1.running_var' holds"),
        (corrupt, "its file does not have its digest"),
        (no_safetensors, "its file is no safetensors"),
    ],
)
def test_what_must_not_be_used_is_refused(tmp_path: Path, network: models.Network, change: Change, reason: str) -> None:
    artifact = change(tmp_path, network)
    with pytest.raises(UnusableArtifact, match=reason) as caught:
        read_network(tmp_path, source(artifact), TASK, allow=())
    assert caught.value.source.artifact is artifact
    assert is_whole(tmp_path, artifact) == (change is not corrupt and artifact.sha256 != "0" * 64)


@pytest.mark.parametrize(
    ("short", "error"),
    [
        ("models.build", MemoryError("Cannot allocate")),
        ("peer.train.artifact.unpack", MemoryError("Cannot allocate")),
        ("pathlib.Path.read_bytes", OSError(errno.ENOMEM, "Cannot allocate memory")),
    ],
)
def test_a_lack_of_memory_is_nobody_s_fault(
    tmp_path: Path, network: models.Network, short: str, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel and libraries say so in several ways, none of which may name the sender."""
    received = source(write(tmp_path, network))

    def fail(*args: Any, **settings: Any) -> Any:
        raise error

    monkeypatch.setattr(short, fail)
    with pytest.raises(UnusableArtifact) as caught:
        read_network(tmp_path, received, TASK, allow=())
    assert (caught.value.source, caught.value.short) == (received, True)


def test_a_sender_cannot_claim_a_lack_of_memory(tmp_path: Path, network: models.Network) -> None:
    spec = {**network.spec, "name": "can't allocate memory"}
    with pytest.raises(UnusableArtifact, match="can't allocate memory") as caught:
        read_network(tmp_path, source(dataclasses.replace(write(tmp_path, network), spec=spec)), TASK, allow=())
    assert not caught.value.short


def test_a_class_of_this_site_must_be_allowed(tmp_path: Path) -> None:
    spec = {"name": "torch.nn:Sequential", "spatial_dims": 1, "in_channels": 2, "classes": 3, "hyper": {}, "head": "0"}
    artifact = Artifact("model", SiteName("beta"), Sha256("0" * 64), 1, 0, spec)
    with pytest.raises(UnusableArtifact, match="may name here"):
        read_network(tmp_path, source(artifact), TASK, allow=())
    with pytest.raises(UnusableArtifact, match="cannot be built"):
        read_network(tmp_path, source(artifact), TASK, allow=("torch.nn:Sequential",))


def test_the_list_of_tensors_is_in_the_file(tmp_path: Path) -> None:
    state = {"b.weight": torch.ones(2, 3, dtype=torch.bfloat16), "a": torch.zeros((), dtype=torch.int64)}
    common = {"spec": {"name": "resnet10"}, "kind": "model", "owner": SiteName("asia"), "steps": 1}
    artifact = write_artifact(tmp_path, state, training_samples=None, **common)
    assert read_tensors(tmp_path, artifact) == describe(state)
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_tensors(tmp_path / "elsewhere", artifact)


def test_a_description_of_endless_layers_is_refused_while_it_is_built(tmp_path: Path, network: models.Network) -> None:
    sizes = {"channels": [8] * 16, "strides": [1] * 15, "num_res_units": 64}
    spec = {**network.spec, "name": "monai.networks.nets.UNet", "hyper": sizes, "head": "model.2.0"}
    endless = dataclasses.replace(write(tmp_path, network), spec=spec)
    with pytest.raises(UnusableArtifact, match=r"its spec cannot be built: .*it has more than 4000 layers"):
        read_network(tmp_path, source(endless), TASK, allow=())


def test_the_caller_may_refuse_a_network_before_it_takes_memory(tmp_path: Path, network: models.Network) -> None:
    def refuse(described: models.Network) -> None:
        assert all(parameter.is_meta for parameter in described.parameters())
        raise ValueError("too expensive")

    with pytest.raises(UnusableArtifact, match="too expensive"):
        read_network(tmp_path, source(write(tmp_path, network)), TASK, allow=(), check=refuse)
