"""`models`: the list without torch, the costs with torch, and the refusals of wrong questions."""

import hashlib
import inspect
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import ROOT, refused, run, run_json
from models.spec import HYPER
from peer.cli.models import describe_network
from peer.documents.models import LayerDescription, ModelDescription

SKIN = ("--task", "classification", "--spatial-dims", "2", "--in-channels", "3", "--classes", "8")
VOLUMES = ("--task", "segmentation", "--spatial-dims", "3", "--in-channels", "1", "--classes", "2")
PLAIN_KEYS = {"name", "family", "spatial_dims", "hyper", "differs"}
FIGURES = ModelDescription.__annotations__.keys() - PLAIN_KEYS - {"problem"}


def rows(*words: str) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in run_json("models", *words)["models"]}


def test_the_plain_list_has_every_network_and_loads_no_torch() -> None:
    script = """
import sys
from peer.cli import main
try:
    main(["models", "--json"])
except SystemExit:
    assert not {"torch", "monai", "numpy", "rich"} & sys.modules.keys()
"""
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    document = json.loads(process.stdout)
    assert document.keys() == {"task", "input_size", "models"}
    assert document["task"] is document["input_size"] is None
    from models import MODELS

    assert [row["name"] for row in document["models"]] == list(MODELS)
    assert all(row.keys() == PLAIN_KEYS for row in document["models"])


def test_defaults_dimensions_and_families_are_the_networks_own() -> None:
    from models import MODELS, create_model

    for name, make in MODELS.items():
        row = describe_network(name)
        signature = inspect.signature(make).parameters
        assert row["hyper"] == {key: signature[key].default for key in row["hyper"]}, name
        assert row["hyper"].keys() == HYPER[name]
        for dims in {1, 2, 3} - set(row["spatial_dims"]):
            with pytest.raises(ValueError, match=r"(time series|rows of a table) alone"):
                create_model(name, spatial_dims=dims, in_channels=1, classes=2)
    families = {name: describe_network(name)["family"] for name in MODELS}
    assert {families[name] for name in ("resnet10", "vgg19", "messenger_classification")} == {"classification"}
    assert {families[name] for name in ("tcn", "rnn", "messenger_time_series")} == {"time_series"}
    assert {families[name] for name in ("linear", "ft_transformer", "messenger_tabular")} == {"tabular"}
    assert {families[name] for name in ("unet", "fcn8s", "messenger_segmentation")} == {"segmentation"}
    assert {families[name] for name in ("srresnet18", "srcnn")} == {"super_resolution"}


def test_people_see_names_and_what_can_be_set() -> None:
    lines = [line.split() for line in run("models", "srcnn", "tcn").stdout.splitlines() if line.strip()]
    assert lines[2:] == [
        ["srcnn", "super_resolution", "1-D,", "2-D,", "3-D", "width=64", "scale=4", "side=null"],
        ["tcn", "time_series", "1-D", "width=32", "projection=null", 'norm="batch"'],
    ]


def test_a_network_with_its_figures() -> None:
    (row,) = rows(*SKIN, "--input-size", "224x224", "messenger_classification").values()
    assert row.keys() == {*PLAIN_KEYS, "problem", *FIGURES}
    assert (row["problem"], row["parameters"], row["state_values"]) == (None, 34_184, 35_209)
    assert row["taps"] == [[64, 56, 56], [64, 14, 14], [512, 6, 6]]
    assert (row["bottleneck"], row["penultimate"], row["prediction"]) == ([512], [512], [8])
    floats, head = 4 * 35_208 + 8, 4 * (4 * 512 + 512 * 8 + 8) + 8
    assert row["bytes"] == {"model": floats, "proxy": floats, "messenger": floats, "head": head}
    stem, depthwise, grouped = 112**2 * 9 * 3 * 64, 28**2 * 25 * 64, 6**2 * 49 * 512
    assert row["multiply_accumulates"] == stem + depthwise + grouped + 512 * 8


def test_settings_reach_the_network_and_are_shown() -> None:
    (row,) = rows(*SKIN, "--set", "width=8", "--set", "max_pool=false", "resnet10").values()
    assert row["hyper"] == {"width": 8, "stem_stride": 2, "max_pool": False, "projection": None, "norm": "batch"}
    stem, first, head = 3 * 8 * 49 + 16, 2 * (8 * 8 * 9 + 16), 64 * 8 + 8
    later = sum(c * c // 2 * 9 + c * c * 9 + c * c // 2 + 3 * 2 * c for c in (16, 32, 64))
    assert row["parameters"] == stem + first + later + head
    assert {key for key in FIGURES if row[key] is None} == {
        "multiply_accumulates", "prediction", "taps", "bottleneck", "penultimate",
    }  # fmt: skip


def test_a_norm_is_set_by_its_name() -> None:
    (batch,), (group,) = (rows(*SKIN, *words, "resnet10").values() for words in ((), ("--set", "norm=group")))
    assert group["hyper"] == batch["hyper"] | {"norm": "group"}
    assert group["parameters"] == batch["parameters"] == group["state_values"] < batch["state_values"]


def test_what_does_not_fit_is_a_row_with_the_reason() -> None:
    networks = rows(*SKIN, "--set", "projection=16", "tcn", "resnet5", "vgg11", "messenger_classification", "unet")
    assert {name: row["problem"] for name, row in networks.items()} == {
        "tcn": "tcn takes time series alone, so spatial_dims must be 1, not 2",
        "resnet5": None,
        "vgg11": None,
        "messenger_classification": "messenger_classification has no hyper-parameter 'projection'; it has norm, width",
        "unet": "unet is for segmentation",
    }
    assert all(networks["tcn"][key] is None for key in FIGURES)
    small = rows(*VOLUMES, "--input-size", "8,8,8", "--set", "width=4")
    assert set(small) == {"unet", "unet_plus_plus", "res_unet", "dynunet", "fcn8s", "messenger_segmentation"}
    assert small["dynunet"]["problem"] == "dynunet takes sides of at least 17, not (8, 8, 8); resize or pad the input"
    assert "multiples of 16, not (8, 8, 8)" in small["messenger_segmentation"]["problem"]
    assert small["res_unet"]["prediction"] == [2, 8, 8, 8]


def test_people_see_figures_shapes_and_reasons() -> None:
    sized = run("models", *SKIN, "--input-size", "64x64", "resnet10", "tcn").stdout.splitlines()
    (row,) = [line.split() for line in sized if line.startswith(" resnet10")]
    assert row[1:9] == ["4,909,896", "4,915,668", "18.8", "MiB", "16.0", "KiB", "72.6", "M"]
    assert row[9:] == ["512", "512", "64x16x16", "128x8x8", "256x4x4", "512x2x2"]
    (row,) = [line.split() for line in sized if line.startswith(" tcn")]
    assert row[1:8] == ["-"] * 7
    assert row[8:10] == ["tcn", "takes"]
    assert "taps" not in run("models", *SKIN, "resnet10").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["resnet"], "unknown model 'resnet'; did you mean 'resnet8' or 'resnet5' or 'resnet50'?; `mhfl-peer models` "),
        (["--classes", "2"], "what a network costs depends on the task; add --task"),
        (["--set", "width=4", "resnet10"], "what a network costs depends on the task; add --task"),
        (
            ["--task", "segmentation", "--classes", "2"],
            "--task segmentation lacks --spatial-dims, --in-channels; ",
        ),
        ([*VOLUMES, "--input-size", "96x96"], "--input-size 96x96 has 2 sides for --spatial-dims 3; see --help"),
        ([*VOLUMES, "--input-size", "big"], "--input-size 'big' is no size; write the sides as 224x224 or 224,224"),
        ([*VOLUMES, "--set", "widht=4"], "--set widht=4: no hyper-parameter 'widht' here; did you mean 'width'?; see "),
        (
            [*VOLUMES, "--set", "width=wide"],
            "--set width=wide: 'wide' is no value; write a number, true, false or null",
        ),
        (
            [*SKIN, "--set", "norm=instance"],
            "--set norm=instance: 'instance' is no value; write a number, true, false or null, as in width=32; of",
        ),
        ([*VOLUMES, "--classes", "1"], "--classes 1: segmentation needs at least 2; see --help"),
        (["--task", "time_series", *SKIN[2:]], "--spatial-dims 2: a time series has 1; see --help"),
        (["--layers", "resnet5", "vgg11"], "--layers takes one network alone; leave out --task and the other names"),
        (["--layers", "resnet5"], "--layers lacks --input-size; give the sides that [data] input_size has"),
        (
            ["--layers", "monai.networks.nets.DenseNet12", "--input-size", "64x64"],
            "monai.networks.nets has no network class 'DenseNet12'; did you mean 'DenseNet121'",
        ),
        (
            ["--layers", "monai.networks.nets.UNet", "--input-size", "64x64", "--set", "strides=[2,2]"],
            "monai.networks.nets.UNet also needs channels (Sequence[int]); give them as in `--set channels=[2,4]`",
        ),
        (
            ["--layers", "tests.unknown:Net", "--input-size", "64x64"],
            "tests.unknown:Net: cannot import tests.unknown: ",
        ),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(words: list[str], message: str) -> None:
    assert refused("UsageError", "models", *words).startswith(f"mhfl-peer: {message}")


def test_a_count_that_is_not_the_papers_says_why() -> None:
    listed = rows(*SKIN)
    assert "not grouped" in listed["resnext14"]["differs"]
    assert "18.9 M" in listed["vgg19"]["differs"]
    assert listed["resnet10"]["differs"] == ""
    # Table 5 counts the values of a client's whole state: with projection, one attention and messenger.
    modules = (2048 * 512 + 512) + 3 * (512 * 512 + 512) + 35_209
    assert round((listed["resnext14"]["state_values"] + modules) / 1e6, 3) == 9.275
    text = " ".join(run("models", *SKIN, "resnext14", "vgg19").stdout.split())
    assert "not grouped" in text


HOUSE = ("--layers", "monai.networks.nets.ResNet", "--input-size", "64x64", "--set", "block=basic")
SMALL = ("--set", "layers=[1,1,1,1]", "--set", "block_inplanes=[4,4,8,8]", "--classes", "3")


def test_the_lines_for_a_network_from_elsewhere_can_be_pasted() -> None:
    printed = run("models", *HOUSE, *SMALL).stdout
    pasted = tomllib.loads(printed.partition("Paste into site.toml:")[2])
    assert pasted["model"] == {
        "name": "monai.networks.nets.ResNet",
        "features": ["layer1", "layer2", "layer3", "layer4"],
        "head": "fc",
        "parameters": {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [4, 4, 8, 8]},
    }
    (row,) = [line.split() for line in printed.splitlines() if line.startswith(" layer3 ")]
    assert (row[1], row[3], row[4]) == ("Sequential", "8x8x8", "features")


def test_the_layers_of_an_own_network_come_without_names_to_paste() -> None:
    document = run_json("models", "--layers", "resnet5", "--spatial-dims", "2", "--set", "width=4")
    assert (document["own_taps"], document["features"], document["head"]) == (True, [], None)
    assert document["input_size"] == [64, 64]
    assert all(row.keys() == LayerDescription.__annotations__.keys() for row in document["layers"])
    assert "needs neither features nor head" in run("models", "--layers", "resnet5", "--input-size", "32,32").stdout


def test_a_monai_bundle_gives_its_network_and_its_weights(tmp_path: Path) -> None:
    sizes = {"spatial_dims": 2, "in_channels": 1, "out_channels": 2}
    network = {"_target_": "UNet", **sizes, "channels": [4, 8, 16], "strides": [2, 2]}
    (tmp_path / "configs").mkdir()
    (tmp_path / "models").mkdir()
    (tmp_path / "configs" / "inference.json").write_text(json.dumps({"network_def": network}))
    (tmp_path / "models" / "model.pt").write_bytes(b"weights")
    document = run_json("models", "--layers", tmp_path)
    assert (document["name"], document["weights"]) == ("monai.networks.nets.UNet", str(tmp_path))
    assert document["weights_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert (document["input_size"], document["head"]) == ([64, 64], "model.2.conv")
    pasted = tomllib.loads(run("models", "--layers", tmp_path).stdout.partition("Paste into site.toml:")[2])
    assert pasted["model"]["parameters"] == {"channels": [4, 8, 16], "strides": [2, 2]}
    assert pasted["model"]["weights_sha256"] == document["weights_sha256"]
