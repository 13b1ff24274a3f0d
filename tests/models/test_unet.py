"""U-Nets against MONAI's own, against the printed sizes, and the residual one against its formula."""

import pytest
import torch
import torch.nn.functional as F
from monai.networks.nets import BasicUNet, BasicUNetPlusPlus
from monai.networks.nets.basic_unet import UpCat

from fakes.networks import count_parameters, meta_network
from models import create_model
from models.unet import STYLE

FEATURES = (4, 8, 16, 32, 64, 4)


def assert_same(ours, theirs, dims):
    theirs.load_state_dict(dict(zip(theirs.state_dict(), ours.state_dict().values(), strict=True)))
    x = torch.randn(2, 1, *(35,) * dims)
    prediction = theirs.eval()(x)
    prediction = prediction[0] if isinstance(prediction, list) else prediction
    torch.testing.assert_close(ours.eval()(x).prediction, prediction, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2])
def test_predictions_are_those_of_monais_unet(dims):
    ours = create_model("unet", spatial_dims=dims, in_channels=1, classes=3, width=4)
    theirs = BasicUNet(dims, 1, 3, FEATURES, **STYLE)
    # MONAI's last up-convolution does not halve the channels, the paper's does.
    theirs.upcat_1 = UpCat(dims, 8, 4, 4, **STYLE)
    assert_same(ours, theirs, dims)


@pytest.mark.parametrize("dims", [1, 2])
def test_predictions_are_those_of_monais_nested_unet(dims):
    ours = create_model("unet_plus_plus", spatial_dims=dims, in_channels=1, classes=3, width=4)
    theirs = BasicUNetPlusPlus(dims, 1, 3, FEATURES, **STYLE)
    for column in range(1, 5):
        setattr(theirs, f"upcat_0_{column}", UpCat(dims, 8, 4 * column, 4, **STYLE))
        if column < 4:
            delattr(theirs, f"final_conv_0_{column}")
            setattr(theirs, f"final_conv_0_{column}", torch.nn.Identity())
    assert_same(ours, theirs, dims)


def test_the_size_of_the_papers_unet():
    # With batch norm and two classes, as the public PyTorch implementations have it.
    model = meta_network("unet", classes=2)
    assert count_parameters(model) == 31_037_698
    assert count_parameters(model.head) == 64 * 2 + 2


@pytest.mark.parametrize(("depth", "grids"), [(1, [21, 10]), (3, [21, 10, 5, 2])])
def test_private_and_proxy_may_differ_in_depth(depth, grids):
    model = create_model("unet", spatial_dims=1, in_channels=1, classes=2, width=2, depth=depth)
    output = model(torch.randn(2, 1, 21))
    assert [tap.shape[2] for tap in output.taps] == grids
    assert [tap.shape[1] for tap in output.taps] == [2 * 2**level for level in range(depth + 1)]


def test_the_residual_unet_is_residual_at_every_stage():
    model = create_model("res_unet", spatial_dims=2, in_channels=1, classes=2, width=4, depth=2)
    units = [model.encoder[0], *(stage[1] for stage in model.encoder[1:]), *(up.convs for up in model.decoder)]
    for residual in units:
        torch.nn.init.zeros_(residual.branch[-1].weight)
    x = torch.randn(2, 1, 20, 12)
    output = model.eval()(x)
    near = model.encoder[0].shortcut(x).relu()
    middle = model.encoder[1][1].shortcut(F.max_pool2d(near, 2)).relu()
    torch.testing.assert_close(output.taps[1], middle)
    output.prediction.square().sum().backward()
    assert model.encoder[0].shortcut[0].weight.grad.any()


def test_the_residual_unet_interpolates_on_the_way_up():
    model = create_model("res_unet", spatial_dims=2, in_channels=1, classes=2, width=4, depth=1).eval()
    output = model(torch.randn(2, 1, 9, 7))
    enlarged = F.interpolate(output.bottleneck, size=(9, 7), mode="bilinear")
    torch.testing.assert_close(output.penultimate, model.decoder[0].convs(torch.cat([output.taps[0], enlarged], 1)))
