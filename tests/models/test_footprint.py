"""What a network costs, counted by hand."""

from __future__ import annotations

import json

import pytest
import safetensors.torch
import torch

from models import MODELS, build, describe
from models.spec import ONE_DIMENSIONAL


def test_srcnn_counted_by_hand():
    described = describe("srcnn", (6, 5), in_channels=1, classes=1)
    weights, biases, pixels = 9 * 9 * 64 + 64 * 32 + 5 * 5 * 32, 64 + 32 + 1, (4 * 6) * (4 * 5)
    assert described["parameters"] == weights + biases
    assert described["multiply_accumulates"] == weights * pixels
    assert described["taps"] == [[64, 24, 20], [32, 24, 20]]
    assert described["bottleneck"] == described["penultimate"] == [32, 24, 20]
    assert described["prediction"] == [1, 24, 20]
    assert described["bytes"] == {"model": 4 * (weights + biases), "head": 4 * (5 * 5 * 32 + 1)}


def test_attention_and_recurrence_are_counted():
    stem, steps, pooled = 60 * 33 * 32, 31, 16
    attention = sum(n * 32 * 96 + 2 * n * n * 32 + n * 32 * 32 for n in (steps, pooled))
    assert describe("transformer", (180,))["multiply_accumulates"] == stem + attention + 32 * 2
    lstm = steps * 4 * 16 * (32 + 16 + 2 * (16 + 16))
    assert describe("rnn", (180,))["multiply_accumulates"] == stem + lstm + 16 * 2


@pytest.mark.parametrize("name", MODELS)
def test_every_network_can_be_described_as_it_comes(name):
    described = describe(name, (128,) if name in ONE_DIMENSIONAL else (32, 32))
    assert json.loads(json.dumps(described)) == described
    assert described["spec"]["name"] == name
    assert described["multiply_accumulates"] > 0
    assert described["bytes"]["head"] < described["bytes"]["model"]
    assert described["bytes"]["model"] >= 4 * described["parameters"]


def test_a_spec_says_everything_itself_and_its_bytes_are_those_of_a_file():
    spec = {
        "name": "monai.networks.nets.BasicUNet",
        "spatial_dims": 3,
        "in_channels": 2,
        "classes": 3,
        "hyper": {"features": [4, 4, 8, 8, 16, 4]},
        "features": ["conv_0", "down_4"],
        "head": "final_conv",
    }
    described = describe(spec, (16, 32, 16))
    assert described["spec"] == spec
    assert described["taps"] == [[4, 16, 32, 16], [16, 1, 2, 1]]
    model = build(spec)
    for kind, module in (("model", model), ("head", model.head)):
        file = safetensors.torch.save(module.state_dict())
        header = int.from_bytes(file[:8], "little")
        assert described["bytes"][kind] == len(file) - 8 - header


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="unknown model 'resnet'"):
        describe("resnet", (8, 8))
    with pytest.raises(ValueError, match="multiples of 16"):
        describe("messenger_segmentation", (8, 8))
    with pytest.raises(ValueError, match="spatial_dims must be 1, not 2"):
        describe("tcn", (8, 8))
    assert torch.get_default_device() == torch.device("cpu")
