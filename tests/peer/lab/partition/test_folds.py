"""Folds and holdouts: every class everywhere, a subject on one side, or a refusal."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.partition_pools import DERM7PT, pool_of
from peer.errors import ConfigError, DataError
from peer.lab.partition.divide import divide
from peer.lab.partition.folds import folds, holdout


def classes_by_part(entries: list[Any], parts: list[Any]) -> dict[Any, Counter[int]]:
    """How many entries of each class each part has."""
    counts: dict[Any, Counter[int]] = {part: Counter() for part in sorted(set(parts))}
    for entry, part in zip(entries, parts, strict=True):
        counts[part][entry["label"]] += 1
    return counts


def no_subject_is_divided(entries: list[Any], parts: list[Any]) -> bool:
    pairs = {(entry["subject"], part) for entry, part in zip(entries, parts, strict=True)}
    return len(pairs) == len({subject for subject, _ in pairs})


# --- folds ----------------------------------------------------------------------------------------------------------
def test_folds_are_stratified_and_even() -> None:
    entries = pool_of((76, 96))  # FedASD's Europe
    counts = classes_by_part(entries, folds(entries, 5, seed=0))
    assert list(counts) == [0, 1, 2, 3, 4]
    assert sorted(count[0] for count in counts.values()) == [15, 15, 15, 15, 16]
    assert sorted(count[1] for count in counts.values()) == [19, 19, 19, 19, 20]
    assert sorted(map(Counter.total, counts.values())) == [34, 34, 34, 35, 35]


@given(
    st.integers(0, 2**32),
    st.integers(2, 5),
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=5, max_size=30),
)
def test_every_class_that_enough_subjects_have_is_in_every_fold(
    seed: int, count: int, subjects: list[tuple[list[int]]]
) -> None:
    entries = [
        {"image": f"{subject}-{image}.png", "label": label, "subject": str(subject)}
        for subject, (labels,) in enumerate(subjects)
        for image, label in enumerate(labels)
    ]
    parts = folds(entries, count, seed=seed, classes_min=0)
    assert no_subject_is_divided(entries, parts)
    counts = classes_by_part(entries, parts)
    assert list(counts) == list(range(count))
    holders = Counter(label for (labels,) in subjects for label in set(labels))
    single = all(len(set(labels)) == 1 for (labels,) in subjects)
    for label, held in holders.items():
        if held >= count and single:
            assert all(part[label] for part in counts.values())


def test_subjects_with_all_classes_are_cross_validated_too() -> None:
    # Nights of sleep: every subject has every stage, in other shares.
    entries = [
        {"image": f"{subject}-{epoch}.npy", "label": epoch % 5, "subject": f"night{subject}"}
        for subject in range(12)
        for epoch in range(10 + subject)
    ]
    parts = folds(entries, 5, seed=0)
    assert all(len(counts) == 5 for counts in classes_by_part(entries, parts).values())
    assert no_subject_is_divided(entries, parts)


def test_a_class_of_too_few_subjects_is_refused_or_allowed() -> None:
    entries = pool_of((30, 30, 4), images=3)
    with pytest.raises(DataError) as refusal:
        folds(entries, 5, seed=0)
    assert refusal.value.message == "5 folds would not all have class 2 (4 of `subject`)"
    assert refusal.value.remedy.startswith("lower folds")
    counts = classes_by_part(entries, folds(entries, 5, seed=0, classes_min=2))
    assert sum(count[2] > 0 for count in counts.values()) == 4
    assert len(set(folds(entries, 4, seed=0))) == 4
    with pytest.raises(DataError, match="5 folds would not all have class 2"):
        folds(entries, 5, seed=0, classes_min=3)


def test_more_classes_than_there_are_cannot_be_everywhere() -> None:
    with pytest.raises(DataError, match="5 folds would not all have 3 classes"):
        folds(pool_of((9, 9)), 5, seed=0, classes_min=3)


def test_fedskin_has_five_folds_at_every_site() -> None:
    for seed in range(10):
        sites = divide(DERM7PT, "dirichlet", sites=("a", "b", "c"), seed=seed, alpha=0.5)
        for entries in sites.values():
            counts = classes_by_part(entries, folds(entries, 5, seed=seed, classes_min=2))
            everywhere = set.intersection(*(set(count) for count in counts.values()))
            assert len(everywhere) >= 2


def test_too_few_subjects_make_no_folds() -> None:
    with pytest.raises(DataError, match="4 of `subject` cannot make 5 folds; lower folds"):
        folds(pool_of((2, 2), images=9), 5, seed=0)
    assert set(folds(pool_of((2, 2), images=9), 5, seed=0, by="image")) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_one_fold_is_none(count: int) -> None:
    with pytest.raises(ConfigError, match=f"folds = {count}"):
        folds(pool_of((9, 9)), count, seed=0)


def test_folds_of_label_maps_are_one_stratum() -> None:
    entries = [{"image": f"{i}.png", "label": f"mask{i}.png", "subject": str(i // 2)} for i in range(20)]
    parts = folds(entries, 5, seed=0)
    assert set(Counter(parts).values()) == {4}
    assert no_subject_is_divided(entries, parts)


@pytest.mark.parametrize(("assign", "into"), [(folds, 5), (holdout, 0.3)])
def test_the_order_does_not_matter_and_the_seed_does(assign: Callable[..., list[Any]], into: float) -> None:
    entries = pool_of((20, 30), images=2)
    parts = assign(entries, into, seed=0)
    assert assign(entries[::-1], into, seed=0) == parts[::-1]
    assert assign(entries, into, seed=1) != parts


def test_sites_of_other_resolutions_have_the_same_folds() -> None:
    sites = divide(pool_of((20, 30)), "resolution", sites=("hr", "x2", "x4", "x8"), seed=0)
    assert len({tuple(folds(entries, 5, seed=7)) for entries in sites.values()}) == 1
    assert len({tuple(holdout(entries, 0.3, seed=7)) for entries in sites.values()}) == 1


# --- holdout --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("share", "expected"), [(0.2, [4, 16]), (0.3, [6, 24]), (0.5, [10, 40])])
def test_a_share_of_every_class_is_held_out(share: float, expected: list[int]) -> None:
    entries = pool_of((20, 80))
    counts = classes_by_part(entries, holdout(entries, share, seed=0))
    assert [counts[True][label] for label in (0, 1)] == expected


def test_small_classes_are_on_both_sides_and_a_single_subject_trains() -> None:
    entries = pool_of((60, 3, 2, 1), images=2)
    with pytest.raises(DataError, match=r"training and test would not all have class 3 \(1 of `subject`\)"):
        holdout(entries, 0.2, seed=0)
    for seed in range(20):
        parts = holdout(entries, 0.2, seed=seed, classes_min=2)
        counts = classes_by_part(entries, parts)
        assert counts[True].keys() == {0, 1, 2}
        assert counts[False].keys() == {0, 1, 2, 3}
        assert no_subject_is_divided(entries, parts)


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, 7.0])
def test_a_share_leaves_something_on_both_sides(share: float) -> None:
    with pytest.raises(ConfigError, match=f"test_share = {share:g}"):
        holdout(pool_of((9, 9)), share, seed=0)


def test_one_subject_cannot_be_on_both_sides() -> None:
    with pytest.raises(DataError, match="1 of `subject` cannot make training and test"):
        holdout(pool_of((1,), images=8), 0.5, seed=0)
