"""Who a model serves better: the AUC of subgroups, the gap between two, and what each gains over a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from peer.classification import Labels, Probabilities, auc, class_areas
from peer.research.statistics.tables import Spread, average, over_folds

Areas: TypeAlias = Mapping[str, float | None]
"""The AUC by the value of a key, such as ``sex``."""


@dataclass(frozen=True, slots=True)
class Fairness:
    """Of two groups the AUC over sites and folds, ``delta`` between the two and their ``mean``."""

    groups: Mapping[str, Spread]
    delta: float | None
    mean: float | None


@dataclass(frozen=True, slots=True)
class Gain:
    """The AUC of a method and of a baseline on the same ``samples``; None where it is undefined."""

    auc: float | None
    baseline: float | None
    samples: int

    @property
    def gain(self) -> float | None:
        return None if self.auc is None or self.baseline is None else self.auc - self.baseline


def subgroup_areas(probabilities: Probabilities, labels: Labels, values: Sequence[object]) -> dict[str, float | None]:
    """The AUC of each subgroup's samples, by the text of its value.

    Args:
        probabilities: ``(n, classes)``.
        labels: ``(n,)``, in [0, classes).
        values: of each sample the key's value; samples with None are in no subgroup.

    Raises:
        ValueError: the lengths differ.
    """
    return {
        value: auc(probabilities[places], labels[places]) for value, places in _subgroups(values, len(labels)).items()
    }


def fairness(folds: Sequence[Mapping[str, Areas]]) -> Fairness:
    """The gap between two groups: the difference of their means over sites and folds, and then its size.

    Source: FedSKD, eq. 16 and table VII, whose gaps are those between the means that it prints.
    Args:
        folds: of each fold by site the groups' AUC (:func:`subgroup_areas`) in the Local Test.

    Returns:
        A group that a site does not have, or whose AUC there is undefined, is left out of its mean and counted.

    Raises:
        ValueError: there are not exactly two groups.
    """
    names = sorted({name for fold in folds for areas in fold.values() for name in areas})
    if len(names) != 2:
        raise ValueError(f"a gap is between two groups, not {len(names)}: {', '.join(names)}")
    groups = {
        name: over_folds([average(areas.get(name) for areas in fold.values()) for fold in folds]) for name in names
    }
    one, other = (groups[name].mean for name in names)
    if one is None or other is None:
        return Fairness(groups, None, None)
    return Fairness(groups, abs(one - other), (one + other) / 2)


def gains(
    probabilities: Probabilities, baseline: Probabilities, labels: Labels, values: Sequence[object]
) -> dict[str, Gain]:
    """What each subgroup gains, such as each institution.

    Source: FedSKD, figure 5a: the predictions of all sites' models on all folds' test samples together, since one
        institution of one fold is too few. Scores of different models are so ranked against each other.
    Args:
        probabilities: the method's, ``(n, classes)``.
        baseline: the other's, on the same samples.
        labels: ``(n,)``, in [0, classes).
        values: of each sample the key's value; samples with None are in no subgroup.

    Raises:
        ValueError: the lengths differ.
    """
    ours, theirs = (subgroup_areas(scores, labels, values) for scores in (probabilities, baseline))
    sizes = {value: len(places) for value, places in _subgroups(values, len(labels)).items()}
    return {value: Gain(ours[value], theirs[value], size) for value, size in sizes.items()}


def class_gains(probabilities: Probabilities, baseline: Probabilities, labels: Labels) -> dict[int, Gain]:
    """What each class gains, told from the rest, such as each type of lesion.

    Source: FedSKD, figure 5b.
    Args:
        probabilities: the method's, ``(n, classes)``.
        baseline: the other's, on the same samples.
        labels: ``(n,)``, in [0, classes).

    Returns:
        Of each class; ``samples`` are those that have it.

    Raises:
        ValueError: there is no sample, or the shapes or labels do not fit.
    """
    pairs = zip(class_areas(probabilities, labels), class_areas(baseline, labels), strict=True)
    return {label: Gain(*pair, int(np.sum(labels == label))) for label, pair in enumerate(pairs)}


def _subgroups(values: Sequence[object], samples: int) -> dict[str, list[int]]:
    """The places of each value's samples, values in the order of their text."""
    if len(values) != samples:
        raise ValueError(f"{len(values)} values for {samples} samples")
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        if value is not None:
            places.setdefault(str(value), []).append(place)
    return dict(sorted(places.items()))
