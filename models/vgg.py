"""VGG with batch norm in 1-D, 2-D and 3-D, and the FCN-8s that segments with its layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import MAX_POOL, TRANSPOSED, batch_norm, conv, conv_norm_act, crop, initialise, run_stages
from models.classifier import Classifier
from models.network import Network, Output, Sizes

# Channels of the five stages, in units of width.
FACTORS = (1, 2, 4, 8, 8)
VGG16 = (2, 2, 3, 3, 3)
LONE_SIDE = 16
"""The last stage's batch norms see the grid that four poolings leave."""


class VGG(Classifier):
    """VGG with batch norm; its taps are the five pooled stages.

    Source: Simonyan and Zisserman 2015, with batch norm; VGG19-BN is one of MH-pFLID's clients.
    Differs: the mean over space and one linear layer instead of three, whose 18.9 M parameters
        MH-pFLID's client has. Convolutions have no bias, which batch norm would cancel. The pools
        have ``ceil_mode``, so that no side vanishes.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps ``(b, c_i, *space_i)`` at
        1/2 to 1/32 with ``c_i`` = 1, 2, 4, 8, 8 times ``width``; penultimate ``(b, 8 * width)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        layers: convolutions of each stage.
        width: channels of the first stage.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> output = vgg11(spatial_dims=2, in_channels=3, classes=5, width=2)(torch.zeros(2, 3, 64, 64))
        >>> [tuple(tap.shape[1:]) for tap in output.taps]
        [(2, 32, 32), (4, 16, 16), (8, 8, 8), (16, 4, 4), (16, 2, 2)]
    """

    def __init__(
        self,
        *,
        layers: Sequence[int],
        width: int = 64,
        projection: int | None = None,
        norm: str = "batch",
        **sizes: Unpack[Sizes],
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        self.stem = nn.Identity()
        self.stages = _stages(spatial_dims, in_channels, width, layers)
        self.add_head(FACTORS[-1] * width)
        initialise(self.modules())
        self.set_norm(lone_side=LONE_SIDE)


def _stages(dims: int, channels: int, width: int, layers: Sequence[int]) -> nn.ModuleList:
    stages = nn.ModuleList()
    for count, factor in zip(layers, FACTORS, strict=True):
        stage = nn.Sequential()
        for _ in range(count):
            stage.extend(conv_norm_act(dims, channels, factor * width, 3))
            channels = factor * width
        stages.append(stage.append(MAX_POOL[dims](2, ceil_mode=True)))
    return stages


class FCN(Network):
    """FCN-8s on VGG16 with batch norm; its taps are the encoder's five stages.

    Source: Long et al. 2015, in the form of MH-pFLID's client: five transposed convolutions 3 wide,
        each of which doubles the grid, with the fourth and the third stage added on the way up, and
        a head that takes 32 features.
    Differs: from Long et al., who score each stage and enlarge the scores; VGG's fully connected
        layers (119 of their 134 M parameters) are left out. From MH-pFLID's client, the grids are
        cropped to those on the way down, so that any size fits.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; taps ``(b, c_i, *space_i)`` at
        1/2 to 1/32 with ``c_i`` = 1, 2, 4, 8, 8 times ``width``; bottleneck the last of them;
        penultimate ``(b, width // 2, *space)``; prediction ``(b, classes, *space)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the first stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, width is odd, or the input does not fit.
    Example:
        >>> import torch
        >>> output = FCN(name="fcn8s", spatial_dims=2, in_channels=3, classes=2, width=4)(torch.zeros(2, 3, 40, 36))
        >>> output.prediction.shape, output.penultimate.shape, output.bottleneck.shape
        (torch.Size([2, 2, 40, 36]), torch.Size([2, 2, 40, 36]), torch.Size([2, 32, 2, 2]))
    """

    head_name = "final_conv"

    def __init__(self, *, width: int = 64, norm: str = "batch", **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        self.encoder = _stages(spatial_dims, in_channels, width, VGG16)
        widths = (8 * width, 8 * width, 4 * width, 2 * width, width, width // 2)
        self.ups = nn.ModuleList(
            TRANSPOSED[spatial_dims](channels, out, 3, stride=2, padding=1, output_padding=1)
            for channels, out in pairwise(widths)
        )
        self.norms = nn.ModuleList(batch_norm(spatial_dims, out) for out in widths[1:])
        self.bottleneck_layer = f"encoder.{len(self.encoder) - 1}"
        self.final_conv = conv(spatial_dims, widths[-1], classes, 1, bias=True)
        initialise(self.encoder.modules())
        self.set_norm(lone_side=LONE_SIDE)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.encoder, x)
        grids = [above.shape[2:] for above in reversed([x, *taps[:-1]])]
        added = {0: taps[3], 1: taps[2]}
        feature = taps[-1]
        for index, (up, normalise) in enumerate(zip(self.ups, self.norms, strict=True)):
            feature = F.relu(crop(up(feature), grids[index]))
            feature = normalise(feature + added[index] if index in added else feature)
        return Output(self.final_conv(feature), tuple(taps), taps[-1], feature)


vgg11 = partial(VGG, name="vgg11", layers=(1, 1, 2, 2, 2))
vgg16 = partial(VGG, name="vgg16", layers=VGG16)
vgg19 = partial(VGG, name="vgg19", layers=(2, 2, 4, 4, 4))
