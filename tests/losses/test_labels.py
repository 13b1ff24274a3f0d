"""The loss of several labels: values by hand, a numpy reference, labels that are not known, refused inputs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from losses import label_loss

NAN = math.nan


def labelled(samples: int, labels: int) -> tuple[Tensor, Tensor]:
    """Logits and targets of which the first sample knows none and a third of the others is not known."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(2, (samples, labels), generator=generator).double()
    targets[torch.rand(samples, labels, generator=generator) < 1 / 3] = NAN
    targets[0] = NAN
    return 2 * torch.randn(samples, labels, generator=generator, dtype=torch.float64), targets


def reference(logits: Tensor, targets: Tensor, weight: np.ndarray) -> float:
    means = []
    for f, y in zip(logits.numpy(), targets.numpy(), strict=True):
        h = 1 / (1 + np.exp(-f))
        costs = [-(weight[k] * math.log(h[k]) if y[k] else math.log(1 - h[k])) for k in np.flatnonzero(~np.isnan(y))]
        means += [np.mean(costs)] if costs else []
    return float(np.mean(means))


def test_by_hand_each_sample_with_a_known_label_counts_alike():
    logits = torch.tensor([[0.0, math.log(3), 7.0], [math.log(3), 5.0, 5.0], [9.0, 9.0, 9.0]])
    targets = torch.tensor([[1.0, 0.0, NAN], [1.0, NAN, NAN], [NAN, NAN, NAN]])
    expected = ((math.log(2) + math.log(4)) / 2 + math.log(4 / 3)) / 2
    assert label_loss(logits, targets).item() == pytest.approx(expected)


def test_the_loss_is_that_of_a_reference_with_and_without_weights():
    logits, targets = labelled(20, 5)
    weight = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5], dtype=torch.float64)
    assert label_loss(logits, targets).item() == pytest.approx(reference(logits, targets, np.ones(5)), rel=1e-12)
    weighted = reference(logits, targets, weight.numpy())
    assert label_loss(logits, targets, weight=weight).item() == pytest.approx(weighted, rel=1e-12)
    assert weighted != pytest.approx(reference(logits, targets, np.ones(5)), rel=1e-2)


def test_by_hand_smoothing_spreads_a_label_over_yes_and_no():
    logits, targets = torch.tensor([[math.log(3), math.log(3), 0.0]]), torch.tensor([[1.0, 0.0, NAN]])
    yes, no = math.log(4 / 3), math.log(4)  # what 3/4 for yes costs
    expected = ((0.9 * yes + 0.1 * no) + (0.1 * yes + 0.9 * no)) / 2
    assert label_loss(logits, targets, label_smoothing=0.2).item() == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_smoothing_outside_its_range_is_named(smoothing):
    with pytest.raises(ValueError, match=r"the label smoothing must be in \[0, 1\), not"):
        label_loss(torch.zeros(1, 1), torch.ones(1, 1), label_smoothing=smoothing)


def test_gradcheck_and_no_gradient_where_the_label_is_not_known():
    logits, targets = labelled(6, 4)
    weight = torch.arange(1, 5, dtype=torch.float64)
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: label_loss(x, targets, weight=weight), (logits,))
    (gradient,) = torch.autograd.grad(label_loss(logits, targets), logits)
    assert torch.equal(gradient != 0, ~targets.isnan())


def test_a_batch_without_known_labels_costs_nothing_and_backpropagates():
    logits = torch.full((2, 3), 1e4, requires_grad=True)
    loss = label_loss(logits, torch.full((2, 3), NAN))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 3))


def test_the_arithmetic_is_float32_and_extreme_logits_are_finite():
    logits = torch.tensor([[1e4, -1e4]], dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = label_loss(logits, torch.tensor([[0.0, 1.0]]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1e4, rel=1e-2)
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize(
    ("logits", "targets", "weight", "message"),
    [
        (torch.ones(3), torch.ones(3), None, r"non-empty \(b, labels\), not \(3,\) of torch.float32"),
        (torch.ones(0, 3), torch.ones(0, 3), None, "non-empty"),
        (torch.ones(2, 3).long(), torch.ones(2, 3), None, "of torch.int64"),
        (torch.ones(2, 3), torch.ones(2, 1), None, r"and \(2, 1\)"),
        (torch.ones(2, 3), torch.ones(2, 3), torch.ones(2), r"the weight must be \(3,\).* not \(2,\)"),
        (torch.ones(2, 3), torch.full((2, 3), 0.5), None, "must be 0, 1, or NaN"),
        (torch.ones(2, 3), torch.full((2, 3), math.inf), None, "must be 0, 1, or NaN"),
    ],
)
def test_what_does_not_fit_is_named(logits, targets, weight, message):
    with pytest.raises(ValueError, match=message):
        label_loss(logits, targets, weight=weight)
