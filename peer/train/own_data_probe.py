"""Test a received model or head against poisoning on some of this site's own samples before use.

Models that circulate or visit, heads kept as experts, and proxies averaged in pairs reach each site alone: there is no
set of contributions, equal at all sites, to compare them with. Only this site's own data can show whether they predict
anything. The result stays in the worker.
"""

from __future__ import annotations

import logging
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import models
from models import Network
from models.moe import Expert
from peer.core.artifacts import Source
from peer.methods.supervised import has_classes, supervised_loss
from peer.train.aggregation import STATISTICS
from peer.train.errors import UnusableArtifact
from peer.train.samples import DataSplit, SiteData
from peer.train.settings import TrainingSettings

logger = logging.getLogger(__name__)

SAMPLES_MAX = 32
"""Maximum number of samples, of the validation split or, if it has fewer than ``SAMPLES_MIN``, the training split."""
SAMPLES_MIN = 8
LOGIT_MAX = 1e4
"""Upper bound on a received model's predictions; those of trained networks stay below a hundred."""
CONFIDENCE = 0.999
"""One-sided: a network is refused where its loss exceeds the bound with this confidence, given so few samples."""
SAMPLE_LOSS_MAX = 2.0
"""What one sample counts at most, in multiples of the bound: cross-entropy of one confident error has no limit."""
SUSPICIOUS_RATIO = 1.1
"""If a copy of a circulating model has this many times the loss of an earlier copy, it is compared with the copy from
which it was trained. A false alarm costs one transfer.
"""
CHANGE_MAX = 0.75
"""How far the training of a round may move a tensor, in norms of the tensor; honest training of 16 steps moved them by
0.15, and negated or random weights are 1.4 to 2 norms away.
"""
CHANGE_RATIO_MAX = 2.0
"""Beyond ``CHANGE_MAX``, how far each round may move a tensor, in multiples of this site's own training."""
SPREAD_RATIO_MAX = 10.0
"""Upper bound on the spread of a received head's predictions, in multiples of the own head's; honest heads of
dissimilar sites had at most 1.3.
"""


class OwnDataProbe:
    """Refuses received networks that exceed a bound on this site's data.

    ``[training] probe_ratio_max`` sets the bound for models; 0 switches off all checks. Every check is a function of
    the artifact, the site's samples and its networks, so a restarted worker decides alike.

    Args:
        settings: the site's settings.
        data: reads the site's data at the first check.
        device: where networks run.
    """

    def __init__(self, settings: TrainingSettings, data: Callable[[], SiteData], device: torch.device) -> None:
        self._settings, self._data, self._device = settings, data, device
        # What a site uses is part of what it sends: with noise, its people must not decide on it.
        self._ratio_max = settings.training.probe_ratio_max if settings.noise is None else 0.0
        self._batch: tuple[Tensor, Tensor] | None = None

    def check_model(self, source: Source, network: nn.Module, own: nn.Module) -> None:
        """Refuse a model without weights, or one whose loss exceeds the bound.

        The loss is measured in multiples of the loss of a prediction that is zero everywhere. A model trained on other
        classes may be worse than one that knows nothing, but not many times worse. The lower end of the loss's
        confidence interval decides. If this site's network exceeds the bound, too, the samples say nothing about the
        model.

        Raises:
            UnusableArtifact: the model is beyond the bound.
        """
        ratio_max = self._ratio_max
        if not ratio_max or source.origin == self._settings.site:
            return
        _refuse_without_weights(source, network)
        ratios = self.loss_ratios(network)
        ratio = float(ratios.mean())
        if _lower_end(_limited(ratios, ratio_max)) <= ratio_max or not self._samples_are_sound(own):
            return
        if not math.isfinite(ratio):
            raise UnusableArtifact(source, f"its predictions on this site's samples are no numbers up to {LOGIT_MAX:g}")
        raise UnusableArtifact(
            source,
            f"its loss on {len(ratios)} samples of this site is {ratio:.3g} times that of no knowledge, above "
            f"{ratio_max:g} ([training] probe_ratio_max)",
        )

    def check_received(self, sources: Sequence[Source], received: Mapping[str, nn.Module], own: Network) -> None:
        """Check the models and heads of these sources, by origin."""
        for source in sources:
            module = received[source.origin]
            if isinstance(module, Network):
                self.check_model(source, module, own)
            else:
                self.check_head(source, module.head if isinstance(module, Expert) else module, own)

    def check_return(self, source: Source, returned: nn.Module, sent: nn.Module) -> None:
        """Refuse a copy of this site's model that returned much worse than the model that was sent.

        Raises:
            UnusableArtifact: the copy exceeds the bound of any model, or its loss rose by over half that bound, with
                ``CONFIDENCE``.
        """
        self.check_model(source, returned, sent)
        loss_max = self._ratio_max / 2
        if not loss_max:
            return
        ratios, before = self.loss_ratios(returned), self.loss_ratios(sent)
        bound = self._ratio_max
        if _lower_end(_limited(ratios, bound) - _limited(before, bound)) > loss_max:
            raise UnusableArtifact(
                source,
                f"its loss on {len(ratios)} samples of this site rose from {float(before.mean()):.3g} to "
                f"{float(ratios.mean()):.3g} times that of no knowledge, by more than {loss_max:g} (half of [training] "
                "probe_ratio_max)",
            )

    def check_copy(
        self,
        source: Source,
        network: nn.Module,
        earlier: nn.Module | None,
        *,
        rounds: int,
        own_change: float,
        final: bool,
    ) -> None:
        """Refuse a copy of a circulating model that cannot result from training an earlier copy.

        A copy may be worse on this site's samples than the earlier one, since other sites have other samples. It is
        refused only if its weights are too far away as well. Neither an honest site nor the sender of a forged earlier
        copy can therefore incriminate another site.

        Args:
            source: the origin of the copy.
            network: the copy.
            earlier: another copy of the same model; ``None`` if this site has none.
            rounds: the number of rounds of training between both copies.
            own_change: ``largest_change`` caused by this site's own last round of training.
            final: whether the decision is final; otherwise a merely suspicious copy is refused, too.

        Raises:
            UnusableArtifact: the copy is refused.
        """
        if not self._ratio_max or source.origin == self._settings.site:
            return
        if earlier is None:
            if not final:
                raise UnusableArtifact(source, "there is no earlier copy here to compare it with")
            return
        ratio, earlier_ratio = self.loss_ratio(network), self.loss_ratio(earlier)
        name, change = largest_change(network, earlier)
        bound = max(CHANGE_MAX, CHANGE_RATIO_MAX * own_change * rounds)
        if not final:
            if change > bound or not ratio <= SUSPICIOUS_RATIO * earlier_ratio:
                raise UnusableArtifact(source, "it is far from an earlier copy, or worse on this site's samples")
            return
        if ratio > earlier_ratio and change > bound:
            raise UnusableArtifact(
                source,
                f"no training has made it of the copy before: {name} was moved by {change:.3g} of its size, here by "
                f"{own_change:.3g} at most, and its loss on this site's samples is {ratio / earlier_ratio:.3g} times "
                "that copy's",
            )

    def check_head(self, source: Source, head: nn.Module, own: Network) -> None:
        """Refuse a head without weights, or one whose predictions spread many times as widely as those of the own head.

        The head gets the features of this site's body, repeated or cut to its width.

        Raises:
            UnusableArtifact: the head is beyond the bound.
        """
        if not self._ratio_max or source.origin == self._settings.site:
            return
        _refuse_without_weights(source, head)
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
        """Return whether this site's network stays within the bound on the same samples; if not, log a warning."""
        ratio = self.loss_ratio(own)
        sound = ratio <= self._ratio_max
        if not sound:
            logger.warning(
                "received artifacts are not tried: this site's own network fails on the samples, too; look at the "
                "data: loss_ratio=%.3g",
                ratio,
            )
        return sound

    def loss_ratio(self, network: nn.Module) -> float:
        """Return the mean of ``loss_ratios``."""
        return float(self.loss_ratios(network).mean())

    def loss_ratios(self, network: nn.Module) -> Tensor:
        """Return the model's loss on each of the probe's samples, in multiples of the mean loss of a prediction that is
        zero everywhere; ``(samples,)``, float64.

        The ratios are infinite if the absolute value of a logit exceeds ``LOGIT_MAX``.
        """
        images, targets = self._samples()
        loss = supervised_loss(
            self._settings.task.objective, str(self._settings.parameters.get("segmentation_loss", "dice_ce"))
        ).loss
        prediction = _run(network, images, self._device).prediction.float().cpu()
        if has_classes(self._settings.task.objective) and float(prediction.abs().max()) > LOGIT_MAX:
            return torch.full((len(images),), math.inf)  # the model may be right, but outvotes every other one
        nothing = torch.zeros_like(prediction)
        losses, none = (
            torch.stack([loss(each[index : index + 1], targets[index : index + 1]) for index in range(len(images))])
            for each in (prediction, nothing)
        )
        return losses.double() / none.double().mean()

    def spread_ratio(self, head: nn.Module, own: Network) -> float:
        """Return the standard deviation of the head's predictions over the samples, as a multiple of the own head's.

        Return 0 if the own head predicts the same for all samples, and so gives no scale.
        """
        images, _ = self._samples()
        output = _run(own, images, self._device)
        feature = output.penultimate
        index = torch.arange(models.head_width(head), device=feature.device) % feature.shape[1]
        prediction = _run(head, feature[:, index], self._device)
        spread, own_spread = _spread(prediction), _spread(output.prediction)
        return spread / own_spread if own_spread else 0.0 * spread  # a NaN stays a NaN

    def _samples(self) -> tuple[Tensor, Tensor]:
        if self._batch is None:
            data = self._data()
            split = data.validation if len(data.validation) >= SAMPLES_MIN else data.training
            self._batch = split.read(_evenly(split))
        return self._batch


def _limited(ratios: Tensor, bound: float) -> Tensor:
    """Limit what one sample counts; infinite ratios, of predictions that are no numbers, stay."""
    return torch.where(ratios.isinf(), ratios, ratios.clamp(max=SAMPLE_LOSS_MAX * bound))


def _lower_end(values: Tensor) -> float:
    """Return the lower end of the mean's one-sided confidence interval; a NaN and an infinity stay.

    The quantile of Student's distribution is Cornish and Fisher's expansion of the normal one.
    """
    mean, degrees = float(values.mean()), len(values) - 1
    if not math.isfinite(mean) or degrees < 1:
        return mean
    z = statistics.NormalDist().inv_cdf(CONFIDENCE)
    quantile = z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
    return mean - quantile * float(values.std()) / math.sqrt(len(values))


def _refuse_without_weights(source: Source, network: nn.Module) -> None:
    if not any(bool(tensor.any()) for tensor in network.parameters() if tensor.ndim > 1):
        raise UnusableArtifact(source, "all its weights are zero")


def largest_change(network: nn.Module, earlier: nn.Module) -> tuple[str, float]:
    """Return the floating tensor that moved farthest from an earlier copy, and how far, in norms of the earlier tensor.

    A norm counts as at least that of a fresh layer, so that biases that began at zero may move. Batch statistics follow
    the data, and do not count.
    """
    return largest_difference(network.state_dict(), earlier.state_dict())


def largest_difference(state: Mapping[str, Tensor], earlier: Mapping[str, Tensor]) -> tuple[str, float]:
    """Compare two states as ``largest_change`` does two networks."""
    states = [
        {
            name: tensor.detach().double().cpu()
            for name, tensor in each.items()
            if tensor.is_floating_point() and tensor.numel() and not name.endswith(STATISTICS)
        }
        for each in (state, earlier)
    ]
    if {name: tensor.shape for name, tensor in states[0].items()} != {
        name: tensor.shape for name, tensor in states[1].items()
    }:
        return "its architecture", math.inf
    changes = {"": 0.0}
    for name, before in states[1].items():
        fresh = math.sqrt(before.shape[0]) if before.ndim else 1.0
        size = max(fresh, float(torch.linalg.vector_norm(before)))
        changes[name] = float(torch.linalg.vector_norm(states[0][name] - before)) / size
    return max(changes.items(), key=lambda item: item[1])


def _evenly(split: DataSplit) -> Sequence[int]:
    count = min(SAMPLES_MAX, len(split))
    return [index * len(split) // count for index in range(count)]


def _run(network: nn.Module, inputs: Tensor, device: torch.device) -> Any:
    """Return the network's output in evaluation mode; the stage that uses the network sets its mode anew."""
    network.to(device).eval()
    with torch.no_grad():
        return network(inputs.to(device))


def _spread(prediction: Tensor) -> float:
    return float(prediction.float().std(dim=0, correction=0).mean())
