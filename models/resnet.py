"""Residual networks in 1-D, 2-D and 3-D: FedSKD's models, dFLMoE's and MH-pFLID's clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Unpack

from torch import Tensor, nn

from models.blocks import Residual, batch_norm, conv, conv_norm, conv_norm_act, initialise, pool, run_stages
from models.classifier import Classifier
from models.lean_monai import load_monai
from models.network import Sizes

# Output channels of a block for each channel of its stage.
EXPANSION = {"basic": 1, "bottleneck": 4, "squeeze": 1, "grouped": 4}
GROUPS = 32
"""ResNeXt's cardinality: 32 groups of 4 channels each at width 64."""

REDUCTION = 16
"""SE-ResNet's: channels for each unit of the squeezed layer."""


class ResNet(Classifier):
    """ResNet of stages that each halve the grid of the one before, with the stages as taps.

    =========== ========== ============= =====================
    name        block      blocks        channels, in ``width``
    =========== ========== ============= =====================
    resnet10    basic      1, 1, 1, 1    1, 2, 4, 8
    resnet18    basic      2, 2, 2, 2    1, 2, 4, 8
    resnet34    basic      3, 4, 6, 3    1, 2, 4, 8
    resnet50    bottleneck 3, 4, 6, 3    1, 2, 4, 8
    resnet101   bottleneck 3, 4, 23, 3   1, 2, 4, 8
    resnet17    bottleneck 1, 1, 1, 2    1, 2, 4, 2
    resnet11    bottleneck 1, 1, 1       1, 2, 2
    resnet8     bottleneck 1, 1          1, 2
    resnet5     bottleneck 1             2
    se_resnet18 squeeze    2, 2, 2, 2    1, 2, 4, 8
    resnext14   grouped    1, 1, 1, 1    1, 2, 4, 8
    =========== ========== ============= =====================

    Source: He et al. 2016, of MONAI's blocks (``monai.networks.nets.ResNet``, whose parameter names
        these are): FedSKD uses ResNet-10 of differing width at each site; FedDAL 18, 34 and 101;
        MH-pFLID and dFLMoE 17, 11, 8 and 5, which at width 64 all end in 512 features.
        SE-ResNet-18: Hu et al. 2018, reduction 16. ResNeXt-14 (32x4d): Xie et al. 2017.
    Differs: the shortcut is always the projection ("B", without bias): MONAI's shortcut "A" passes
        no gradient. The stem stride, which FedSKD leaves open, is 2 in 1-D and 2-D, as for
        ImageNet, and 1 in 3-D, as in MONAI. Pooling is the mean over space, whose gradient is
        deterministic on a GPU, too. ResNeXt's first 1x1 convolution is not grouped, as in its
        paper; MH-pFLID's authors group it.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1 (in training with batch norm,
        more than one value a channel must be left at the last stage); taps
        ``(b, factor * width * expansion, *space_i)``, post-ReLU, where the expansion is 4 of
        bottleneck and grouped blocks, else 1; bottleneck and penultimate ``(b, c)`` of the last tap
        or ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        blocks: of each stage.
        block: the kind of block, one of ``EXPANSION``.
        factors: of each stage, its channels in units of ``width``.
        width: channels of the stem; FedSKD's sites have 64, 62, 60 and 58.
        stem_stride: 1 or 2; None takes 2 in 1-D and 2-D, 1 in 3-D.
        max_pool: whether the stem ends in a max pool of stride 2.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, ``stem_stride`` is not 1 or 2,
            resnext14's width is not a multiple of 16, or the input does not fit.
    Example:
        >>> import torch
        >>> model = resnet10(spatial_dims=2, in_channels=3, classes=5, width=8)
        >>> output = model(torch.zeros(2, 3, 64, 64))
        >>> output.prediction.shape, [tuple(tap.shape[1:]) for tap in output.taps]
        (torch.Size([2, 5]), [(8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)])
    """

    def __init__(
        self,
        *,
        blocks: Sequence[int],
        block: str = "basic",
        factors: Sequence[int] = (1, 2, 4, 8),
        width: int = 64,
        stem_stride: int | None = None,
        max_pool: bool = True,
        projection: int | None = None,
        norm: str = "batch",
        **sizes: Unpack[Sizes],
    ) -> None:
        spatial_dims, in_channels = sizes["spatial_dims"], sizes["in_channels"]
        if stem_stride is None:
            stem_stride = 1 if spatial_dims == 3 else 2
        super().__init__(
            hyper={"width": width, "stem_stride": stem_stride, "max_pool": max_pool, "projection": projection},
            norm=norm,
            **sizes,
        )
        self.conv1 = conv(spatial_dims, in_channels, width, 7, stride=stem_stride)
        self.bn1 = batch_norm(spatial_dims, width)
        self.act = nn.ReLU(inplace=True)
        self.maxpool = pool(spatial_dims) if max_pool else nn.Identity()
        channels, self.stage_names = width, [f"layer{index + 1}" for index in range(len(blocks))]
        for stage, count, factor in zip(self.stage_names, blocks, factors, strict=True):
            stride = 1 if stage == "layer1" else 2
            self.add_module(stage, _stage(spatial_dims, block, count, channels, factor * width, stride))
            channels = factor * width * EXPANSION[block]
        self.add_head(channels)
        initialise(self.modules())
        self.set_norm(lone_side=stem_stride * (2 if max_pool else 1) * 2 ** (len(blocks) - 1))

    def features(self, x: Tensor) -> list[Tensor]:
        x = self.maxpool(self.act(self.bn1(self.conv1(x))))
        return run_stages((self.get_submodule(name) for name in self.stage_names), x)


def _stage(dims: int, kind: str, count: int, channels: int, width: int, stride: int) -> nn.Sequential:
    out = width * EXPANSION[kind]
    shortcut = conv_norm(dims, channels, out, 1, stride=stride) if stride != 1 or channels != out else None
    blocks = [_block(dims, kind, channels, width, stride, shortcut)]
    return nn.Sequential(*blocks, *(_block(dims, kind, out, width, 1, None) for _ in range(count - 1)))


def _block(dims: int, kind: str, channels: int, width: int, stride: int, shortcut: nn.Module | None) -> nn.Module:
    load_monai()
    from monai.networks.blocks import ChannelSELayer
    from monai.networks.nets.resnet import ResNetBlock, ResNetBottleneck

    if kind in ("basic", "bottleneck"):
        residual: nn.Module = (ResNetBlock if kind == "basic" else ResNetBottleneck)(
            channels, width, dims, stride, shortcut
        )
        return residual
    if kind == "squeeze":
        branch = conv_norm_act(dims, channels, width, 3, stride=stride).extend(conv_norm(dims, width, width, 3))
        branch.append(ChannelSELayer(dims, width, r=min(REDUCTION, width)))
    else:
        branch = conv_norm_act(dims, channels, 2 * width, 1)
        branch.extend(conv_norm_act(dims, 2 * width, 2 * width, 3, stride=stride, groups=GROUPS))
        branch.extend(conv_norm(dims, 2 * width, width * EXPANSION[kind], 1))
    return Residual(branch, shortcut, nn.ReLU())


resnet10 = partial(ResNet, name="resnet10", blocks=(1, 1, 1, 1))
resnet18 = partial(ResNet, name="resnet18", blocks=(2, 2, 2, 2))
resnet34 = partial(ResNet, name="resnet34", blocks=(3, 4, 6, 3))
resnet50 = partial(ResNet, name="resnet50", blocks=(3, 4, 6, 3), block="bottleneck")
resnet101 = partial(ResNet, name="resnet101", blocks=(3, 4, 23, 3), block="bottleneck")
resnet17 = partial(ResNet, name="resnet17", blocks=(1, 1, 1, 2), block="bottleneck", factors=(1, 2, 4, 2))
resnet11 = partial(ResNet, name="resnet11", blocks=(1, 1, 1), block="bottleneck", factors=(1, 2, 2))
resnet8 = partial(ResNet, name="resnet8", blocks=(1, 1), block="bottleneck", factors=(1, 2))
resnet5 = partial(ResNet, name="resnet5", blocks=(1,), block="bottleneck", factors=(2,))
se_resnet18 = partial(ResNet, name="se_resnet18", blocks=(2, 2, 2, 2), block="squeeze")
resnext14 = partial(ResNet, name="resnext14", blocks=(1, 1, 1, 1), block="grouped")
