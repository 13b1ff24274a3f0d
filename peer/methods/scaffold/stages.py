r"""SCAFFOLD: every site corrects its gradient by the difference between the mean control variate
:math:`c` and its own, :math:`c_i`, so that sites with different data drift apart less.

.. math:: \theta \leftarrow \theta - \eta\,(g - c_i + c), \qquad
          c_i^+ = c_i - c + \frac{\theta^{t-1} - \theta_i}{K \eta}, \qquad c^+ = \tfrac1N \sum_i c_i^+

Source: Karimireddy et al. 2020 (SCAFFOLD), algorithm 1, option II.
Differs: there is no server: a site sends its control variate with its model, and every site averages
both. Adam takes the corrected gradients, and its displacement does not reveal them: the new control
variate is the mean gradient of the round before the correction, which is the printed one where
plain gradient descent takes the steps. A site that misses a round keeps its control variate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from peer.methods.finetuning.stages import fine_tuned
from peer.methods.method import DAM, Batch, BuildContext, Forward, Method, Stage, StageContext, Step, Term
from peer.methods.supervised import stage_loss

CONTROL, OWN_CONTROL = "control", "own_control"
"""The mean control variate, which in a site's artifact is that site's; and the site's own."""


class ControlVariate(nn.Module):
    """One buffer for each trainable parameter of a network, initially zero."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for name, parameter in _learning(network):
            self.register_buffer(_key(name), torch.zeros_like(parameter.detach()))

    def of(self, name: str) -> Tensor:
        """Return the control variate of the parameter of this name."""
        return self.get_buffer(_key(name))


class OwnControlVariate(ControlVariate):
    """The site's own control variate, and the number of the round's steps in it."""

    steps: Tensor

    def __init__(self, network: nn.Module) -> None:
        super().__init__(network)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))


def train(context: StageContext) -> Stage:
    """Train on the labels with corrected gradients, and compute the round's mean gradient."""
    loss, dam = stage_loss(context), context.dam
    common, own = context.networks[CONTROL], context.networks[OWN_CONTROL]
    corrections = {name: common.of(name) - own.of(name) for name, _ in _learning(dam)}
    own.steps.zero_()

    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        prediction = forward(DAM, batch.images).prediction
        return {f"{loss.name}_{DAM}": Term(loss.loss(prediction.float(), batch.targets))}

    def correct() -> None:
        own.steps += 1
        for name, parameter in dam.named_parameters():
            if (gradient := parameter.grad) is None:
                continue
            mean = own.of(name).lerp_(gradient, (1 / own.steps).to(gradient))
            common.of(name).copy_(mean)  # the artifact holds the own one; the aggregate replaces it
            corrections[name] = corrections[name].to(gradient.device)
            parameter.grad = gradient + corrections[name]

    networks = {DAM: dam, CONTROL: common, OWN_CONTROL: own}
    return Stage(networks, ((Step((DAM,), losses, after_backward=correct),),))


def build_control(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the mean control variate."""
    return ControlVariate(context.build_shared())


def build_own_control(context: BuildContext, networks: Mapping[str, Any]) -> nn.Module:
    """Build the site's own control variate."""
    return OwnControlVariate(context.build_shared())


def _learning(network: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in network.named_parameters() if parameter.requires_grad]


def _key(name: str) -> str:
    """Convert the parameter's name to that of a buffer, which must not have a dot."""
    return name.replace(".", "/")


SCAFFOLD = Method(
    stages={"train": train},
    local_networks={CONTROL: build_control, OWN_CONTROL: build_own_control},
    sent_beside=(CONTROL,),
)
SCAFFOLD_FT = fine_tuned(SCAFFOLD)
