"""How good predictions are: accuracy, macro F1, area under the ROC curve."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = NDArray[np.int64]
Scores = NDArray[np.float64]


def measure(
    predict: Callable[[Tensor], Tensor],
    loss: Callable[[Tensor, Tensor], Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
) -> dict[str, float]:
    """``classification`` of everything in the batches, and the mean ``loss`` a sample; empty where there is none.

    Args:
        predict: logits ``(b, classes)`` of images ``(b, c, *space)``, on any device.
        loss: the mean over a batch, of logits and classes.
        batches: images and classes, on the CPU.
    """
    predictions, targets = [], []
    for images, labels in batches:
        predictions.append(predict(images).cpu().float())
        targets.append(labels)
    if not predictions:
        return {}
    logits, labels = torch.cat(predictions), torch.cat(targets)
    found = classification(logits.double().softmax(dim=1).numpy(), labels.numpy())
    return found | {"loss": float(loss(logits, labels))}


def classification(probabilities: Scores, labels: Labels) -> dict[str, float]:
    """The metrics of a classifier on one set of samples.

    Args:
        probabilities: ``(n, classes)``, rows sum to 1.
        labels: ``(n,)``, in [0, classes).

    Returns:
        ``accuracy``, ``f1_macro`` over the classes that occur in labels or predictions, ``auc`` (two classes: of the
        probability of class 1; more: the unweighted mean of one against the rest over the classes for which it is
        defined), ``auc_undefined`` (classes that have no positive or no negative) and ``samples``. Where no class has
        an AUC there is no ``auc``.
    """
    samples, classes = probabilities.shape
    predicted = probabilities.argmax(axis=1)
    # Of two classes only class 1 is scored: class 0 against the rest is the same number.
    areas = [area_under_curve(probabilities[:, k], labels == k) for k in (range(classes) if classes > 2 else (1,))]
    defined = [area for area in areas if area is not None]
    found = {
        "accuracy": float(np.mean(predicted == labels)),
        "f1_macro": f1_macro(predicted, labels),
        "auc_undefined": float(len(areas) - len(defined)),
        "samples": float(samples),
    }
    if defined:
        found["auc"] = float(np.mean(defined))
    return found


def area_under_curve(scores: Scores, positive: NDArray[np.bool_]) -> float | None:
    """The probability that a positive scores higher than a negative, a tie counting one half; nothing without both."""
    positives = int(positive.sum())
    negatives = len(positive) - positives
    if positives == 0 or negatives == 0:
        return None
    # Mann-Whitney: the mean rank of equal scores is halfway between their first and last.
    _, tie, counts = np.unique(scores, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks = (last - (counts - 1) / 2)[tie]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def f1_macro(predicted: Labels, labels: Labels) -> float:
    """The unweighted mean of F1 over the classes that occur in the labels or in the predictions."""
    scores = []
    for k in np.union1d(predicted, labels):
        hits = np.sum((predicted == k) & (labels == k))
        scores.append(2 * hits / (np.sum(predicted == k) + np.sum(labels == k)))
    return float(np.mean(scores))
