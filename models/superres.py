"""Super-resolution in 1-D, 2-D and 3-D: SRResNet of three depths, SRCNN and bicubic interpolation, dFLMoE's rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Unpack

import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import LINEAR, Residual, conv, conv_norm, run_stages
from models.lean_monai import load_monai
from models.network import Network, Output, Sizes


class SRResNet(Network):
    """Residual blocks on the small grid, then enlargement by pixel shuffles; its taps are thirds of the blocks.

    Source: Ledig et al. 2017 (SRResNet); dFLMoE's sites have 18, 12 and 6 blocks for scales 8, 4
        and 2. The pixel shuffle is MONAI's SubpixelUpsample.
    Differs: dFLMoE's table 8 prints 0.001 M parameters for the head and 7.321 M on average for the
        networks, and no sizes; with Ledig's they are 0.0156 M and 1.251 M.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1; four taps
        ``(b, width, *space)``, after the first convolution and each third of the blocks; bottleneck
        the same, after the long skip; penultimate ``(b, width, *(scale * space))``; prediction
        ``(b, classes, *(scale * space))``, an image whose channels are ``classes``.
    Gradient flow: through everything.
    Args:
        blocks: number of residual blocks, a multiple of 3.
        width: channels of all features.
        scale: enlargement factor of the sides: 2, 4 or 8.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, the scale is another, or the input does
            not fit.
    Example:
        >>> import torch
        >>> model = srresnet6(spatial_dims=2, in_channels=3, classes=3, width=4, scale=2)
        >>> output = model(torch.zeros(2, 3, 12, 10))
        >>> output.prediction.shape, output.penultimate.shape, output.bottleneck.shape
        (torch.Size([2, 3, 24, 20]), torch.Size([2, 4, 24, 20]), torch.Size([2, 4, 12, 10]))
    """

    head_name = "last"

    def __init__(
        self, *, blocks: int, width: int = 64, scale: int = 4, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "scale": scale}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        load_monai()
        from monai.networks.blocks import SubpixelUpsample

        self.first = nn.Sequential(conv(spatial_dims, in_channels, width, 9, bias=True), nn.PReLU())
        self.stages = nn.ModuleList(
            nn.Sequential(*(_block(spatial_dims, width) for _ in range(blocks // 3))) for _ in range(3)
        )
        self.skipped = conv_norm(spatial_dims, width, width, 3)
        self.up = nn.Sequential()
        for _ in range(scale.bit_length() - 1):
            self.up.append(SubpixelUpsample(spatial_dims, width, width, 2, apply_pad_pool=False)).append(nn.PReLU())
        self.last = conv(spatial_dims, width, classes, 9, bias=True)
        self.set_norm(lone_side=1)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages([self.first, *self.stages], x)
        bottleneck = taps[0] + self.skipped(taps[-1])
        penultimate = self.up(bottleneck)
        return Output(self.last(penultimate), tuple(taps), bottleneck, penultimate)


def _block(dims: int, width: int) -> nn.Module:
    return Residual(conv_norm(dims, width, width, 3).append(nn.PReLU()).extend(conv_norm(dims, width, width, 3)))


class SRCNN(Network):
    """Three convolutions (9-1-5) on the enlarged image; its taps are the first two.

    Source: Dong et al. 2014, which dFLMoE calls "RCNN": 64 and 32 features.
    Differs: padding keeps the grid. The cubic interpolation, which PyTorch has in 2-D alone, is
        linear in 1-D and 3-D.
    Shapes: ``x (b, in_channels, *space)``, the small image, any space of at least 1; taps
        ``(b, width, *large)`` and ``(b, width // 2, *large)`` with ``large = scale * space``, or
        ``side`` in each dimension; bottleneck and penultimate the second of them; prediction
        ``(b, classes, *large)``, an image whose channels are ``classes``.
    Gradient flow: through everything.
    Args:
        width: features of the first convolution, twice those of the second.
        scale: enlargement factor of the sides: 2, 4 or 8.
        side: the sides of the large image, in place of ``scale``: one network for sites that
            enlarge by different factors.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, width is odd, the scale is another, or
            the input does not fit.
    Example:
        >>> import torch
        >>> model = SRCNN(name="srcnn", spatial_dims=2, in_channels=3, classes=3, scale=2)
        >>> model(torch.zeros(2, 3, 12, 10)).prediction.shape, model.head
        (torch.Size([2, 3, 24, 20]), Conv2d(32, 3, kernel_size=(5, 5), stride=(1, 1), padding=(2, 2)))
    """

    head_name = "last"

    def __init__(self, *, width: int = 64, scale: int = 4, side: int | None = None, **sizes: Unpack[Sizes]) -> None:
        enlargement = {"scale": scale} if side is None else {"side": side}
        super().__init__(hyper={"width": width, **enlargement}, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        self.stages = nn.ModuleList(
            (
                nn.Sequential(conv(spatial_dims, in_channels, width, 9, bias=True), nn.ReLU()),
                nn.Sequential(conv(spatial_dims, width, width // 2, 1, bias=True), nn.ReLU()),
            )
        )
        self.last = conv(spatial_dims, width // 2, classes, 5, bias=True)

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.stages, _enlarge(x, self.spec["hyper"]))
        return Output(self.last(taps[-1]), tuple(taps), taps[-1], taps[-1])


class Bicubic(Network):
    """Bicubic interpolation, and a 1-1 convolution that starts as the identity: a floor for networks that learn.

    Source: dFLMoE's row "Bicubic".
    Differs: the row has no weights. The convolution is what a daemon can train; at a learning rate
        near 0 it stays the identity. The cubic interpolation is linear in 1-D and 3-D.
    Shapes: as of :class:`SRCNN`; no taps; bottleneck and penultimate are the enlarged image.
        Channels of the prediction beyond those of the input start at 0.
    Gradient flow: to the convolution.
    Args:
        scale: enlargement factor of the sides: 2, 4 or 8.
        side: the sides of the large image, in place of ``scale``.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: the scale is another, or the input does not fit.
    Example:
        >>> import torch
        >>> model = Bicubic(name="bicubic", spatial_dims=2, in_channels=3, classes=3, scale=2)
        >>> x = torch.rand(1, 3, 6, 6)
        >>> torch.equal(model(x).prediction, F.interpolate(x, scale_factor=2, mode="bicubic"))
        True
    """

    head_name = "last"

    def __init__(self, *, scale: int = 4, side: int | None = None, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"scale": scale} if side is None else {"side": side}, **sizes)
        self.last = conv(sizes["spatial_dims"], sizes["in_channels"], sizes["classes"], 1, bias=True)
        nn.init.dirac_(self.last.get_parameter("weight"))
        nn.init.zeros_(self.last.get_parameter("bias"))

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        enlarged = _enlarge(x, self.spec["hyper"])
        return Output(self.last(enlarged), (), enlarged, enlarged)


def _enlarge(x: Tensor, hyper: Mapping[str, int]) -> Tensor:
    """Enlarge images to ``side`` in each dimension, or ``scale`` times: cubic in 2-D, linear in 1-D and 3-D."""
    dims = x.ndim - 2
    size = [hyper["side"]] * dims if "side" in hyper else [hyper["scale"] * length for length in x.shape[2:]]
    return F.interpolate(x, size=size, mode="bicubic" if dims == 2 else LINEAR[dims])


srresnet18 = partial(SRResNet, name="srresnet18", blocks=18)
srresnet12 = partial(SRResNet, name="srresnet12", blocks=12)
srresnet6 = partial(SRResNet, name="srresnet6", blocks=6)
