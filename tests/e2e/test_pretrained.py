"""Real daemons whose encoders are frozen: only what learns travels, and a kill changes nothing of that."""

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

import models
from models.learning import base_tensors, name_in_file
from peer.core import site_memory
from peer.lab.demo.local_federation import LocalFederation
from peer.methods.registry import PLANS
from peer.net.transport.manifest import decode_manifest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ROUNDS = 3
RESNET = {"name": "resnet10", "spatial_dims": 3, "in_channels": 1, "classes": 2}
WIDTHS = "parameters = {width = 8, stem_stride = 2}"
SHARED = '[shared_model]\nname = "resnet10"\nwidth = 8\nstem_stride = 2'
ADAPTERS = 'adapters = {layers = ["layer1", "layer2", "layer3"], rank = 2, alpha = 4.0}'
FREEZE = 'freeze = ["conv1", "bn1", "layer1", "layer2"]'
TELLING = 64
"""Fewer numbers may be in a file by chance."""


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """The file of weights that every site has."""
    torch.manual_seed(5)
    path = tmp_path / "encoder.safetensors"
    network = models.build({**RESNET, "hyper": {"width": 8, "stem_stride": 2}})
    safetensors.torch.save_file(network.state_dict(), path)
    return path


def sent_artifacts(tools: Any, loopback: LocalFederation, name: str) -> Iterator[tuple[dict[str, Any], set[str]]]:
    """Spec and names of the tensors of all manifests that a site signed."""
    for kind, _, row in tools.rows(loopback, name):
        if kind == "manifest":
            manifest = decode_manifest(base64.b64decode(row["body"]))
            yield dict(manifest.artifact.spec), {tensor.name for tensor in manifest.tensors}


def learned_and_frozen(loopback: LocalFederation, tools: Any, name: str, spec: Any) -> tuple[Any, Any]:
    """The tensors of a site's last network."""
    state = site_memory.recover(tools.rows(loopback, name)).state
    folder = loopback.folder(name).generation(1) / "checkpoints" / state
    tensors: dict[str, Tensor] = safetensors.torch.load_file(folder / "dam.safetensors")
    frozen = base_tensors(models.build(spec))
    return {key: tensors[key] for key in tensors.keys() - frozen}, {key: tensors[key] for key in frozen}


@pytest.mark.parametrize(
    "method", ["fedskd", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("fedvisit", "dflmoe", "fedavg"))]
)
def test_only_what_learns_travels_also_when_daemons_are_killed(
    found: Callable[..., LocalFederation], assert_simulated: Any, tools: Any, encoder: Path, method: str
) -> None:
    plan, digest = PLANS[method], hashlib.sha256(encoder.read_bytes()).hexdigest()
    pretrained = f'name = "resnet10"\n{WIDTHS}\nweights = "{encoder}"\nweights_sha256 = "{digest}"\n'
    tables = {"asia": pretrained + ADAPTERS, "europe": pretrained + FREEZE, "africa": f'name = "resnet10"\n{WIDTHS}'}
    alike = plan.shared == "itself"
    stages = "".join(f'[stages.{stage}]\nunit = "step"\ncount = 6\nlearning_rate = 1e-3\n' for stage in plan.stages)
    options: dict[str, Any] = {
        "stages": stages,
        "shared": SHARED if alike else "",
        "models": dict.fromkeys(tables, tables["asia"]) if alike else tables,
        "site": f'[base_weights]\n{digest} = "{encoder}"\n',
    }
    with found(method=method, rounds=ROUNDS, checkpoint_s=0.2, **options) as loopback:
        tools.start(loopback, tools.sites)
        for name in ("asia", "africa", "europe"):  # one whose encoder is frozen, and a receiver of it
            tools.wait_until(lambda name=name: loopback.show(name, "status")["round"] >= 1)
            loopback.kill(name)
            loopback.start(name)
        tools.finish_well(loopback, limit_s=600)

    file = safetensors.torch.load_file(encoder)
    for name in tools.sites:
        records = tools.records(loopback, name)
        assert [record["round"] for record in records] == list(range(1, ROUNDS + 1))
        assert not [record for record in records if record["missing"]], loopback.console(name)
        assert not [row for row in tools.rows(loopback, name) if row[0] == "refused"]
    for name in tools.sites if alike else ("asia", "europe"):
        sent = [(spec, names) for spec, names in sent_artifacts(tools, loopback, name) if "base" in spec]
        assert sent
        for spec, names in sent:
            assert spec["base"] == digest
            network = models.build(spec)
            frozen = base_tensors(network)
            assert not names & frozen
            assert names <= network.state_dict().keys() - frozen
            if plan.artifact == "model":
                assert names == network.state_dict().keys() - frozen
        learned, frozen_tensors = learned_and_frozen(loopback, tools, name, sent[0][0])
        network = models.build(sent[0][0])
        for key, tensor in frozen_tensors.items():
            assert torch.equal(tensor, file[str(name_in_file(network, key))]), f"{key} has moved at {name}"
        assert any(key.endswith(".up") and tensor.any() for key, tensor in learned.items()) == (
            "adapters" in sent[0][0]
        )
        assert not torch.equal(learned[f"{network.head_name}.weight"], file["fc.weight"])
    secrets = [
        tensor.numpy().tobytes()
        for key, tensor in file.items()
        if key.startswith("layer1") and tensor.numel() > TELLING
    ]
    assert secrets
    for name in tools.sites:
        for path in (loopback.folder(name).generation(1) / "artifacts").iterdir():
            content = path.read_bytes()
            assert not any(secret in content for secret in secrets), f"{path.name} at {name} holds frozen weights"
    assert_simulated(loopback)
