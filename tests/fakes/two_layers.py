"""A network of two linear layers, and its gradient in numpy: the independent reference of the methods' conformance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models import Network, Output
from peer.methods.method import Batch, Stage

Arrays = dict[str, np.ndarray]

IMAGES, TARGETS = torch.randn(6, 1, 5, generator=torch.Generator().manual_seed(3)), torch.tensor([0, 1, 2, 0, 1, 1])
BATCH = Batch(IMAGES.double(), TARGETS)
SINGLE = 1e-6
"""The relative tolerance of a loss, which methods compute in float32."""


class TwoLayers(Network):
    """``fc(body(x))`` without biases, in float64."""

    head_name = "fc"

    def __init__(self, seed: int = 0, *, width: int = 4) -> None:
        super().__init__(name="tests:TwoLayers", spatial_dims=1, in_channels=1, classes=3, hyper={"width": width})
        draw = torch.Generator().manual_seed(seed)
        self.body, self.fc = nn.Linear(5, width, bias=False), nn.Linear(width, 3, bias=False)
        self.double()
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64) / 2)

    def forward(self, x: Tensor) -> Output:
        feature = self.body(x.flatten(1).to(self.body.weight.dtype))
        return Output(self.fc(feature), (), feature, feature)


def arrays(network: nn.Module) -> Arrays:
    """A copy of the parameters."""
    return {name: parameter.detach().numpy().copy() for name, parameter in network.named_parameters()}


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    shares: np.ndarray = powers / powers.sum(1, keepdims=True)
    return shares


def feature(weights: Arrays, batch: Batch = BATCH) -> np.ndarray:
    product: np.ndarray = batch.images.flatten(1).double().numpy() @ weights["body.weight"].T
    return product


def logits(weights: Arrays, batch: Batch = BATCH) -> np.ndarray:
    product: np.ndarray = feature(weights, batch) @ weights["fc.weight"].T
    return product


def cross_entropy(weights: Arrays, batch: Batch = BATCH) -> float:
    shares = softmax(logits(weights, batch))
    return float(-np.log(shares[np.arange(len(shares)), batch.targets.numpy()]).mean())


def backward(weights: Arrays, error: np.ndarray, batch: Batch = BATCH) -> Arrays:
    """The gradient of the parameters for this gradient of the logits."""
    x = batch.images.flatten(1).double().numpy()
    return {
        "body.weight": (error @ weights["fc.weight"]).T @ x,
        "fc.weight": error.T @ feature(weights, batch),
    }


def gradient(weights: Arrays, batch: Batch = BATCH) -> Arrays:
    """The gradient of the mean cross-entropy."""
    error = softmax(logits(weights, batch)) - np.eye(3)[batch.targets.numpy()]
    return backward(weights, error / len(error), batch)


def descend(
    stage: Stage, *, steps: int, rate: float, batch: Batch = BATCH, after_backward: Callable[[], Any] = lambda: None
) -> list[Mapping[str, float]]:
    """Steps of plain gradient descent on a stage of one step; the terms' values of every step."""
    ((step,),) = stage.passes

    def forward(name: str, *inputs: Any, part: str = "") -> Any:
        module = stage.networks[name]
        return (module.get_submodule(part) if part else module)(*inputs)

    values = []
    for _ in range(steps):
        terms = step.losses(batch, forward)
        for network in stage.networks.values():
            network.zero_grad(set_to_none=True)
        torch.autograd.backward(torch.stack([term.value * term.weight for term in terms.values()]).sum())
        after_backward()
        parameters = {id(p): p for name in step.trains for p in stage.networks[name].parameters()}
        with torch.no_grad():
            for parameter in parameters.values():
                if parameter.grad is not None:
                    parameter -= rate * parameter.grad
        values.append({name: float(term.value.detach()) for name, term in terms.items()})
    return values
