"""A small classifier of two strided convolutions."""

from __future__ import annotations

from torch import nn

from models.classifier import Classifier

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class TwoConvolutions(Classifier):
    """Two strided convolutions, the mean over space, a linear head.

    Args:
        spatial_dims: 1, 2 or 3.
        in_channels: of the input.
        classes: of the prediction.
        width: channels after the first convolution; the second one doubles them.
        projection: how many features the head takes; by default as many as the second convolution gives.
    """

    def __init__(
        self, *, spatial_dims: int, in_channels: int, classes: int, width: int = 8, projection: int | None = None
    ) -> None:
        super().__init__(
            name="two_convolutions",
            spatial_dims=spatial_dims,
            in_channels=in_channels,
            classes=classes,
            hyper={"width": width, "projection": projection},
        )
        convolution = CONVOLUTIONS[spatial_dims]
        self.stem = nn.Sequential(convolution(in_channels, width, 3, stride=2, padding=1), nn.ReLU())
        self.stages = nn.ModuleList([nn.Sequential(convolution(width, 2 * width, 3, stride=2, padding=1), nn.ReLU())])
        self.add_head(2 * width)
