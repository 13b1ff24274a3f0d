"""The one training loop. It knows no method, no clock and no file; a stage says what to minimise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from models import Output
from peer.core.plan import Work
from peer.methods.method import Batch, Stage
from peer.training.data import Batches, Seed
from peer.training.device import precision
from peer.training.optimiser import adam, adam_state, load_adam_state, trainable
from peer.training.tensors import State, state_of

TOTAL = "total"


class Loop:
    """A stage in progress: its networks on the device, an Adam for each that learns, and the sums of its losses.

    Args:
        stage: what the method declared.
        work: learning rate and weight decay of every optimiser.
        device: where the networks go.
        precision: of the forward passes; losses are computed in float32 or better.
        seed: of the site, round and stage.
    """

    def __init__(self, stage: Stage, work: Work, *, device: torch.device, precision: str, seed: Seed) -> None:
        self.stage = stage
        self._device, self._precision, self._seed = device, precision, seed
        for network in stage.networks.values():
            network.to(device).train()
        self.optimisers = {name: adam(network, work) for name, network in stage.networks.items() if trainable(network)}
        self._sums: dict[str, Tensor] = {}
        self._last: Mapping[str, Tensor] = {}
        self.step = 0

    def run(self, batches: Batches, *, steps: int) -> Iterator[int]:
        """Train up to ``steps`` steps in all, from wherever the stage stands; yields the count after each step."""
        while self.step < steps:
            self._last = self._train(self.step, batches[self.step])
            for name, value in self._last.items():
                self._sums[name] = self._sums.get(name, 0.0) + value.double()
            self.step += 1
            yield self.step

    def losses(self) -> dict[str, float]:
        """The terms of the newest step, unweighted, and their weighted ``total``."""
        return {name: float(value) for name, value in self._last.items()}

    def means(self) -> dict[str, float]:
        """The mean of each term over the steps so far."""
        return {name: float(value) / self.step for name, value in self._sums.items()}

    def networks(self) -> dict[str, State]:
        """A copy of every network's state."""
        return {name: state_of(network) for name, network in self.stage.networks.items()}

    def moments(self) -> dict[str, State]:
        """A copy of every optimiser's state."""
        return {name: adam_state(adam, self.stage.networks[name]) for name, adam in self.optimisers.items()}

    def sums(self) -> dict[str, float]:
        """The sum of each term over the steps so far, for a resume."""
        return {name: float(value) for name, value in self._sums.items()}

    def load(self, networks: Mapping[str, State], moments: Mapping[str, State]) -> None:
        """Put back states of networks and optimisers; those that are not named stay as they are."""
        for name, state in networks.items():
            self.stage.networks[name].load_state_dict(state)
        for name, state in moments.items():
            load_adam_state(self.optimisers[name], self.stage.networks[name], state)

    def resume(self, step: int, sums: Mapping[str, float]) -> None:
        """Go on after this step, with these sums of losses."""
        self.step = step
        self._sums = {
            name: torch.tensor(value, dtype=torch.float64, device=self._device) for name, value in sums.items()
        }

    def _train(self, step: int, batch: Batch) -> dict[str, Tensor]:
        def forward(network: str, images: Tensor) -> Output:
            # Each network has randomness of its own: what others run beside it does not change its dropout.
            torch.manual_seed(self._seed("forward", step, network))
            with precision(self._precision, self._device):
                output: Output = self.stage.networks[network](images)
            return output

        for optimiser in self.optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        terms = self.stage.losses(batch, forward)
        total = torch.stack([term.value * term.weight for term in terms.values()]).sum()
        torch.autograd.backward(total)
        for optimiser in self.optimisers.values():
            optimiser.step()
        return {TOTAL: total.detach()} | {name: term.value.detach() for name, term in terms.items()}
