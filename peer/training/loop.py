"""The one training loop. It knows no method, no clock and no file; a stage says what to minimise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from peer.core.plan import Work
from peer.methods.method import Batch, Stage, Step
from peer.training.checkpoint import Checkpoint, Checkpoints
from peer.training.data import Batches, Seed
from peer.training.device import precision
from peer.training.errors import WorkInterrupted
from peer.training.optimiser import adam, adam_state, load_adam_state, trainable
from peer.training.tensors import State, state_of

TOTAL = "total"


class Loop:
    """A stage in progress: its networks on the device, an Adam for each that learns, and the sums of its losses.

    Args:
        stage: what the method declared.
        work: learning rate and weight decay of every optimiser.
        steps: batches of one pass.
        device: where the networks go.
        precision: of the forward passes; losses are computed in float32 or better.
        seed: of the site, round and stage.
    """

    def __init__(
        self, stage: Stage, work: Work, *, steps: int, device: torch.device, precision: str, seed: Seed
    ) -> None:
        self.stage, self.steps = stage, steps * len(stage.passes)
        self.pass_steps = steps
        self._device, self._precision, self._seed = device, precision, seed
        for network in stage.networks.values():
            network.to(device)
        learning = {name: network for name, network in stage.networks.items() if name in stage.trains}
        self.optimisers = {name: adam(network, work) for name, network in learning.items() if trainable(network)}
        self._learnt = {name: list(trainable(network).values()) for name, network in stage.networks.items()}
        self._frozen: dict[str, bool] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, Tensor] = {}
        self.step = 0

    def run(self, batches: Batches) -> Iterator[int]:
        """Train up to the last step, from wherever the stage stands; yields the count after each step."""
        while self.step < self.steps:
            number, turn = divmod(self.step, self.pass_steps)
            batch = batches[turn]
            self._last = self._train(self.step, self.stage.passes[number], batch)
            for name, value in self._last.items():
                self._sums[name] = self._sums.get(name, 0.0) + value.double()
                self._counts[name] = self._counts.get(name, 0) + 1
            self.step += 1
            yield self.step

    def losses(self) -> dict[str, float]:
        """The terms of the newest step, unweighted, and their weighted ``total``."""
        return {name: float(value) for name, value in self._last.items()}

    def means(self) -> dict[str, float]:
        """The mean of each term over the steps so far that had it."""
        return {name: float(value) / self._counts[name] for name, value in self._sums.items()}

    def networks(self) -> dict[str, State]:
        """A copy of every network's state."""
        return {name: state_of(network) for name, network in self.stage.networks.items()}

    def moments(self) -> dict[str, State]:
        """A copy of every optimiser's state."""
        return {name: adam_state(adam, self.stage.networks[name]) for name, adam in self.optimisers.items()}

    def sums(self) -> dict[str, tuple[float, int]]:
        """The sum of each term and how many steps had it, for a resume."""
        return {name: (float(value), self._counts[name]) for name, value in self._sums.items()}

    def load(self, networks: Mapping[str, State], moments: Mapping[str, State]) -> None:
        """Put back states of networks and optimisers; those that are not named stay as they are."""
        for name, state in networks.items():
            self.stage.networks[name].load_state_dict(state)
        for name, state in moments.items():
            load_adam_state(self.optimisers[name], self.stage.networks[name], state)

    def resume(self, step: int, sums: Mapping[str, tuple[float, int]]) -> None:
        """Go on after this step, with these sums of losses."""
        self.step = step
        for name, (value, count) in sums.items():
            self._sums[name] = torch.tensor(value, dtype=torch.float64, device=self._device)
            self._counts[name] = count

    def thaw(self) -> None:
        """Let every parameter that a move froze require a gradient again: the networks outlive the stage."""
        for name in self._learnt:
            self._freeze(name, frozen=False)

    def _train(self, step: int, moves: tuple[Step, ...], batch: Batch) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        totals = []
        for number, move in enumerate(moves):
            terms = self._move(step, number, move, batch)
            totals.append(terms.pop(TOTAL))
            found |= terms
        return {TOTAL: torch.stack(totals).sum()} | found

    def _move(self, step: int, number: int, move: Step, batch: Batch) -> dict[str, Tensor]:
        def forward(network: str, *inputs: Any, part: str = "") -> Any:
            # Each network has randomness of its own: what others run beside it does not change its dropout.
            torch.manual_seed(self._seed("forward", step, network, *([number] if number else ())))
            module = self.stage.networks[network]
            with precision(self._precision, self._device):
                return (module.get_submodule(part) if part else module)(*inputs)

        for name in self.stage.networks:
            self._freeze(name, frozen=name not in move.trains)
        optimisers = [self.optimisers[name] for name in move.trains if name in self.optimisers]
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        terms = move.losses(batch, forward)
        total = torch.stack([term.value * term.weight for term in terms.values()]).sum()
        if move.trains:
            torch.autograd.backward(total)
        for optimiser in optimisers:
            optimiser.step()
        return {TOTAL: total.detach()} | {name: term.value.detach() for name, term in terms.items()}

    def _freeze(self, name: str, *, frozen: bool) -> None:
        """Frozen: no gradient to what could learn, and evaluation mode. Parts that never learn keep theirs."""
        if self._frozen.get(name) == frozen:
            return
        self._frozen[name] = frozen
        self.stage.networks[name].train(not frozen)
        for parameter in self._learnt[name]:
            parameter.requires_grad_(not frozen)


PROGRESS_S = 0.2  # five reports a second look continuous and cost nothing


class Diverged(Exception):  # noqa: N818 - the name is the fact
    """The loss is not finite, so that nothing which follows could be used; the message says where."""


@dataclass(frozen=True)
class StageRunner:
    """How a stage is run.

    Attributes:
        checkpoints: where partial checkpoints go.
        checkpoint_s: seconds between them.
        report: gets step, steps and the newest losses, at most each ``PROGRESS_S`` seconds and after the last step.
        halted: asked after each step.
        clock: monotonic seconds.
    """

    checkpoints: Checkpoints
    checkpoint_s: float
    report: Callable[[int, int, Mapping[str, float]], None]
    halted: Callable[[], bool]
    clock: Callable[[], float]

    def run(self, loop: Loop, batches: Batches, *, work: str) -> float:
        """Train to the last step, from the partial checkpoint of this ``work`` if there is one.

        Returns:
            The seconds that it took, those before an interruption included.

        Raises:
            Interrupted: a halt came; the partial checkpoint is on disk.
            Diverged: the total loss is not finite.
        """
        began, steps = self.clock(), loop.steps
        saved = began
        reported = -math.inf
        partial = self.checkpoints.read_partial(work)
        if partial is not None:
            loop.load(partial.networks, partial.optimisers)
            loop.resume(partial.record["step"], partial.record["sums"])
            began -= partial.record["duration_s"]
        for step in loop.run(batches):
            now = self.clock()
            if step == steps or now - reported >= PROGRESS_S:
                losses = loop.losses()
                if not math.isfinite(losses[TOTAL]):
                    raise Diverged(f"the loss is {losses[TOTAL]} at step {step}")
                self.report(step, steps, losses)
                reported = now
            if step == steps:
                break
            halted = self.halted()
            if halted or now - saved >= self.checkpoint_s:
                self._save(loop, work, now - began)
                saved = now
            if halted:
                raise WorkInterrupted
        return self.clock() - began

    def _save(self, loop: Loop, work: str, duration_s: float) -> None:
        record = {"work": work, "step": loop.step, "sums": loop.sums(), "duration_s": duration_s}
        self.checkpoints.write_partial(loop.step, Checkpoint(record, loop.networks(), loop.moments()))
