"""The valve: in a private federation, a stage gets of this site's people what its plan declares, and no more.

A stage whose result may leave is handed the networks that ``learning`` of its plan names for it, and those that no
person here has shaped; the people themselves come to its losses one by one. Where one stage trains networks with and
without noise, a rehearsal on copies, with one sample, tells whether those without change the gradients or the weights
of the others: before each such stage, and with more copies before the first one of a process.
After the stage, nothing leaves on which no noise was drawn.

Source: ours.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from peer.core.commands import Train
from peer.core.plan import Plan
from peer.methods.method import Batch, Method, Stage, StageContext
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import Loop
from peer.train.noise import SumNoise, declared_name, sum_noise
from peer.train.settings import TrainingSettings
from peer.train.tensors import state_of

PERTURBATION = 2.0
"""Standard deviation of what a rehearsal adds to weights: more than their own."""
PERTURBATIONS = 8
"""How often it does: a label that a network gives a sample may stay the same by chance."""


class UndeclaredReadError(UnusableConfigurationError):
    """A stage of a private federation asked for something that its plan does not declare."""

    def __init__(self, plan: Plan, stage: str, what: str) -> None:
        super().__init__(
            f"{plan.implementation}: stage {stage!r} {what}, which its plan does not declare; federation.toml has "
            '[privacy] mechanism = "noise": declare it in `learning` of the plan, so that it gets noise, too, or take '
            "another method"
        )


class HandedNetworks(Mapping[str, Any]):
    """A site's networks without those that a stage must not read.

    Args:
        withheld: their names.
        refuse: called with the name of one that is asked for; raises.
    """

    def __init__(self, networks: Mapping[str, Any], withheld: Collection[str], refuse: Callable[[str], object]) -> None:
        self._networks = {name: network for name, network in networks.items() if name not in withheld}
        self._withheld, self._refuse = frozenset(withheld), refuse

    def __getitem__(self, name: str) -> Any:
        if name in self._withheld:
            self._refuse(f"reads the network {name!r}")
        return self._networks[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._networks)

    def __len__(self) -> int:
        return len(self._networks)


class WithheldClasses(Collection[int]):
    """Classes that a stage must not read: each use raises."""

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self._refuse = refuse

    def __contains__(self, item: object) -> bool:
        self._refuse()

    def __iter__(self) -> Iterator[int]:
        self._refuse()

    def __len__(self) -> int:
        self._refuse()


class Valve:
    """Builds the stages of one site, and confirms that what they leave has noise.

    In a federation without noise it does neither.

    Args:
        settings: the site's settings.
        method: of the federation.
    """

    def __init__(self, settings: TrainingSettings, method: Method) -> None:
        self._settings, self._method, self._plan = settings, method, settings.plan
        self._noise: SumNoise | None = None
        self._rehearsed: set[str] = set()

    def build(self, command: Train, context: StageContext, sample: Callable[[], Batch]) -> Stage:
        """Build a stage.

        Args:
            context: with all that a stage of a federation without noise may read.
            sample: reads a sample of this site as a batch of one, on the CPU.

        Raises:
            UndeclaredReadError: the stage reads what its plan does not declare.
        """
        build, self._noise = self._method.stages[command.stage], sum_noise(self._settings, command)
        context = replace(context, noise=self._noise)
        if self._settings.noise is None or command.stage not in self._plan.noised_stages:
            return build(context)
        context = hand_over(self._plan, command.stage, context)
        bare = sorted((_shaped(self._plan) & {*context.networks}) - self._plan.noised)
        learns = any(self._plan.noised & {*step.trains} for step in self._plan.learning.get(command.stage, ()))
        if bare and learns:  # in each round: what is received, and so what is read, differs
            times = 1 if command.stage in self._rehearsed else PERTURBATIONS
            self._rehearse(command.stage, context, sample(), bare, times)
            self._rehearsed.add(command.stage)
        return build(context)

    def confirm(self, command: Train, loop: Loop, sent: nn.Module) -> None:
        """Raise ``UnusableConfigurationError`` if a finished stage has left something without noise.

        Args:
            sent: the network whose state the site sends.
        """
        if self._settings.noise is None or command.stage not in self._plan.noised_stages:
            return
        if self._noise is not None:
            names = self._method.artifact_tensors(sent, self._settings.parameters)  # type: ignore[arg-type]
            state = state_of(sent)
            bare = next((name for name in sorted(names) if not self._noise.has_drawn(state[name])), None)
            reason = f"sends the tensor {bare!r}" if bare is not None else ""
        else:
            due = loop.noised_steps_from(loop.first_step)
            reason = f"took {due} steps, {due - loop.releases} of them" if loop.releases != due else ""
        if reason:
            raise UnusableConfigurationError(
                f"method {self._settings.method}: stage {command.stage!r} {reason} without noise; federation.toml has "
                '[privacy] mechanism = "noise": nothing of it leaves; take another method'
            )

    def _rehearse(self, stage: str, context: StageContext, batch: Batch, bare: Sequence[str], times: int) -> None:
        """Raise ``UndeclaredReadError`` if networks without noise change gradients or weights of those with it."""
        as_it_is = self._gradients(stage, context, batch)
        for seed in range(1, times + 1):
            for name, gradient in self._gradients(stage, context, batch, bare, seed=seed).items():
                if not torch.equal(gradient.nan_to_num(), as_it_is[name].nan_to_num()):
                    what = f"trains {name.partition('/')[0]} with what it reads of {', '.join(bare)}"
                    raise UndeclaredReadError(self._plan, stage, what)

    def _gradients(
        self, stage: str, context: StageContext, batch: Batch, moved: Sequence[str] = (), *, seed: int = 0
    ) -> dict[str, Tensor]:
        """Return gradients and weights of all networks with noise, on copies of which these were moved."""
        networks, received = copy.deepcopy((dict(context.networks), dict(context.received)))
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for network in (*networks.values(), *received.values()):
                network.cpu()
            torch.manual_seed(seed)
            _perturb(networks[name] for name in moved)
            torch.manual_seed(0)
            built = self._method.stages[stage](replace(context, networks=networks, received=received))
            return dict(_backward_all(built, batch, self._plan.noised))


def hand_over(plan: Plan, stage: str, context: StageContext) -> StageContext:
    """Return a context without what the plan does not declare that its stage reads; asking for it raises."""

    def refuse(what: str) -> NoReturn:
        raise UndeclaredReadError(plan, stage, what)

    def withheld(what: str) -> Callable[[], NoReturn]:
        return lambda: refuse(f"reads {what}")

    others = "the training samples by itself, not one person's in its losses"
    fields: dict[str, Any] = {"classes_present": WithheldClasses(withheld("which classes the training samples have"))}
    if not plan.everybody:
        fields["records"] = withheld("the records of all people")
        fields["validation_samples"] = withheld("the validation samples")
    if plan.sensitivity:
        return replace(context, **fields)
    declared = {name for step in plan.learning[stage] for name in (*step.changes, *step.reads)}
    networks = HandedNetworks(context.networks, _shaped(plan) - declared, refuse)
    return replace(context, networks=networks, samples=withheld(others), people=withheld(others), **fields)


def _shaped(plan: Plan) -> set[str]:
    """Return the networks that people of the site shape in some stage."""
    return {name for steps in plan.learning.values() for step in steps for name in step.changes}


def _perturb(networks: Iterable[nn.Module]) -> None:
    for network in networks:
        for tensor in network.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, dtype=tensor.dtype) * PERTURBATION)


def _backward_all(stage: Stage, batch: Batch, noised: Collection[str]) -> Iterator[tuple[str, Tensor]]:
    """Yield gradients and weights of the networks with noise, by optimiser step; no optimiser takes it."""

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        torch.manual_seed(0)  # a dropout must not depend on other networks
        module = stage.networks[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    trainable = {name: [p for p in each.parameters() if p.requires_grad] for name, each in stage.networks.items()}
    for number, step in enumerate(step for steps in stage.passes for step in steps):
        trains = [name for name in step.trains if declared_name(name) in noised]
        if not trains:
            continue
        for name, network in stage.networks.items():
            network.train(name in step.trains)
            for parameter in trainable[name]:
                parameter.requires_grad_(name in step.trains)
                parameter.grad = None
        terms = step.losses(batch, forward)
        torch.autograd.backward(torch.stack([term.value * term.weight for term in terms.values()]).sum())
        step.after_backward()
        for name in trains:
            for key, parameter in stage.networks[name].named_parameters():
                if parameter.grad is not None:
                    yield f"{name}/{key}/{number}", parameter.grad.clone()
            for key, tensor in stage.networks[name].state_dict().items():
                yield f"{name}/{key}/{number} itself", tensor.clone()
