"""Choose the test samples of a site: by the folds of a cross-validation, or by a share held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from peer.core.seeds import derive
from peer.errors import ConfigError, DataError
from peer.lab.partition.groups import SUBJECT, Entry, Label, groups_of, rank, stratify
from peer.train.data.file_names import named

PARTS_MIN = 2
DRAWS_MAX = 100  # where each subject has one class, the first draw always suffices


def folds(
    entries: Sequence[Entry], count: int, *, seed: int, by: str = SUBJECT, classes_min: int | None = None
) -> list[int]:
    """Assign each entry to the fold that tests it: stratified by class, a subject in one fold.

    Every class that ``count`` subjects have is in every fold, where subjects of several classes
    allow it. The same entries have the same folds at every site: give sites that share entries one
    seed.

    Args:
        entries: of one site, in any order; labels that are files make one stratum.
        classes_min: number of classes that must be in every fold, for training as for testing;
            None: all classes that occur.

    Returns:
        For each entry a number in [0, count).

    Raises:
        ConfigError: ``count`` is less than 2.
        DataError: a fold would be empty, or lack a class.
    """
    if count < PARTS_MIN:
        raise ConfigError(f"folds = {count}: one part to train on and one to test on are {PARTS_MIN}", "give 2 or more")
    return _assign_parts(
        entries,
        lambda number: [number / count] * count,
        rng=np.random.default_rng(derive("folds", seed)),
        by=by,
        classes_min=classes_min,
        parts_name=f"{count} folds",
        remedy="lower folds",
    )


def holdout(
    entries: Sequence[Entry], share: float, *, seed: int, by: str = SUBJECT, classes_min: int | None = None
) -> list[bool]:
    """Mark the entries held out for testing: stratified by class, a subject on one side.

    Every class that two subjects have is on both sides. A class of a single subject is refused, or
    is for training where ``classes_min`` allows it.

    Args:
        entries: of one site, in any order; labels that are files make one stratum.
        share: the test samples' share, in (0, 1).
        classes_min: number of classes that must be on both sides; None: all classes that occur.

    Raises:
        ConfigError: ``share`` is not in (0, 1).
        DataError: a side would be empty, or lack a class.
    """
    if not 0 < share < 1:
        raise ConfigError(f"test_share = {share:g}: nothing would be left on one side", "give one between 0 and 1")

    def quotas(number: int) -> list[float]:
        test_count = min(max(share * number, 1), number - 1)
        return [number - test_count, test_count]

    sides = _assign_parts(
        entries,
        quotas,
        rng=np.random.default_rng(derive("holdout", seed)),
        by=by,
        classes_min=classes_min,
        parts_name="training and test",
        remedy="join that class with another",
    )
    return [side == 1 for side in sides]


def _assign_parts(
    entries: Sequence[Entry],
    quotas: Callable[[int], Sequence[float]],
    *,
    rng: np.random.Generator,
    by: str,
    classes_min: int | None,
    parts_name: str,
    remedy: str,
) -> list[int]:
    """Draw until every class with enough subjects is in all parts; return the part of each entry.

    ``parts_name`` and ``remedy`` are words for the errors.
    """
    groups = groups_of(entries, by)
    count = len(quotas(1))
    if len(groups) < count:
        raise DataError(f"{len(groups)} of `{by}` cannot make {parts_name}", f"{remedy}, or give the site more samples")
    holders = Counter(label for group in groups for label in group.labels)
    for _ in range(DRAWS_MAX):
        parts = stratify(groups, quotas, rng)
        classes_of_parts = [{label for index in indices for label in groups[index].labels} for indices in parts]
        everywhere = set.intersection(*classes_of_parts)
        if all(subjects < count or label in everywhere for label, subjects in holders.items()):
            break
    _check_classes(holders, everywhere, by=by, classes_min=classes_min, parts_name=parts_name, remedy=remedy)
    numbers = [0] * len(entries)
    for number, indices in enumerate(parts):
        for index in indices:
            for entry_index in groups[index].entry_indices:
                numbers[entry_index] = number
    return numbers


def _check_classes(
    holders: Counter[Label], everywhere: set[Label], *, by: str, classes_min: int | None, parts_name: str, remedy: str
) -> None:
    """Refuse parts that lack classes.

    A class that is in every part is also in every training set, which consists of the other parts.
    """
    classes = holders.keys() - {None}
    needed = len(classes) if classes_min is None else classes_min
    if classes and len(classes & everywhere) < needed:
        absent = sorted(classes - everywhere, key=rank)
        shown = named(f"class {label} ({holders[label]} of `{by}`)" for label in absent)
        raise DataError(
            f"{parts_name} would not all have {shown or f'{needed} classes'}",
            f"{remedy}, or give the site more samples; classes_min says how many classes must be everywhere",
        )
