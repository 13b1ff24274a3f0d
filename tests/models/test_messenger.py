"""Messengers: the sizes that the paper's tables confirm, their work, and inputs of every size."""

import pytest
import torch
import torch.nn.functional as F

from fakes.networks import meta_network
from models import create_model, describe


def messenger(task: str, dims: int = 2, **options):
    return create_model(f"messenger_{task}", spatial_dims=dims, **{"in_channels": 3, "classes": 2, **options})


@pytest.mark.parametrize(
    ("task", "dims", "in_channels", "classes", "values"),
    [
        ("classification", 2, 3, 8, 35_209),
        ("classification", 2, 1, 4, 32_005),
        ("time_series", 1, 1, 5, 2_822),
        ("segmentation", 2, 3, 1, 196_545),
        ("segmentation", 2, 3, 2, 196_802),
        ("segmentation", 2, 1, 2, 195_650),
    ],
)
def test_the_values_of_a_state(task, dims, in_channels, classes, values):
    model = meta_network(f"messenger_{task}", dims, in_channels, classes)
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == values
    assert describe(model.spec)["state_values"] == values, "counted with its buffers"


@pytest.mark.parametrize(("side", "in_channels", "classes", "millions"), [(384, 3, 8, 70.4), (256, 1, 4, 12.3)])
def test_the_work_in_the_papers_table(side, in_channels, classes, millions):
    described = describe("messenger_classification", (side, side), in_channels=in_channels, classes=classes)
    assert described["multiply_accumulates"] / 1e6 == pytest.approx(millions, abs=0.05)


def test_body_and_head_by_the_formula():
    model = messenger("classification").eval()
    x = torch.randn(2, 3, 64, 64)
    first, second, third = model.body
    y = F.max_pool2d(F.conv2d(x, first.weight, first.bias, 2, 1).relu(), 3, 2, 1)
    y = F.max_pool2d(F.conv2d(y, second.weight, second.bias, 2, 2, groups=64).relu(), 3, 2, 1)
    y = F.conv2d(y, third.weight, third.bias, 2, 2, groups=64).relu()
    output = model(x)
    torch.testing.assert_close(output.taps[-1], y)
    torch.testing.assert_close(output.penultimate, y.mean((2, 3)))
    norm, _, linear = model.head
    torch.testing.assert_close(output.prediction, linear(norm(y.mean((2, 3))).relu()))


@pytest.mark.parametrize(
    ("space", "grid"),
    [((48, 48), (1, 1)), ((47, 47), (2, 2)), ((47, 48), (2, 1)), ((32, 64), (1, 1)), ((1, 1), (1, 1))],
)
def test_short_sides_are_padded_by_one_more(space, grid):
    model = messenger("classification", in_channels=1).eval()
    output = model(torch.randn(1, 1, *space))
    assert output.taps[-1].shape[2:] == grid
    padding = [3 if side < 48 else 2 for side in space]
    third = model.body[2]
    expected = F.conv2d(output.taps[1], third.weight, third.bias, 2, padding, groups=64).relu()
    torch.testing.assert_close(output.taps[-1], expected)


def test_the_shortest_series():
    model = messenger("time_series", 1).eval()
    assert model(torch.zeros(1, 3, 101)).taps[-1].shape == (1, 128, 1)
    with pytest.raises(ValueError, match=r"messenger_time_series takes sides of at least 101, not \(100,\)"):
        model(torch.zeros(1, 3, 100))


def test_segmentation_ends_where_it_began():
    torch.manual_seed(0)
    model = messenger("segmentation", 3, in_channels=1).eval()
    output = model(torch.randn(1, 1, 16, 32, 16))
    assert output.prediction.shape == (1, 2, 16, 32, 16)
    assert output.penultimate.shape == (1, 512, 1, 2, 1)
    assert output.prediction.min() < 0, "the last layer is not rectified"
    with pytest.raises(ValueError, match=r"multiples of 16, not \(16, 24, 16\); resize or pad"):
        model(torch.zeros(1, 1, 16, 24, 16))
