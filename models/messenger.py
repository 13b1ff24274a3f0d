"""MH-pFLID's messengers: small networks, alike at all sites, that carry a site's knowledge to the others.

``model.head`` is the messenger's head M_h, and all before the penultimate feature is its body M_b.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import CONVOLUTION, TRANSPOSED, conv, mean_over_space, pool, run_stages
from models.network import Network, Output, Sizes

# Features of the body in units of width: 512 and, for time series, 128, at width 64.
FACTOR = 8
TIME_SERIES_FACTOR = 2
SHORT_SIDE = 48
"""Sides below this get a padding of 3, not 2, at the last convolution, where they would vanish."""

SERIES_STEPS_MIN = 101
"""Shortest series of which the strides of the time-series messenger leave one value."""


class VectorMessenger(Network):
    """The messenger of classification and, in its form for series, of time series; taps are its three blocks.

    Source: MH-pFLID, tables 9 and 10, as its authors run it: three convolutions of stride 2, the
        second depthwise, the third grouped, with max pools between; the mean; batch norm, rectifier
        and a linear layer as head.
    Differs: none from the authors' code; the printed tables have dense convolutions and a second
        linear layer, which contradict the sizes in the paper. 3-D is the same with three
        dimensions. A side below 48 is padded by 3, not 2, at the last convolution, where it would
        vanish.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1, of a series at least 101, and
        in training with batch norm a batch of at least 2; taps ``(b, width, *space_i)`` twice and
        ``(b, 8 * width, *space_3)`` (series: ``2 * width``); penultimate the mean of the last;
        prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        series: whether it is the form for time series.
        width: channels of the first two convolutions.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> output = messenger_classification(spatial_dims=2, in_channels=3, classes=8)(torch.zeros(2, 3, 96, 96))
        >>> output.prediction.shape, [tuple(tap.shape[1:]) for tap in output.taps]
        (torch.Size([2, 8]), [(64, 24, 24), (64, 6, 6), (512, 2, 2)])
    """

    head_name = "classifier"

    def __init__(self, *, series: bool, width: int = 64, norm: str = "batch", **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        features = width * (TIME_SERIES_FACTOR if series else FACTOR)
        self.body = nn.Sequential(
            conv(spatial_dims, in_channels, width, 3, stride=2, bias=True),
            conv(spatial_dims, width, width, 5, stride=2, groups=width, bias=True),
            CONVOLUTION[spatial_dims](width, features, 7, stride=2, padding=2, groups=width),
        )
        self.pool = nn.MaxPool1d(7, stride=3, padding=2) if series else pool(spatial_dims)
        self.classifier = nn.Sequential(nn.BatchNorm1d(features), nn.ReLU(), nn.Linear(features, classes))
        self.series = series
        self.smallest = SERIES_STEPS_MIN if series else 1
        self.set_norm(lone_side=math.inf)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        first, second, third = self.body
        near = self.pool(F.relu(first(x)))
        middle = self.pool(F.relu(second(near)))
        short = [0 if self.series or side >= SHORT_SIDE else 1 for side in x.shape[2:]]
        far = F.relu(third(F.pad(middle, [extra for extra in reversed(short) for _ in range(2)])))
        penultimate = mean_over_space(far)
        return Output(self.classifier(penultimate), (near, middle, far), penultimate, penultimate)


class DenseMessenger(Network):
    """The messenger of segmentation; its taps are its four blocks.

    Source: MH-pFLID, table 10, as its authors run it: four convolutions, two of them depthwise and
        one grouped, each with a max pool; four transposed convolutions as head.
    Differs: none from the authors' code; the printed table has dense convolutions, which contradict
        the size in the paper, and a rectifier after the last layer. 3-D is the same with
        three dimensions.
    Shapes: ``x (b, in_channels, *space)``, each side a multiple of 16; taps ``(b, c_i, *space_i)``
        at 1/2 to 1/16 with ``c_i`` = ``width`` three times, then ``8 * width``; bottleneck and
        penultimate the last of them; prediction ``(b, classes, *space)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the first three convolutions and of the head.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> model = DenseMessenger(name="messenger_segmentation", spatial_dims=2, in_channels=1, classes=2)
        >>> output = model(torch.zeros(2, 1, 64, 48))
        >>> output.prediction.shape, output.penultimate.shape
        (torch.Size([2, 2, 64, 48]), torch.Size([2, 512, 4, 3]))
    """

    head_name = "decoder"
    multiple = 16

    def __init__(self, *, width: int = 64, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width}, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        features = FACTOR * width
        self.body = nn.ModuleList(
            nn.Sequential(layer, nn.ReLU(), pool(spatial_dims))
            for layer in (
                conv(spatial_dims, in_channels, width, 3, bias=True),
                conv(spatial_dims, width, width, 5, groups=width, bias=True),
                conv(spatial_dims, width, width, 7, groups=width, bias=True),
                conv(spatial_dims, width, features, 7, groups=width, bias=True),
            )
        )
        up = partial(TRANSPOSED[spatial_dims], kernel_size=2, stride=2)
        self.decoder = nn.Sequential(up(features, width))
        for out in (width, width, classes):
            self.decoder.extend([nn.ReLU(), up(width, out)])

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.body, x)
        return Output(self.decoder(taps[-1]), tuple(taps), taps[-1], taps[-1])


messenger_classification = partial(VectorMessenger, name="messenger_classification", series=False)
messenger_time_series = partial(VectorMessenger, name="messenger_time_series", series=True)
