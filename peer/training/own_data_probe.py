"""Try a received model or head on a few of this site's own samples before it is used.

Models that circulate or visit, heads that are kept as experts, and proxies that are averaged in pairs reach
each site alone: there is no set of contributions, equal at all sites, to compare them with. Only
this site's own data can tell whether they predict anything. The result stays in the worker.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import models
from models import Network
from peer.core.commands import Source
from peer.methods.supervised import supervised_loss
from peer.training.data import DataSplit, SiteData
from peer.training.errors import UnusableArtifact
from peer.training.settings import TrainingSettings

logger = logging.getLogger(__name__)

SAMPLES_MAX = 32
"""Of the validation split, or of the training split where that has fewer than ``SAMPLES_MIN``."""
SAMPLES_MIN = 8
LOGIT_MAX = 1e4
"""Of a received model's predictions; trained networks stay below a hundred."""
SPREAD_RATIO_MAX = 10.0
"""A received head's predictions may spread so many times as widely as the own head's; honest ones of
unlike sites had 1.3 at most."""


class OwnDataProbe:
    """Refuses received networks that are beyond a bound on own data; ``[training] probe_ratio_max``
    sets that of models, and 0 there switches both off.

    Every check is a function of the artifact, the site's samples and its networks, so a restarted
    worker decides alike.

    Args:
        settings: the site's.
        data: reads the site's data at the first check.
        device: where networks run.
    """

    def __init__(self, settings: TrainingSettings, data: Callable[[], SiteData], device: torch.device) -> None:
        self._settings, self._data, self._device = settings, data, device
        self._batch: tuple[Tensor, Tensor] | None = None

    def check_model(self, source: Source, network: nn.Module, own: nn.Module) -> None:
        """Refuse a model without weights, or one whose loss is beyond the bound.

        The unit is the loss of a prediction that is zero everywhere: a model that was trained on
        other classes may be worse than one that knows nothing, but not many times worse. Where the
        own network is beyond the bound, too, the samples say nothing of the model.

        Raises:
            UnusableArtifact: the model is beyond the bound.
        """
        ratio_max = self._settings.probe_ratio_max
        if not ratio_max or source.origin == self._settings.site:
            return
        if not any(bool(tensor.any()) for tensor in network.parameters() if tensor.ndim > 1):
            raise UnusableArtifact(source, "all its weights are zero")
        ratio = self.loss_ratio(network)
        if ratio <= ratio_max or not self._samples_are_sound(own):
            return
        if not math.isfinite(ratio):
            raise UnusableArtifact(source, f"its predictions on this site's samples are no numbers up to {LOGIT_MAX:g}")
        raise UnusableArtifact(
            source,
            f"its loss on this site's samples is {ratio:.3g} times that of no knowledge, above {ratio_max:g} "
            "([training] probe_ratio_max)",
        )

    def check_return(self, source: Source, returned: nn.Module, sent: nn.Module) -> None:
        """Refuse a copy of this site's model that came home much worse than the model that left.

        Raises:
            UnusableArtifact: the copy is beyond the bound of any model, or lost half as much.
        """
        self.check_model(source, returned, sent)
        loss_max = self._settings.probe_ratio_max / 2
        if not loss_max:
            return
        ratio, before = self.loss_ratio(returned), self.loss_ratio(sent)
        if ratio > before + loss_max:
            raise UnusableArtifact(
                source,
                f"its loss on this site's samples rose from {before:.3g} to {ratio:.3g} times that of no knowledge, by "
                f"more than {loss_max:g} (half of [training] probe_ratio_max)",
            )

    def check_head(self, source: Source, head: nn.Module, own: Network) -> None:
        """Refuse a head whose predictions spread many times as widely as those of the own head.

        The head gets the features of the own body, repeated or cut to its width.

        Raises:
            UnusableArtifact: the head is beyond the bound.
        """
        if not self._settings.probe_ratio_max or source.origin == self._settings.site:
            return
        ratio = self.spread_ratio(head, own)
        if ratio <= SPREAD_RATIO_MAX or not self._samples_are_sound(own):
            return
        if not math.isfinite(ratio):
            raise UnusableArtifact(source, "its predictions for this site's samples hold a NaN or an infinity")
        raise UnusableArtifact(
            source,
            f"its predictions spread {ratio:.3g} times as widely as those of the own head, above {SPREAD_RATIO_MAX:g}",
        )

    def _samples_are_sound(self, own: nn.Module) -> bool:
        """Whether the own network stays within the bound on the same samples; if not, warn."""
        ratio = self.loss_ratio(own)
        sound = ratio <= self._settings.probe_ratio_max
        if not sound:
            logger.warning(
                "received artifacts are not tried: this site's own network fails on the samples, too; look at the "
                "data: loss_ratio=%.3g",
                ratio,
            )
        return sound

    def loss_ratio(self, network: nn.Module) -> float:
        """The model's loss on the probe's samples, in losses of a prediction that is zero everywhere;
        infinite where its predictions are beyond all use.
        """
        images, targets = self._samples()
        loss = supervised_loss(
            self._settings.task.kind, str(self._settings.parameters.get("segmentation_loss", "dice_ce"))
        ).loss
        prediction = _run(network, images, self._device).prediction.float().cpu()
        if self._settings.task.kind != "super_resolution" and float(prediction.abs().max()) > LOGIT_MAX:
            return math.inf  # it may even be right, but outvotes every other model
        none = float(loss(torch.zeros_like(prediction), targets))
        return float(loss(prediction, targets)) / none if none else math.nan

    def spread_ratio(self, head: nn.Module, own: Network) -> float:
        """The standard deviation of the head's predictions over the samples, in those of the own head;
        0 where the own head predicts the same for all, and tells nothing.
        """
        images, _ = self._samples()
        output = _run(own, images, self._device)
        feature = output.penultimate
        index = torch.arange(models.head_width(head), device=feature.device) % feature.shape[1]
        prediction = _run(head, feature[:, index], self._device)
        spread, own_spread = _spread(prediction), _spread(output.prediction)
        return spread / own_spread if own_spread else 0.0 * spread  # a NaN stays one

    def _samples(self) -> tuple[Tensor, Tensor]:
        if self._batch is None:
            data = self._data()
            split = data.validation if len(data.validation) >= SAMPLES_MIN else data.training
            self._batch = split.read(_evenly(split))
        return self._batch


def _evenly(split: DataSplit) -> Sequence[int]:
    count = min(SAMPLES_MAX, len(split))
    return [index * len(split) // count for index in range(count)]


def _run(network: nn.Module, inputs: Tensor, device: torch.device) -> Any:
    """The network's output in evaluation mode; its mode is left to the stage that uses it."""
    network.to(device).eval()
    with torch.no_grad():
        return network(inputs.to(device))


def _spread(prediction: Tensor) -> float:
    return float(prediction.float().std(dim=0, correction=0).mean())
