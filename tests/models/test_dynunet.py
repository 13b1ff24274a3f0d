"""nnU-Net's U-Net against MONAI's DynUNet, and the channels that its authors print."""

import pytest
import torch
from monai.networks.nets import DynUNet

from fakes.networks import meta_network
from models import create_model


@pytest.mark.parametrize("dims", [2, 3])
def test_predictions_are_those_of_monais_dynunet(dims):
    ours = create_model("dynunet", spatial_dims=dims, in_channels=2, classes=3, width=4, depth=2)
    theirs = DynUNet(dims, 2, 3, (3, 3, 3), (1, 2, 2), (2, 2), filters=(4, 8, 16))
    state = {name: value for name, value in theirs.state_dict().items() if not name.startswith("skip_layers.")}
    renamed = {
        name.replace("input_block", "encoder.0")
        .replace("downsamples.0", "encoder.1")
        .replace("bottleneck", "encoder.2")
        .replace("upsamples", "decoder")
        .replace("output_block.conv.conv", "final_conv"): value
        for name, value in state.items()
    }
    ours.load_state_dict(renamed)
    x = torch.randn(2, 2, *(12,) * dims)
    torch.testing.assert_close(ours(x).prediction, theirs(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dims", "widths"), [(2, [32, 64, 128, 256, 512, 512]), (3, [32, 64, 128, 256, 320, 320])])
def test_channels_are_those_of_nnunet(dims, widths):
    model = meta_network("dynunet", dims=dims, depth=5)
    assert [stage.norm2.num_features for stage in model.encoder] == widths
    assert model.head.in_channels == 32


@pytest.mark.parametrize("dims", [2, 3])
def test_weights_spread_as_those_of_monais_dynunet(dims):
    torch.manual_seed(0)
    ours = create_model("dynunet", spatial_dims=dims, in_channels=1, classes=2, width=16, depth=2)
    theirs = DynUNet(dims, 1, 2, (3, 3, 3), (1, 2, 2), (2, 2), filters=(16, 32, 64))
    pairs = [
        (ours.encoder[2].conv2.conv.weight, theirs.bottleneck.conv2.conv.weight),
        (ours.decoder[0].transp_conv.conv.weight, theirs.upsamples[0].transp_conv.conv.weight),
    ]
    for own, other in pairs:
        assert own.std().item() == pytest.approx(other.std().item(), rel=0.05)
    assert not ours.head.bias.any()


def test_a_thin_volume_is_cropped_on_the_way_up():
    model = create_model("dynunet", spatial_dims=3, in_channels=1, classes=2, width=2, depth=2)
    output = model(torch.randn(1, 1, 5, 21, 34))
    assert [tuple(tap.shape[2:]) for tap in output.taps] == [(5, 21, 34), (3, 11, 17), (2, 6, 9)]
    assert output.penultimate.shape == (1, 2, 5, 21, 34)
