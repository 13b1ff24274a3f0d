"""Distillation by output: values by hand, a numpy reference, gradient flow, refused inputs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from losses import distillation_kl, distillation_l1, distillation_mse


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_kl_by_hand():
    # A certain coin of 3/4 against a fair one: 3/4 log 3/2 + 1/4 log 1/2, the local model's odds first.
    local, messenger = torch.tensor([[math.log(3), 0.0]]), torch.zeros(1, 2)
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert distillation_kl(local, messenger).item() == pytest.approx(expected, rel=1e-6)
    assert distillation_kl(messenger, local).item() == pytest.approx(
        0.5 * math.log(2 / 3) + 0.5 * math.log(2), rel=1e-6
    )


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 7), (2, 2, 3, 4), (2, 3, 2, 3, 4)])
def test_kl_is_the_mean_divergence_of_samples_and_pixels(shape):
    local, messenger = drawn(*shape, seed=1), drawn(*shape, seed=2)
    p, q = softmax(local.numpy()), softmax(messenger.numpy())
    expected = (p * np.log(p / q)).sum(1).mean()
    assert distillation_kl(local, messenger).item() == pytest.approx(expected, rel=1e-12)


def test_kl_of_equal_distributions_is_zero_with_no_gradient():
    local = drawn(4, 3, 5, seed=3)
    messenger = (local + 2.5).requires_grad_()  # softmax does not feel a shift
    loss = distillation_kl(local, messenger)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-14)
    assert messenger.grad.abs().max() < 1e-14
    assert distillation_kl(local, local) == 0


def test_kl_does_not_feel_the_order_of_samples_and_classes():
    local, messenger = drawn(4, 3, 5, seed=4), drawn(4, 3, 5, seed=5)
    before = distillation_kl(local, messenger)
    for turned in ([t[[2, 0, 3, 1]] for t in (local, messenger)], [t.flip(1) for t in (local, messenger)]):
        torch.testing.assert_close(distillation_kl(*turned), before)
    assert not torch.isclose(distillation_kl(local.flip(1), messenger), before, rtol=1e-2)


def test_kl_of_extreme_logits_is_finite():
    local, messenger = torch.tensor([[1e4, 0.0, -1e4]]), torch.tensor([[0.0, 1e4, -1e4]], requires_grad=True)
    loss = distillation_kl(local, messenger)
    loss.backward()
    assert loss.item() == pytest.approx(1e4)
    torch.testing.assert_close(messenger.grad, torch.tensor([[-1.0, 1.0, 0.0]]))


def test_l1_by_hand_and_by_reference():
    assert distillation_l1(torch.zeros(1, 1, 4), torch.tensor([[[1.0, -2.0, 0.0, 3.0]]])) == 1.5
    local, messenger = drawn(2, 3, 4, 5, seed=6), drawn(2, 3, 4, 5, seed=7)
    expected = np.abs(local.numpy() - messenger.numpy()).mean()
    assert distillation_l1(local, messenger).item() == pytest.approx(expected, rel=1e-12)


def test_mse_is_the_divergence_of_two_normal_distributions_of_one_variance():
    local, messenger = drawn(5, 2, seed=6), drawn(5, 2, seed=7)
    first, second = (torch.distributions.Normal(each, math.sqrt(0.5)) for each in (local, messenger))
    expected = torch.distributions.kl_divergence(first, second).mean()
    assert distillation_mse(local, messenger).item() == pytest.approx(expected.item(), rel=1e-12)


@pytest.mark.parametrize("loss", [distillation_kl, distillation_l1, distillation_mse])
def test_only_the_messenger_learns(loss):
    local, messenger = drawn(2, 3, 4, seed=8).requires_grad_(), drawn(2, 3, 4, seed=9).requires_grad_()
    loss(local, messenger).backward()
    assert local.grad is None
    assert messenger.grad.abs().min() > 0
    assert torch.autograd.gradcheck(lambda student: loss(local.detach(), student), (messenger,))
    nearer = messenger.detach() - 0.1 * messenger.grad
    assert loss(local, nearer) < loss(local, messenger)


@pytest.mark.parametrize("loss", [distillation_kl, distillation_l1, distillation_mse])
def test_the_arithmetic_is_float32_whatever_the_caller_has_switched_on(loss):
    local, messenger = (drawn(2, 3, 4, seed=seed, dtype=torch.bfloat16) for seed in (10, 11))
    expected = loss(local.float(), messenger.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = loss(local, messenger.requires_grad_())
    assert computed.dtype == torch.float32
    assert computed == expected
    computed.backward()
    assert messenger.grad.dtype == torch.bfloat16
    assert loss(local.float(), messenger.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("loss", "kind"), [(distillation_kl, "logits"), (distillation_l1, "images"), (distillation_mse, "numbers")]
)
@pytest.mark.parametrize(
    ("local", "messenger", "message"),
    [
        (torch.ones(3), torch.ones(3), r"the local {} must be a non-empty .* not \(3,\) of torch.float32"),
        (torch.ones(2, 3), torch.ones(2, 3).int(), r"the messenger {} must be .* of torch.int32"),
        (torch.ones(0, 3), torch.ones(0, 3), r"the local {} must be a non-empty"),
        (torch.ones(4, 3), torch.ones(1, 3), r"the {} differ in shape: local \(4, 3\) and messenger \(1, 3\)"),
    ],
)
def test_predictions_that_do_not_fit_are_named(loss, kind, local, messenger, message):
    with pytest.raises(ValueError, match=message.format(kind)):
        loss(local, messenger)


def test_a_single_class_is_refused_by_kl_alone():
    mask = torch.ones(2, 1, 4, 4)
    with pytest.raises(ValueError, match=r"\(2, 1, 4, 4\) have one class on dim 1, whose softmax is always 1"):
        distillation_kl(mask, mask)
    assert distillation_l1(mask, mask) == 0
