"""The blocks: grids, sums, interpolation, cropping."""

import math

import pytest
import torch
from torch import nn

from models.blocks import (
    Residual,
    conv,
    conv_norm,
    crop,
    group_norm,
    initialise,
    mean_over_space,
    pool,
    replace_batch_norms,
    resize,
    run_stages,
)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("side", [1, 2, 7, 8])
def test_no_grid_vanishes(dims, side):
    x = torch.randn(1, 4, *(side,) * dims)
    for kernel in (1, 3, 5, 7):
        for stride in (1, 2):
            y = conv(dims, 4, 6, kernel, stride=stride, groups=2)(x)
            assert y.shape == (1, 6, *(math.ceil(side / stride),) * dims)
    assert pool(dims)(x).shape == (1, 4, *(math.ceil(side / 2),) * dims)


def test_a_residual_adds_then_rectifies():
    x = torch.tensor([[[1.0, -2.0]]])
    double = conv(1, 1, 1, 1)
    nn.init.constant_(double.weight, 2.0)
    assert Residual(double)(x).tolist() == [[[3.0, -6.0]]]
    assert Residual(double, double, nn.ReLU())(x).tolist() == [[[4.0, 0.0]]]


def test_stages_run_one_after_the_other():
    first, second = nn.Identity(), nn.ReLU()
    x = torch.tensor([-1.0, 1.0])
    assert [tap.tolist() for tap in run_stages([first, second], x)] == [[-1.0, 1.0], [0.0, 1.0]]
    assert run_stages([], x) == []


def test_resize_interpolates_between_the_centres_of_cells():
    x = torch.tensor([[[0.0, 4.0]]])
    assert resize(x, (4,)).tolist() == [[[0.0, 1.0, 3.0, 4.0]]]
    assert resize(x, (2,)) is x


def test_crop_keeps_the_leading_corner():
    assert crop(torch.arange(6.0).reshape(1, 1, 2, 3), (1, 2)).tolist() == [[[[0.0, 1.0]]]]


def test_pooled_is_the_mean_over_space():
    assert mean_over_space(torch.arange(8.0).reshape(1, 2, 2, 2)).tolist() == [[1.5, 5.5]]
    vector = torch.ones(1, 2)
    assert mean_over_space(vector) is vector


def test_initialisation_is_by_the_fan_out():
    torch.manual_seed(0)
    network = conv_norm(2, 4, 256, 3).append(nn.Linear(4, 2))
    initialise(network.modules())
    assert network[0].weight.std().item() == pytest.approx(math.sqrt(2 / (256 * 9)), rel=0.05)
    assert network[2].bias.tolist() == [0.0, 0.0]


def test_groups_divide_the_channels_are_at_most_32_and_have_16_channels_or_all():
    for channels in range(2, 1500):
        norm = group_norm(channels)
        fitting = [g for g in range(1, 33) if channels % g == 0 and channels // g >= 16]
        assert (norm.num_groups, norm.num_channels) == (max(fitting, default=1), channels)
    with pytest.raises(ValueError, match="a group norm of one channel"):
        group_norm(1)


@pytest.mark.parametrize("channels", [16, 32, 64, 512])
def test_one_cell_leaves_a_group_a_gradient(channels):
    torch.manual_seed(0)
    x = torch.randn(1, channels, requires_grad=True)
    group_norm(channels)(x)[0, 0].backward()
    assert x.grad.abs().max() > 0.1


def test_batch_norms_are_replaced_at_any_depth_and_the_rest_stays():
    inner = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU())
    network = nn.ModuleDict({"first": nn.BatchNorm1d(64), "second": nn.Sequential(inner, nn.InstanceNorm2d(4))})
    replace_batch_norms(network)
    assert [type(module) for module in network.modules() if not list(module.children())] == [
        nn.GroupNorm, nn.GroupNorm, nn.ReLU, nn.InstanceNorm2d,
    ]  # fmt: skip
    assert network["second"][0] is inner
    assert (network["first"].num_groups, inner[0].num_groups) == (4, 2)
