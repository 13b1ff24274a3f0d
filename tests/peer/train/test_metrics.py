"""Metrics against scikit-learn, MONAI and numpy, and their conventions by hand."""

import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from monai.metrics import SSIMMetric
from sklearn import metrics as reference
from torch import Tensor

from losses import dice_ce_loss, survival_curves
from peer.classification import class_scores
from peer.core.targets import Target, TimeToEvent
from peer.survival import survival_calibration
from peer.train.metrics import (
    MEASURES,
    classification,
    confusion,
    measure,
    segmentation,
    structural_similarity,
    super_resolution,
    survival,
)
from peer.train.targets import encode_label


@given(st.integers(0, 2**32), st.integers(2, 60), st.integers(2, 5))
def test_metrics_agree_with_scikit_learn(seed: int, samples: int, classes: int) -> None:
    draw = np.random.default_rng(seed)
    drawn = draw.integers(1, 6, size=(samples, classes)).astype(float)  # few values: many ties
    probabilities = drawn / drawn.sum(axis=1, keepdims=True)
    labels = draw.integers(0, classes, size=samples)
    metrics, scores = classification(probabilities, labels), class_scores(probabilities, labels)
    assert (metrics["accuracy"], metrics["f1_macro"], metrics.get("auc")) == (
        scores.accuracy,
        scores.f1_macro,
        scores.auc,
    )
    assert (metrics["auc_undefined"], metrics["samples"]) == (scores.auc_undefined, scores.samples)
    predicted = probabilities.argmax(axis=1)
    assert metrics["accuracy"] == pytest.approx(reference.accuracy_score(labels, predicted))
    assert metrics["f1_macro"] == pytest.approx(reference.f1_score(labels, predicted, average="macro"))
    scored = [1] if classes == 2 else list(range(classes))
    defined = [k for k in scored if 0 < np.sum(labels == k) < samples]
    assert metrics["auc_undefined"] == len(scored) - len(defined)
    assert ("auc" in metrics) == bool(defined)
    if defined:
        areas = [reference.roc_auc_score(labels == k, probabilities[:, k]) for k in defined]
        assert metrics["auc"] == pytest.approx(np.mean(areas))


def test_one_class_only_has_no_auc() -> None:
    metrics = classification(np.array([[0.2, 0.8], [0.6, 0.4]]), np.array([1, 1]))
    assert metrics == {"accuracy": 0.5, "f1_macro": pytest.approx(1 / 3), "auc_undefined": 1.0, "samples": 2.0}


def test_measure_joins_batches_and_weighs_each_sample_alike() -> None:
    images, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    batches = [(images[:4], labels[:4]), (images[4:], labels[4:])]
    metrics = measure(lambda x: x * 2, F.cross_entropy, batches, task="time_series")
    assert metrics == measure(lambda x: x * 2, F.cross_entropy, batches, task="classification")
    assert metrics["loss"] == pytest.approx(F.cross_entropy(images * 2, labels).item())
    assert metrics["samples"] == 5


@pytest.mark.parametrize("task", MEASURES)
def test_nothing_to_measure_has_no_metrics(task: str) -> None:
    assert measure(lambda x: x, F.cross_entropy, [], task=task) == {}


# --- label maps -----------------------------------------------------------------------------------------------------
def test_dice_by_hand() -> None:
    labels = torch.tensor([[0, 0, 1, 1, 1, 2], [0, 0, 0, 0, 0, 1]])
    predicted = torch.tensor([[0, 1, 1, 1, 0, 2], [0, 0, 0, 0, 1, 0]])
    metrics = segmentation(confusion(predicted, labels, classes=3))
    # Class 1: 2*2/(3+3) and 0/(1+1); class 2: 1, and 1 as both are empty.
    assert metrics == {
        "dice": pytest.approx((2 / 3 + 0 + 1 + 1) / 4), "dice_1": pytest.approx(1 / 3), "dice_2": 1.0,
        "pixel_accuracy": pytest.approx(8 / 12), "empty": 1.0, "samples": 2.0,
    }  # fmt: skip


def test_two_classes_have_one_dice() -> None:
    empty = torch.zeros(3, 4, dtype=torch.int64)
    metrics = segmentation(confusion(empty, empty, classes=2))
    assert metrics == {"dice": 1.0, "pixel_accuracy": 1.0, "empty": 3.0, "samples": 3.0}


@given(st.integers(0, 2**32), st.integers(2, 4), st.sampled_from([(7,), (4, 3), (2, 3, 4)]))
@settings(max_examples=30, deadline=None)
def test_dice_agrees_with_scikit_learn(seed: int, classes: int, size: tuple[int, ...]) -> None:
    draw = np.random.default_rng(seed)
    labels, predicted = draw.integers(0, classes, size=(2, 3, *size))
    metrics = segmentation(confusion(torch.from_numpy(predicted), torch.from_numpy(labels), classes=classes))
    flat = [(first.ravel(), second.ravel()) for first, second in zip(labels, predicted, strict=True)]
    foreground = list(range(1, classes))
    # F1 of the places is Dice; zero_division is the value of an image without the class.
    expected = [reference.f1_score(*pair, labels=foreground, average=None, zero_division=1.0) for pair in flat]
    assert metrics["dice"] == pytest.approx(np.mean(expected))
    assert metrics["pixel_accuracy"] == pytest.approx(reference.accuracy_score(labels.ravel(), predicted.ravel()))
    for k in foreground:
        assert metrics.get(f"dice_{k}", metrics["dice"]) == pytest.approx(np.mean(expected, axis=0)[k - 1])
    assert metrics["empty"] == sum(k not in pair[0] and k not in pair[1] for pair in flat for k in foreground)


def test_label_maps_are_measured_batch_by_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, 3, 4, 4, generator=generator)
    labels = torch.randint(0, 3, (5, 4, 4), generator=generator)
    predictions: list[weakref.ref[Tensor]] = []

    def predict(images: Tensor) -> Tensor:
        assert sum(ref() is not None for ref in predictions) <= 1, "predictions pile up"
        prediction = images.clone()
        predictions.append(weakref.ref(prediction))
        return prediction

    pairs = [(logits[k : k + 2], labels[k : k + 2]) for k in (0, 2, 4)]
    metrics = measure(predict, dice_ce_loss, pairs, task="segmentation")
    assert len(predictions) == 3
    assert metrics.pop("loss") == pytest.approx(dice_ce_loss(logits, labels).item(), rel=1e-6)
    assert metrics == segmentation(confusion(logits.argmax(1), labels, classes=3))


# --- images ---------------------------------------------------------------------------------------------------------
def test_signal_to_noise_by_hand() -> None:
    metrics = super_resolution(np.array([0.01, 0.0, 0.0001]), np.array([0.5, 1.0, 0.9]))
    assert metrics == {"psnr": pytest.approx(30.0), "psnr_undefined": 1.0, "ssim": pytest.approx(0.8), "samples": 3.0}
    assert "psnr" not in super_resolution(np.zeros(2), np.ones(2))


def ssim_of(image: np.ndarray, other: np.ndarray) -> float:
    """Structural similarity of two images ``(c, *space)`` as the paper writes it: window by window."""
    windows = [min(11, side if side % 2 else side - 1) for side in image.shape[1:]]
    weights = np.ones(())
    for window in windows:
        places = np.arange(window) - window // 2
        weights = np.multiply.outer(weights, np.exp(-(places**2) / (2 * 1.5**2)))
    weights = weights / weights.sum()
    values = []
    for channel, channel_other in zip(image, other, strict=True):
        for corner in np.ndindex(*(side - window + 1 for side, window in zip(channel.shape, windows, strict=True))):
            part = tuple(slice(first, first + window) for first, window in zip(corner, windows, strict=True))
            x, y = channel[part], channel_other[part]
            mx, my = (weights * x).sum(), (weights * y).sum()
            vx, vy = (weights * (x - mx) ** 2).sum(), (weights * (y - my) ** 2).sum()
            cov = (weights * (x - mx) * (y - my)).sum()
            values.append((2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4)))
    return float(np.mean(values))


@pytest.mark.parametrize("size", [(30,), (13, 17), (12, 6, 1), (11, 12, 14)])
def test_similarity_is_the_mean_over_windows(size: tuple[int, ...]) -> None:
    draw = np.random.default_rng(1)
    images, others = draw.random((2, 2, 3, *size))
    others[0] = images[0] * 0.8 + 0.1 * others[0]
    similarities = structural_similarity(torch.from_numpy(images), torch.from_numpy(others))
    assert similarities.dtype == torch.float64
    assert similarities.tolist() == pytest.approx([ssim_of(*pair) for pair in zip(images, others, strict=True)])


@pytest.mark.parametrize("size", [(24, 19), (12, 13, 14)])
def test_similarity_agrees_with_monai(size: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 2, *size, generator=generator)
    others = (images + 0.2 * torch.rand(3, 2, *size, generator=generator)) / 1.2
    theirs = SSIMMetric(spatial_dims=len(size), reduction="none")(images, others).flatten()
    assert structural_similarity(images, others).tolist() == pytest.approx(theirs.tolist(), rel=1e-4)


def test_an_image_is_like_itself() -> None:
    image = torch.rand(1, 1, 12, 12)
    assert structural_similarity(image, image).item() == pytest.approx(1)
    assert structural_similarity(image, 1 - image).item() < 0


def test_images_are_measured_with_their_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    targets = torch.rand(3, 1, 12, 16, generator=generator)
    images = targets.clone()
    images[1:] += 0.1
    pairs = [(images[:2], targets[:2]), (images[2:], targets[2:])]
    metrics = measure(lambda x: x, F.l1_loss, pairs, task="super_resolution")
    assert metrics["psnr"] == pytest.approx(20, abs=1e-4)
    assert (metrics["psnr_undefined"], metrics["samples"]) == (1, 3)
    assert metrics["loss"] == pytest.approx(0.2 / 3)
    assert metrics["ssim"] == pytest.approx(structural_similarity(images, targets).mean().item())
    assert "ssim_window" not in metrics


@pytest.mark.parametrize(("size", "window"), [((12, 9), 9), ((12, 8), 7), ((2, 20), 1)])
def test_a_smaller_window_is_told(size: tuple[int, ...], window: int) -> None:
    image = torch.rand(2, 1, *size)
    assert measure(lambda x: x, F.l1_loss, [(image, image)], task="super_resolution")["ssim_window"] == window


def test_survival_is_measured_with_its_calibration_at_the_horizon() -> None:
    target = Target("survival", times=(2.0, 4.0, 8.0), horizon=4.0)
    draw = torch.Generator().manual_seed(5)
    logits = torch.randn(40, 3, generator=draw, dtype=torch.float64)
    times = 1 + 8 * torch.rand(40, generator=draw)
    events = torch.rand(40, generator=draw) < 0.6
    answers = torch.stack(
        [encode_label(TimeToEvent(float(time), bool(event)), target) for time, event in zip(times, events, strict=True)]
    )
    metrics = survival(target, logits, answers)
    curves = survival_curves(logits).numpy()
    figures = survival_calibration(times.double().numpy(), events.numpy(), curves, target.times, 4.0)
    lower, higher = figures.halves
    expected = {
        "observed_expected": figures.observed_expected, "calibration_slope": figures.slope,
        "log_rank_p": figures.log_rank, "predicted_lower_risk": lower.predicted,
        "observed_lower_risk": lower.observed, "predicted_higher_risk": higher.predicted,
        "observed_higher_risk": higher.observed,
    }  # fmt: skip
    assert None not in expected.values()
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    alike = survival(target, torch.zeros(40, 3, dtype=torch.float64), answers)
    assert alike.keys() & expected.keys() == {"observed_expected"}, "equal predictions have neither halves nor a slope"
