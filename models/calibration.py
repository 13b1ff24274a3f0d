r"""LC-Fed's calibrations of a segmentation network, in one, two and three dimensions.

They select channels for a site, and amplify the feature where the heads of several sites disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import conv

REDUCTION = 16
"""Features of a bottleneck per hidden unit, as in the authors' code."""
WINDOW = 31
"""Side, in pixels, of the window in which the authors' code blurs and searches peaks."""
SIGMA_SHARE = 6 / 31
"""Their blur's standard deviation, as a share of the window."""
PEAK_MIN = 0.2
"""Share of an image's largest disagreement that a peak must exceed, as in their code."""


class ChannelSelection(nn.Module):
    r"""The weights of a feature's channels at a site, from the feature and the site's embedding.

    .. math:: h = \sigma\bigl(g([\operatorname{avg} x; e_i]) + g([\max x; e_i])\bigr),
              \qquad x' = x + h \cdot x

    with e_i the embedding of site i and g two linear layers.

    Source: Wang et al., ECCV 2022 (LC-Fed), as its authors run it: `jcwang123/FedLC`.
    Differs: fewer than 16 channels have one hidden unit, not none.
    Shapes: ``x (b, channels, *space)`` and a site's index to h, ``(b, channels)``.
    Gradient flow: into ``x`` and all layers.
    Args:
        sites: number of sites, each with an embedding.
        channels: of the feature.
    Raises:
        IndexError: the index is not below ``sites``.
    Example:
        >>> ChannelSelection(sites=3, channels=8)(torch.ones(2, 8, 5, 4), 1).shape
        torch.Size([2, 8])
    """

    def __init__(self, *, sites: int, channels: int) -> None:
        super().__init__()
        self.sites, hidden = sites, max(1, channels // REDUCTION)
        self.embed = nn.Sequential(
            nn.Linear(sites, channels, bias=False), nn.ReLU(), nn.Linear(channels, channels, bias=False)
        )
        self.weigh = nn.Sequential(
            nn.Linear(2 * channels, hidden, bias=False), nn.ReLU(), nn.Linear(hidden, channels, bias=False)
        )

    def forward(self, x: Tensor, site: int) -> Tensor:
        cells = x.flatten(2)
        one_hot = torch.eye(self.sites, device=x.device, dtype=x.dtype)[site]
        embedding = self.embed(one_hot).expand(len(x), -1)
        pooled = (cells.mean(2), cells.amax(2))
        selection: Tensor = torch.stack([self.weigh(torch.cat([each, embedding], 1)) for each in pooled]).sum(0)
        return selection.sigmoid()


class HeadCalibration(nn.Module):
    r"""A head that takes a network's feature once for each map, amplified where the map is high.

    .. math:: \hat y = W * \bigl[\,(1 + s(m))\, x \;:\; m \in \text{peaks},\ \text{predictions}\,\bigr]

    with s the :func:`soft_map`, and a 3-wide convolution W.

    Source: Wang et al., ECCV 2022 (LC-Fed), as its authors run it: `jcwang123/FedLC`.
    Differs: there is a background class, which has no map, and the result is logits of all classes.
        :func:`soft_map` differs, too.
    Shapes: feature ``(b, features, *space)``, peaks and predictions ``(b, classes - 1, *space)``
        to ``(b, classes, *space)``.
    Gradient flow: into all three; the method gives constants.
    Args:
        features: of the network's head.
        classes: of the prediction, the background one of them.
        spatial_dims: 1 to 3.
        window: of the soft maps.
    Raises:
        ValueError: what :func:`soft_map` raises.
    Example:
        >>> head = HeadCalibration(features=4, classes=3, spatial_dims=2, window=5)
        >>> head(torch.ones(2, 4, 6, 7), torch.zeros(2, 2, 6, 7), torch.ones(2, 2, 6, 7)).shape
        torch.Size([2, 3, 6, 7])
    """

    def __init__(self, *, features: int, classes: int, spatial_dims: int, window: int = WINDOW) -> None:
        super().__init__()
        self.window = window
        self.head = conv(spatial_dims, 2 * features * (classes - 1), classes, 3, bias=True)

    def forward(self, feature: Tensor, peaks: Tensor, prediction: Tensor) -> Tensor:
        maps = soft_map(torch.cat([peaks, prediction], 1), window=self.window).to(feature)
        amplified = feature[:, None] * (1 + maps[:, :, None])
        calibrated: Tensor = self.head(amplified.flatten(1, 2))
        return calibrated


def disagreement_peaks(own: Tensor, others: Collection[Tensor], *, window: int = WINDOW) -> Tensor:
    r"""Mark peaks of the other heads' disagreement with the own one: 1 at each peak, 0 elsewhere.

    .. math:: u = \Bigl(\tfrac{1}{n} \sum_j (p_j - p)^2\Bigr)^{1/2}, \qquad
              \text{peaks} = \Bigl\{u = \max_{window} u,\ u > 0.2 \max u\Bigr\}

    Source: Wang et al., ECCV 2022 (LC-Fed), as its authors run it: `jcwang123/FedLC`.
    Differs: there is no peak where all agree; their code divides by 0. NaN of another head counts
        as 0.
    Args:
        own: probabilities ``(b, k, *space)`` of the own head; no gradient.
        others: those of each other head, of the same shape; no gradient.
        window: cells on a side of the window in which a peak is the largest value; odd.
    Returns:
        ``(b, k, *space)``, as ``own``: 0 or 1, and 0 everywhere without another head.
    Raises:
        ValueError: the window is even.
    Example:
        >>> own = torch.zeros(1, 1, 5)
        >>> disagreement_peaks(own, [torch.tensor([[[0.1, 0.9, 0.2, 0.0, 0.0]]])], window=3)
        tensor([[[0., 1., 0., 0., 0.]]])
    """
    _check_window(window)
    if not others:
        return torch.zeros_like(own)
    with torch.no_grad():
        squares = torch.stack([(torch.nan_to_num(other.to(own)) - own).square() for other in others])
        disagreement = squares.mean(0).sqrt()
        largest = disagreement.amax(tuple(range(2, own.ndim)), keepdim=True)
        is_peak = disagreement == _along_axes(disagreement, lambda line: F.max_pool1d(line, window, 1, window // 2))
        return (is_peak & (disagreement > PEAK_MIN * largest)).to(own)


def soft_map(maps: Tensor, *, window: int = WINDOW) -> Tensor:
    """Blur the maps by a Gaussian whose peak is 1, and clamp them at 1.

    Source: Wang et al., ECCV 2022 (LC-Fed), as its authors run it: `jcwang123/FedLC`.
    Differs: clamped at 1: their blur gives 200 within a large region of two dimensions, by which
        the calibration would amplify the feature. The deviation grows with the window.
    Args:
        maps: ``(b, k, *space)``, not negative; gradient flows.
        window: cells on a side of the Gaussian; odd.
    Returns:
        ``(b, k, *space)``, in [0, 1].
    Raises:
        ValueError: the window is even.
    Example:
        >>> soft_map(torch.tensor([[[0.0, 0.0, 1.0, 0.0]]]), window=3).round(decimals=2)
        tensor([[[0.0000, 0.2300, 1.0000, 0.2300]]])
    """
    _check_window(window)
    distance = torch.arange(window, device=maps.device, dtype=maps.dtype) - window // 2
    kernel = torch.exp(-(distance**2) / (2 * (window * SIGMA_SHARE) ** 2))[None, None]
    return _along_axes(maps, lambda line: F.conv1d(line, kernel, padding=window // 2)).clamp(max=1)


def _check_window(window: int) -> None:
    if window % 2 == 0:
        raise ValueError(f"the window must be odd, not {window}")


def _along_axes(maps: Tensor, operation: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply an operation on lines ``(n, 1, side)`` along each spatial axis in turn."""
    for axis in range(2, maps.ndim):
        moved = maps.movedim(axis, -1)
        maps = operation(moved.reshape(-1, 1, moved.shape[-1])).reshape(moved.shape).movedim(-1, axis)
    return maps
