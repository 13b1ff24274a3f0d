"""ResNets of basic blocks in one, two and three dimensions: FedSKD's local models, FedDAL's private and proxy ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor

from models.network import Network, Output

# Four stages, of which all but the first halve the grid.
STAGES = 4


class ResNet(Network):
    """ResNet of basic blocks, widths ``c, 2c, 4c, 8c``, with its four stages as taps.

    Source: He et al. 2016, as MONAI builds it (``monai.networks.nets.ResNet``, whose parts and parameter names these
        are); FedSKD uses ResNet-10 of differing width at each site.
    Differs: the shortcut is always the projection ("B", without bias): MONAI's shortcut "A" passes no gradient. The
        stem stride, which FedSKD leaves open, is 2 in 1-D and 2-D, as for ImageNet, and 1 in 3-D, as MONAI has it.
        Pooling is the mean over space, whose gradient is deterministic on a GPU, too.
    Shapes: ``x (b, in_channels, *space)``, any space of at least 1 (in training, more than one value a channel must be
        left at the last stage); taps ``(b, width * 2**i, *space_i)``, post-ReLU; bottleneck and penultimate
        ``(b, 8 * width)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        name: in ``models.MODELS``.
        blocks: of each of the four stages.
        spatial_dims: 1, 2 or 3.
        in_channels: of the input.
        classes: of the prediction.
        width: channels of the first stage; the paper's sites have 64, 62, 60 and 58.
        stem_stride: 1 or 2; None takes 2 in 1-D and 2-D, 1 in 3-D.
        max_pool: whether the stem ends in a max pool of stride 2.
    Raises:
        ValueError: a size is not a positive whole number, ``stem_stride`` is not 1 or 2, or the input does not fit.
    Example:
        >>> import torch
        >>> model = resnet10(spatial_dims=2, in_channels=3, classes=5, width=8)
        >>> output = model(torch.zeros(2, 3, 64, 64))
        >>> output.prediction.shape, [tuple(tap.shape[1:]) for tap in output.taps]
        (torch.Size([2, 5]), [(8, 16, 16), (16, 8, 8), (32, 4, 4), (64, 2, 2)])
    """

    head_name = "fc"

    def __init__(
        self,
        *,
        name: str,
        blocks: Sequence[int],
        spatial_dims: int,
        in_channels: int,
        classes: int,
        width: int = 64,
        stem_stride: int | None = None,
        max_pool: bool = True,
    ) -> None:
        if stem_stride is None:
            stem_stride = 1 if spatial_dims == 3 else 2
        if type(width) is not int or width < 1:
            raise ValueError(f"{name}: width must be a whole number from 1 on, not {width!r}")
        if type(stem_stride) is not int or stem_stride not in (1, 2):
            raise ValueError(f"{name}: stem_stride must be 1 or 2, not {stem_stride!r}")
        if not isinstance(max_pool, bool):
            raise ValueError(f"{name}: max_pool must be true or false, not {max_pool!r}")
        super().__init__(
            name=name,
            spatial_dims=spatial_dims,
            in_channels=in_channels,
            classes=classes,
            hyper={"width": width, "stem_stride": stem_stride, "max_pool": max_pool},
        )
        from monai.networks.nets.resnet import ResNet as MonaiResNet  # takes seconds, and only who builds one needs it

        net = MonaiResNet(
            "basic",
            list(blocks),
            [width * 2**stage for stage in range(STAGES)],
            spatial_dims=spatial_dims,
            n_input_channels=in_channels,
            conv1_t_stride=stem_stride,
            no_max_pool=not max_pool,
            shortcut_type="B",
            bias_downsample=False,
            num_classes=classes,
        )
        self.conv1, self.bn1, self.act = net.conv1, net.bn1, net.act
        self.maxpool = net.maxpool if max_pool else None
        self.layer1, self.layer2, self.layer3, self.layer4 = net.layer1, net.layer2, net.layer3, net.layer4
        self.fc = net.fc
        self.reduction = stem_stride * (2 if max_pool else 1) * 2 ** (STAGES - 1)

    def forward(self, x: Tensor) -> Output:
        """All of :class:`Output` for one batch."""
        self.check_input(x)
        if self.training and x.shape[0] == 1 and all(size <= self.reduction for size in x.shape[2:]):
            raise ValueError(
                f"{self.spec['name']} cannot train on one sample of {tuple(x.shape[2:])}: batch norm needs a batch of "
                f"at least 2, or a side of at least {self.reduction + 1}"
            )
        x = self.act(self.bn1(self.conv1(x)))
        if self.maxpool is not None:
            x = self.maxpool(x)
        taps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            taps.append(x)
        penultimate = x.flatten(2).mean(2)
        return Output(self.fc(penultimate), tuple(taps), penultimate, penultimate)


resnet10 = partial(ResNet, name="resnet10", blocks=(1, 1, 1, 1))
resnet18 = partial(ResNet, name="resnet18", blocks=(2, 2, 2, 2))
resnet34 = partial(ResNet, name="resnet34", blocks=(3, 4, 6, 3))
