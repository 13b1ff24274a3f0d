r"""MH-pFLID's receiver and transmitter: attention over channels between the local model's and the messenger's feature.

Vector form, for classification and time series: the messenger's feature is u ``(b, D)``, the local one ``(b, d)``.
Dense form, for segmentation: they are ``(b, D, *grid)`` and ``(b, d, *space)``, on different grids. Both modules are
private to a site and compute at the precision of their own weights, outside autocast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from models.blocks import conv, pooled, resize

Form = Literal["attention", "addition"]


class ChannelAttention(nn.Module):
    r"""Attention whose tokens are channels: each of one feature asks which of the other's it should be made of.

    .. math:: A = \mathrm{softmax}_n\!\left(\frac{q_m k_n}{\sqrt D}\right),\qquad out_m = \sum_n A_{mn} w_n

    with q of the asking feature, k and w of the answering one; in the dense form q and k are means over space and w
    keeps its grid.

    Source: MH-pFLID (ICML 2024), eqs. 8-11; the channels as tokens from its authors' code.
    Differs: the value is projected, as the equations have it; the authors' classification code takes it as it is.
    Shapes: asking and answering ``(b, D)`` or ``(b, D, *grid)`` to the shape of the answering one; ``b * D * D`` floats
        are kept for the backward pass.
    Gradient flow: into both features.
    Args:
        channels: D of both features.
        spatial_dims: 0 for the vector form, whose projections have a bias; 1 to 3 for the dense one, without.
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

    def forward(self, asking: Tensor, answering: Tensor) -> Tensor:
        """The answering feature's channels, mixed for each channel of the asking one."""
        _check("asking", asking, self.channels, self.spatial_dims)
        _check("answering", answering, self.channels, self.spatial_dims)
        with exact(self, asking, answering) as (asking, answering):
            q, k, w = pooled(self.query(asking)), pooled(self.key(answering)), self.value(answering)
            weights = (q.unsqueeze(2) * k.unsqueeze(1) / math.sqrt(self.channels)).softmax(dim=2)
            mixed: Tensor = (weights @ w.reshape(*w.shape[:2], -1)).reshape(w.shape)
        return mixed


class _Adapter(nn.Module):
    """What receiver and transmitter have alike: the projection W_d of the local feature, and their attention."""

    def __init__(
        self,
        local_channels: int,
        messenger_channels: int,
        *,
        spatial_dims: int = 0,
        form: Form = "attention",
        tied: _Adapter | None = None,
    ) -> None:
        super().__init__()
        if form not in ("attention", "addition"):
            raise ValueError(f"form must be 'attention' or 'addition', not {form!r}")
        self.local_channels, self.messenger_channels = local_channels, messenger_channels
        self.spatial_dims = spatial_dims
        if tied is None:
            self.project = linear(spatial_dims, local_channels, messenger_channels, bias=True)
            attends = form == "attention"
            self.attention = ChannelAttention(messenger_channels, spatial_dims=spatial_dims) if attends else None
        else:
            self.project, self.attention = tied.project, tied.attention

    def projected(self, messenger: Tensor, local: Tensor) -> Tensor:
        """The local feature in the messenger's space: on its grid, in as many channels."""
        local = resize(local, messenger.shape[2:]) if self.spatial_dims else pooled(local)
        _check("messenger's", messenger, self.messenger_channels, self.spatial_dims)
        _check("local", local, self.local_channels, self.spatial_dims)
        value: Tensor = self.project(local)
        return value


class Receiver(_Adapter):
    """Injects the messenger's knowledge into the local model: the messenger's feature asks, the local one answers.

    Source: MH-pFLID (ICML 2024), eqs. 8 and 9. The messenger's head takes what comes out.
    Differs: none. Its authors' code has one module for both roles; that is ``Transmitter(..., tied=receiver)``.
    Shapes: messenger ``(b, D)`` and local ``(b, d)`` or ``(b, d, *space)``, of which the mean is taken, to ``(b, D)``;
        or messenger ``(b, D, *grid)`` and local ``(b, d, *space)`` to ``(b, D, *grid)``.
    Gradient flow: into both features.
    Args:
        local_channels: d of the local model's bottleneck.
        messenger_channels: D of the messenger's.
        spatial_dims: 0 for the vector form, 1 to 3 for the dense one.
        form: ``addition`` is the ablation: the sum of the messenger's and the projected local feature.
        tied: whose weights to use instead of own ones.
    Raises:
        ValueError: the form is another, or the features do not fit.
    Example:
        >>> receiver = Receiver(6, 4, spatial_dims=2)
        >>> receiver(torch.ones(2, 4, 3, 3), torch.ones(2, 6, 8, 8)).shape
        torch.Size([2, 4, 3, 3])
    """

    def forward(self, messenger: Tensor, local: Tensor) -> Tensor:
        """The feature for the messenger's head."""
        with exact(self, messenger, local) as (messenger, local):
            value = self.projected(messenger, local)
            received: Tensor = messenger + value if self.attention is None else self.attention(messenger, value)
        return received


class Transmitter(_Adapter):
    """Distils the local model's knowledge into the messenger: the local feature asks, the messenger's answers.

    Source: MH-pFLID (ICML 2024), eqs. 10 and 11, with weights of its own, as the paper's ablation implies.
    Differs: none.
    Shapes: as :class:`Receiver`.
    Gradient flow: into both features; that the local one is frozen here is the method's to say.
    Args: as :class:`Receiver`.
    Raises:
        ValueError: the form is another, or the features do not fit.
    Example:
        >>> transmitter = Transmitter(6, 4)
        >>> transmitter(torch.ones(2, 4), torch.ones(2, 6)).shape
        torch.Size([2, 4])
    """

    def forward(self, messenger: Tensor, local: Tensor) -> Tensor:
        """The feature for the messenger's head."""
        with exact(self, messenger, local) as (messenger, local):
            value = self.projected(messenger, local)
            sent: Tensor = messenger + value if self.attention is None else self.attention(value, messenger)
        return sent


def _check(whose: str, feature: Tensor, channels: int, spatial_dims: int) -> None:
    if feature.ndim != spatial_dims + 2 or feature.shape[1] != channels:
        raise ValueError(
            f"the {whose} feature must have {channels} channels and {spatial_dims} spatial dimensions, not the shape "
            f"{tuple(feature.shape)}"
        )


def linear(spatial_dims: int, channels: int, out: int, *, bias: bool = True) -> nn.Module:
    """A linear map of vectors (0 spatial dimensions), or of the channels at each position."""
    if spatial_dims:
        return conv(spatial_dims, channels, out, 1, bias=bias)
    return nn.Linear(channels, out, bias=bias)


@contextmanager
def exact(module: nn.Module, *features: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The features at the precision of the module's weights, and autocast off: 8 bits are too few for it."""
    dtype = next(module.parameters()).dtype
    with torch.autocast(features[0].device.type, enabled=False):
        yield tuple(feature.to(dtype) for feature in features)
