"""The common part of all classifiers: stages, the mean over space, projection, linear head."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from models.blocks import mean_over_space, run_stages
from models.network import Network, Output


class Classifier(Network):
    """A stem, stages, the mean over space and a head.

    The taps are the features after each stage. Penultimate is the mean of the last tap over space
    or, if the hyper-parameter ``projection`` is set, a linear projection of it to that many features,
    so that backbones of any width have heads of one shape. Subclasses set ``stem`` and ``stages``,
    then call :meth:`add_head`.
    """

    head_name = "fc"
    stem: nn.Module
    stages: Iterable[nn.Module]
    projection: nn.Linear | None
    fc: nn.Linear

    def add_head(self, channels: int) -> None:
        """Add projection and head behind a last stage of ``channels`` channels."""
        size: int | None = self.spec["hyper"]["projection"]
        self.fc = nn.Linear(size or channels, self.spec["classes"])
        self.projection = None if size is None else nn.Linear(channels, size)

    def features(self, x: Tensor) -> list[Tensor]:
        return run_stages(self.stages, self.stem(x))

    def forward(self, x: Tensor) -> Output:
        self.check_input(x)
        taps = self.features(x)
        penultimate = mean_over_space(taps[-1])
        if self.projection is not None:
            penultimate = self.projection(penultimate)
        return Output(self.fc(penultimate), tuple(taps), penultimate, penultimate)
