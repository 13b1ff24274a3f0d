"""Subgroups: their AUC, the gap between two as FedSKD prints it, and gains over a baseline."""

import numpy as np
import pytest

from peer.classification import Labels, Probabilities
from peer.lab.statistics.fairness import Gain, class_gains, fairness, gains, subgroup_areas

LABELS = np.array([0, 1, 0, 1, 1, 0, 1])
SEX = ["male", "male", "female", "female", "female", "female", None]


def two_classes(scores: list[float]) -> Probabilities:
    """Probabilities of two classes from that of class 1."""
    ones = np.array(scores)
    return np.stack([1 - ones, ones], axis=1)


def test_each_subgroup_is_scored_by_itself() -> None:
    scores = two_classes([0.9, 0.1, 0.2, 0.8, 0.3, 0.3, 0.0])
    assert subgroup_areas(scores, LABELS, SEX) == {"female": (1 + 1 + 1 + 0.5) / 4, "male": 0.0}


def test_a_subgroup_of_one_class_has_no_area() -> None:
    result = subgroup_areas(two_classes([0.1, 0.9, 0.4]), np.array([0, 1, 1]), [1, 1, 2])
    assert result == {"1": 1.0, "2": None}


# FedSKD, table VII: male, female, their mean and the gap between them (AUC, percent).
@pytest.mark.parametrize(
    ("male", "female", "mean", "gap"),
    [
        (67.46, 79.60, 73.53, 12.14),
        (89.79, 85.26, 87.52, 4.54),
    ],
)
def test_the_papers_gaps_are_reproduced(male: float, female: float, mean: float, gap: float) -> None:
    # Sites and folds whose gaps differ, in sign too, around the printed means.
    folds = [
        {f"site{k}": {"male": male + step * k, "female": female - step * k} for k in (-1, 0, 1)} for step in (10, 20)
    ]
    result = fairness(folds)
    assert result.delta == pytest.approx(gap, abs=0.011)
    assert result.mean == pytest.approx(mean, abs=0.006)
    assert result.groups["male"] == pytest.approx(male)


def test_the_size_is_taken_of_the_means_and_not_in_each_site() -> None:
    result = fairness([{"asia": {"f": 0.9, "m": 0.7}, "europe": {"f": 0.6, "m": 0.8}}])
    assert result.delta == pytest.approx(0)
    assert result.mean == pytest.approx(0.75)


def test_a_group_that_a_site_lacks_is_left_out_there() -> None:
    result = fairness(
        [
            {"asia": {"f": 0.9, "m": 0.7}, "europe": {"f": None, "m": 0.5}},
            {"asia": {"f": 0.7}, "europe": {"f": 0.8, "m": 0.5}},
        ]
    )
    assert result.groups == pytest.approx({"f": (0.9 + 0.75) / 2, "m": (0.6 + 0.5) / 2})
    assert result.delta == pytest.approx(0.825 - 0.55)


def test_a_group_without_any_area_has_no_gap() -> None:
    result = fairness([{"asia": {"f": None, "m": 0.7}}])
    assert (result.delta, result.mean, result.groups["m"]) == (None, None, 0.7)


@pytest.mark.parametrize("names", [["f"], ["f", "m", "x"]])
def test_a_gap_is_between_two(names: list[str]) -> None:
    with pytest.raises(ValueError, match=f"not {len(names)}: {', '.join(names)}"):
        fairness([{"asia": dict.fromkeys(names, 0.5)}])


def test_what_a_subgroup_gains() -> None:
    ours, theirs = two_classes([0.1, 0.9, 0.2, 0.8, 0.3, 0.3, 0.0]), two_classes([0.9, 0.1, 0.2, 0.8, 0.8, 0.3, 0.0])
    result = gains(ours, theirs, LABELS, SEX)
    assert result == {"female": Gain(0.875, 1.0, samples=4), "male": Gain(1.0, 0.0, samples=2)}
    assert [gain.points for gain in result.values()] == [-12.5, 100.0]
    assert Gain(None, 0.5, 3).points is None


def test_what_a_class_gains() -> None:
    labels: Labels = np.array([0, 1, 2, 2])
    sure = np.array([[0.8, 0.1, 0.1, 0.0], [0.1, 0.8, 0.1, 0.0], [0.1, 0.1, 0.8, 0.0], [0.1, 0.1, 0.8, 0.0]])
    result = class_gains(sure, np.full((4, 4), 0.25), labels)
    assert {label: (gain.points, gain.samples) for label, gain in result.items()} == {
        0: (50.0, 1), 1: (50.0, 1), 2: (50.0, 2), 3: (None, 0),
    }  # fmt: skip


def test_every_sample_has_a_value() -> None:
    with pytest.raises(ValueError, match="2 values for 7 samples"):
        gains(two_classes([0.5] * 7), two_classes([0.5] * 7), LABELS, ["m", "f"])
