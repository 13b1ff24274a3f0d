"""Small classifiers of depthwise, grouped and squeezed convolutions, in 1-D, 2-D and 3-D."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from models.blocks import Residual, conv_norm, conv_norm_act, initialise, pool
from models.classifier import Classifier
from models.network import Sizes


class MobileNetV1(Classifier):
    """MobileNet of depthwise separable convolutions; its taps are the five grids.

    Source: Howard et al. 2017. The default width is x0.5, which MH-pFLID's authors run as their
        "MobileNetV2".
    Differs: none at widths 32, 24, 16 and 8 (x1, x0.75, x0.5, x0.25); any other width scales all
        stages alike.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps
        ``(b, width * 2**(i + 1), *space_i)`` at 1/2 to 1/32; penultimate ``(b, 32 * width)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the stem.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> model = MobileNetV1(name="mobilenet_v1", spatial_dims=2, in_channels=3, classes=5, width=4)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 3, 64, 64)).taps]
        [(8, 32, 32), (16, 16, 16), (32, 8, 8), (64, 4, 4), (128, 2, 2)]
    """

    def __init__(
        self, *, width: int = 16, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        self.stem = conv_norm_act(spatial_dims, in_channels, width, 3, stride=2)
        self.stages = nn.ModuleList()
        channels = width
        for blocks in (1, 2, 2, 6, 2):
            stage, out = nn.Sequential(), channels * 2
            for index in range(blocks):
                stride = 2 if index == 0 and len(self.stages) else 1
                stage.extend(conv_norm_act(spatial_dims, channels, channels, 3, stride=stride, groups=channels))
                stage.extend(conv_norm_act(spatial_dims, channels, out, 1))
                channels = out
            self.stages.append(stage)
        self.add_head(channels)
        initialise(self.modules())
        self.set_norm(lone_side=32)


class MobileNetV2(Classifier):
    """MobileNetV2 of inverted residuals; its taps are the five grids.

    Source: Sandler et al. 2018.
    Differs: a width other than 32 (x1) scales all channels but the last convolution's 1280 alike,
        without rounding them to multiples of 8. No dropout before the head.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps ``(b, c_i, *space_i)`` at
        1/2 to 1/32 with ``c_i`` = 16, 24, 32, 96 in units of ``width / 32``, then 1280; penultimate
        ``(b, 1280)`` or ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the stem, a multiple of 4.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, width is not a multiple of 4, or the
            input does not fit.
    Example:
        >>> model = MobileNetV2(name="mobilenet_v2", spatial_dims=2, in_channels=3, classes=5, width=4)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 3, 64, 64)).taps]
        [(2, 32, 32), (3, 16, 16), (4, 8, 8), (12, 4, 4), (1280, 2, 2)]
    """

    def __init__(
        self, *, width: int = 32, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        self.stem = conv_norm_act(spatial_dims, in_channels, width, 3, stride=2, act=nn.ReLU6)
        self.stages = nn.ModuleList()
        channels, last = width, 1280
        # Expansion, channels at x1, blocks, stride of the first: the paper's table 2, split where the grid halves.
        for rows in (
            [(1, 16, 1, 1)],
            [(6, 24, 2, 2)],
            [(6, 32, 3, 2)],
            [(6, 64, 4, 2), (6, 96, 3, 1)],
            [(6, 160, 3, 2), (6, 320, 1, 1)],
        ):
            stage = nn.Sequential()
            for expansion, paper_channels, blocks, first_stride in rows:
                for index in range(blocks):
                    out = paper_channels * width // 32
                    stride = first_stride if index == 0 else 1
                    stage.append(_inverted(spatial_dims, channels, out, expansion, stride))
                    channels = out
            self.stages.append(stage)
        stage.extend(conv_norm_act(spatial_dims, channels, last, 1, act=nn.ReLU6))
        self.add_head(last)
        initialise(self.modules())
        self.set_norm(lone_side=32)


def _inverted(dims: int, channels: int, out: int, expansion: int, stride: int) -> nn.Module:
    inner = channels * expansion
    branch = nn.Sequential() if expansion == 1 else conv_norm_act(dims, channels, inner, 1, act=nn.ReLU6)
    branch.extend(conv_norm_act(dims, inner, inner, 3, stride=stride, groups=inner, act=nn.ReLU6))
    branch.extend(conv_norm(dims, inner, out, 1))
    return Residual(branch) if stride == 1 and channels == out else branch


class ShuffleNetV2(Classifier):
    """ShuffleNetV2; its taps are the three stages.

    Source: Ma et al. 2018. The default width is x0.5; 116, 176 and 244 are x1, x1.5 and x2.
    Differs: at x2 the paper's last convolution has 2048 channels, here 1024 at any width.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps ``(b, c_i, *space_i)`` at
        1/8, 1/16 and 1/32 with ``c_i`` = ``width``, ``2 * width``, 1024; penultimate ``(b, 1024)``
        or ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the first stage, even.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, width is odd, or the input does not fit.
    Example:
        >>> model = ShuffleNetV2(name="shufflenet_v2", spatial_dims=2, in_channels=3, classes=5, width=8)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 3, 64, 64)).taps]
        [(8, 8, 8), (16, 4, 4), (1024, 2, 2)]
    """

    def __init__(
        self, *, width: int = 48, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        channels, last = 24, 1024
        self.stem = conv_norm_act(spatial_dims, in_channels, channels, 3, stride=2).append(pool(spatial_dims))
        self.stages = nn.ModuleList()
        for blocks, out in ((4, width), (8, 2 * width), (4, 4 * width)):
            stage = nn.Sequential(ShuffleUnit(spatial_dims, channels, out, stride=2))
            stage.extend(ShuffleUnit(spatial_dims, out, out, stride=1) for _ in range(blocks - 1))
            self.stages.append(stage)
            channels = out
        stage.extend(conv_norm_act(spatial_dims, channels, last, 1))
        self.add_head(last)
        initialise(self.modules())
        self.set_norm(lone_side=32)


class ShuffleUnit(nn.Module):
    """Convolves half of the channels and interleaves the others; at stride 2 uses all twice."""

    def __init__(self, dims: int, channels: int, out: int, *, stride: int) -> None:
        super().__init__()
        half, convolved = out // 2, channels if stride == 2 else channels // 2
        self.short = None if stride == 1 else _separable(dims, channels, half, stride)
        self.long = conv_norm_act(dims, convolved, half, 1).extend(_separable(dims, half, half, stride))

    def forward(self, x: Tensor) -> Tensor:
        if self.short is None:
            short, x = x.chunk(2, dim=1)
        else:
            short = self.short(x)
        return torch.stack([short, self.long(x)], dim=2).flatten(1, 2)


def _separable(dims: int, channels: int, out: int, stride: int) -> nn.Sequential:
    depthwise = conv_norm(dims, channels, channels, 3, stride=stride, groups=channels)
    return depthwise.extend(conv_norm_act(dims, channels, out, 1))


class SqueezeNet(Classifier):
    """SqueezeNet with simple bypass; its taps are the features before each pooling and the last ones.

    Source: Iandola et al. 2016, version 1.0 with the bypass of its fig. 2.
    Differs: batch norm after each convolution, for training from scratch. The convolutional
        classifier is a linear layer after the mean, which is the same but for the rectifier between
        them. No dropout.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps ``(b, c_i, *space_i)`` at
        1/4, 1/8 and 1/16 with ``c_i`` = 16, 32, 32 times ``width``; penultimate ``(b, 32 * width)``
        or ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels that the first module squeezes to.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> model = SqueezeNet(name="squeezenet", spatial_dims=2, in_channels=3, classes=5, width=2)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 3, 64, 64)).taps]
        [(32, 16, 16), (64, 8, 8), (64, 4, 4)]
    """

    def __init__(
        self, *, width: int = 16, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        channels = 6 * width
        self.stem = conv_norm_act(spatial_dims, in_channels, channels, 7, stride=2).append(pool(spatial_dims))
        self.stages = nn.ModuleList()
        # The channels that each module squeezes to, in units of width; a module with as many
        # outputs as inputs has a bypass.
        for squeezed in ((1, 1, 2), (2, 3, 3, 4), (4,)):
            stage = nn.Sequential()
            if len(self.stages):
                stage.append(pool(spatial_dims))
            for factor in squeezed:
                fire = Fire(spatial_dims, channels, factor * width)
                stage.append(Residual(fire) if channels == fire.out else fire)
                channels = fire.out
            self.stages.append(stage)
        self.add_head(channels)
        initialise(self.modules())
        self.set_norm(lone_side=16)


class Fire(nn.Module):
    """Squeezes to few channels, then expands them by convolutions 1 wide and 3 wide."""

    def __init__(self, dims: int, channels: int, squeezed: int) -> None:
        super().__init__()
        self.out = 8 * squeezed
        self.squeeze = conv_norm_act(dims, channels, squeezed, 1)
        self.narrow = conv_norm_act(dims, squeezed, 4 * squeezed, 1)
        self.wide = conv_norm_act(dims, squeezed, 4 * squeezed, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze(x)
        return torch.cat([self.narrow(x), self.wide(x)], dim=1)
