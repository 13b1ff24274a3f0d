"""Adam, and its state as named tensors, so that reading a checkpoint unpickles nothing."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from peer.core.plan import Work
from peer.train.errors import UnusableConfigurationError
from peer.train.tensors import State


def trainable(network: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that an optimiser may change, by name."""
    return {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}


def adam(network: nn.Module, work: Work) -> torch.optim.Adam:
    """Create an Adam over the trainable parameters; weight decay does not touch frozen ones."""
    parameters = list(trainable(network).values())
    return torch.optim.Adam(parameters, lr=work.learning_rate, weight_decay=work.weight_decay, fused=True)


def adam_state(optimiser: torch.optim.Optimizer, network: nn.Module) -> State:
    """Return moments and step counts on the CPU, as ``<parameter>/<moment>``; empty before the first step."""
    return {
        f"{name}/{key}": value.detach().to("cpu", copy=True)
        for name, parameter in network.named_parameters()
        for key, value in optimiser.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_adam_state(optimiser: torch.optim.Optimizer, network: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load the result of ``adam_state``; raise ``UnusableConfigurationError`` if it does not fit."""
    optimised = {id(parameter) for group in optimiser.param_groups for parameter in group["params"]}
    parameters = {name: parameter for name, parameter in network.named_parameters() if id(parameter) in optimised}
    for key, value in state.items():
        name, _, moment = key.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or (value.ndim and value.shape != parameter.shape):
            raise UnusableConfigurationError(
                f"the optimiser's state of {name!r} fits no parameter of the model; see [model]"
            )
        optimiser.state[parameter][moment] = value.to(parameter.device, copy=True)


def fitting_moments(state: Mapping[str, Tensor], network: nn.Module) -> State:
    """Return the part of an optimiser's state that fits the network; reshaped parameters lose theirs."""
    shapes = {name: parameter.shape for name, parameter in network.named_parameters()}
    owners = {key: key.rpartition("/")[0] for key in state}
    reshaped = {owners[key] for key, value in state.items() if value.ndim and value.shape != shapes.get(owners[key])}
    return {key: value for key, value in state.items() if owners[key] in shapes.keys() - reshaped}
