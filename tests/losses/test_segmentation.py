"""The losses of segmentation: values by hand, a numpy reference, MONAI's Dice, refused inputs."""

import math

import numpy as np
import pytest
import torch
from monai.losses import DiceLoss
from torch import Tensor

from losses import dice_ce_loss, dice_loss

SHAPES = [(3, 4, 9), (2, 2, 5, 6), (2, 3, 4, 3, 5)]


def segmented(*shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Logits and a label map in which the first image lacks the last class."""
    generator = torch.Generator().manual_seed(1)
    targets = torch.randint(shape[1], (shape[0], *shape[2:]), generator=generator)
    targets[0] %= shape[1] - 1
    return 2 * torch.randn(*shape, generator=generator, dtype=dtype), targets


def probabilities(logits: Tensor) -> np.ndarray:
    powers = np.exp(logits.numpy())
    return powers / powers.sum(1, keepdims=True)


def reference(logits: Tensor, targets: Tensor) -> float:
    predicted = probabilities(logits)
    costs = []
    for image in range(logits.shape[0]):
        for c in range(1, logits.shape[1]):
            p, g = predicted[image, c], targets[image].numpy() == c
            costs.append(1 - (2 * p[g].sum() + 1) / (p.sum() + g.sum() + 1))
    return float(np.mean(costs))


def decided(targets: Tensor, classes: int) -> Tensor:
    """Logits whose softmax is the one-hot of these labels."""
    return 100 * torch.nn.functional.one_hot(targets, classes).movedim(-1, 1).float()


def test_dice_by_hand():
    # Four undecided pixels, one of them foreground: the overlap is 1/2, the extents 2 and 1.
    undecided, targets = torch.zeros(1, 2, 4), torch.tensor([[0, 0, 1, 0]])
    assert dice_loss(undecided, targets).item() == pytest.approx(1 - (2 * 0.5 + 1) / (2 + 1 + 1))
    # Three classes: 1 is found but for one of two pixels, 2 is where it is not and missed where it is.
    predicted, true = torch.tensor([[1, 0, 2, 0]]), torch.tensor([[1, 1, 0, 2]])
    expected = 1 - ((2 * 1 + 1) / (1 + 2 + 1) + (0 + 1) / (1 + 1 + 1)) / 2
    assert dice_loss(decided(predicted, 3), true).item() == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_dice_is_the_mean_over_images_and_foreground_classes(shape):
    logits, targets = segmented(*shape)
    assert dice_loss(logits, targets).item() == pytest.approx(reference(logits, targets), rel=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_dice_and_its_gradient_are_those_of_monai(shape):
    logits, targets = segmented(*shape)
    logits.requires_grad_()
    independent = DiceLoss(include_background=False, to_onehot_y=True, softmax=True, smooth_nr=1, smooth_dr=1)
    losses = [dice_loss(logits, targets), independent(logits, targets[:, None])]
    torch.testing.assert_close(*losses, rtol=1e-12, atol=0)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in losses))


@pytest.mark.parametrize("shape", SHAPES)
def test_dice_and_cross_entropy_add_up(shape):
    logits, targets = segmented(*shape)
    likelihood = np.take_along_axis(probabilities(logits), targets.numpy()[:, None], axis=1)
    expected = reference(logits, targets) - np.log(likelihood).mean()
    assert dice_ce_loss(logits, targets).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_gradcheck(loss):
    logits, targets = segmented(2, 3, 2, 3)
    assert torch.autograd.gradcheck(lambda x: loss(x, targets), (logits.requires_grad_(),))


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_agreement_costs_nothing_also_where_there_is_no_foreground(loss):
    _, targets = segmented(3, 4, 5, 5)
    targets[1] = 0
    assert loss(decided(targets, 4), targets).item() == pytest.approx(0, abs=1e-6)
    assert loss(decided(targets.roll(1, 0), 4), targets) > 0.1


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_a_step_improves(loss):
    logits, targets = segmented(2, 3, 6, 6)
    (gradient,) = torch.autograd.grad(loss(logits.requires_grad_(), targets), logits)
    assert loss(logits - gradient, targets) < loss(logits, targets)


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_what_does_not_matter_and_what_does(loss):
    logits, targets = segmented(3, 3, 4, 5)
    before = loss(logits, targets)
    order, foreground = [2, 0, 1], torch.tensor([0, 2, 1])
    torch.testing.assert_close(loss(logits[order], targets[order]), before)
    torch.testing.assert_close(loss(logits.flip(2), targets.flip(1)), before)
    torch.testing.assert_close(loss(logits[:, foreground], foreground[targets]), before)
    torch.testing.assert_close(loss(logits + 5, targets), before)
    assert not torch.isclose(loss(logits[order], targets), before, rtol=1e-3)


def test_the_background_is_no_class_of_dice():
    _, targets = segmented(2, 3, 4, 5)
    exchanged = torch.tensor([1, 0, 2])
    logits = decided(targets, 3)
    logits[:, :, 0] = torch.tensor([0.0, 100, 0])[:, None]  # a row seen as class 1
    renamed = dice_loss(logits[:, exchanged], exchanged[targets])
    assert not torch.isclose(dice_loss(logits, targets), renamed, rtol=1e-2)


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_each_image_counts_alike_however_much_foreground_it_has(loss):
    logits, targets = segmented(2, 2, 6, 6)
    targets[1] = 0
    targets[1, 0, 0] = 1
    alone = [loss(logits[[image]], targets[[image]]) for image in range(2)]
    torch.testing.assert_close(loss(logits, targets), sum(alone) / 2)


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
def test_the_arithmetic_is_float32_whatever_the_caller_has_switched_on(loss):
    logits, targets = segmented(2, 3, 4, 5, dtype=torch.bfloat16)
    expected = loss(logits.float(), targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = loss(logits.requires_grad_(), targets)
    assert computed.dtype == torch.float32
    assert computed == expected
    computed.backward()
    assert logits.grad.dtype == torch.bfloat16
    assert logits.grad.any()


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.bool])
def test_label_maps_come_as_any_integers(loss, dtype):
    logits, targets = segmented(2, 2, 4, 5)
    assert loss(logits, targets.to(dtype)) == loss(logits, targets)


def test_extreme_logits_are_finite():
    logits = torch.tensor([[[1e4, -1e4], [-1e4, 1e4]]], requires_grad=True)
    loss = dice_ce_loss(logits, torch.tensor([[1, 0]]))
    loss.backward()
    assert loss.item() == pytest.approx(1 - 1 / 3 + 2e4)
    assert math.isfinite(logits.grad.abs().sum())


@pytest.mark.parametrize("loss", [dice_loss, dice_ce_loss])
@pytest.mark.parametrize(
    ("logits", "targets", "message"),
    [
        (torch.ones(2, 3), torch.ones(2).long(), r"the logits must be a non-empty .* not \(2, 3\) of torch.float32"),
        (
            torch.ones(2, 1, 4),
            torch.ones(2, 4).long(),
            r"at least 2 classes, the background one of them, not \(2, 1, 4",
        ),
        (torch.ones(2, 3, 4).int(), torch.ones(2, 4).long(), "not .* of torch.int32"),
        (torch.ones(2, 3, 0), torch.ones(2, 0).long(), "must be a non-empty"),
        (torch.ones(2, 3, 4), torch.ones(2, 1, 4).long(), r"the targets must be .* here \(2, 4\) .* not \(2, 1, 4\)"),
        (torch.ones(2, 3, 4), torch.ones(2, 4), r"the targets must be .* of integers, not \(2, 4\) of torch.float32"),
        (torch.ones(2, 3, 4), torch.full((2, 4), 3), "the targets hold classes 3 to 3, the logits 0 to 2; map"),
        (torch.ones(2, 3, 4), torch.arange(-1, 3).expand(2, 4), "the targets hold classes -1 to 2, the logits 0 to 2"),
    ],
)
def test_what_does_not_fit_is_named(loss, logits, targets, message):
    with pytest.raises(ValueError, match=message):
        loss(logits, targets)
