"""The layers of networks from elsewhere, and the names proposed for a configuration: they can be tapped."""

from typing import Any

import pytest
import torch
from torch import nn

from models.foreign import foreign_network
from models.layers import list_layers
from models.tap import Tapped

PROPOSALS: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "DenseNet121": (
        {},
        ("features.denseblock1", "features.denseblock2", "features.denseblock3", "features.denseblock4"),
        "class_layers.out",
    ),
    "ResNet": (
        {"block": "basic", "layers": [1, 1, 1, 1], "block_inplanes": [8, 16, 32, 64]},
        ("layer1", "layer2", "layer3", "layer4"),
        "fc",
    ),
    "UNet": (
        {"channels": [8, 16, 32, 64], "strides": [2, 2, 2]},
        ("model.0", "model.1.submodule.0", "model.1.submodule.1.submodule.1"),
        "model.2.conv",
    ),
    "BasicUNet": ({}, ("down_1", "down_2", "down_3", "down_4"), "final_conv"),
}


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_stages_and_the_head_of_networks_of_monai(name: str) -> None:
    hyper, features, head = PROPOSALS[name]
    report = list_layers(f"monai.networks.nets.{name}", (64, 64), in_channels=1, classes=3, hyper=hyper)
    assert report.problem is None
    assert (report.features, report.head) == (features, head)


def test_a_gate_of_one_cell_is_no_stage_and_a_norm_no_head() -> None:
    sizes: dict[str, Any] = {"in_channels": 1, "classes": 3}
    gated = list_layers(
        "monai.networks.nets.EfficientNetBN", (64, 64), hyper={"model_name": "efficientnet-b0"}, **sizes
    )
    assert (len(gated.features), gated.head) == (4, "_fc")
    assert not any("_se_" in layer for layer in gated.features)
    assert list_layers("monai.networks.nets.HighResNet", (32, 32), **sizes).head == "blocks.11"


class Plain(nn.Module):
    """A network of somebody else: its last layers are fused, and one layer is overwritten in place."""

    def __init__(self, in_channels: int = 1, out_channels: int = 2, *, softmax: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(in_channels, 4, 3, stride=2, padding=1)
        self.inplace = nn.ReLU(inplace=True)
        self.body = nn.Sequential(nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.ReLU())
        self.fc = nn.Linear(8, out_channels)
        self.softmax = softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(self.body(self.inplace(self.stem(x))).mean((2, 3)))
        return logits.softmax(1) if self.softmax else logits


def test_an_own_class_gets_names_that_can_be_tapped() -> None:
    name = f"{__name__}:Plain"
    report = list_layers(name, (16, 16), in_channels=1, classes=2)
    assert (report.features, report.head, report.problem) == (("body",), "fc", None)
    shapes = {layer.name: (layer.shape, layer.tap) for layer in report.layers}
    assert shapes["stem"] == ((4, 8, 8), False)  # the ReLU overwrites its output
    assert shapes["body"] == ((8, 4, 4), True)
    network = foreign_network(name, spatial_dims=2, in_channels=1, classes=2, hyper={})
    tapped = Tapped(network, features=report.features, head=str(report.head), spatial_dims=2, in_channels=1, classes=2)
    assert tapped(torch.zeros(2, 1, 16, 16)).taps[0].shape == (2, 8, 4, 4)


def test_a_network_that_ends_in_a_function_has_no_head() -> None:
    report = list_layers(f"{__name__}:Plain", (16, 16), in_channels=1, classes=2, hyper={"softmax": True})
    assert (report.head, report.features) == (None, ())
    assert "after the last one" in str(report.problem)


def test_an_own_network_needs_no_names() -> None:
    report = list_layers("resnet5", (16, 16), in_channels=1, classes=2, hyper={"width": 4})
    assert (report.features, report.head, report.problem) == ((), None, None)
    assert any(layer.kind == "Conv2d" and layer.shape for layer in report.layers)


def test_an_input_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match=r"does not take an input of \(1, 16\)"):
        list_layers(f"{__name__}:Plain", (16,), in_channels=1, classes=2)
    with pytest.raises(
        ValueError, match=r"\(1, 33, 33\): it takes sides that are multiples of 2, such as 32x32 and 34"
    ):
        list_layers(
            "monai.networks.nets.AttentionUnet",
            (33, 33),
            in_channels=1,
            classes=2,
            hyper={"channels": [4, 8], "strides": [2]},
        )


@pytest.mark.parametrize(("name", "side", "channels"), [("AttentionUnet", 30, [4, 8, 16]), ("AutoEncoder", 33, [4, 8])])
def test_sides_that_do_not_fit_are_named_with_those_that_do(name: str, side: int, channels: list[int]) -> None:
    sizes: dict[str, Any] = {"in_channels": 1, "classes": 2, "hyper": {"channels": channels, "strides": [2, 2]}}
    spec, below = f"monai.networks.nets.{name}", side // 4 * 4
    fitting = f"multiples of 4, such as {below}x{below} and {below + 4}x{below + 4}"
    network = foreign_network(spec, spatial_dims=2, **sizes)
    head = list_layers(spec, (32, 32), **sizes).head or ""
    tapped = Tapped(network, features=(), head=head, spatial_dims=2, in_channels=1, classes=2, name=spec)
    with pytest.raises(ValueError, match=rf"does not take sides of {side}x{side}; it takes {fitting}: resize or pad"):
        tapped(torch.zeros(2, 1, side, side))
    assert all(module.training for module in network.modules())


class Several(nn.Module):
    """Returns its prediction as something else than one tensor, while it evaluates or trains."""

    def __init__(self, spatial_dims: int = 2, in_channels: int = 1, num_classes: int = 2, kind: str = "tuple") -> None:
        super().__init__()
        self.head, self.kind = nn.Conv2d(in_channels, num_classes, 3, padding=1), kind

    def forward(self, image: torch.Tensor) -> Any:
        output = self.head(image)
        if self.kind == "deep supervision":
            return [output, output[..., ::2]] if self.training else output
        return {"tuple": (output, output), "dict": {"out": output}, "larger": output.repeat(1, 1, 1, 2)[..., 1:]}[
            self.kind
        ]


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("tuple", "returns a tuple of 2, not one tensor"),
        ("dict", "returns a dict of 1, not one tensor"),
        ("deep supervision", "returns a list of 2 while it trains, as with deep supervision"),
        ("larger", "predicts 8x15 for an input of 8x8; take sides"),
    ],
)
def test_what_is_no_prediction_is_named(kind: str, problem: str) -> None:
    report = list_layers(f"{__name__}:Several", (8, 8), in_channels=1, classes=2, hyper={"kind": kind})
    assert report.head is None
    assert problem in (report.problem or "")
