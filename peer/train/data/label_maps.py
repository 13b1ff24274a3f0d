"""The classes that the values of a label map stand for: one rule for training, surveys and imports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peer.train.data.datalist import LabelValues
from peer.train.data.file_names import named

LOST_CLASSES = "label maps lose classes:"
"""Prefix of the line in the worker's log about classes of which preparation leaves no place."""


def to_classes(values: NDArray[Any], label_values: LabelValues) -> NDArray[Any]:
    """Replace the values of a label map, of any shape, by the classes that they stand for."""
    if not label_values:
        return values
    largest = max(number for _, number in label_values)
    classes = values.astype(np.promote_types(values.dtype, np.min_scalar_type(largest)))
    for value, number in label_values:
        classes[values == value] = number
    return classes


def not_classes(values: NDArray[Any], classes: int | None) -> list[float]:
    """Return the different values that are no class: not whole, negative, or ``classes`` or more."""
    wrong = values[(values < 0) | (values >= (np.inf if classes is None else classes)) | (values != np.round(values))]
    return [float(value) for value in np.unique(wrong)]


def propose_map(values: Iterable[float]) -> str:
    """Write the options of ``data import`` that map these values to the classes 1, 2, ... in their order.

    The text is empty if a value is negative or not whole, since it is then no mark of a class.
    """
    ordered = sorted({0.0, *values})
    if ordered[0] < 0 or any(value != round(value) for value in ordered):
        return ""
    return " ".join(f"--map {value:.0f}={number}" for number, value in enumerate(ordered) if value != number)


def describe_lost_classes(lost: Mapping[str, Sequence[int]]) -> str:
    """Say which classes label maps lose at the network's size, given the classes by sample."""
    counts = sorted(Counter(label for labels in lost.values() for label in labels).items())
    listed = ", ".join(f"class {label} in {count}" for label, count in counts)
    return f"at [data] input_size nothing is left of {listed}: {named(lost)}; these places train as another class"
