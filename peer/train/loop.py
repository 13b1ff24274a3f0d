"""The one training loop. It depends on no method, clock or file; a stage declares its losses."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from peer.core.plan import Work
from peer.methods.method import Batch, Stage, Step
from peer.train.checkpoint import Checkpoint, Checkpoints
from peer.train.device import precision, seed_generators, with_channels_last
from peer.train.errors import WorkInterrupted
from peer.train.noise import PrivateSum, StageNoise, buffers_of, refuse_batch_norm, refuse_changed
from peer.train.optimiser import adam, adam_state, load_adam_state, trainable
from peer.train.person_batches import PersonBatches, PersonSamples
from peer.train.ranks import Ranks
from peer.train.samples import Batches, Seed
from peer.train.tensors import State, state_of

TOTAL = "total"


class Lead(Protocol):
    """Leads the other ranks through a stage."""

    def step(self, number: int) -> AbstractContextManager[None]:
        """Have them take this step while the block does."""

    def end(self) -> None:
        """Have them leave the stage."""


class Loop:
    """A stage in progress: its networks on the device, an Adam for each trained one, and the sums of its losses.

    Args:
        work: sets learning rate and weight decay of every optimiser.
        precision: precision of the forward passes; losses are computed in float32 or better.
        channels_last: store the channels of a pixel side by side, in images and so in features.
        clip_norm: the largest L2 norm of a step's gradients, over all tensors that the step trains.
        noise: of a private stage, whose batches are ``PersonBatches``.
        ranks: the data-parallel processes of this stage; each has its own loop.
        lead: at rank 0, makes the other ranks ``follow`` each step.
    """

    def __init__(
        self,
        stage: Stage,
        work: Work,
        *,
        steps: int,
        device: torch.device,
        precision: str,
        seed: Seed,
        channels_last: bool = False,
        clip_norm: float | None = None,
        noise: StageNoise | None = None,
        ranks: Ranks | None = None,
        lead: Lead | None = None,
    ) -> None:
        self.stage = stage
        self.pass_steps = _divide(steps, len(stage.passes)) if stage.divides else (steps,) * len(stage.passes)
        self._ends = tuple(itertools.accumulate(self.pass_steps))
        self.steps = sum(self.pass_steps)
        self.device, self._precision, self._seed = device, precision, seed
        self._channels_last, self._clip_norm, self.noise = channels_last, clip_norm, noise
        self._ranks, self._lead = ranks, lead
        for network in stage.networks.values():
            network.to(device)
        trained = {name: network for name, network in stage.networks.items() if name in stage.trains}
        self.is_divided = ranks is not None and ranks.prepare(trained.values(), device)
        self.optimisers = {name: adam(network, work) for name, network in trained.items() if trainable(network)}
        self._trainable = {name: list(trainable(network).values()) for name, network in stage.networks.items()}
        self._frozen: dict[str, bool] = {}
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._last: dict[str, Tensor] = {}
        self.step = self.first_step = self.releases = 0

    @property
    def noised_steps(self) -> int:
        """Optimiser steps with noise in the whole stage."""
        return self.noised_steps_from(0)

    def noised_steps_from(self, first: int) -> int:
        """Return how many optimiser steps with noise there are from this step of the stage on."""
        if self.noise is None:
            return 0
        a_batch = [sum(1 for step in steps if any(map(self.noise.covers, step.trains))) for steps in self.stage.passes]
        left = [max(0, min(steps, end - first)) for steps, end in zip(self.pass_steps, self._ends, strict=True)]
        return sum(number * steps for number, steps in zip(a_batch, left, strict=True))

    def run(self, batches: Batches) -> Iterator[int]:
        """Train from the current to the last step; yield the count after each step."""
        while self.step < self.steps:
            with contextlib.nullcontext() if self._lead is None else self._lead.step(self.step):
                self._advance(batches)
            yield self.step

    def follow(self, steps: Iterable[int], batches: Batches) -> None:
        """Take the steps that another rank announces."""
        for self.step in steps:
            self._advance(batches)

    def begin_pass(self, number: int) -> None:
        """Go to the first step of a pass."""
        self.step = self._ends[number] - self.pass_steps[number]

    def losses(self) -> dict[str, float]:
        """Return the terms of the newest step, unweighted, and their weighted ``total``."""
        return {name: float(value) for name, value in self._last.items()}

    def means(self) -> dict[str, float]:
        """Return the mean of each term over the steps so far that computed it."""
        return {name: float(value) / self._counts[name] for name, value in self._sums.items()}

    def metrics(self, stage: str) -> dict[str, float]:
        """Return mean and newest (``_last``) terms, the method's summary and the steps, prefixed with the stage."""
        means = self.means()
        metrics = means | {f"{name}_last": value for name, value in self.losses().items()}
        metrics |= {**self.stage.summary(means), "steps": float(self.step)}
        return {f"{stage}_{name}": value for name, value in metrics.items()}

    def networks(self) -> dict[str, State]:
        """Copy every network's state."""
        return {name: state_of(network) for name, network in self.stage.networks.items()}

    def moments(self) -> dict[str, State]:
        """Copy every optimiser's state."""
        return {name: adam_state(adam, self.stage.networks[name]) for name, adam in self.optimisers.items()}

    def sums(self) -> dict[str, tuple[float, int]]:
        """Return the sum of each term and the number of steps that computed it, for ``resume``."""
        return {name: (float(value), self._counts[name]) for name, value in self._sums.items()}

    def load(self, networks: Mapping[str, State], moments: Mapping[str, State]) -> None:
        """Load states into the named networks and optimisers; the others keep theirs."""
        for name, state in networks.items():
            self.stage.networks[name].load_state_dict(state)
        for name, state in moments.items():
            load_adam_state(self.optimisers[name], self.stage.networks[name], state)

    def resume(self, step: int, sums: Mapping[str, tuple[float, int]]) -> None:
        """Continue after this step, with these sums of losses."""
        self.step = self.first_step = step
        for name, (value, count) in sums.items():
            self._sums[name] = torch.tensor(value, dtype=torch.float64, device=self.device)
            self._counts[name] = count

    def close(self) -> None:
        """Unfreeze parameters, since the networks outlive the stage; release the other ranks."""
        if self._lead is not None:
            self._lead.end()
        for name in self._trainable:
            self._freeze(name, frozen=False)

    def _advance(self, batches: Batches) -> None:
        """Train the current step, and count it."""
        pass_number = bisect.bisect_right(self._ends, self.step)
        turn = self.step if self.stage.divides else self.step % self.pass_steps[0]
        optimiser_steps = self.stage.passes[pass_number]
        if isinstance(batches, PersonBatches):
            taken = [
                self._take_privately(number, each, batches.at(turn)) for number, each in enumerate(optimiser_steps)
            ]
        else:
            batch = self._in_format(batches[turn])
            taken = [self._take(number, each, batch) for number, each in enumerate(optimiser_steps)]
        self._last = {TOTAL: torch.stack([terms.pop(TOTAL) for terms in taken]).sum()}
        for terms in taken:
            self._last |= terms
        for name, value in self._last.items():
            self._sums[name] = self._sums.get(name, 0.0) + value.double()
            self._counts[name] = self._counts.get(name, 0) + 1
        self.step += 1

    def _in_format(self, batch: Batch) -> Batch:
        return replace(batch, images=with_channels_last(batch.images)) if self._channels_last else batch

    def _take(self, number: int, optimiser_step: Step, batch: Batch) -> dict[str, Tensor]:
        """Take one optimiser step, the ``number``-th on the batch of this step of the stage."""
        optimisers = self._prepare(optimiser_step)
        terms = self._backward(number, optimiser_step, batch)
        if optimiser_step.trains:
            parameters = list(_parameters(optimisers.values()))
            if self._ranks is not None:
                self._ranks.average_gradients(parameters)
            optimiser_step.after_backward()
            if self._clip_norm is not None:
                nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        for optimiser in optimisers.values():
            optimiser.step()
        return terms

    def _take_privately(self, number: int, optimiser_step: Step, people: Iterable[PersonSamples]) -> dict[str, Tensor]:
        """Take one optimiser step on all people: with noise where a network leaves or teaches one that does."""
        assert self.noise is not None
        optimisers = self._prepare(optimiser_step)
        noised = {name: each for name, each in optimisers.items() if self.noise.covers(name)}
        covered = [self.stage.networks[name] for name in noised]
        refuse_batch_norm(covered)
        buffers = buffers_of(covered)
        learning = [each for each in _parameters(noised.values()) if each.requires_grad]  # not a part that is frozen
        private = PrivateSum(self.noise.noise, learning)
        bare = list(_parameters(each for name, each in optimisers.items() if name not in noised))
        bare_sums, term_sums = [torch.zeros_like(each) for each in bare], dict[str, Tensor]()
        for samples in people:
            for batch, share in samples.batches:
                terms = self._backward(number, optimiser_step, self._in_format(batch), samples.person, share=share)
                term_sums = {name: term_sums.get(name, 0.0) + value * share for name, value in terms.items()}
            private.add()
            for total, parameter in zip(bare_sums, bare, strict=True):
                if parameter.grad is not None:
                    total += parameter.grad
                    parameter.grad = None
        refuse_changed(buffers)
        private.release(self.noise.key, self.noise.purpose, self.step, number)
        self.releases += private.releases if noised else 0
        for total, parameter in zip(bare_sums, bare, strict=True):
            parameter.grad = total / private.people
        optimiser_step.after_backward()
        for optimiser in optimisers.values():
            optimiser.step()
        term_sums["clipped_share"] = torch.tensor(float(private.clipped))
        return {name: value / private.people for name, value in term_sums.items()}

    def _prepare(self, optimiser_step: Step) -> dict[str, torch.optim.Optimizer]:
        """Freeze what the step does not train; return the optimisers of what it does, without gradients, by network."""
        for name in self.stage.networks:
            self._freeze(name, frozen=name not in optimiser_step.trains)
        optimisers: dict[str, torch.optim.Optimizer] = {
            name: self.optimisers[name] for name in optimiser_step.trains if name in self.optimisers
        }
        for optimiser in optimisers.values():
            optimiser.zero_grad(set_to_none=True)
        return optimisers

    def _backward(
        self, number: int, optimiser_step: Step, batch: Batch, *person: str, share: float = 1.0
    ) -> dict[str, Tensor]:
        """Add the gradients of a batch to those of the parameters; return the terms and their weighted ``total``.

        Args:
            person: whose samples the batch has, if only one person's.
            share: what the gradients are multiplied by.
        """
        step = self.step

        def run(network: str, part: str, inputs: tuple[Any, ...], *rank: int) -> Any:
            # Each network has its own randomness: other networks of the stage do not change its dropout.
            self._seed_forward(step, network, number, *(f"rank {each}" for each in rank), *person)
            module = self.stage.networks[network]
            with precision(self._precision, self.device):
                return (module.get_submodule(part) if part else module)(*inputs)

        def forward(network: str, *inputs: Any, part: str = "") -> Any:
            share = None if self._ranks is None else self._ranks.divide(inputs)
            if self._ranks is None or share is None:
                return run(network, part, inputs)
            output = run(network, part, share.inputs, self._ranks.rank)
            self._seed_forward(step, network, number, *person)  # losses draw the same numbers at every rank
            return share.join(output)

        terms = optimiser_step.losses(batch, forward)
        total = torch.stack([term.value * term.weight for term in terms.values()]).sum()
        if optimiser_step.trains:
            torch.autograd.backward(total * share if share < 1 else total)
        return {TOTAL: total.detach()} | {name: term.value.detach() for name, term in terms.items()}

    def _seed_forward(self, step: int, network: str, number: int, *whose: str) -> None:
        """Seed a forward pass; each rank, and each person of a private stage, draws its own numbers."""
        purpose = ("forward", step, network, *([number] if number else ()), *whose)
        seed_generators(self.device, self._seed(*purpose))

    def _freeze(self, name: str, *, frozen: bool) -> None:
        """Set evaluation mode and stop gradients of trainable parameters, or undo both."""
        if self._frozen.get(name) == frozen:
            return
        self._frozen[name] = frozen
        self.stage.networks[name].train(not frozen)
        for parameter in self._trainable[name]:
            parameter.requires_grad_(not frozen)


def _parameters(optimisers: Iterable[torch.optim.Optimizer]) -> Iterator[nn.Parameter]:
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            yield from group["params"]


def _divide(steps: int, passes: int) -> tuple[int, ...]:
    """Divide the steps into shares that differ by at most one, larger ones first."""
    share, rest = divmod(steps, passes)
    return tuple(share + (number < rest) for number in range(passes))


PROGRESS_S = 0.2  # five reports per second look continuous and cost no measurable time


class Diverged(Exception):  # noqa: N818 - the name is the fact
    """The loss is not finite, so that further training is useless; the message says where."""


def resume_stage(loop: Loop, checkpoints: Checkpoints, work: str) -> float:
    """Continue from the partial checkpoint of this ``work``, if there is one.

    Returns:
        The seconds that the stage took before it.
    """
    partial = checkpoints.read_partial(work)
    if partial is None:
        return 0.0
    loop.load(partial.networks, partial.optimisers)
    loop.resume(partial.record["step"], partial.record["sums"])
    duration_s: float = partial.record["duration_s"]
    return duration_s


def run_stage(
    loop: Loop,
    batches: Batches,
    *,
    work: str,
    checkpoints: Checkpoints,
    checkpoint_s: float,
    report: Callable[[int, int, Mapping[str, float]], None],
    halted: Callable[[], bool],
    clock: Callable[[], float],
) -> float:
    """Train to the last step, from the partial checkpoint of this ``work`` if there is one.

    Args:
        work: the digest that identifies the work.
        checkpoint_s: seconds between partial checkpoints.
        report: gets step, steps and the newest losses, at most every ``PROGRESS_S`` seconds and
            after the last step.
        halted: called after each step; the stage stops once it returns true.

    Returns:
        The seconds that the stage took, those before an interruption included.

    Raises:
        WorkInterrupted: ``halted`` returned true; the partial checkpoint is on disk.
        Diverged: the total loss is not finite.
    """
    steps = loop.steps
    saved = clock()
    began = saved - resume_stage(loop, checkpoints, work)
    reported = -math.inf
    for step in loop.run(batches):
        now = clock()
        if step == steps or now - reported >= PROGRESS_S:
            losses = loop.losses()
            if loop.noise is None and not math.isfinite(losses[TOTAL]):  # with noise, one person must not decide
                raise Diverged(f"the loss is {losses[TOTAL]} at step {step}")
            report(step, steps, losses)
            reported = now
        if step == steps:
            break
        stop = halted()
        if stop or now - saved >= checkpoint_s:
            record = {"work": work, "step": loop.step, "sums": loop.sums(), "duration_s": now - began}
            checkpoints.write_partial(loop.step, Checkpoint(record, loop.networks(), loop.moments()))
            saved = now
        if stop:
            raise WorkInterrupted
    return clock() - began
