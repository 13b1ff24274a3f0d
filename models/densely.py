"""DenseNet-50-BC in one, two and three dimensions: one of MH-pFLID's clients."""

from __future__ import annotations

from typing import Unpack

from torch import nn

from models.classifier import Classifier
from models.lean_monai import load_monai
from models.network import Sizes

BLOCKS = (7, 7, 7)


class DenseNet(Classifier):
    """DenseNet-BC of three dense blocks with seven layers each; its taps are the blocks.

    Source: Huang et al. 2017 as MONAI builds it (``monai.networks.nets.DenseNet``); MH-pFLID's
        client has growth 12 after 24 initial features.
    Differs: MH-pFLID's stem is one convolution 3 wide of stride 1, for small images; MONAI's, here,
        is 7 wide and has stride 2 and a max pool.
    Shapes: ``x (b, in_channels, *space)``, each side at least 13; taps ``(b, c_i, *space_i)`` at
        1/4, 1/8 and 1/16 with 108, 138 and 153 channels at width 24; penultimate ``(b, 153)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: features of the stem, twice the growth of each layer.
        projection: features that the head takes; None takes those of the last block.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, width is odd, or the input does not fit.
    Example:
        >>> import torch
        >>> model = DenseNet(name="densenet50", spatial_dims=2, in_channels=3, classes=5)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 3, 64, 64)).taps]
        [(108, 16, 16), (138, 8, 8), (153, 4, 4)]
    """

    def __init__(
        self, *, width: int = 24, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        spatial_dims, in_channels, classes = sizes["spatial_dims"], sizes["in_channels"], sizes["classes"]
        load_monai()
        from monai.networks.nets import DenseNet as MonaiDenseNet

        net = MonaiDenseNet(
            spatial_dims, in_channels, classes, init_features=width, growth_rate=width // 2, block_config=BLOCKS
        )
        layers = net.features
        self.stem = nn.Sequential(layers.conv0, layers.norm0, layers.relu0, layers.pool0)
        self.stages = nn.ModuleList(
            (
                layers.denseblock1,
                nn.Sequential(layers.transition1, layers.denseblock2),
                nn.Sequential(layers.transition2, layers.denseblock3, layers.norm5, nn.ReLU()),
            )
        )
        self.add_head(layers.norm5.num_features)
        # The stem leaves a quarter of the side, rounded up; each transition half of that, rounded down.
        self.smallest = 13
        self.set_norm(lone_side=28)
