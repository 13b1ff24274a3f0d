"""Classifiers of time series of any length: MH-pFLID's and dFLMoE's clients."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor, nn

from models.blocks import batch_norm
from models.classifier import Classifier
from models.network import Sizes

DROPOUT = 0.1
HEADS = 4
LSTM_LAYERS = 3
LONE_SIDE = 3
"""The first convolution has stride 3, so that its norm sees one of three values."""


class TCN(Classifier):
    """Three convolutional blocks, which are the taps.

    Source: MH-pFLID's client (its authors' code): kernels 7 of stride 3, 8 and 8; 32, 64 and 64
        channels.
    Differs: the mean over time before the head, so that any length fits; the authors flatten 127
        steps of 64.
    Shapes: ``x (b, in_channels, length)``; taps ``(b, width or 2 * width, length_i)`` at about 1/6,
        1/12 and 1/24; penultimate ``(b, 2 * width)`` or ``(b, projection)``; prediction
        ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the first block, half those of the others.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, the spatial dimension is not 1, or the
            input does not fit.
    Example:
        >>> import torch
        >>> model = TCN(name="tcn", spatial_dims=1, in_channels=1, classes=5)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 1, 3000)).taps]
        [(32, 501), (64, 252), (64, 127)]
    """

    def __init__(
        self, *, width: int = 32, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        in_channels = sizes["in_channels"]
        self.stem = nn.Identity()
        self.stages = nn.ModuleList(
            (
                _block(in_channels, width, 7, stride=3).append(nn.Dropout(DROPOUT)),
                _block(width, 2 * width, 8),
                _block(2 * width, 2 * width, 8),
            )
        )
        self.add_head(2 * width)
        self.set_norm(lone_side=LONE_SIDE)


class Transformer(Classifier):
    """A convolutional block and two attention layers with a pooling between, which are the taps.

    Source: MH-pFLID's client (its authors' code): kernel 33 of stride 3, 32 channels, 4 heads.
    Differs: a residual connection and a layer norm at each attention, as in Vaswani et al. 2017;
        the mean over time before the head, so that any length fits, where the authors flatten
        251 steps of 32.
    Shapes: ``x (b, in_channels, length)``; taps ``(b, width, length_i)`` at about 1/6, 1/6 and
        1/12; penultimate ``(b, width)`` or ``(b, projection)``; prediction ``(b, classes)``,
        logits.
    Gradient flow: through everything.
    Args:
        width: channels of all features, a multiple of 4.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, the width is not a multiple of 4, the
            spatial dimension is not 1, or the input does not fit.
    Example:
        >>> import torch
        >>> model = Transformer(name="transformer", spatial_dims=1, in_channels=1, classes=5)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 1, 3000)).taps]
        [(32, 501), (32, 501), (32, 251)]
    """

    def __init__(
        self, *, width: int = 32, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        in_channels = sizes["in_channels"]
        self.stem = nn.Identity()
        self.stages = nn.ModuleList(
            (
                _block(in_channels, width, 33, stride=3).append(nn.Dropout(DROPOUT)),
                SelfAttention(width),
                nn.Sequential(_halve(), SelfAttention(width)),
            )
        )
        self.add_head(width)
        self.set_norm(lone_side=LONE_SIDE)


class RNN(Classifier):
    """A convolutional block and three LSTM layers, which are the taps.

    Source: MH-pFLID's client: kernel 33 of stride 3, 32 channels, hidden size 16.
    Differs: the mean over time before the head, so that any length fits and each step has a
        gradient of its own; the authors flatten 501 steps of 16.
    Shapes: ``x (b, in_channels, length)``; taps ``(b, width, length')``, then three
        ``(b, width // 2, length')``, at about 1/6; penultimate ``(b, width // 2)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: channels of the convolution, twice the hidden size.
        projection: features that the head takes; None takes those of the last stage.
        norm: ``batch``, or ``group`` for :func:`models.blocks.group_norm`, which needs two channels.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, the width is odd, the spatial dimension
            is not 1, or the input does not fit.
    Example:
        >>> import torch
        >>> model = RNN(name="rnn", spatial_dims=1, in_channels=1, classes=5)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 1, 3000)).taps]
        [(32, 501), (16, 501), (16, 501), (16, 501)]
    """

    def __init__(
        self, *, width: int = 32, projection: int | None = None, norm: str = "batch", **sizes: Unpack[Sizes]
    ) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, norm=norm, **sizes)
        in_channels = sizes["in_channels"]
        hidden = width // 2
        self.stem = nn.Identity()
        self.stages = nn.ModuleList([_block(in_channels, width, 33, stride=3).append(nn.Dropout(DROPOUT))])
        self.stages.extend(Recurrence(width if layer == 0 else hidden, hidden) for layer in range(LSTM_LAYERS))
        self.add_head(hidden)
        self.set_norm(lone_side=LONE_SIDE)


class SelfAttention(nn.Module):
    """Layer norm, attention between all steps, and a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.attention = nn.MultiheadAttention(channels, HEADS, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(b, c, length)`` to the same shape."""
        steps = self.norm(x.mT)
        attended: Tensor = self.attention(steps, steps, steps, need_weights=False)[0]
        return x + attended.mT


class Recurrence(nn.Module):
    """One LSTM layer over a feature map."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(channels, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(b, c, length)`` to ``(b, hidden, length)``."""
        steps: Tensor = self.lstm(x.mT)[0]
        return steps.mT


def _block(channels: int, out: int, kernel: int, *, stride: int = 1) -> nn.Sequential:
    # With an even kernel, padding by half of it makes the grid longer by one.
    convolution = nn.Conv1d(channels, out, kernel, stride=stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, batch_norm(1, out), nn.ReLU(), _halve())


def _halve() -> nn.Module:
    return nn.MaxPool1d(2, stride=2, padding=1)
