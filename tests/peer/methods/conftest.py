"""A site in miniature: a method's local networks, its stages on one batch, and the networks with a
gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from peer.core.plan import Work
from peer.core.seeds import derive
from peer.methods.method import DAM, Batch, BuildContext, Method, Stage, StageContext, Term
from peer.methods.registry import PLANS
from peer.train.loop import Loop

WORK = Work("step", 1, 0.01, weight_decay=0.1)
"""A weight decay that changes every parameter in an optimiser."""


class Site:
    """The networks of one site under a method, made as the trainer makes them; nothing is on disk.

    Args:
        method: its name.
        dam: the local model.
        images: of a batch, from which the shapes are taken.
        shared: makes the network of ``[shared_model]``.
        noised: whether the federation is private.
        received: networks, by origin. The public images are those of the batch, in reverse.
        parameters: of the method, beside its defaults.
    """

    def __init__(
        self,
        method: str,
        dam: models.Network,
        images: Tensor,
        *,
        shared: Any = None,
        received: Mapping[str, nn.Module] | None = None,
        task: str = "classification",
        noised: bool = False,
        **parameters: Any,
    ) -> None:
        self.method, self.modes = Method.of(PLANS[method]), dict[str, list[bool]]()
        chosen = {**PLANS[method].defaults(), **parameters}
        with torch.no_grad():
            own = dam.eval()(images[:1])
            other = None if shared is None else shared().eval()(images[:1])
        build_context = BuildContext(
            "beta", task, own.prediction.shape[1], chosen, own, other, shared,
            sites=("alpha", "beta", "gamma"), public_images=lambda: images.flip(0), in_channels=images.shape[1],
            noised=noised,
        )  # fmt: skip
        networks: dict[str, nn.Module] = {}
        for number, (name, make) in enumerate(self.method.local_networks.items()):
            torch.manual_seed(100 + number)
            networks[name] = make(build_context, {DAM: dam, **networks})
        self.context = StageContext("beta", task, chosen, {DAM: dam, **networks}, received or {}, self._seeded)
        self.seeds: list[tuple[object, ...]] = []

    @property
    def networks(self) -> Mapping[str, nn.Module]:
        """The site's networks, and the received ones."""
        return {**self.context.networks, **self.context.received}

    def exact(self) -> Site:
        """Everything in float64 and evaluation mode, with statistics and weights of norms that show."""
        torch.manual_seed(7)
        for network in self.networks.values():
            network.double().eval()
            for module in network.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    nn.init.normal_(module.running_mean)
                    nn.init.uniform_(module.running_var, 0.5, 2.0)
                    nn.init.uniform_(module.weight, 0.5, 2.0)
                    nn.init.normal_(module.bias)
        return self

    def terms(self, stage: str, batch: Batch, *, step: int = 0) -> Mapping[str, Term]:
        """The terms of an optimiser step, in the networks' current modes."""
        built = self.method.stages[stage](self.context)
        steps = [each for steps_of_pass in built.passes for each in steps_of_pass]
        return steps[step].losses(batch, forward_of(built))

    def step(self, stage: str | Stage, batch: Batch, *, precision: str = "fp32", steps: int = 1) -> Loop:
        """Steps of the training loop on this batch; ``modes`` gets the mode of each forward pass by network."""
        built = self.method.stages[stage](self.context) if isinstance(stage, str) else stage
        self.modes = {name: [] for name in built.networks}
        hooks = [
            network.register_forward_pre_hook(lambda module, _, name=name: self.modes[name].append(module.training))
            for name, network in built.networks.items()
        ]
        device = torch.device("cpu")
        seed = lambda *parts: derive("stage", *parts)  # noqa: E731 - as a trainer binds it
        loop = Loop(built, WORK, steps=steps, device=device, precision=precision, seed=seed)
        assert list(loop.run(Same(batch))) == list(range(1, loop.steps + 1))
        loop.close()
        for hook in hooks:
            hook.remove()
        return loop

    def state(self) -> dict[str, Tensor]:
        """A copy of all states, as ``<network>/<name>``."""
        return copy.deepcopy(
            {f"{key}/{name}": value for key, net in self.networks.items() for name, value in net.state_dict().items()}
        )

    def moved(self, before: Mapping[str, Tensor]) -> set[str]:
        """The networks whose state has changed."""
        return {key.partition("/")[0] for key, value in self.state().items() if not torch.equal(value, before[key])}

    def learns(self, network: str) -> set[str]:
        """The parameters of a network that have a gradient other than 0."""
        named = self.networks[network].named_parameters()
        return {name for name, parameter in named if parameter.grad is not None and parameter.grad.any()}

    def untouched(self, network: str) -> bool:
        """Whether no parameter of it has any gradient at all."""
        return all(parameter.grad is None for parameter in self.networks[network].parameters())

    def _seeded(self, *purpose: object) -> None:
        self.seeds.append(purpose)
        torch.manual_seed(derive(*map(str, purpose)))


class Same:
    """The same batch at every step."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch

    def __getitem__(self, step: int) -> Batch:
        return self.batch


def forward_of(stage: Stage) -> Any:
    """Runs a stage's networks as they are."""

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        module = stage.networks[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    return forward


@pytest.fixture
def make_site() -> type[Site]:
    """Makes sites."""
    return Site
