"""The local model: from its seed, refused by name, proved on one image."""

import dataclasses

import pytest
import torch

import models
from peer.train.network import build_spec, local_spec, probe, probe_head, shared_spec
from peer.train.settings import TaskSettings, TrainingSettings
from peer.train.tensors import state_of

TASK = TaskSettings("classification", spatial_dims=1, in_channels=2, classes=3)


def test_a_network_from_elsewhere_brings_its_layers(make_setting) -> None:
    parameters = {"layers": [1, 1, 1, 1], "block": "basic", "block_inplanes": [4, 4, 4, 4], "bias_downsample": False}
    model = {"name": "monai.networks.nets.ResNet", "parameters": parameters, "features": ["layer1"], "head": "fc"}
    network = build_spec(local_spec(TrainingSettings.of(make_setting(model=model))), "[model]")
    assert len(probe(network, dataclasses.replace(TASK, classes=2), (24,)).taps) == 1


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


def test_a_probe_of_maps_knows_their_size() -> None:
    task = TaskSettings("segmentation", spatial_dims=2, in_channels=1, classes=3)
    network = models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=2, depth=2)
    assert probe(network, task, (8, 12)).prediction.shape == (1, 3, 8, 12)
    large = TaskSettings("super_resolution", spatial_dims=2, in_channels=1, classes=1)
    network = models.create_model("srcnn", spatial_dims=2, in_channels=1, classes=1, width=4, scale=2)
    assert probe(network, large, (8, 12), scale=2).prediction.shape == (1, 1, 16, 24)
    with pytest.raises(ValueError, match=r"not \(1, 1, 32, 48\)"):
        probe(network, large, (8, 12), scale=4)


def test_a_head_is_probed_on_this_site_s_grid() -> None:
    own = models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=2, depth=2)
    other = models.create_model("unet", spatial_dims=2, in_channels=1, classes=3, width=6, depth=2)
    output = probe(own, TaskSettings("segmentation", 2, 1, 3), (8, 12))
    assert probe_head(other.head, output).penultimate.shape == (1, 6, 8, 12)
    four = models.create_model("unet", spatial_dims=2, in_channels=1, classes=4, width=2, depth=2)
    with pytest.raises(ValueError, match=r"predicts \(1, 4, 8, 12\) for one image, not \(1, 3, 8, 12\)"):
        probe_head(four.head, output)


def test_the_shared_model_is_the_file_s_or_the_method_s_own(make_setting) -> None:
    settings = TrainingSettings.of(
        make_setting(method={"name": "feddal"}, shared_model={"name": "resnet10", "width": 8})
    )
    assert shared_spec(settings) == {
        "name": "resnet10", "spatial_dims": 1, "in_channels": 2, "classes": 2, "hyper": {"width": 8},
    }  # fmt: skip
    own = shared_spec(TrainingSettings.of(make_setting(method={"name": "mh_pflid"})))
    assert own["name"] == "messenger_time_series"
    assert shared_spec(TrainingSettings.of(make_setting())) is None
    foreign = {"name": "monai.networks.nets.ResNet", "head": "fc", "features": ["layer1"], "layers": [1, 1, 1, 1]}
    spec = shared_spec(TrainingSettings.of(make_setting(method={"name": "feddal"}, shared_model=foreign)))
    assert (spec["head"], spec["features"], spec["hyper"]) == ("fc", ["layer1"], {"layers": [1, 1, 1, 1]})
