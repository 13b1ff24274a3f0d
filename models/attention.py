r"""MH-pFLID's receiver and transmitter: attention over channels or positions, between two networks' features.

Vector form, for classification and time series: the messenger's feature is u ``(b, D)``, the local
one ``(b, d)``. Dense form, for segmentation: they are ``(b, D, *grid)`` and ``(b, d, *space)``, on
different grids. Both modules are private to a site and compute at the precision of their own
weights, outside autocast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.blocks import conv, mean_over_space, resize

Form = Literal["attention", "addition"]
Tokens = Literal["channel", "spatial"]


class ChannelAttention(nn.Module):
    r"""Attention whose tokens are channels: each channel becomes a mean of the other feature's channels.

    .. math:: A = \mathrm{softmax}_n\!\left(\frac{q_m k_n}{\sqrt D}\right),\qquad out_m = \sum_n A_{mn} w_n

    with q of the query feature, k and w of the value feature; in the dense form q and k are means
    over space and w keeps its grid.

    Source: MH-pFLID (ICML 2024), eqs. 8-11; the channels as tokens from its authors' code.
    Differs: the value is projected, as in the equations; the authors' classification code uses it
        unprojected.
    Shapes: both features ``(b, D)`` or ``(b, D, *grid)``, to the shape of the value feature; the
        backward pass needs ``b * D * D`` floats.
    Gradient flow: into both features.
    Args:
        channels: D of both features.
        spatial_dims: 0 for the vector form, whose projections have a bias; 1 to 3 for the dense
            one, without.
    Raises:
        ValueError: the features are not of that form.
    Example:
        >>> attention = ChannelAttention(4)
        >>> attention(torch.ones(2, 4), torch.ones(2, 4)).shape
        torch.Size([2, 4])
    """

    def __init__(self, channels: int, *, spatial_dims: int = 0) -> None:
        super().__init__()
        self.query, self.key, self.value = (
            linear(spatial_dims, channels, channels, bias=not spatial_dims) for _ in range(3)
        )
        self.spatial_dims, self.channels = spatial_dims, channels

    def forward(self, query_feature: Tensor, value_feature: Tensor) -> Tensor:
        """Mix the value feature's channels for each channel of the query feature."""
        _check("query", query_feature, self.channels, self.spatial_dims)
        _check("value", value_feature, self.channels, self.spatial_dims)
        with exact(self, query_feature, value_feature) as (query_feature, value_feature):
            q, k, w = (
                mean_over_space(self.query(query_feature)),
                mean_over_space(self.key(value_feature)),
                self.value(value_feature),
            )
            weights = (q.unsqueeze(2) * k.unsqueeze(1) / math.sqrt(self.channels)).softmax(dim=2)
            mixed: Tensor = (weights @ w.reshape(*w.shape[:2], -1)).reshape(w.shape)
        return mixed


class SpatialAttention(nn.Module):
    r"""Attention whose tokens are positions: each position becomes a mean of the other feature's positions.

    .. math:: A = \mathrm{softmax}_s\!\left(\frac{q_p^\top k_s}{\sqrt D}\right),\qquad out_p = \sum_s A_{ps} w_s

    with q of the query feature, k and w of the value feature, each a vector of D at a position.

    Source: MH-pFLID (ICML 2024), eqs. 8-11, which do not say what a token is.
    Differs: positions in place of the authors' channels. Over channels, each token of the receiver
        is a function of one number of the messenger, the same function for all: apart from small
        terms, two numbers a sample carry all of the local feature. Over positions, none is lost.
    Shapes: query feature ``(b, D, *grid)`` and value feature ``(b, D, *space)`` to
        ``(b, D, *grid)``; a vector is one position.
    Gradient flow: into both features, but into the query feature only where the value feature has
        two positions or more.
    Args:
        channels: D of both features.
        spatial_dims: 0 for the vector form, whose projections have a bias; 1 to 3 for the dense
            one, without.
    Raises:
        Nothing of its own.
    Example:
        >>> attention = SpatialAttention(4)
        >>> attention(torch.ones(2, 4, 3, 3), torch.ones(2, 4, 5)).shape
        torch.Size([2, 4, 3, 3])
    """

    def __init__(self, channels: int, *, spatial_dims: int = 0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(channels, channels, bias=not spatial_dims) for _ in range(3))

    def forward(self, query_feature: Tensor, value_feature: Tensor) -> Tensor:
        """Mix the value feature's positions for each position of the query feature."""
        with exact(self, query_feature, value_feature) as (query_feature, value_feature):
            asking, answering = _positions(query_feature), _positions(value_feature)
            mixed = F.scaled_dot_product_attention(self.query(asking), self.key(answering), self.value(answering))
            result: Tensor = mixed.transpose(1, 2).reshape(query_feature.shape)
        return result


class _Adapter(nn.Module):
    """The common part of receiver and transmitter: the local feature's projection, attention."""

    def __init__(
        self,
        local_channels: int,
        messenger_channels: int,
        *,
        spatial_dims: int = 0,
        form: Form = "attention",
        tokens: Tokens = "channel",
        tied: _Adapter | None = None,
    ) -> None:
        super().__init__()
        if form not in ("attention", "addition"):
            raise ValueError(f"form must be 'attention' or 'addition', not {form!r}")
        if tokens not in ("channel", "spatial"):
            raise ValueError(f"tokens must be 'channel' or 'spatial', not {tokens!r}")
        self.local_channels, self.messenger_channels = local_channels, messenger_channels
        self.spatial_dims = spatial_dims
        self.positions = form == "attention" and tokens == "spatial"
        if tied is None:
            kind = SpatialAttention if self.positions else ChannelAttention
            self.project = linear(spatial_dims, local_channels, messenger_channels, bias=True)
            self.attention = kind(messenger_channels, spatial_dims=spatial_dims) if form == "attention" else None
        else:
            self.project, self.attention = tied.project, tied.attention

    def project_local(self, messenger: Tensor, local: Tensor) -> Tensor:
        """Map the local feature to the messenger's channels and, in the dense form, to its grid."""
        if self.spatial_dims:
            local = resize(local, messenger.shape[2:])
        elif not self.positions:
            local = mean_over_space(local)
        any_space = self.positions and not self.spatial_dims
        _check("messenger's", messenger, self.messenger_channels, None if any_space else self.spatial_dims)
        _check("local", local, self.local_channels, None if any_space else self.spatial_dims)
        value: Tensor = self.project(_positions(local)).transpose(1, 2) if any_space else self.project(local)
        return value


class Receiver(_Adapter):
    """Injects the messenger's knowledge into the local model: the local feature is the value.

    Source: MH-pFLID (ICML 2024), eqs. 8 and 9. The messenger's head takes the result.
    Differs: none. Its authors' code has one module for both roles; that is
        ``Transmitter(..., tied=receiver)``.
    Shapes: messenger ``(b, D)`` and local ``(b, d)`` or ``(b, d, *space)``, of which the mean is
        taken, to ``(b, D)``; or messenger ``(b, D, *grid)`` and local ``(b, d, *space)`` to
        ``(b, D, *grid)``. Where tokens are positions, the vector form takes maps of both, before
        their means: ``(b, D, *grid)`` and ``(b, d, *space)``, to ``(b, D)``.
    Gradient flow: into both features.
    Args:
        local_channels: d of the local model's bottleneck.
        messenger_channels: D of the messenger's.
        spatial_dims: 0 for the vector form, 1 to 3 for the dense one.
        form: ``addition`` is the ablation: the sum of the messenger's and the projected local
            feature.
        tokens: of the attention: ``channel`` as in the authors' code, or ``spatial``
            (:class:`SpatialAttention`).
        tied: the adapter whose weights to use instead of own ones.
    Raises:
        ValueError: form or tokens are others, or the features do not fit.
    Example:
        >>> receiver = Receiver(6, 4, spatial_dims=2)
        >>> receiver(torch.ones(2, 4, 3, 3), torch.ones(2, 6, 8, 8)).shape
        torch.Size([2, 4, 3, 3])
    """

    def forward(self, messenger: Tensor, local: Tensor) -> Tensor:
        """Return the feature for the messenger's head."""
        with exact(self, messenger, local) as (messenger, local):
            value = self.project_local(messenger, local)
            injected: Tensor = messenger + value if self.attention is None else self.attention(messenger, value)
        return injected if self.spatial_dims else mean_over_space(injected)


class Transmitter(_Adapter):
    """Distils the local model's knowledge into the messenger: the messenger's feature is the value.

    Source: MH-pFLID (ICML 2024), eqs. 10 and 11, with weights of its own, as the paper's ablation
        implies.
    Differs: none.
    Shapes: as :class:`Receiver`.
    Gradient flow: into both features; the method freezes the local model.
    Args: as :class:`Receiver`.
    Raises:
        ValueError: form or tokens are others, or the features do not fit.
    Example:
        >>> transmitter = Transmitter(6, 4)
        >>> transmitter(torch.ones(2, 4), torch.ones(2, 6)).shape
        torch.Size([2, 4])
    """

    def forward(self, messenger: Tensor, local: Tensor) -> Tensor:
        """Return the feature for the messenger's head."""
        with exact(self, messenger, local) as (messenger, local):
            value = self.project_local(messenger, local)
            distilled: Tensor = messenger + value if self.attention is None else self.attention(value, messenger)
        return distilled if self.spatial_dims else mean_over_space(distilled)


def _positions(feature: Tensor) -> Tensor:
    """Reshape the feature to ``(b, positions, channels)``; a vector is one position."""
    return feature.reshape(*feature.shape[:2], -1).transpose(1, 2)


def _check(whose: str, feature: Tensor, channels: int, spatial_dims: int | None) -> None:
    if spatial_dims is None:
        spatial_dims = feature.ndim - 2
    if feature.ndim != spatial_dims + 2 or feature.shape[1] != channels:
        raise ValueError(
            f"the {whose} feature must have {channels} channels and {spatial_dims} spatial dimensions, not the shape "
            f"{tuple(feature.shape)}"
        )


def linear(spatial_dims: int, channels: int, out: int, *, bias: bool = True) -> nn.Module:
    """Build a linear map of vectors (0 spatial dimensions), or of the channels at each position."""
    if spatial_dims:
        return conv(spatial_dims, channels, out, 1, bias=bias)
    return nn.Linear(channels, out, bias=bias)


@contextmanager
def exact(module: nn.Module, *features: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield the features in the weights' precision, without autocast, whose 8 bits are too few."""
    dtype = next(module.parameters()).dtype
    with torch.autocast(features[0].device.type, enabled=False):
        yield tuple(feature.to(dtype) for feature in features)
