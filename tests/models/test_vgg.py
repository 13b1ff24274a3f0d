"""VGG against the printed sizes, FCN-8s against its formula."""

import pytest
import torch

from fakes.networks import count_parameters, meta_network
from models import create_model
from models.vgg import vgg11, vgg16, vgg19

# torchvision's networks with batch norm, 1000 classes; the three linear layers behind 7x7 cells; the biases.
PUBLISHED = {vgg11: (132_868_840, 2_752), vgg16: (138_365_992, 4_224), vgg19: (143_678_248, 5_504)}
LINEAR = 25_088 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 1000 + 1000


@pytest.mark.parametrize("constructor", PUBLISHED, ids=["vgg11", "vgg16", "vgg19"])
def test_the_printed_sizes(constructor):
    total, biases = PUBLISHED[constructor]
    assert count_parameters(meta_network(constructor, classes=1000)) == total - LINEAR - biases + 512 * 1000 + 1000


def test_stages_end_in_a_pooling_that_rounds_up():
    output = vgg16(spatial_dims=2, in_channels=1, classes=2, width=2)(torch.randn(2, 1, 33, 20))
    grids = [tuple(tap.shape[2:]) for tap in output.taps]
    assert grids == [(17, 10), (9, 5), (5, 3), (3, 2), (2, 1)]


def test_fcn_adds_the_fourth_and_the_third_stage_on_the_way_up():
    model = create_model("fcn8s", spatial_dims=2, in_channels=1, classes=2, width=4).eval()
    x = torch.randn(2, 1, 64, 32)
    output = model(x)
    feature = output.taps[4]
    for up, norm, added in zip(model.ups, model.norms, (output.taps[3], output.taps[2], 0, 0, 0), strict=True):
        feature = norm(up(feature).relu() + added)
    torch.testing.assert_close(output.penultimate, feature)
    torch.testing.assert_close(output.prediction, model.final_conv(feature))
    assert output.penultimate.shape == (2, 2, 64, 32)


def test_fcn_has_the_head_of_the_papers_client():
    assert count_parameters(meta_network("fcn8s", classes=2).head) == 32 * 2 + 2
