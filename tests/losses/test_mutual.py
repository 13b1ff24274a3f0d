"""The losses of FedDAL: values by hand, a numpy reference, minima, refused inputs."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from losses import consensus, distillation_kl, feeding_loss, forward_kl, transfer_loss

SHAPES = [(6, 5), (2, 4, 9), (2, 5, 3, 4), (2, 4, 2, 3, 2)]


def drawn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def models(*shape: int) -> tuple[Tensor, Tensor]:
    """Logits of a private model and of a proxy that half agrees with it."""
    private = drawn(*shape, seed=1)
    return private, private + drawn(*shape, seed=2)


def columns(logits: Tensor) -> np.ndarray:
    """Samples and pixels as rows, classes as columns."""
    return np.moveaxis(logits.numpy(), 1, -1).reshape(-1, logits.shape[1])


def top_set(scores: np.ndarray, top: int) -> list[int]:
    return sorted(range(len(scores)), key=lambda c: (-scores[c], c))[:top]


def probabilities(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max())
    return powers / powers.sum()


def jaccard(private: np.ndarray, proxy: np.ndarray, top: int) -> float:
    ours, theirs = set(top_set(private, top)), set(top_set(proxy, top))
    return len(ours & theirs) / len(ours | theirs)


def fed(private: np.ndarray, proxy: np.ndarray, top: int) -> float:
    return -sum(math.log(probabilities(private)[c]) for c in top_set(proxy, top))


def transferred(private: np.ndarray, proxy: np.ndarray, top: int) -> float:
    chosen = top_set(proxy, top)
    target = probabilities(proxy)[chosen]
    return float((target * np.log(target / probabilities(private)[chosen])).sum())


def test_consensus_by_hand():
    private = torch.tensor([[4.0, 3, 2, 1], [4, 3, 2, 1], [4, 3, 2, 1]])
    proxy = torch.tensor([[3.0, 4, 2, 1], [4, 1, 3, 2], [1, 2, 3, 4]])
    assert consensus(private, proxy, top=1).tolist() == [0, 1, 0]
    torch.testing.assert_close(consensus(private, proxy, top=2), torch.tensor([1, 1 / 3, 0]))
    torch.testing.assert_close(consensus(private, proxy, top=3), torch.tensor([1, 0.5, 0.5]))


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_consensus_is_the_jaccard_index_of_each_sample_and_pixel(shape, top):
    private, proxy = models(*shape)
    agreement = consensus(private, proxy, top=top)
    assert agreement.shape == (shape[0], *shape[2:])
    expected = [jaccard(w, p, top) for w, p in zip(columns(private), columns(proxy), strict=True)]
    np.testing.assert_allclose(agreement.numpy().ravel(), expected, rtol=1e-12)


@pytest.mark.parametrize(("top", "allowed"), [(1, [0, 1]), (2, [0, 1 / 3, 1]), (3, [0, 0.2, 0.5, 1])])
def test_consensus_takes_all_of_the_possible_values_and_no_other(top, allowed):
    private, proxy = drawn(4000, 7, seed=3), drawn(4000, 7, seed=4)
    np.testing.assert_allclose(consensus(private, proxy, top=top).unique(), allowed, rtol=1e-12)


def test_ties_go_to_the_lower_class():
    # Enough classes and samples for an unstable sort to show; every class has the same logit.
    tied, last = torch.zeros(50, 40), torch.arange(40.0).expand(50, 40)
    assert consensus(tied, last.flip(1), top=3).eq(1).all()
    assert not consensus(tied, last, top=3).any()
    assert consensus(torch.tensor([[0.0, 5, 5, 5]]), torch.tensor([[0.0, 9, 8, 0]]), top=2) == 1


def test_consensus_does_not_feel_shift_scale_and_a_common_renaming_of_classes():
    private, proxy = models(40, 6)
    before = consensus(private, proxy, top=2)
    order = [3, 0, 5, 1, 4, 2]
    assert torch.equal(consensus(7 * private + 1, proxy - 3, top=2), before)
    assert torch.equal(consensus(private[:, order], proxy[:, order], top=2), before)
    assert torch.equal(consensus(proxy, private, top=2), before)
    assert not torch.equal(consensus(private[:, order], proxy, top=2), before)


def test_consensus_passes_no_gradient():
    private, proxy = (logits.requires_grad_() for logits in models(3, 4))
    assert not consensus(private, proxy, top=1).requires_grad


def test_feeding_by_hand():
    private, proxy = torch.tensor([[math.log(5), math.log(3), 0.0, 0.0]]), torch.tensor([[0.0, 3.0, 2.0, 1.0]])
    # Z = {1, 2} with probabilities 3/10 and 1/10, S = {0, 1}: λ = 1/3.
    expected = -(math.log(0.3) + math.log(0.1)) / 3
    assert feeding_loss(private, proxy, top=2).item() == pytest.approx(expected, rel=1e-6)
    assert feeding_loss(private, proxy, top=2, weights=1.0).item() == pytest.approx(3 * expected, rel=1e-6)
    assert feeding_loss(private, proxy, top=1) == 0


def test_transfer_by_hand():
    private, proxy = torch.zeros(1, 4), torch.tensor([[1 / 2, 1 / 4, 1 / 8, 1 / 8]]).log()
    # Of the classes 0 and 1 the proxy gives 1/2 and 1/4, the private model 1/4 each; S = Z = {0, 1}.
    assert transfer_loss(private, proxy, top=2).item() == pytest.approx(0.5 * math.log(2), rel=1e-6)
    # Not one hot: with a single class the loss is not that of feeding.
    assert transfer_loss(private, proxy, top=1).item() == pytest.approx(0.5 * math.log(2), rel=1e-6)
    assert feeding_loss(private, proxy, top=1).item() == pytest.approx(math.log(4), rel=1e-6)
    # Between 0 and its least value, where the private model gives the classes more than the proxy does.
    surer = torch.tensor([[1 - 3e-6, 1e-6, 1e-6, 1e-6]]).log()
    proxy = torch.tensor([[1 / math.e, 0.25, 0.2, 0.55 - 1 / math.e]]).log()
    assert transfer_loss(surer, proxy, top=1).item() == pytest.approx(-1 / math.e, rel=1e-4)


@pytest.mark.parametrize("top", [1, 2, 3])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("loss", "reference"), [(feeding_loss, fed), (transfer_loss, transferred)])
def test_backward_losses_are_means_over_samples_and_pixels(loss, reference, shape, top):
    private, proxy = models(*shape)
    rows = list(zip(columns(private), columns(proxy), strict=True))
    values, agreement = [reference(w, p, top) for w, p in rows], [jaccard(w, p, top) for w, p in rows]
    computed = loss(private, proxy, top=top)
    assert computed.item() == pytest.approx(np.mean(np.multiply(agreement, values)), rel=1e-12)
    assert loss(private, proxy, top=top, weights=consensus(private, proxy, top=top)) == computed
    assert loss(private, proxy, top=top, weights=1.0).item() == pytest.approx(np.mean(values), rel=1e-12)
    own = torch.rand(shape[0], *shape[2:], dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    expected = np.mean(own.numpy().ravel() * values)
    assert loss(private, proxy, top=top, weights=own).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("top", [1, 2, 3])
def test_transfer_and_feeding_differ_for_any_number_of_classes(top):
    private, proxy = models(20, 5)
    assert not torch.isclose(transfer_loss(private, proxy, top=top), feeding_loss(private, proxy, top=top), rtol=0.1)
    assert transfer_loss(proxy, proxy, top=top) == 0


def test_feeding_knows_the_proxys_top_set_and_nothing_more():
    private, proxy = models(20, 5)
    ranks = proxy.argsort(dim=1).argsort(dim=1)
    exchanged = torch.where(ranks == 4, 3, torch.where(ranks == 3, 4, ranks)).double()  # first and second change places
    assert torch.equal(feeding_loss(private, exchanged, top=2), feeding_loss(private, proxy, top=2))
    assert transfer_loss(private, exchanged, top=2) != transfer_loss(private, proxy, top=2)


def descended(private: Tensor, proxy: Tensor, top: int, *, rate: float, steps: int) -> Tensor:
    private = private.clone().requires_grad_()
    for _ in range(steps):
        (gradient,) = torch.autograd.grad(feeding_loss(private, proxy, top=top, weights=1.0), private)
        private = (private - rate * gradient).detach().requires_grad_()
    return private.detach()


@pytest.mark.parametrize("top", [1, 2, 3])
def test_a_step_raises_the_proxys_classes_in_each_sample(top):
    private, proxy = models(30, 5)
    chosen = proxy.topk(top, dim=1).indices
    before = private.log_softmax(1).gather(1, chosen).sum(1)
    # As printed, without its minus sign, the loss would take the same step backwards.
    after = descended(private, proxy, top, rate=3.0, steps=1).log_softmax(1).gather(1, chosen).sum(1)
    against = descended(private, proxy, top, rate=-3.0, steps=1).log_softmax(1).gather(1, chosen).sum(1)
    assert (after > before).all()
    assert (against < before).all()


@pytest.mark.parametrize("top", [2, *(pytest.param(top, marks=pytest.mark.nightly) for top in (1, 3))])
def test_the_minimum_gives_each_of_the_proxys_classes_an_equal_share(top):
    private, proxy = models(4, 5)
    reached = descended(private, proxy, top, rate=4.0, steps=3000).softmax(1)
    share = torch.zeros_like(reached).scatter(1, proxy.topk(top, dim=1).indices, 1 / top)
    torch.testing.assert_close(reached, share, rtol=0, atol=1e-3)
    least = feeding_loss(reached.log(), proxy, top=top, weights=1.0)
    assert least.item() == pytest.approx(top * math.log(top), abs=1e-2)


def test_two_classes_that_disagree_feed_nothing_back():
    private = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 1.0]], requires_grad=True)
    proxy = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, 0.0]])
    feeding_loss(private, proxy, top=1).backward()
    assert not private.grad[:2].any()
    assert private.grad[2].all()
    assert feeding_loss(private[:2], proxy[:2], top=1) == 0


@pytest.mark.parametrize("loss", [feeding_loss, transfer_loss])
def test_the_private_model_alone_learns_backward(loss):
    private, proxy = (logits.requires_grad_() for logits in models(6, 4, 3))
    weights = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
    for chosen_weights in (None, 1.0, weights):
        private.grad = None
        loss(private, proxy, top=2, weights=chosen_weights).backward()
        assert private.grad.any()
        assert proxy.grad is None
        assert weights.grad is None
        assert torch.autograd.gradcheck(
            lambda w, chosen_weights=chosen_weights: loss(w, proxy.detach(), top=2, weights=chosen_weights), (private,)
        )


def test_the_proxy_alone_learns_forward():
    private, proxy = (logits.requires_grad_() for logits in models(6, 4, 3))
    forward_kl(private, proxy).backward()
    assert private.grad is None
    assert proxy.grad.any()
    # softmax(p) - softmax(w), over the samples and pixels of the mean.
    expected = (proxy.softmax(1) - private.softmax(1)) / 18
    torch.testing.assert_close(proxy.grad, expected.detach())


def test_the_composite_loss_as_printed_moves_the_private_model_too():
    private, proxy = (logits.requires_grad_() for logits in models(6, 4, 3))
    loss = forward_kl(private, proxy, updates_private=True)
    assert loss == forward_kl(private, proxy)
    assert torch.autograd.gradcheck(lambda *pair: forward_kl(*pair, updates_private=True), (private, proxy))
    loss.backward()
    assert private.grad.any()


@pytest.mark.parametrize("shape", SHAPES)
def test_forward_is_the_divergence_from_the_private_model(shape):
    private, proxy = models(*shape)
    rows = [(probabilities(w), probabilities(p)) for w, p in zip(columns(private), columns(proxy), strict=True)]
    expected = np.mean([(w * np.log(w / p)).sum() for w, p in rows])
    assert forward_kl(private, proxy).item() == pytest.approx(expected, rel=1e-12)
    assert forward_kl(private, proxy) == distillation_kl(private, proxy)


def test_losses_do_not_feel_a_shift_of_either_models_logits():
    private, proxy = models(8, 5)
    for loss in (forward_kl, lambda w, p: feeding_loss(w, p, top=2), lambda w, p: transfer_loss(w, p, top=2)):
        torch.testing.assert_close(loss(private + 11, proxy - 7), loss(private, proxy))


def backward_losses() -> list:
    return [feeding_loss, transfer_loss, lambda w, p, *, top: forward_kl(w, p), consensus]


@pytest.mark.parametrize("loss", backward_losses())
def test_the_arithmetic_is_float32_whatever_the_caller_has_switched_on(loss):
    private, proxy = (logits.bfloat16() for logits in models(9, 4, 3))
    expected = loss(private.float(), proxy.float(), top=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        computed = loss(private, proxy, top=2)
    assert computed.dtype == torch.float32
    assert torch.equal(computed, expected)


@pytest.mark.parametrize("loss", [feeding_loss, transfer_loss])
def test_weights_do_not_widen_or_narrow_the_loss(loss):
    private, proxy = (logits.float() for logits in models(9, 4))
    for dtype in (torch.float64, torch.bfloat16, torch.bool):
        assert loss(private, proxy, top=2, weights=torch.ones(9, dtype=dtype)).dtype == torch.float32


@pytest.mark.parametrize("loss", [consensus, feeding_loss, transfer_loss])
@pytest.mark.parametrize("top", [-1, 0, 4, 5])
def test_top_must_leave_a_class_out(loss, top):
    private, proxy = models(3, 4)
    with pytest.raises(
        ValueError, match=f"top is {top}, but must be at least 1 and less than the 4 classes; lower top"
    ):
        loss(private, proxy, top=top)


@pytest.mark.parametrize("loss", [feeding_loss, transfer_loss])
@pytest.mark.parametrize("shape", [(), (3,), (3, 1), (3, 4, 2)])
def test_weights_that_do_not_fit_are_named(loss, shape):
    private, proxy = models(3, 4, 2)
    with pytest.raises(ValueError, match=r"weights must be \(b, \*space\), here \(3, 2\), or one number, not \("):
        loss(private, proxy, top=1, weights=torch.ones(shape))


@pytest.mark.parametrize("loss", backward_losses())
@pytest.mark.parametrize(
    ("private", "proxy", "message"),
    [
        (torch.ones(3), torch.ones(3), r"the private logits must be a non-empty .* not \(3,\) of torch.float32"),
        (torch.ones(2, 3), torch.ones(2, 3).int(), r"the proxy logits must be .* of torch.int32"),
        (torch.ones(2, 3, 0), torch.ones(2, 3, 0), "must be a non-empty"),
        (torch.ones(4, 3), torch.ones(1, 3), r"the logits differ in shape: private \(4, 3\) and proxy \(1, 3\)"),
        (torch.ones(2, 1, 4), torch.ones(2, 1, 4), r"\(2, 1, 4\) have one class on dim 1, whose softmax is always 1"),
    ],
)
def test_logits_that_do_not_fit_are_named(loss, private, proxy, message):
    with pytest.raises(ValueError, match=message):
        loss(private, proxy, top=1)
