"""Classifiers of a table's rows, whose columns are the channels of one place.

They are the same function of each place of a longer input, whose mean they take. None normalises over a batch, so that
any number of rows trains.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from models.blocks import Residual, mean_over_space
from models.classifier import Classifier
from models.network import Network, Output, Sizes
from models.timeseries import SelfAttention

DROPOUT = 0.1


class Linear(Classifier):
    """Logistic regression; its penultimate feature is the row itself, and it has no tap.

    Source: Cox, J. R. Stat. Soc. B 20 (1958) 215-242.
    Differs: a projection may stand before the head, so that it has the shape of other networks' heads.
    Shapes: ``x (b, in_channels, 1)``; penultimate ``(b, in_channels)`` or ``(b, projection)``; prediction
        ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        projection: features that the head takes; None takes the row's.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> model = Linear(name="linear", spatial_dims=1, in_channels=5, classes=2)
        >>> sum(parameter.numel() for parameter in model.parameters())
        12
    """

    def __init__(self, *, projection: int | None = None, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"projection": projection}, **sizes)
        self.add_head(sizes["in_channels"])

    def features(self, x: Tensor) -> list[Tensor]:
        return [x]

    def forward(self, x: Tensor) -> Output:
        return super().forward(x)._replace(taps=())


class MLP(Classifier):
    """Three layers with rectifiers and dropout, each of which is a tap.

    Source: the multilayer perceptron of Gorishniy et al., NeurIPS 2021.
    Differs: the depth is fixed at three.
    Shapes: ``x (b, in_channels, 1)``; taps ``(b, width, 1)``, three times; penultimate ``(b, width)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: features of each layer.
        projection: features that the head takes; None takes those of the last layer.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> model = MLP(name="mlp", spatial_dims=1, in_channels=5, classes=2)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 5, 1)).taps]
        [(32, 1), (32, 1), (32, 1)]
    """

    def __init__(self, *, width: int = 32, projection: int | None = None, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, **sizes)
        self.stem = nn.Identity()
        self.stages = nn.ModuleList(
            nn.Sequential(_linear(features, width), nn.ReLU(), nn.Dropout(DROPOUT))
            for features in (sizes["in_channels"], width, width)
        )
        self.add_head(width)


class TabularResNet(Classifier):
    """A linear layer and three residual blocks, each of which is a tap.

    Source: the ResNet for tables of Gorishniy et al., NeurIPS 2021: in a block normalisation, a layer twice as wide,
        a rectifier, dropout and a layer.
    Differs: layer norm in place of batch norm, which needs large batches, and which noise cannot make private.
    Shapes: ``x (b, in_channels, 1)``; taps ``(b, width, 1)``, three times; penultimate ``(b, width)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: features of a block.
        projection: features that the head takes; None takes those of the last block.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> model = TabularResNet(name="tabular_resnet", spatial_dims=1, in_channels=5, classes=2)
        >>> model(torch.zeros(1, 5, 1)).penultimate.shape
        torch.Size([1, 32])
    """

    def __init__(self, *, width: int = 32, projection: int | None = None, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, **sizes)
        self.stem = _linear(sizes["in_channels"], width)
        self.stages = nn.ModuleList(
            Residual(
                nn.Sequential(
                    _norm(width), _linear(width, 2 * width), nn.ReLU(), nn.Dropout(DROPOUT), _linear(2 * width, width)
                )
            )
            for _ in range(3)
        )
        self.stages[-1] = nn.Sequential(self.stages[-1], _norm(width), nn.ReLU())
        self.add_head(width)


class FTTransformer(Classifier):
    """Each channel becomes a token, and two attention blocks, which are the taps, compare the tokens.

    Source: FT-Transformer (Gorishniy et al., NeurIPS 2021): a channel's token is its value times a learned vector,
        plus a learned vector.
    Differs: the mean over tokens in place of a token for the class; an indicator of a missing value is a token of its
        own.
    Shapes: ``x (b, in_channels, 1)``; taps ``(b, width, in_channels)``, twice; penultimate ``(b, width)`` or
        ``(b, projection)``; prediction ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: features of a token, a multiple of 4.
        projection: features that the head takes; None takes those of the last block.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, the width is not a multiple of 4, or the input does not fit.
    Example:
        >>> import torch
        >>> model = FTTransformer(name="ft_transformer", spatial_dims=1, in_channels=5, classes=2, width=8)
        >>> [tuple(tap.shape[1:]) for tap in model(torch.zeros(2, 5, 1)).taps]
        [(8, 5), (8, 5)]
    """

    def __init__(self, *, width: int = 32, projection: int | None = None, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width, "projection": projection}, **sizes)
        self.stem = Tokens(sizes["in_channels"], width)
        self.stages = nn.ModuleList(
            nn.Sequential(
                SelfAttention(width),
                Residual(nn.Sequential(_norm(width), _linear(width, 2 * width), nn.ReLU(), _linear(2 * width, width))),
            )
            for _ in range(2)
        )
        self.add_head(width)


class Tokens(nn.Module):
    """Makes a token of each channel: its value times a vector, plus a vector."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        bound = width**-0.5
        self.weight = nn.Parameter(torch.empty(width, channels).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(width, channels).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(b, channels, places)`` to ``(b, width, channels)``."""
        return x.mean(2)[:, None] * self.weight + self.bias


class RowMessenger(Network):
    """MH-pFLID's messenger for rows: two layers, which are its taps, and a linear head.

    Source: MH-pFLID, table 10, whose messengers this one follows in its small body and its linear head.
    Differs: MH-pFLID has none for tables; linear layers take the place of convolutions.
    Shapes: ``x (b, in_channels, 1)``; taps ``(b, width, 1)``, twice; penultimate ``(b, width)``; prediction
        ``(b, classes)``, logits.
    Gradient flow: through everything.
    Args:
        width: features of each layer.
        sizes: :class:`models.network.Sizes`.
    Raises:
        ValueError: a size is not a positive whole number, or the input does not fit.
    Example:
        >>> import torch
        >>> model = RowMessenger(name="messenger_tabular", spatial_dims=1, in_channels=5, classes=2, width=8)
        >>> model(torch.zeros(2, 5, 1)).prediction.shape
        torch.Size([2, 2])
    """

    head_name = "classifier"

    def __init__(self, *, width: int = 64, **sizes: Unpack[Sizes]) -> None:
        super().__init__(hyper={"width": width}, **sizes)
        self.body = nn.ModuleList(
            nn.Sequential(_linear(features, width), nn.ReLU()) for features in (sizes["in_channels"], width)
        )
        self.classifier = nn.Linear(width, sizes["classes"])

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        first = self.body[0](x)
        second = self.body[1](first)
        penultimate = mean_over_space(second)
        return Output(self.classifier(penultimate), (first, second), penultimate, penultimate)


def _linear(features: int, out: int) -> nn.Module:
    """Build a linear layer over the channels ``(b, c, places)``."""
    return nn.Conv1d(features, out, 1)


def _norm(features: int) -> nn.Module:
    """Build a layer norm over the channels ``(b, c, places)``, for each sample by itself."""
    return nn.GroupNorm(1, features)
