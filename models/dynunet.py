"""The U-Net of nnU-Net, as MONAI's DynUNet has it, in one, two and three dimensions."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from models.blocks import conv, crop, run_stages
from models.lean_monai import load_monai
from models.network import WEIGHTED, Network, Output, Sizes

WIDTHS_MAX = {1: 512, 2: 512, 3: 320}
"""By number of dimensions, the most channels of a stage at a width of 32, as nnU-Net bounds its memory."""
WIDTH = 32
SLOPE = 0.01  # of the leaky ReLU, and of the initialisation for it
STYLE: dict[str, Any] = {
    "norm_name": ("INSTANCE", {"affine": True}),
    "act_name": ("leakyrelu", {"inplace": True, "negative_slope": SLOPE}),
}


class DynUNet(Network):
    """U-Net of nnU-Net: strided convolutions, instance norm, leaky ReLU; taps as :class:`models.unet.UNet`.

    Source: Isensee et al. 2021 (nnU-Net), of the blocks of MONAI's DynUNet.
    Differs: kernels of 3 and strides of 2 along every axis, without deep supervision and residual
        blocks. An odd side is cropped on the way up, so that any size fits. The bound of the
        channels, 320 in volumes and else 512, grows and falls with ``width``.
    Shapes: ``x (b, in_channels, *space)``, each side more than ``2**depth``; taps
        ``(b, c_i, *space_i)`` at 1/1 to ``1/2**depth`` with ``c_i = width * 2**i`` up to the bound,
        bottleneck the last one; penultimate ``(b, width, *space)``; prediction
        ``(b, classes, *space)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the first stage, and of the head's input.
        depth: number of halvings of the grid, 1 to 6.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size or the depth is out of range, or the input does not fit.
    Example:
        >>> model = DynUNet(name="dynunet", spatial_dims=3, in_channels=1, classes=2, width=2, depth=2)
        >>> output = model(torch.zeros(1, 1, 9, 8, 12))
        >>> output.prediction.shape, [tuple(tap.shape[1:]) for tap in output.taps]
        (torch.Size([1, 2, 9, 8, 12]), [(2, 9, 8, 12), (4, 5, 4, 6), (8, 3, 2, 3)])
    """

    head_name = "final_conv"

    def __init__(self, *, width: int = WIDTH, depth: int = 4, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width, "depth": depth}, **sizes)
        load_monai()
        from monai.networks.blocks.dynunet_block import UnetBasicBlock, UnetUpBlock

        dims = sizes["spatial_dims"]
        widths = [min(width * 2**level, WIDTHS_MAX[dims] * width // WIDTH) for level in range(depth + 1)]
        steps = list(pairwise(widths))
        self.encoder = nn.ModuleList([UnetBasicBlock(dims, sizes["in_channels"], width, 3, 1, **STYLE)])
        self.encoder.extend(UnetBasicBlock(dims, above, below, 3, 2, **STYLE) for above, below in steps)
        self.decoder = nn.ModuleList(
            UnetUpBlock(dims, below, above, 3, 2, upsample_kernel_size=2, **STYLE) for above, below in reversed(steps)
        )
        self.final_conv = conv(dims, width, sizes["classes"], 1, bias=True)
        self.bottleneck_layer = f"encoder.{depth}"
        self.smallest = 2**depth + 1  # instance norm cannot take the only cell that shorter sides leave
        for module in self.modules():
            if isinstance(module, WEIGHTED) and not module.weight.is_meta:
                nn.init.kaiming_normal_(module.weight, a=SLOPE)
        nn.init.zeros_(self.final_conv.get_parameter("bias"))

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = run_stages(self.encoder, x)
        feature = taps[-1]
        for up, skip in zip(self.decoder, reversed(taps[:-1]), strict=True):
            enlarged = crop(up.get_submodule("transp_conv")(feature), skip.shape[2:])
            feature = up.get_submodule("conv_block")(torch.cat((enlarged, skip), dim=1))
        return Output(self.final_conv(feature), tuple(taps), taps[-1], feature)
