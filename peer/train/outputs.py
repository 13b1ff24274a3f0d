"""A network's predictions as people read them: probabilities, numbers in their unit, survival at the agreed times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from peer.core.targets import Target
from peer.train.settings import TaskSettings

DIGITS = 6
"""Significant digits of a probability; float32 has no more."""


def final_outputs(prediction: Tensor, task: TaskSettings) -> Tensor:
    """Compute the final outputs of predictions with the batch on dimension 0.

    Returns:
        By objective, of classes the probabilities ``(b, classes, *space)``; of labels a probability each
        ``(b, labels)``; of a number its value in the federation's unit ``(b, 1)``; of survival the probability
        of no event until the end of each interval ``(b, intervals)``; of super-resolution the images.
    """
    if task.objective == "super_resolution":
        return prediction
    if task.objective == "number":
        low, high = number_range(task.target)
        return (prediction * (high - low) + (high + low)) / 2
    if task.objective == "labels":
        return prediction.sigmoid()
    if task.objective == "survival":
        return F.logsigmoid(-prediction).cumsum(1).exp()  # a product along the intervals has no form in ONNX
    return prediction.softmax(1)


def number_range(target: Target) -> tuple[float, float]:
    """Return the values that are -1 and 1 for the network."""
    assert target.range is not None, "the configuration demands it of a number"
    return target.range


def describe_output(output: Tensor, task: TaskSettings) -> dict[str, Any]:
    """Return a record of one sample's final outputs, a vector.

    Returns:
        ``class`` with ``class_name``, if it has one, and ``probabilities``; ``probabilities`` of labels; ``value`` of a
        number; or ``survival`` at the agreed times and ``median``, the time at which it is a half, if it comes to that.
    """
    values = [float(f"{value:.{DIGITS}g}") for value in output.tolist()]
    if task.objective == "number":
        return {"value": values[0]}
    if task.objective == "labels":
        return {"probabilities": values}
    if task.objective == "survival":
        return {"survival": values, "median": median_time(values, task.target.times)}
    number = int(output.argmax())
    names = {"class_name": task.class_names[number]} if task.class_names else {}
    return {"class": number, **names, "probabilities": values}


def median_time(survival: Sequence[float], times: Sequence[float]) -> float | None:
    """Return when a curve, straight between the agreed times, is a half; ``None`` if it never is."""
    points = [(0.0, 1.0), *zip(times, survival, strict=True)]
    for (before, above), (after, below) in itertools.pairwise(points):
        if below <= 0.5 < above:
            time = before + (after - before) * (above - 0.5) / (above - below)
            return float(f"{time:.{DIGITS}g}")
    return None
