"""The blocks: grids, sums, interpolation, cropping."""

import math

import pytest
import torch
from torch import nn

from models.blocks import Residual, conv, conv_norm, crop, initialise, mean_over_space, pool, resize, run_stages


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
