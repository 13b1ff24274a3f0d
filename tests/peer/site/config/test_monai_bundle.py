"""A MONAI bundle as input: its network is read as data, and nothing in it runs."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from peer.errors import ConfigError
from peer.site.config.monai_bundle import BYTES_MAX, is_bundle, read_bundle

UNET = {
    "_target_": "UNet",
    "_disabled_": False,
    "spatial_dims": 3,
    "in_channels": 1,
    "out_channels": "@classes",
    "channels": [16, 32],
    "strides": [2],
    "norm": "batch",
}


def bundle(folder: Path, network: dict[str, Any], *, file: str = "inference.json", **more: Any) -> Path:
    (folder / "configs").mkdir()
    document = {"network_def": network, **more}
    text = json.dumps(document) if file.endswith("json") else yaml.safe_dump(document)
    (folder / "configs" / file).write_text(text)
    return folder


@pytest.mark.parametrize("file", ["inference.json", "inference.yaml", "train.yml"])
@pytest.mark.parametrize("target", ["UNet", "monai.networks.nets.UNet", "monai.networks.nets.unet.UNet"])
def test_the_network_of_a_bundle(tmp_path: Path, target: str, file: str) -> None:
    assert not is_bundle(tmp_path)
    folder = bundle(tmp_path, {**UNET, "_target_": target}, file=file, classes=2)
    assert is_bundle(folder)
    network = read_bundle(folder)
    assert network.name == "monai.networks.nets.UNet"
    assert network.sizes == {"spatial_dims": 3, "in_channels": 1, "classes": 2}
    assert network.hyper == {"channels": [16, 32], "strides": [2], "norm": "batch"}
    assert network.weights_sha256 is None
    (folder / "models").mkdir()
    (folder / "models" / "model.pt").write_bytes(b"weights")
    assert read_bundle(folder).weights_sha256 == hashlib.sha256(b"weights").hexdigest()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"_target_": "os.system"}, "_target_ = 'os.system' is no class of monai.networks.nets"),
        ({"_target_": "mypackage.nets.UNet"}, "is no class of monai.networks.nets; no other code of a bundle runs"),
        ({"channels": "$[16] * 2"}, "network_def.channels = '$[16] * 2' is an expression, and no code of a bundle"),
        ({"channels": [16, "$open('x', 'w')"]}, "is an expression, and no code of a bundle runs"),
        ({"norm": "%other.json#norm"}, "network_def.norm = '%other.json#norm' is a macro, and no code of a bundle"),
        ({"norm": {"_target_": "os.system"}}, "network_def.norm is a table"),
        ({"norm": "@other"}, "network_def.norm = '@other' refers to nothing at the top of the file"),
        ({"norm": "@norm"}, "network_def.norm refers to itself, or too deep"),
    ],
)
@pytest.mark.parametrize("file", ["inference.json", "inference.yaml"])
def test_what_is_no_plain_network_is_refused(tmp_path: Path, file: str, change: dict[str, Any], message: str) -> None:
    folder = bundle(tmp_path, {**UNET, **change}, file=file, classes=2, norm="@norm")
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_bundle(folder)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        ("!!python/object/apply:os.system ['touch ran']", "is not plain YAML: could not determine a constructor"),
        ("!!python/name:os.system", "is not plain YAML: could not determine a constructor"),
        ("2026-11-23", "network_def.norm = 2026-11-23 is a date"),
        ("&own [*own]", "network_def.norm refers to itself, or too deep"),
        ("[", "is not plain YAML: while parsing"),
        ("'@bomb'", "network_def.norm refers to itself, or too deep"),
    ],
)
def test_yaml_is_read_as_plain_values(tmp_path: Path, norm: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = bundle(tmp_path, UNET, file="train.yaml")
    bomb = "".join(f"b{level}: &b{level} [{', '.join([f'*b{level - 1}'] * 99)}]\n" for level in range(1, 7))
    text = f"b0: &b0 [1]\n{bomb}bomb: *b6\nnetwork_def:\n  _target_: UNet\n  norm: {norm}\n"
    (folder / "configs" / "train.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_bundle(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["inference.json", "inference.yaml"])
def test_a_configuration_of_absurd_size_is_not_read(tmp_path: Path, file: str) -> None:
    folder = bundle(tmp_path, UNET, file=file)
    with (folder / "configs" / file).open("a") as text:
        text.write(" " * BYTES_MAX)
    with pytest.raises(ConfigError, match="is larger than 4 MiB"):
        read_bundle(folder)


def test_a_bundle_without_a_network_is_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path, UNET)
    (folder / "configs" / "inference.json").write_text('{"network": 3}')
    with pytest.raises(ConfigError, match="has no table 'network_def'"):
        read_bundle(folder)
