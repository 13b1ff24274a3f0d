"""Which samples of a site are for testing: folds of a cross-validation, or one share held out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from peer.core.seeds import derive
from peer.data.datalist import named
from peer.errors import ConfigError, DataError
from peer.research.partition.groups import SUBJECT, Entry, Label, deal, groups_of, rank

PARTS_MIN = 2
DRAWS_MAX = 100  # where each subject has one class, the first always suffices


def folds(
    entries: Sequence[Entry], count: int, *, seed: int, by: str = SUBJECT, classes_min: int | None = None
) -> list[int]:
    """In which fold each entry is tested: stratified by class, a subject in one fold.

    Every class that ``count`` subjects have is in every fold, where subjects of several classes allow it. The same
    entries have the same folds wherever they are: give sites that share entries one seed.

    Args:
        entries: of one site, in any order; labels that are files make one stratum.
        count: how many folds, at least 2.
        seed: another seed, other folds.
        by: the key whose value samples share that stay together.
        classes_min: how many classes must be in every fold, for training as for testing; None: all that occur.

    Returns:
        For each entry a number in [0, count).

    Raises:
        ConfigError: ``count`` is less than 2.
        DataError: a fold would be empty, or a class missing in it.
    """
    if count < PARTS_MIN:
        raise ConfigError(f"folds = {count}: one part to train on and one to test on are {PARTS_MIN}", "give 2 or more")
    return _parts(
        entries,
        lambda number: [number / count] * count,
        draw=np.random.default_rng(derive("folds", seed)),
        by=by,
        classes_min=classes_min,
        what=f"{count} folds",
        remedy="lower folds",
    )


def holdout(
    entries: Sequence[Entry], share: float, *, seed: int, by: str = SUBJECT, classes_min: int | None = None
) -> list[bool]:
    """Whether each entry is held out for testing: stratified by class, a subject on one side.

    Every class that two subjects have is on both sides; where one of a single subject is allowed, it is for training.

    Args:
        entries: of one site, in any order; labels that are files make one stratum.
        share: of the samples that are for testing, in (0, 1).
        seed: another seed, another choice.
        by: the key whose value samples share that stay together.
        classes_min: how many classes must be on both sides; None: all that occur.

    Raises:
        ConfigError: ``share`` is not in (0, 1).
        DataError: a side would be empty, or a class missing on it.
    """
    if not 0 < share < 1:
        raise ConfigError(f"test_share = {share:g}: nothing would be left on one side", "give one between 0 and 1")

    def wanted(number: int) -> list[float]:
        tested = min(max(share * number, 1), number - 1)
        return [number - tested, tested]

    sides = _parts(
        entries,
        wanted,
        draw=np.random.default_rng(derive("holdout", seed)),
        by=by,
        classes_min=classes_min,
        what="training and test",
        remedy="join that class with another",
    )
    return [side == 1 for side in sides]


def _parts(
    entries: Sequence[Entry],
    wanted: Callable[[int], Sequence[float]],
    *,
    draw: np.random.Generator,
    by: str,
    classes_min: int | None,
    what: str,
    remedy: str,
) -> list[int]:
    """The part of each entry, once every class that can be in all parts is; ``what`` and ``remedy`` are for errors."""
    groups = groups_of(entries, by)
    count = len(wanted(1))
    if len(groups) < count:
        raise DataError(f"{len(groups)} of `{by}` cannot make {what}", f"{remedy}, or give the site more samples")
    holders = Counter(label for group in groups for label in group.labels)
    for _ in range(DRAWS_MAX):
        dealt = deal(groups, wanted, draw)
        found = [{label for place in places for label in groups[place].labels} for places in dealt]
        everywhere = set.intersection(*found)
        if all(held < count or label in everywhere for label, held in holders.items()):
            break
    _check(holders, everywhere, by=by, classes_min=classes_min, what=what, remedy=remedy)
    numbers = [0] * len(entries)
    for number, places in enumerate(dealt):
        for place in places:
            for at in groups[place].places:
                numbers[at] = number
    return numbers


def _check(
    holders: Counter[Label], everywhere: set[Label], *, by: str, classes_min: int | None, what: str, remedy: str
) -> None:
    """Refuse parts that too few classes are in. What is in every part tested on is in every part trained on."""
    classes = holders.keys() - {None}
    needed = len(classes) if classes_min is None else classes_min
    if classes and len(classes & everywhere) < needed:
        absent = sorted(classes - everywhere, key=rank)
        shown = named(f"class {label} ({holders[label]} of `{by}`)" for label in absent)
        raise DataError(
            f"{what} would not all have {shown or f'{needed} classes'}",
            f"{remedy}, or give the site more samples; classes_min says how many classes must be everywhere",
        )
