"""A MONAI bundle as input: its network is read as data, and nothing in it runs."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from peer.config.monai_bundle import is_bundle, read_bundle
from peer.errors import ConfigError

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


def bundle(folder: Path, network: dict[str, Any], **more: Any) -> Path:
    (folder / "configs").mkdir()
    (folder / "configs" / "inference.json").write_text(json.dumps({"network_def": network, **more}))
    return folder


@pytest.mark.parametrize("target", ["UNet", "monai.networks.nets.UNet", "monai.networks.nets.unet.UNet"])
def test_the_network_of_a_bundle(tmp_path: Path, target: str) -> None:
    assert not is_bundle(tmp_path)
    folder = bundle(tmp_path, {**UNET, "_target_": target}, classes=2)
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
        (
            {"channels": "$[16] * 2"},
            "network_def.channels = '$[16] * 2' is an expression, and no code of a bundle runs",
        ),
        ({"channels": [16, "$open('x', 'w')"]}, "is an expression, and no code of a bundle runs"),
        ({"norm": {"_target_": "os.system"}}, "network_def.norm is a table"),
        ({"norm": "@other"}, "network_def.norm = '@other' refers to nothing at the top of the file"),
        ({"norm": "@norm"}, "network_def.norm refers to itself, or too deep"),
    ],
)
def test_what_is_no_plain_network_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    folder = bundle(tmp_path, {**UNET, **change}, classes=2, norm="@norm")
    with pytest.raises(ConfigError, match=re.escape(message)):
        read_bundle(folder)


def test_a_bundle_without_a_network_is_refused(tmp_path: Path) -> None:
    folder = bundle(tmp_path, UNET)
    (folder / "configs" / "inference.json").write_text('{"network": 3}')
    with pytest.raises(ConfigError, match="has no table 'network_def'"):
        read_bundle(folder)
