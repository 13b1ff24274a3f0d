"""U-Nets in one, two and three dimensions: plain, nested and residual, of any depth."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from models.blocks import MAX_POOL, Residual, conv, conv_norm, conv_norm_act, resize, run_stages
from models.lean_monai import load_monai
from models.network import Network, Output, Sizes

# Of MONAI's blocks: the activation and the norm of all networks here, and no bias before the norm.
STYLE: dict[str, Any] = {"act": "relu", "norm": "batch", "bias": False}


class UNet(Network):
    """U-Net with ``depth`` halvings of the grid; its taps are the encoder's stages, the bottleneck the last one.

    Source: Ronneberger et al. 2015, of the blocks of MONAI's BasicUNet. MH-pFLID, dFLMoE and FedDAL
        use it; FedDAL's private and proxy U-Nets differ in ``width`` and ``depth``. ``res_unet``
        has a residual connection around each double convolution and linear interpolation on the way
        up (Zhang et al. 2018; MH-pFLID's "ResUNet").
    Differs: convolutions keep the grid, batch norm follows each of them, and an odd side is padded
        on the way up. ``res_unet`` is residual on the way up, too, where MH-pFLID's client is not;
        its residual units are those of ResNet, not the pre-activated ones of Zhang et al.
    Shapes: ``x (b, in_channels, *space)``, each side at least ``2**depth`` for ``unet``, any for
        ``res_unet``; taps ``(b, width * 2**i, *space_i)`` at 1/1 to ``1/2**depth``; penultimate
        ``(b, width, *space)``; prediction ``(b, classes, *space)``, logits.
    Gradient flow: through everything.
    Args:
        residual: whether to build the residual one.
        width: channels of the first stage, and of the head's input.
        depth: number of halvings of the grid, 1 to 6.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size or the depth is out of range, or the input does not fit.
    Example:
        >>> output = unet(spatial_dims=2, in_channels=1, classes=2, width=4, depth=2)(torch.zeros(2, 1, 21, 34))
        >>> output.prediction.shape, [tuple(tap.shape[1:]) for tap in output.taps]
        (torch.Size([2, 2, 21, 34]), [(4, 21, 34), (8, 10, 17), (16, 5, 8)])
    """

    head_name = "final_conv"

    def __init__(
        self, *, residual: bool, width: int = 64, depth: int = 4, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "depth": depth}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        first, down, up = (_double, _down, ResidualUp) if residual else _monai_blocks()
        widths = [width * 2**level for level in range(depth + 1)]
        steps = list(pairwise(widths))
        self.encoder = nn.ModuleList([first(spatial_dims, in_channels, width)])
        self.encoder.extend(down(spatial_dims, above, below) for above, below in steps)
        self.decoder = nn.ModuleList(up(spatial_dims, below, above, above) for above, below in reversed(steps))
        self.final_conv = conv(spatial_dims, width, classes, 1, bias=True)
        self.bottleneck_layer = f"encoder.{depth}"
        self.smallest, lone_side = _sides(depth, rounded_up=residual)
        self.set_norm(lone_side=lone_side)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.encoder, x)
        feature = taps[-1]
        for up, skip in zip(self.decoder, reversed(taps[:-1]), strict=True):
            feature = up(feature, skip)
        return Output(self.final_conv(feature), tuple(taps), taps[-1], feature)


class UNetPlusPlus(Network):
    """U-Net++, a U-Net with convolutions on its skips; its taps are the encoder's stages, bottleneck the last one.

    Source: Zhou et al. 2018, of the blocks of MONAI's BasicUNetPlusPlus.
    Differs: no deep supervision: one head, at the last node of the full grid. Widths double from
        stage to stage, batch norm follows each convolution, and an odd side is padded on the way
        up.
    Shapes: as :class:`UNet`: ``x (b, in_channels, *space)``, each side at least ``2**depth``; taps
        ``(b, width * 2**i, *space_i)``; penultimate ``(b, width, *space)``; prediction
        ``(b, classes, *space)``.
    Gradient flow: through everything.
    Args:
        width: channels of the first stage, and of the head's input.
        depth: number of halvings of the grid, 1 to 6.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size or the depth is out of range, or the input does not fit.
    Example:
        >>> model = UNetPlusPlus(name="unet_plus_plus", spatial_dims=3, in_channels=1, classes=2, width=2, depth=2)
        >>> output = model(torch.zeros(2, 1, 9, 8, 12))
        >>> output.prediction.shape, output.bottleneck.shape
        (torch.Size([2, 2, 9, 8, 12]), torch.Size([2, 8, 2, 2, 3]))
    """

    head_name = "final_conv"

    def __init__(self, *, width: int = 64, depth: int = 4, norm: str = "batch", **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width, "depth": depth}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        first, down, up = _monai_blocks()
        widths = [width * 2**level for level in range(depth + 1)]
        self.encoder = nn.ModuleList([first(spatial_dims, in_channels, width)])
        self.encoder.extend(down(spatial_dims, widths[level], widths[level + 1]) for level in range(depth))
        # The paper's node (level, column) takes the node below and all earlier ones of its level.
        self.nodes = nn.ModuleDict(
            {
                f"{level}_{column}": up(spatial_dims, widths[level + 1], widths[level] * column, widths[level])
                for column in range(1, depth + 1)
                for level in range(depth + 1 - column)
            }
        )
        self.final_conv = conv(spatial_dims, width, classes, 1, bias=True)
        self.bottleneck_layer = f"encoder.{depth}"
        self.smallest, lone_side = _sides(depth, rounded_up=False)
        self.set_norm(lone_side=lone_side)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.encoder, x)
        rows = [[tap] for tap in taps]
        for column in range(1, len(taps)):
            for level in range(len(taps) - column):
                node = self.nodes[f"{level}_{column}"]
                rows[level].append(node(rows[level + 1][column - 1], torch.cat(rows[level], dim=1)))
        feature = rows[0][-1]
        return Output(self.final_conv(feature), tuple(taps), taps[-1], feature)


class ResidualUp(nn.Module):
    """Interpolates a feature to the grid of the skip, concatenates both, and convolves them."""

    def __init__(self, dims: int, below: int, skip: int, out: int) -> None:
        super().__init__()
        self.convs = _double(dims, below + skip, out)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Return features on the grid of ``skip``."""
        joined: Tensor = self.convs(torch.cat([skip, resize(x, skip.shape[2:])], dim=1))
        return joined


def _double(dims: int, channels: int, out: int) -> nn.Module:
    shortcut = conv_norm(dims, channels, out, 1) if channels != out else None
    return Residual(conv_norm_act(dims, channels, out, 3).extend(conv_norm(dims, out, out, 3)), shortcut, nn.ReLU())


def _down(dims: int, channels: int, out: int) -> nn.Module:
    return nn.Sequential(MAX_POOL[dims](2, ceil_mode=True), _double(dims, channels, out))


def _monai_blocks() -> tuple[Any, Any, Any]:
    load_monai()
    from monai.networks.nets.basic_unet import Down, TwoConv, UpCat

    return partial(TwoConv, **STYLE), partial(Down, **STYLE), partial(UpCat, **STYLE)


def _sides(depth: int, *, rounded_up: bool) -> tuple[int, int]:
    """Return the shortest side that survives, and the longest that leaves one cell at the bottleneck."""
    return (1, 2**depth) if rounded_up else (2**depth, 2 ** (depth + 1) - 1)


unet = partial(UNet, name="unet", residual=False)
res_unet = partial(UNet, name="res_unet", residual=True)
