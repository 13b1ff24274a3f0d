"""DenseNet-50-BC against MONAI's own."""

import pytest
import torch
from monai.networks.nets import DenseNet as MonaiDenseNet

from models import create_model


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_predictions_are_those_of_monais_network(dims):
    ours = create_model("densenet50", spatial_dims=dims, in_channels=1, classes=2, width=8)
    theirs = MonaiDenseNet(dims, 1, 2, init_features=8, growth_rate=4, block_config=(7, 7, 7))
    values = ours.state_dict().values()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), values, strict=True)))
    x = torch.randn(2, 1, *(20,) * dims)
    torch.testing.assert_close(ours.eval()(x).prediction, theirs.eval()(x), rtol=1e-5, atol=1e-6)


def test_taps_are_the_blocks_and_the_last_is_rectified():
    model = create_model("densenet50", spatial_dims=2, in_channels=1, classes=2)
    output = model(torch.randn(2, 1, 64, 64))
    assert output.penultimate.shape == (2, 153)
    assert [tuple(tap.shape[1:]) for tap in output.taps] == [(108, 16, 16), (138, 8, 8), (153, 4, 4)]
    assert output.taps[-1].min() == 0
    torch.testing.assert_close(output.taps[-1].mean((2, 3)), output.penultimate)
