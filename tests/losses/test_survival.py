"""The loss of discrete hazards: values by hand, a numpy reference, positions on and beside ends, refused inputs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from losses import survival_curves, survival_loss

K = 5


def followed(persons: int = 30) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    positions = K * torch.rand(persons, generator=generator, dtype=torch.float64)
    positions[:3] = torch.tensor([0.0, 2.0, K])
    events = torch.randint(2, (persons,), generator=generator).double()
    return 2 * torch.randn(persons, K, generator=generator, dtype=torch.float64), torch.stack([positions, events], 1)


def reference(logits: Tensor, targets: Tensor) -> float:
    total = 0.0
    for f, (position, event) in zip(logits.numpy(), targets.numpy(), strict=True):
        hazard, last = 1 / (1 + np.exp(-f)), max(math.ceil(position) - 1, 0)
        total += np.log(1 - hazard[:last]).sum() + math.log(hazard[last] if event else 1 - hazard[last])
    return -total / len(logits)


@pytest.mark.parametrize(
    ("position", "event", "factors"),
    [
        (0.0, 1.0, [1 / 4]),
        (0.0, 0.0, [3 / 4]),
        (1.0, 1.0, [1 / 4]),
        (1.0001, 1.0, [3 / 4, 1 / 2]),
        (2.0, 0.0, [3 / 4, 1 / 2]),
        (2.5, 1.0, [3 / 4, 1 / 2, 2 / 3]),
        (3.0, 0.0, [3 / 4, 1 / 2, 1 / 3]),
    ],
)
def test_the_likelihood_by_hand(position, event, factors):
    logits = torch.tensor([[-math.log(3), 0.0, math.log(2)]], dtype=torch.float64)  # hazards 1/4, 1/2, 2/3
    loss = survival_loss(logits, torch.tensor([[position, event]], dtype=torch.float64))
    assert loss.item() == pytest.approx(-math.log(math.prod(factors)))


def test_the_loss_is_that_of_a_reference_and_a_mean_over_persons():
    logits, targets = followed()
    loss = survival_loss(logits, targets)
    assert loss.item() == pytest.approx(reference(logits, targets), rel=1e-12)
    alone = [survival_loss(logits[[person]], targets[[person]]) for person in range(len(logits))]
    torch.testing.assert_close(loss, torch.stack(alone).mean())


def test_gradcheck_and_no_gradient_after_a_persons_own_interval():
    logits, targets = followed()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: survival_loss(x, targets), (logits,))
    assert torch.autograd.gradcheck(survival_curves, (logits,))
    (gradient,) = torch.autograd.grad(survival_loss(logits, targets), logits)
    last = (targets[:, :1].ceil() - 1).clamp(min=0)
    assert torch.equal(gradient != 0, torch.arange(K) <= last)


def test_the_best_constant_hazards_are_the_shares_of_those_at_risk():
    _, targets = followed(200)
    last = (targets[:, 0].ceil() - 1).clamp(min=0)
    shares = [((last == k) & (targets[:, 1] == 1)).sum() / (last >= k).sum() for k in range(K)]
    logits = torch.stack(shares).double().logit().requires_grad_()
    (gradient,) = torch.autograd.grad(survival_loss(logits.expand(200, K), targets), logits)
    torch.testing.assert_close(gradient, torch.zeros(K, dtype=torch.float64), rtol=0, atol=1e-8)


def test_curves_are_products_of_the_complements():
    logits, _ = followed()
    hazards = 1 / (1 + np.exp(-logits.numpy()))
    np.testing.assert_allclose(survival_curves(logits).numpy(), np.cumprod(1 - hazards, axis=1), rtol=1e-12)


def test_extreme_logits_are_finite_in_float32():
    logits = torch.tensor([[-1e4, 1e4, -1e4]], dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = survival_loss(logits, torch.tensor([[2.5, 1.0]]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(2e4, rel=1e-2)
    assert logits.grad.isfinite().all()
    assert torch.equal(survival_curves(logits), torch.tensor([[1.0, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.ones(2), torch.ones(2, 2), r"non-empty \(b, K\) of floats, not \(2,\)"),
        (torch.ones(2, 0), torch.ones(2, 2), "non-empty"),
        (torch.ones(2, 3).int(), torch.ones(2, 2), "of torch.int32"),
        (torch.ones(2, 3), torch.ones(2, 3), r"floats \(2, 2\), position and event, not \(2, 3\)"),
        (torch.ones(2, 3), torch.ones(2, 2).long(), "of torch.int64"),
        (torch.ones(1, 3), torch.tensor([[3.1, 1.0]]), r"positions must be in \[0, 3\]"),
        (torch.ones(1, 3), torch.tensor([[-0.1, 1.0]]), "positions must be in"),
        (torch.ones(1, 3), torch.tensor([[math.nan, 1.0]]), "positions must be in"),
        (torch.ones(1, 3), torch.tensor([[1.0, 0.5]]), "events must be 0 or 1"),
        (torch.ones(1, 3), torch.tensor([[1.0, math.nan]]), "events must be 0 or 1"),
    ],
)
def test_what_does_not_fit_is_named(logits, targets, message):
    with pytest.raises(ValueError, match=message):
        survival_loss(logits, targets)
    if "logits" in message or logits.ndim == 1:
        with pytest.raises(ValueError, match=message):
            survival_curves(logits)
