"""ResNets against the printed sizes, and against MONAI's own."""

from functools import partial

import pytest
import torch
from monai.networks.nets import ResNet as MonaiResNet

from fakes.networks import count_parameters, meta_network
from models.resnet import (
    ResNet,
    resnet5,
    resnet8,
    resnet10,
    resnet11,
    resnet17,
    resnet18,
    resnet34,
    resnet50,
    resnet101,
    resnext14,
    se_resnet18,
)

resnext50 = partial(ResNet, name="resnext14", blocks=(3, 4, 6, 3), block="grouped")


@pytest.mark.parametrize(
    ("dims", "millions"),
    [(3, {64: 14.38, 62: 13.50, 60: 12.64, 58: 11.82}), (2, {64: 4.91, 62: 4.60, 60: 4.31, 58: 4.03})],
)
def test_the_sizes_of_the_papers_four_sites(dims, millions):
    sizes = {width: count_parameters(meta_network(resnet10, dims, 2, 7, width=width)) / 1e6 for width in millions}
    assert sizes == pytest.approx(millions, abs=0.005)


@pytest.mark.parametrize(
    ("constructor", "block", "blocks", "widths", "dims", "stride", "side"),
    [
        (resnet10, "basic", [1, 1, 1, 1], [4, 8, 16, 32], 2, 2, 20),
        (resnet10, "basic", [1, 1, 1, 1], [4, 8, 16, 32], 3, 1, 20),
        (resnet17, "bottleneck", [1, 1, 1, 2], [4, 8, 16, 8], 2, 2, 40),
    ],
)
def test_weights_and_predictions_are_those_of_monais_network(constructor, block, blocks, widths, dims, stride, side):
    ours = constructor(spatial_dims=dims, in_channels=1, classes=2, width=4).eval()
    sizes = {"spatial_dims": dims, "n_input_channels": 1, "num_classes": 2}
    theirs = MonaiResNet(block, blocks, widths, conv1_t_stride=stride, bias_downsample=False, **sizes).eval()
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 1, *(side,) * dims)
    torch.testing.assert_close(ours(x).prediction, theirs(x), rtol=1e-5, atol=1e-6)


def test_taps_are_the_rectified_outputs_of_the_four_stages():
    model = resnet10(spatial_dims=2, in_channels=1, classes=2, width=4)
    output = model(torch.randn(2, 1, 64, 64))
    assert [tuple(tap.shape[1:]) for tap in output.taps] == [(4, 16, 16), (8, 8, 8), (16, 4, 4), (32, 2, 2)]
    assert all(tap.min() == 0 for tap in output.taps)
    torch.testing.assert_close(output.taps[-1].mean((2, 3)), output.penultimate)
    assert output.bottleneck is output.penultimate
    x = output.taps[0]
    for stage, tap in zip((model.layer2, model.layer3, model.layer4), output.taps[1:], strict=True):
        x = stage(x)
        torch.testing.assert_close(x, tap)


@pytest.mark.parametrize(
    ("dims", "options", "grids"),
    [
        (3, {}, [12, 6, 3, 2]),
        (3, {"stem_stride": 2}, [6, 3, 2, 1]),
        (3, {"max_pool": False}, [24, 12, 6, 3]),
        (2, {}, [6, 3, 2, 1]),
        (1, {}, [6, 3, 2, 1]),
        (1, {"stem_stride": 1, "max_pool": False}, [24, 12, 6, 3]),
    ],
)
def test_the_stem_sets_the_grids(dims, options, grids):
    model = resnet10(spatial_dims=dims, in_channels=1, classes=2, width=2, **options)
    assert [tap.shape[-1] for tap in model(torch.zeros(2, 1, *(24,) * dims)).taps] == grids


def test_the_shortcuts_pass_gradients():
    # With the residual branch at zero, everything that arrives below the last stage came by the shortcuts.
    model = resnet18(spatial_dims=2, in_channels=1, classes=2, width=4)
    for stage in (model.layer2, model.layer3, model.layer4):
        for block in stage:
            torch.nn.init.zeros_(block.bn2.weight)
    model(torch.randn(4, 1, 64, 64)).prediction.square().sum().backward()
    assert model.conv1.weight.grad.any()


def test_one_sample_too_small_to_train_on_is_refused_with_the_minimum():
    model = resnet10(spatial_dims=2, in_channels=1, classes=2, width=2)
    with pytest.raises(ValueError, match=r"one sample of \(32, 7\): .*a batch of at least 2, or a side of at least 33"):
        model(torch.zeros(1, 1, 32, 7))
    model(torch.zeros(1, 1, 33, 7))
    model(torch.zeros(2, 1, 1, 1))
    model.eval()(torch.zeros(1, 1, 32, 7))


@pytest.mark.parametrize(
    ("constructor", "thousands", "stages"),
    [(resnet17, 3131, 4), (resnet11, 1011, 3), (resnet8, 468, 2), (resnet5, 270, 1)],
)
def test_the_sizes_of_the_bottleneck_clients(constructor, thousands, stages):
    model = meta_network(constructor)
    assert round(count_parameters(model) / 1e3) == thousands
    output = model(torch.empty(2, 3, 64, 64, device="meta"))
    assert output.penultimate.shape == (2, 512)
    assert len(output.taps) == stages


@pytest.mark.parametrize(
    ("constructor", "published"),
    [
        (resnet18, 11_689_512),
        (resnet34, 21_797_672),
        (resnet50, 25_557_032),
        (resnet101, 44_549_160),
        (se_resnet18, 11_778_592),
        (resnext50, 25_028_904),
    ],
)
def test_the_sizes_that_others_print_for_imagenet(constructor, published):
    assert count_parameters(meta_network(constructor, classes=1000)) == published


def test_a_squeezed_block_rescales_its_channels():
    block = se_resnet18(spatial_dims=2, in_channels=1, classes=2, width=8).eval().layer1[0]
    conv1, bn1, _, conv2, bn2, squeeze = block.branch
    x = torch.randn(2, 8, 6, 6)
    y = bn2(conv2(bn1(conv1(x)).relu()))
    gate = torch.sigmoid(squeeze.fc[2](squeeze.fc[0](y.mean((2, 3))).relu()))
    torch.testing.assert_close(block(x), (x + y * gate[:, :, None, None]).relu())


def test_a_grouped_block_sees_only_its_group():
    block = resnext14(spatial_dims=2, in_channels=1, classes=2, width=16).eval().layer1[0]
    grouped = block.branch[3]
    x = torch.randn(1, 32, 4, 4, requires_grad=True)
    grouped(x)[0, 5].sum().backward()
    assert x.grad.abs().sum((0, 2, 3)).nonzero().flatten().tolist() == [5]
    assert (grouped.groups, grouped.in_channels) == (32, 32)
