"""The local model: from its seed, refused by name, proved on one image."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import models
from peer.training.fault import ConfigurationError
from peer.training.network import build_local, probe
from peer.training.recipe import Recipe, Task
from peer.training.tensors import pack, state_of

TASK = Task("classification", spatial_dims=1, in_channels=2, classes=3)


def test_the_seed_is_all_that_the_weights_depend_on(make_setting) -> None:
    recipe = Recipe.of(make_setting())
    torch.manual_seed(1)
    first = build_local(recipe, seed=5)
    torch.manual_seed(2)
    assert pack(state_of(build_local(recipe, seed=5))) == pack(state_of(first))
    assert pack(state_of(build_local(recipe, seed=6))) != pack(state_of(first))
    assert first.spec["hyper"]["width"] == 4


def test_a_network_from_elsewhere_brings_its_layers(make_setting) -> None:
    parameters = {"layers": [1, 1, 1, 1], "block": "basic", "block_inplanes": [4, 4, 4, 4], "bias_downsample": False}
    model = {"name": "monai.networks.nets.ResNet", "parameters": parameters, "features": ["layer1"], "head": "fc"}
    network = build_local(Recipe.of(make_setting(model=model)), seed=5)
    assert len(probe(network, dataclasses.replace(TASK, classes=2), (24,)).taps) == 1


def test_what_is_wrong_with_the_model_is_named(make_setting) -> None:
    with pytest.raises(ConfigurationError, match=r"\[model\] resnet10: resnet10 has no hyper-parameter 'depth'"):
        build_local(Recipe.of(make_setting(model={"parameters": {"depth": 3}})), seed=5)


def test_a_probe_finds_what_does_not_predict_this_task() -> None:
    network = models.create_model("resnet10", spatial_dims=1, in_channels=2, classes=3, width=4)
    before = state_of(network)
    output = probe(network, TASK, (32,))
    assert len(output.taps) == 4
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    with pytest.raises(ValueError, match=r"predicts \(1, 3\) for one image, not \(1, 2\)"):
        probe(network, dataclasses.replace(TASK, classes=2), (32,))
    with torch.no_grad():
        network.head.bias.fill_(float("inf"))
    with pytest.raises(ValueError, match="predicts a NaN"):
        probe(network, TASK, (32,))
