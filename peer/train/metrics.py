"""Accuracy, macro F1 and AUC of classes and labels, Dice of label maps, PSNR and SSIM of images, errors of numbers,
concordance of survival.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from losses import survival_curves
from peer.classification import Labels, Probabilities, class_scores, label_scores
from peer.core.targets import CLASS, Target
from peer.core.tasks import CLASSIFYING
from peer.regression import mae, r2, rmse
from peer.survival import position_time, survival_calibration, survival_scores
from peer.train.outputs import number_range

Counts = NDArray[np.int64]
Loss = Callable[[Tensor, Tensor], Tensor]
Pairs = Iterable[tuple[Tensor, Tensor]]

HALVES = ("lower_risk", "higher_risk")
"""The test persons of a site by their predicted risk, as metrics name them."""

# Constants of the structural similarity, from Wang et al. 2004.
WINDOW = 11  # places along an axis
SIGMA = 1.5  # places
K1, K2 = 0.01, 0.03


def measure(
    predict: Callable[[Tensor], Tensor],
    supervised_loss: Loss,
    batches: Pairs,
    *,
    task: str,
    target: Target = CLASS,
) -> dict[str, float]:
    """Compute the task's metrics over all batches, and the mean ``loss`` per sample; empty without samples.

    Predictions of label maps and images are dropped after each batch, so that memory is bounded.

    Args:
        predict: returns logits ``(b, classes)`` or ``(b, classes, *space)``, or images, for images
            ``(b, c, *space)``; on any device.
        supervised_loss: returns the mean over a batch of predictions and targets.
        task: the objective, which selects :func:`classification`, :func:`segmentation`,
            :func:`super_resolution`, :func:`labels`, :func:`number` or :func:`survival`.
        target: what is predicted, if it is no class.
    """
    pairs = ((predict(images).float(), targets) for images, targets in batches)
    if task in OF_VECTORS:
        return _vectors(pairs, supervised_loss, partial(OF_VECTORS[task], target))
    return MEASURES[task](pairs, supervised_loss)


def _vectors(pairs: Pairs, loss: Loss, score: Callable[[Tensor, Tensor], dict[str, float]]) -> dict[str, float]:
    predictions, targets = [], []
    for prediction, labels in pairs:
        predictions.append(prediction.cpu())
        targets.append(labels)
    if not predictions:
        return {}
    outputs, answers = torch.cat(predictions), torch.cat(targets)
    return score(outputs.double(), answers) | {"loss": float(loss(outputs, answers))}


def _label_maps(pairs: Pairs, loss: Loss) -> dict[str, float]:
    tables, total = [], 0.0
    for logits, targets in pairs:
        labels = targets.to(logits.device)
        tables.append(confusion(logits.argmax(dim=1), labels, classes=logits.shape[1]))
        total += float(loss(logits, labels)) * len(labels)
    if not tables:
        return {}
    table = np.concatenate(tables)
    return segmentation(table) | {"loss": total / len(table)}


def _images(pairs: Pairs, loss: Loss) -> dict[str, float]:
    errors, similarities, total, window = [], [], 0.0, WINDOW
    for images, targets in pairs:
        references = targets.to(images.device)
        errors.append((images.double() - references).square().flatten(1).mean(1).cpu().numpy())
        similarities.append(structural_similarity(images, references).cpu().numpy())
        total += float(loss(images, references)) * len(references)
        window = min(_windows(references.shape[2:]))
    if not errors:
        return {}
    squared = np.concatenate(errors)
    metrics = super_resolution(squared, np.concatenate(similarities)) | {"loss": total / len(squared)}
    return metrics | ({"ssim_window": float(window)} if window < WINDOW else {})


MEASURES: Mapping[str, Callable[[Pairs, Loss], dict[str, float]]] = {
    "segmentation": _label_maps,
    "super_resolution": _images,
}
"""Task kind -> function that computes metrics and loss of predictions and targets."""


def _score_classes(target: Target, logits: Tensor, answers: Tensor) -> dict[str, float]:
    return classification(logits.softmax(dim=1).numpy(), answers.numpy())


def labels(target: Target, logits: Tensor, answers: Tensor) -> dict[str, float]:
    """Compute the metrics of several labels, each yes or no.

    Args:
        logits: ``(n, labels)``, float64.
        answers: ``(n, labels)`` of 0, 1, or NaN where a label is not known.

    Returns:
        ``auc``, the mean over the labels that have both answers, ``auc_undefined``, the number of others,
        ``accuracy`` of all known labels, ``f1_macro``, the mean over the labels, and ``samples``.
    """
    scores = label_scores(logits.sigmoid().numpy(), answers.double().numpy())
    return _defined(
        auc=scores.auc,
        accuracy=scores.accuracy,
        f1_macro=scores.f1_macro,
        auc_undefined=scores.areas.count(None),
        samples=len(answers),
    )


def number(target: Target, outputs: Tensor, answers: Tensor) -> dict[str, float]:
    """Compute the metrics of a number, in the federation's unit.

    Args:
        outputs: ``(n, 1)``, float64, in [-1, 1] over the target's range like ``answers``.

    Returns:
        ``r2``, absent where all answers are equal, ``rmse``, ``mae`` and ``samples``.
    """
    low, high = number_range(target)
    predicted, true = (((each.double() * (high - low) + high + low) / 2).numpy()[:, 0] for each in (outputs, answers))
    return _defined(r2=r2(predicted, true), rmse=rmse(predicted, true), mae=mae(predicted, true), samples=len(true))


def survival(target: Target, logits: Tensor, answers: Tensor) -> dict[str, float]:
    """Compute the metrics of the time to an event.

    Args:
        logits: of the hazards, ``(n, intervals)``, float64.
        answers: ``(n, 2)``: time in units of the intervals, and 1 for an event.

    Returns:
        ``c_index`` of Harrell and ``c_index_uno`` by the predicted risk at the horizon, ``auc_at_horizon``,
        ``integrated_brier``, ``events`` and ``samples``; of the calibration ``observed_expected`` and
        ``calibration_slope``, and of the two halves by predicted risk ``log_rank_p`` and, at the horizon,
        ``predicted_lower_risk``, ``observed_lower_risk``, ``predicted_higher_risk`` and ``observed_higher_risk``.
        Those that are not defined are absent.
    """
    ends = np.array(target.times)
    times, events = position_time(answers[:, 0].double().numpy(), ends), answers[:, 1].numpy() > 0
    curves = survival_curves(logits).numpy()
    scores = survival_scores(times, events, curves, ends, target.horizon)
    calibration = survival_calibration(times, events, curves, ends, target.horizon)
    both = len(calibration.halves) == len(HALVES)
    known = dict(zip(HALVES, calibration.halves, strict=True)) if both else {}
    return _defined(
        c_index=scores.c_index,
        c_index_uno=scores.uno,
        auc_at_horizon=scores.auc,
        integrated_brier=scores.ibs,
        events=int(events.sum()),
        samples=len(events),
        observed_expected=calibration.observed_expected,
        calibration_slope=calibration.slope,
        log_rank_p=calibration.log_rank,
        **{f"predicted_{half}": group.predicted for half, group in known.items()},
        **{f"observed_{half}": group.observed for half, group in known.items()},
    )


def _defined(**values: float | None) -> dict[str, float]:
    return {name: float(value) for name, value in values.items() if value is not None}


OF_VECTORS: Mapping[str, Callable[[Target, Tensor, Tensor], dict[str, float]]] = {
    **dict.fromkeys(CLASSIFYING, _score_classes),
    "labels": labels,
    "number": number,
    "survival": survival,
}
"""Objective -> function that computes the metrics of all predictions and targets."""


def classification(probabilities: Probabilities, labels: Labels) -> dict[str, float]:
    """Compute the metrics of a classifier on one set of samples.

    Args:
        probabilities: ``(n, classes)``, rows sum to 1.
        labels: ``(n,)``, in [0, classes).

    Returns:
        ``accuracy``, ``f1_macro`` over the classes that occur in labels or predictions, ``auc``
        (two classes: of the probability of class 1; more: the unweighted mean of the one-vs-rest
        AUC over the classes for which it is defined), ``auc_undefined`` (classes that have no
        positive or no negative) and ``samples``. If no class has an AUC, ``auc`` is absent.
    """
    scores = class_scores(probabilities, labels)
    metrics = {
        "accuracy": scores.accuracy,
        "f1_macro": scores.f1_macro,
        "auc_undefined": float(scores.auc_undefined),
        "samples": float(scores.samples),
    }
    if scores.auc is not None:
        metrics["auc"] = scores.auc
    return metrics


def confusion(predicted: Tensor, labels: Tensor, *, classes: int) -> Counts:
    """Compute the confusion matrix of each image: places by true and predicted class, ``(b, classes, classes)``.

    Args:
        predicted: classes ``(b, *space)``, int64.
        labels: the true classes, of the same shape and on the same device.
    """
    images = torch.arange(len(labels), device=labels.device)[:, None]
    pairs = (images * classes + labels.flatten(1)) * classes + predicted.flatten(1)
    counts: Counts = torch.bincount(pairs.flatten(), minlength=len(labels) * classes**2).cpu().numpy()
    return counts.reshape(len(labels), classes, classes)


def segmentation(table: Counts) -> dict[str, float]:
    """Compute the metrics of label maps.

    Args:
        table: :func:`confusion` of each image, ``(n, classes, classes)``; class 0 is the
            background.

    Returns:
        ``dice``, the mean over images and foreground classes of the Dice coefficient (twice the
        places in both the predicted and the true extent, over the sum of both extents; 1 if both
        are empty); with more than two classes also ``dice_1`` and so on, the mean over images;
        ``pixel_accuracy``, the share of places with the right class; ``empty``, the number of pairs of
        image and foreground class are empty in both; ``samples``.
    """
    shared = np.diagonal(table, axis1=1, axis2=2)[:, 1:]
    extents = (table.sum(axis=1) + table.sum(axis=2))[:, 1:]
    empty = extents == 0
    dice = np.where(empty, 1.0, 2 * shared / np.where(empty, 1, extents))
    metrics = {
        "dice": float(dice.mean()),
        "pixel_accuracy": float(np.trace(table.sum(axis=0)) / table.sum()),
        "empty": float(empty.sum()),
        "samples": float(len(table)),
    }
    if dice.shape[1] > 1:
        metrics |= {f"dice_{k}": float(value) for k, value in enumerate(dice.mean(axis=0), start=1)}
    return metrics


def super_resolution(squared_errors: NDArray[np.float64], similarities: NDArray[np.float64]) -> dict[str, float]:
    """Compute the metrics of images with values in [0, 1]; predictions are not clipped to that range.

    Args:
        squared_errors: the mean over all values of each image, ``(n,)``.
        similarities: :func:`structural_similarity` of each image, ``(n,)``.

    Returns:
        ``psnr`` in dB, the mean over the images; ``psnr_undefined``, the number of images that are exact
        and have none; ``ssim``, the mean over the images; ``samples``. If all images are exact, ``psnr``
        is absent.
    """
    inexact = squared_errors[squared_errors > 0]
    metrics = {
        "psnr_undefined": float(len(squared_errors) - len(inexact)),
        "ssim": float(similarities.mean()),
        "samples": float(len(squared_errors)),
    }
    if len(inexact):
        metrics["psnr"] = float(np.mean(-10 * np.log10(inexact)))
    return metrics


def structural_similarity(images: Tensor, references: Tensor) -> Tensor:
    """Compute the mean structural similarity (SSIM) of each image and its reference, float64 ``(b,)``, at most 1.

    Source: Wang et al. 2004, for values in [0, 1]: the mean over all places where the Gaussian window
        lies inside the image, and over the channels.
    Differs: along an axis of fewer than 11 places the window has the largest odd number of places
    that fits.
    """
    x, y = images.double(), references.double()
    mean_x, mean_y = _smooth(x), _smooth(y)
    variances = _smooth(x * x) - mean_x**2 + _smooth(y * y) - mean_y**2
    covariance = _smooth(x * y) - mean_x * mean_y
    c1, c2 = K1**2, K2**2
    brightness = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    return (brightness * (2 * covariance + c2) / (variances + c2)).flatten(1).mean(1)


def _smooth(images: Tensor) -> Tensor:
    """Compute the Gaussian mean of ``(b, c, *space)`` where the window lies inside, axis by axis."""
    for axis, window in enumerate(_windows(images.shape[2:]), start=2):
        offsets = torch.arange(window, dtype=torch.float64) - window // 2
        weights = torch.exp(-((offsets / SIGMA) ** 2) / 2)
        places = images.shape[axis] - window + 1
        mean = torch.zeros_like(images.narrow(axis, 0, places))
        for first, weight in enumerate((weights / weights.sum()).tolist()):
            mean.add_(images.narrow(axis, first, places), alpha=weight)
        images = mean
    return images


def _windows(space: Sequence[int]) -> list[int]:
    """Return the size of the window along each axis: 11, or the largest odd number that fits."""
    return [min(WINDOW, length - 1 + length % 2) for length in space]
