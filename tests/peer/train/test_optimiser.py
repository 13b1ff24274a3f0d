"""Adam and its state by parameter name."""

import pytest
import torch
from torch import nn

from peer.core.plan import Work
from peer.train.errors import UnusableConfigurationError
from peer.train.optimiser import adam, adam_state, load_adam_state, trainable

WORK = Work("step", 1, 0.1, 0.01)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def stepped(module: nn.Module, optimiser: torch.optim.Optimizer, times: int) -> None:
    for k in range(times):
        optimiser.zero_grad()
        torch.autograd.backward(module(torch.full((2, 3), 1.0 + k)).square().sum())
        optimiser.step()


def test_a_frozen_parameter_is_not_decayed() -> None:
    module = network()
    module[1].requires_grad_(False)
    before = module[1].weight.clone()
    stepped(module, adam(module, WORK), 2)
    assert torch.equal(module[1].weight, before)
    assert set(trainable(module)) == {"0.weight", "0.bias"}


def test_a_fresh_optimiser_has_no_state() -> None:
    module = network()
    assert adam_state(adam(module, WORK), module) == {}


def test_an_optimiser_that_was_put_back_goes_on_alike() -> None:
    straight, resumed = network(), network()
    optimiser = adam(straight, WORK)
    stepped(straight, optimiser, 3)
    half = adam(resumed, WORK)
    stepped(resumed, half, 3)
    state = adam_state(half, resumed)
    assert set(state) == {f"{name}/{key}" for name in trainable(resumed) for key in ("step", "exp_avg", "exp_avg_sq")}
    again = adam(resumed, WORK)
    load_adam_state(again, resumed, state)
    stepped(straight, optimiser, 2)
    stepped(resumed, again, 2)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))
    assert all(
        torch.equal(value, adam_state(again, resumed)[key]) for key, value in adam_state(optimiser, straight).items()
    )


def test_the_moments_of_adam_by_hand() -> None:
    module = nn.Linear(1, 1, bias=False)
    optimiser = adam(module, Work("step", 1, 0.5))
    with torch.no_grad():
        module.weight.fill_(3.0)
    torch.autograd.backward((module.weight * 2).sum())
    optimiser.step()
    state = adam_state(optimiser, module)
    assert state["weight/exp_avg"].item() == pytest.approx(0.1 * 2)
    assert state["weight/exp_avg_sq"].item() == pytest.approx(0.001 * 4)
    assert module.weight.item() == pytest.approx(2.5)  # the first step is one learning rate long


@pytest.mark.parametrize("key", ["9.weight/exp_avg", "1.weight/exp_avg"])
def test_a_state_of_another_network_is_refused(key: str) -> None:
    module = network()
    with pytest.raises(UnusableConfigurationError, match="fits no parameter of the model"):
        load_adam_state(adam(module, WORK), module, {key: torch.zeros(7, 7)})
