"""Test the mean of a secure sum before use.

Nobody sees a single contribution, so no bound can omit one. What a site can judge is the mean: its distance from the
last mean that the site used, beside the distance of the site's own training since; and its loss on some of the site's
samples. The result stays in the worker.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence

from peer.core.artifacts import Source
from peer.train.aggregation import STATISTICS, Aggregation
from peer.train.artifact_exchange import ArtifactExchange
from peer.train.checkpoint import Checkpoint, Checkpoints, checkpoint_name
from peer.train.errors import UnusableArtifact
from peer.train.own_data_probe import OwnDataProbe, largest_difference
from peer.train.settings import TrainingSettings
from peer.train.site_networks import SiteNetworks
from peer.train.tensors import State

CHANGE_RATIO_MAX = 1.2
"""How far the mean may be from the last one, in multiples of the own training since: as a whole, and in the tensor that
moved farthest. Contributions of different directions shorten their mean: in honest federations it was 0.5 to 1.0 times
as far, with one of four sites that negates its weights 2 to 6 times.
"""
GAIN_SHARE_MIN = 0.1
"""What a mean must keep, after a refused one, of the loss that the own training gained since the last mean."""
STATISTICS_RATIO_MAX = 10.0
"""The same for batch statistics, which follow a site's data: in the first round those of a site with dark images move
little, and the mean with the bright ones.
"""
TINY = 1e-12
"""The least distance that counts; a site whose training moved nothing has no yardstick."""
REFUSED = "refused"
"""The name of a checkpoint without networks: the trial refused the mean of its round."""
NETWORKS = ("model", "head", "proxy", "messenger")
"""Artifacts whose mean is a network that predicts; sums and prototypes do not."""


class TotalTrial:
    """Refuses the mean of a secure sum that honest training cannot give, and keeps the last one that passed.

    A mean is refused if it is farther from the last one than ``CHANGE_RATIO_MAX`` times the own training, and worse on
    this site's samples than the own network: sites that train longer also move the mean far, but to somewhere better.
    So is one without weights, or whose loss exceeds ``probe_ratio_max``. After a refusal sites train alone and drift
    apart, so that an honest mean is far, too, and a forged one hardly farther: then it must be better than the last
    one, by ``GAIN_SHARE_MIN``. A refusal is on disk before the worker says it. Every decision is a function of the
    total, the site's samples and its checkpoints, so a restarted worker decides alike.

    Distances tell nothing where a member joined since the last mean, with untrained weights, or where stages count
    epochs, of which a large site has more steps than a small one.

    With noise, people must not decide what a site uses: the distance alone decides, from the second mean on.
    ``[training] probe_ratio_max = 0`` switches the trial off; a mean used so is the last one of the trial after it.

    Args:
        initial: builds the networks that the site started with.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        networks: SiteNetworks,
        exchange: ArtifactExchange,
        probe: OwnDataProbe,
        checkpoints: Checkpoints,
        initial: Callable[[], SiteNetworks],
    ) -> None:
        self._settings, self._networks, self._exchange, self._probe = settings, networks, exchange, probe
        self._checkpoints, self._initial = checkpoints, initial

    def divide(self, total: Source, sources: Sequence[Source], *, joined: int) -> Aggregation:
        """Divide the total of this site and the sources' origins; keep the mean for the trial of the next.

        Args:
            joined: the first round of the newest member.

        Raises:
            UnusableArtifact: the total does not fit, or its mean is refused.
        """
        contributors = {self._settings.site, *(source.origin for source in sources)}
        aggregation = self._exchange.divide(total, contributors)
        if self._settings.plan.artifact in NETWORKS:
            if self._settings.training.probe_ratio_max:
                self._check(total, aggregation.state, is_new=joined > max(1, self._networks.accepted_round))
            self._networks.accept(aggregation.state, round=total.round)
        return aggregation

    def _check(self, total: Source, mean: State, *, is_new: bool) -> None:
        if self._settings.noise is None or (self._networks.accepted and not is_new):
            reason = self._reason(total, mean, is_new=is_new)
            if reason is not None:
                self._checkpoints.write(
                    checkpoint_name(total.round, REFUSED), Checkpoint({"work": total.artifact.sha256})
                )
                raise UnusableArtifact(total, reason)

    def _reason(self, total: Source, mean: State, *, is_new: bool) -> str | None:
        """Return why the mean is refused."""
        networks, noised = self._networks, self._settings.noise is not None
        if not any(bool(tensor.any()) for tensor in mean.values() if tensor.is_floating_point() and tensor.ndim > 1):
            return "all its weights are zero"
        comparable = not is_new and all(work.unit == "step" for work in self._settings.works.values())
        last = networks.accepted or self._exchange.sent_state(self._initial())
        trained = self._exchange.sent_state(networks)
        ratios = {
            measure: measure(mean, last) / max(measure(trained, last), TINY) / bound
            for measure, bound in BOUNDS.items()
        }
        measure = max(ratios, key=ratios.__getitem__)
        far = comparable and not ratios[measure] <= 1.0
        moved = f"it is {ratios[measure] * BOUNDS[measure]:.3g} times as far from the last mean as own training"
        if noised:
            return moved if far else None
        loss, own = self._loss(mean), self._loss({})
        measured = (
            f"its loss on this site's samples is {loss:.3g} times that of no knowledge, the own network's {own:.3g}"
        )
        if not loss <= own and (far or not loss <= self._settings.training.probe_ratio_max):
            return f"{moved}; {measured}"
        since = range(networks.accepted_round + 1, total.round)
        if comparable and any(self._checkpoints.record(checkpoint_name(round, REFUSED)) is not None for round in since):
            before = self._loss(last)
            if not loss <= before - GAIN_SHARE_MIN * max(0.0, before - own):
                return f"{measured}, that of the last mean before one was refused {before:.3g}"
        return None

    def _loss(self, state: State) -> float:
        """Return the loss of the own network with these tensors in place of its own; twice the bound at most."""
        network = copy.deepcopy(self._networks.artifact_network)
        network.load_state_dict(state, strict=False)
        loss, most = self._probe.loss_ratio(network), 2 * self._settings.training.probe_ratio_max
        return loss if loss <= most else most


def _farthest(state: State, earlier: State) -> float:
    return largest_difference(state, earlier)[1]


def _distance(state: State, earlier: State, *, statistics: bool = False) -> float:
    """Return the norm of the difference of all floating tensors but batch statistics, or of these alone."""
    moved = [
        (state[name].double() - tensor.double()).square().sum()
        for name, tensor in earlier.items()
        if tensor.is_floating_point() and name.endswith(STATISTICS) == statistics
    ]
    return math.sqrt(float(sum(moved)))


BOUNDS: dict[Callable[[State, State], float], float] = {
    _farthest: CHANGE_RATIO_MAX,
    _distance: CHANGE_RATIO_MAX,
    functools.partial(_distance, statistics=True): STATISTICS_RATIO_MAX,
}
