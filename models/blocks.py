"""Building blocks in one, two and three dimensions; every convolution keeps the grid or divides it.

A convolution or pooling of stride s turns a side of n into ⌈n/s⌉, so that no side ever vanishes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CONVOLUTION: dict[int, type[nn.Module]] = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED: dict[int, type[nn.Module]] = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
BATCH_NORM: dict[int, type[nn.Module]] = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
MAX_POOL: dict[int, type[nn.Module]] = {1: nn.MaxPool1d, 2: nn.MaxPool2d, 3: nn.MaxPool3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
"""Interpolation mode by number of dimensions."""

GROUPS_MAX = 32
GROUP_CHANNELS_MIN = 16
"""Group norm's divisions with the lowest errors in table 3 of Wu and He 2018: 32 groups, or 16 channels in each."""


def conv(
    dims: int, channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1, bias: bool = False
) -> nn.Module:
    """Build a convolution with an odd kernel that keeps the grid at stride 1."""
    return CONVOLUTION[dims](channels, out, kernel, stride=stride, padding=kernel // 2, groups=groups, bias=bias)


def batch_norm(dims: int, channels: int) -> nn.Module:
    """Build a batch norm of ``dims`` dimensions."""
    return BATCH_NORM[dims](channels)


def group_norm(channels: int) -> nn.GroupNorm:
    """Build a group norm with the most groups that divide the channels: at most 32, of at least 16 channels each.

    Below 32 channels, and where no divisor fits, it has one group, as layer norm has. So a group has several values
    even where one cell is left: a single one would always become 0, and two of them plus and minus 1, without a
    gradient.

    Source: Wu and He 2018, table 3.
    Raises:
        ValueError: there is one channel alone.
    Example:
        >>> [group_norm(channels).num_groups for channels in (8, 16, 62, 64, 153, 512, 1280)]
        [1, 1, 2, 4, 9, 32, 32]
    """
    if channels < 2:
        raise ValueError("a group norm of one channel leaves nothing where one cell is left; take a larger width")
    most = min(GROUPS_MAX, max(1, channels // GROUP_CHANNELS_MIN))
    return nn.GroupNorm(max(groups for groups in range(1, most + 1) if channels % groups == 0), channels)


def replace_batch_norms(network: nn.Module) -> None:
    """Replace each batch norm in a network by a group norm, under the same name.

    The result for a sample then does not depend on the other samples of its batch, which differential privacy
    requires.

    Source: De et al. 2022 (arXiv 2204.13650), whose private networks have group norm for batch norm.
    Differs: the number of groups, which is 16 in their networks.
    Raises:
        ValueError: a batch norm has one channel alone.
    Example:
        >>> network = nn.Sequential(nn.Conv1d(1, 64, 3), nn.BatchNorm1d(64))
        >>> replace_batch_norms(network)
        >>> network[1].num_groups, network[1].num_channels
        (4, 64)
    """
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, _BatchNorm):
                setattr(parent, name, group_norm(module.num_features))


def pool(dims: int) -> nn.Module:
    """Build the max pool of most stems: 3 wide, of stride 2."""
    return MAX_POOL[dims](3, stride=2, padding=1)


def conv_norm(dims: int, channels: int, out: int, kernel: int, *, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Build convolution and batch norm, without an activation."""
    return nn.Sequential(conv(dims, channels, out, kernel, stride=stride, groups=groups), batch_norm(dims, out))


def conv_norm_act(
    dims: int,
    channels: int,
    out: int,
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    act: type[nn.Module] = nn.ReLU,
) -> nn.Sequential:
    """Build convolution, batch norm, activation."""
    return conv_norm(dims, channels, out, kernel, stride=stride, groups=groups).append(act())


class Residual(nn.Module):
    """The sum of a branch and a shortcut (by default the identity), then an optional activation."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None, act: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut, self.act = branch, shortcut, act

    def forward(self, x: Tensor) -> Tensor:
        summed: Tensor = self.branch(x) + (x if self.shortcut is None else self.shortcut(x))
        return summed if self.act is None else self.act(summed)


def run_stages(stages: Iterable[nn.Module], x: Tensor) -> list[Tensor]:
    """Run the stages one after the other; return the features after each."""
    taps = []
    for stage in stages:
        x = stage(x)
        taps.append(x)
    return taps


def resize(x: Tensor, space: Sequence[int]) -> Tensor:
    """Interpolate features ``(b, c, *space)`` on another grid, between the centres of cells."""
    if x.shape[2:] == tuple(space):
        return x
    return F.interpolate(x, size=tuple(space), mode=LINEAR[x.ndim - 2], align_corners=False)


def crop(x: Tensor, space: Sequence[int]) -> Tensor:
    """Cut the leading corner out of a grid that is at least as large."""
    for dim, side in enumerate(space, start=2):
        x = x.narrow(dim, 0, side)
    return x


def mean_over_space(x: Tensor) -> Tensor:
    """Compute the mean over space, with a deterministic gradient on a GPU, too; a vector stays unchanged."""
    return x.flatten(2).mean(2) if x.ndim > 2 else x


def initialise(modules: Iterable[nn.Module]) -> None:
    """Initialise rectified networks as He et al. do, by the fan out, with zero biases."""
    for module in modules:
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            if not module.weight.is_meta:  # a meta tensor has no values, and drawing them takes milliseconds
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)
