"""Fairness between subgroups: their AUC, the gap between two, and gains over a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from peer.classification import Labels, Probabilities, auc, class_areas
from peer.lab.statistics.means import mean

Areas: TypeAlias = Mapping[str, float | None]
"""The AUC by the value of a key, such as ``sex``."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """The AUC of two groups over sites and folds, their gap ``delta`` and their ``mean``."""

    groups: Mapping[str, float | None]
    delta: float | None
    mean: float | None


@dataclass(frozen=True, slots=True)
class Gain:
    """The AUC of a method and a baseline on the same ``samples``; None if undefined."""

    auc: float | None
    baseline: float | None
    samples: int

    @property
    def points(self) -> float | None:
        """The gain in percentage points."""
        return None if self.auc is None or self.baseline is None else 100 * (self.auc - self.baseline)


def subgroup_areas(probabilities: Probabilities, labels: Labels, values: Sequence[object]) -> dict[str, float | None]:
    """Compute the AUC of each subgroup's samples, by the text of its value.

    ``values`` has the key's value of each sample; samples with None are in no subgroup.
    """
    return {
        value: auc(probabilities[indices], labels[indices])
        for value, indices in _subgroups(values, len(labels)).items()
    }


def fairness(folds: Sequence[Mapping[str, Areas]]) -> Fairness:
    """Compute the gap between two groups: the absolute difference of their means over sites and folds.

    Source: FedSKD, eq. 16 and table VII, whose gaps are those between the printed means.
    Args:
        folds: for each fold, by site, the groups' AUC (:func:`subgroup_areas`) in the Local Test.

    A group's mean leaves out the sites without it or with an undefined AUC. Raise ``ValueError``
    unless there are exactly two groups.
    """
    names = sorted({name for fold in folds for areas in fold.values() for name in areas})
    if len(names) != 2:
        raise ValueError(f"a gap is between two groups, not {len(names)}: {', '.join(names)}")
    groups = {name: mean(mean(areas.get(name) for areas in fold.values()) for fold in folds) for name in names}
    first, second = groups.values()
    if first is None or second is None:
        return Fairness(groups, None, None)
    return Fairness(groups, abs(first - second), (first + second) / 2)


def gains(
    probabilities: Probabilities, baseline: Probabilities, labels: Labels, values: Sequence[object]
) -> dict[str, Gain]:
    """Compute the gain of each subgroup over a baseline, such as of each institution.

    Source: FedSKD, figure 5a. It pools the predictions of all sites' models on all folds' test
        samples, since one institution of one fold has too few. The AUC therefore ranks scores of
        different models together.
    """
    ours, theirs = (subgroup_areas(scores, labels, values) for scores in (probabilities, baseline))
    sizes = {value: len(indices) for value, indices in _subgroups(values, len(labels)).items()}
    return {value: Gain(ours[value], theirs[value], size) for value, size in sizes.items()}


def class_gains(probabilities: Probabilities, baseline: Probabilities, labels: Labels) -> dict[int, Gain]:
    """Compute the gain of each class against the rest over a baseline, such as of each type of lesion.

    Source: FedSKD, figure 5b. ``samples`` counts those of the class.
    """
    pairs = zip(class_areas(probabilities, labels), class_areas(baseline, labels), strict=True)
    return {label: Gain(*pair, int(np.sum(labels == label))) for label, pair in enumerate(pairs)}


def _subgroups(values: Sequence[object], samples: int) -> dict[str, list[int]]:
    """Return the indices of each value's samples, values sorted by their text."""
    if len(values) != samples:
        raise ValueError(f"{len(values)} values for {samples} samples")
    indices: dict[str, list[int]] = {}
    for index, value in enumerate(values):
        if value is not None:
            indices.setdefault(str(value), []).append(index)
    return dict(sorted(indices.items()))
