"""The small classifiers against the printed sizes, and their blocks against plain formulas."""

import pytest
import torch

from fakes.networks import count_parameters, meta_network
from models import describe
from models.blocks import Residual
from models.mobile import Fire, ShuffleUnit

# Printed by the papers' authors or by torchvision, for 1000 classes. SqueezeNet 1.0 has 1,248,424 parameters; batch
# norm in place of a bias adds one to each of its 2,976 channels.
PUBLISHED = [
    ("mobilenet_v1", 32, 4_231_976),
    ("mobilenet_v1", 16, 1_331_592),
    ("mobilenet_v2", 32, 3_504_872),
    ("shufflenet_v2", 48, 1_366_792),
    ("shufflenet_v2", 116, 2_278_604),
    ("shufflenet_v2", 176, 3_503_624),
    ("squeezenet", 16, 1_248_424 + 2_976),
]


@pytest.mark.parametrize(("name", "width", "parameters"), PUBLISHED)
def test_the_printed_sizes(name, width, parameters):
    assert count_parameters(meta_network(name, classes=1000, width=width)) == parameters


@pytest.mark.parametrize(("name", "multiply_accumulates"), [("mobilenet_v2", 300e6), ("shufflenet_v2", 41e6)])
def test_the_printed_work_at_224(name, multiply_accumulates):
    described = describe(name, (224, 224), in_channels=3, classes=1000)
    assert described["multiply_accumulates"] == pytest.approx(multiply_accumulates, rel=0.015)


@pytest.mark.parametrize(("name", "bypasses"), [("mobilenet_v2", 10), ("squeezenet", 4), ("mobilenet_v1", 0)])
def test_where_a_bypass_is(name, bypasses):
    model = meta_network(name, 1)
    assert sum(isinstance(module, Residual) for module in model.modules()) == bypasses


def test_a_shuffle_unit_passes_half_and_interleaves():
    unit = ShuffleUnit(2, 6, 6, stride=1).eval()
    x = torch.randn(2, 6, 5, 5)
    y = unit(x)
    assert torch.equal(y[:, 0::2], x[:, :3])
    assert torch.equal(y[:, 1::2], unit.long(x[:, 3:]))


def test_a_shuffle_unit_of_stride_two_sees_all_channels_twice():
    unit = ShuffleUnit(2, 6, 8, stride=2).eval()
    x = torch.randn(2, 6, 5, 5)
    y = unit(x)
    assert y.shape == (2, 8, 3, 3)
    assert torch.equal(y[:, 0::2], unit.short(x))
    assert torch.equal(y[:, 1::2], unit.long(x))


def test_a_fire_module_expands_what_it_squeezed():
    fire = Fire(2, 6, 2).eval()
    x = torch.randn(2, 6, 5, 5)
    squeezed = fire.squeeze(x)
    assert squeezed.shape == (2, 2, 5, 5)
    assert torch.equal(fire(x), torch.cat([fire.narrow(squeezed), fire.wide(squeezed)], dim=1))
    assert fire(x).shape == (2, fire.out, 5, 5) == (2, 16, 5, 5)
