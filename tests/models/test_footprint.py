"""The costs of networks, counted by hand."""

import json

import pytest
import safetensors.torch
import torch

from models import MODELS, build, describe
from models.footprint import padding_share
from models.spec import ONE_DIMENSIONAL


def test_srcnn_counted_by_hand():
    described = describe("srcnn", (6, 5), in_channels=1, classes=1)
    weights, biases, pixels = 9 * 9 * 64 + 64 * 32 + 5 * 5 * 32, 64 + 32 + 1, (4 * 6) * (4 * 5)
    assert described["parameters"] == weights + biases
    assert described["multiply_accumulates"] == weights * pixels
    assert described["taps"] == [[64, 24, 20], [32, 24, 20]]
    assert described["bottleneck"] == described["penultimate"] == [32, 24, 20]
    assert described["prediction"] == [1, 24, 20]
    whole = 4 * (weights + biases)
    assert described["state_values"] == weights + biases
    assert described["bytes"] == {"model": whole, "proxy": whole, "head": 4 * (5 * 5 * 32 + 1)}


def test_attention_and_recurrence_are_counted():
    stem, steps, pooled = 60 * 33 * 32, 31, 16
    attention = sum(n * 32 * 96 + 2 * n * n * 32 + n * 32 * 32 for n in (steps, pooled))
    assert describe("transformer", (180,))["multiply_accumulates"] == stem + attention + 32 * 2
    lstm = steps * 4 * 16 * (32 + 16 + 2 * (16 + 16))
    assert describe("rnn", (180,))["multiply_accumulates"] == stem + lstm + 16 * 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", MODELS)
def test_every_network_can_be_described_as_it_comes(name):
    described = describe(name, (128,) if name in ONE_DIMENSIONAL else (32, 32))
    assert json.loads(json.dumps(described)) == described
    assert described["spec"]["name"] == name
    assert described["multiply_accumulates"] > 0
    sizes = described["bytes"]
    assert sizes["head"] <= sizes["model"] == sizes["proxy"]
    assert (sizes["head"] == sizes["model"]) == (name == "linear")  # which is all head
    assert sizes.get("messenger", 0) == (sizes["model"] if "messenger" in name else 0)
    assert sizes["model"] >= 4 * described["parameters"]
    assert described["state_values"] >= described["parameters"]


def test_a_spec_says_everything_itself_and_its_bytes_are_those_of_a_file():
    unet = spec_of("monai.networks.nets.BasicUNet", 3, 2, 3, features=[4, 4, 8, 8, 16, 4])
    spec = {**unet, "features": ["conv_0", "down_4"], "head": "final_conv"}
    described = describe(spec, (16, 32, 16))
    assert described["spec"] == spec
    assert described["taps"] == [[4, 16, 32, 16], [16, 1, 2, 1]]
    model = build(spec)
    for kind, module in (("model", model), ("head", model.head)):
        file = safetensors.torch.save(module.state_dict())
        header = int.from_bytes(file[:8], "little")
        assert described["bytes"][kind] == len(file) - 8 - header


def spec_of(name, dims, in_channels, classes, **hyper):
    sizes = {"spatial_dims": dims, "in_channels": in_channels, "classes": classes}
    return {"name": name, **sizes, "hyper": hyper}


def test_without_an_input_size_only_what_follows_from_it_is_unknown():
    spec = spec_of("resnet10", 2, 1, 2, width=4)
    sized, bare = describe(spec, (32, 32)), describe(spec)
    unknown = {"multiply_accumulates", "prediction", "taps", "bottleneck", "penultimate"}
    assert {key for key, value in bare.items() if value is None} == unknown
    assert bare == sized | dict.fromkeys(unknown)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="'resnet10' alone does not say how many dimensions"):
        describe("resnet10")
    with pytest.raises(ValueError, match="unknown model 'resnet'"):
        describe("resnet", (8, 8))
    with pytest.raises(ValueError, match="multiples of 16"):
        describe("messenger_segmentation", (8, 8))
    with pytest.raises(ValueError, match="spatial_dims must be 1, not 2"):
        describe("tcn", (8, 8))
    assert torch.get_default_device() == torch.device("cpu")


@pytest.mark.parametrize(
    ("layer", "space", "share"),
    [
        (torch.nn.Conv3d(1, 2, 3, padding=1, bias=False), (1, 1, 1), 26 / 27),
        (torch.nn.Conv2d(1, 2, 3, padding=1, bias=False), (1, 2), 1 - 1 / 3),
        (torch.nn.Conv2d(1, 2, 3, padding=1, stride=2, bias=False), (2, 2), 1 - 4 / 9),
        (torch.nn.Conv1d(1, 2, 3, padding=2, dilation=2, bias=False), (2,), 2 / 3),
        (torch.nn.Conv1d(1, 2, 3, padding=1, bias=False), (2,), 0.0),
        (torch.nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular", bias=False), (1,), 0.0),
        (torch.nn.Sequential(torch.nn.Conv1d(1, 3, 3, padding=1, bias=False), torch.nn.PReLU(3)), (1,), 1 / 2),
    ],
    ids=str,
)
def test_weights_on_padding_are_those_without_a_gradient(layer, space, share):
    """Counted, and compared with the weights that a backward pass leaves at zero."""
    x = torch.rand(2, 1, *space) + 0.1
    assert padding_share(layer, x[:1]) == pytest.approx(share)
    if share == 0.0 or isinstance(layer, torch.nn.Sequential):
        return
    layer(x).square().sum().backward()
    assert (layer.weight.grad == 0).double().mean().item() == pytest.approx(share)


def test_a_network_that_halves_a_small_volume_too_often_is_mostly_padding():
    small = build({"name": "resnet10", "spatial_dims": 3, "in_channels": 1, "classes": 2, "hyper": {"width": 8}})
    volume = torch.zeros(1, 1, 32, 32, 32)
    assert padding_share(small.eval(), volume) < 0.5
    assert padding_share(small.eval(), volume[..., :16, :16, :16]) > 0.5
