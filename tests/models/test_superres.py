"""Super-resolution: sizes, scales, skips, and the networks' results with identity kernels."""

import pytest
import torch
import torch.nn.functional as F

from fakes.networks import count_parameters, meta_network
from models import create_model


@pytest.mark.parametrize("name", ["srresnet6", "srcnn"])
@pytest.mark.parametrize("scale", [2, 4, 8])
@pytest.mark.parametrize("dims", [1, 2])
def test_every_scale(name, scale, dims):
    model = create_model(name, spatial_dims=dims, in_channels=1, classes=2, width=4, scale=scale)
    output = model(torch.randn(1, 1, *(5, 7)[:dims]))
    assert output.prediction.shape == (1, 2, *(5 * scale, 7 * scale)[:dims])
    assert output.penultimate.shape[2:] == output.prediction.shape[2:]


def test_one_srcnn_enlarges_to_a_side_whatever_the_factor():
    model = create_model("srcnn", spatial_dims=2, in_channels=1, classes=1, width=4, side=16)
    by_scale = create_model("srcnn", spatial_dims=2, in_channels=1, classes=1, width=4, scale=2)
    by_scale.load_state_dict(model.state_dict())
    x = torch.rand(1, 1, 8, 8)
    assert torch.equal(model(x).prediction, by_scale(x).prediction)
    assert model(torch.rand(1, 1, 2, 2)).prediction.shape == (1, 1, 16, 16)
    assert model.spec["hyper"] == {"width": 4, "side": 16}


@pytest.mark.parametrize(("name", "blocks"), [("srresnet18", 18), ("srresnet12", 12), ("srresnet6", 6)])
@pytest.mark.parametrize(("scale", "shuffles"), [(2, 1), (4, 2), (8, 3)])
def test_the_size_of_each_depth_and_scale(name, blocks, scale, shuffles):
    model = meta_network(name, classes=3, scale=scale)
    first = 3 * 64 * 81 + 64 + 1
    block = 2 * (64 * 64 * 9 + 2 * 64) + 1
    skipped = 64 * 64 * 9 + 2 * 64
    shuffle = 64 * 256 * 9 + 256 + 1
    last = 64 * 3 * 81 + 3
    assert count_parameters(model) == first + blocks * block + skipped + shuffles * shuffle + last


def test_the_long_skip_carries_the_first_features():
    model = create_model("srresnet6", spatial_dims=2, in_channels=1, classes=1, width=4).eval()
    torch.nn.init.zeros_(model.skipped[-1].weight)
    output = model(torch.randn(1, 1, 6, 6))
    assert len(output.taps) == 4
    assert torch.equal(output.bottleneck, output.taps[0])


def test_taps_are_thirds_of_the_blocks():
    model = create_model("srresnet12", spatial_dims=2, in_channels=1, classes=1, width=4).eval()
    output = model(torch.randn(1, 1, 6, 6))
    x = output.taps[0]
    for tap, third in zip(output.taps[1:], model.stages, strict=True):
        assert len(third) == 4
        for block in third:
            x = x + block.branch(x)
        torch.testing.assert_close(tap, x)


def test_srcnn_has_as_many_weights_as_its_paper_says():
    model = create_model("srcnn", spatial_dims=2, in_channels=1, classes=1)
    assert sum(p.numel() for p in model.parameters() if p.ndim > 1) == 8_032


@pytest.mark.parametrize(("dims", "mode"), [(1, "linear"), (2, "bicubic"), (3, "trilinear")])
def test_srcnn_that_does_nothing_is_the_interpolation(dims, mode):
    model = create_model("srcnn", spatial_dims=dims, in_channels=1, classes=1, width=2, scale=2)
    for convolution in (model.stages[0][0], model.stages[1][0], model.last):
        torch.nn.init.dirac_(convolution.weight)
        torch.nn.init.zeros_(convolution.bias)
    x = torch.rand(1, 1, *(6,) * dims) + 1
    torch.testing.assert_close(model(x).prediction, F.interpolate(x, scale_factor=2, mode=mode))


@pytest.mark.parametrize(("dims", "mode"), [(1, "linear"), (2, "bicubic"), (3, "trilinear")])
@pytest.mark.parametrize(("size", "large"), [({"scale": 2}, 12), ({"side": 9}, 9)])
def test_bicubic_is_the_interpolation(dims, mode, size, large):
    model = create_model("bicubic", spatial_dims=dims, in_channels=2, classes=2, **size)
    x = torch.randn(1, 2, *(6,) * dims)
    torch.testing.assert_close(model(x).prediction, F.interpolate(x, size=[large] * dims, mode=mode), rtol=0, atol=0)
    assert count_parameters(model) == 6
