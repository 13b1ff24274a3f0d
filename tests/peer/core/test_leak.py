"""The figures of the measured leak against known answers, scipy and scikit-learn."""

import dataclasses
import random

import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from peer.core.leak import (
    ERRORS,
    Leak,
    area_under_curve,
    compare,
    count_detected,
    describe,
    interval,
    leak_facts,
    rate_interval,
    standard_error,
)


@pytest.mark.parametrize(("members", "others", "half"), [(20, 20, 0.181), (60, 40, 0.116), (150, 100, 0.073)])
def test_the_interval_of_chance_has_its_known_width(members: int, others: int, half: float) -> None:
    assert ERRORS * standard_error(members, others) == pytest.approx(half, abs=5e-4)
    assert interval(0.5, members, others) == pytest.approx((0.5 - half, 0.5 + half), abs=5e-4)
    assert interval(0.99, members, others)[1] == 1.0


def test_the_standard_error_is_that_of_scores_that_are_by_chance_alone() -> None:
    draw = random.Random(0)
    aucs = [
        area_under_curve([draw.random() for _ in range(30)], [draw.random() for _ in range(20)]) for _ in range(2000)
    ]
    assert stats.tstd(aucs) == pytest.approx(standard_error(30, 20), rel=0.05)


def test_an_auc_is_scikit_learn_s_also_with_equal_scores() -> None:
    draw = random.Random(1)
    members, others = ([float(draw.randrange(8)) + shift for _ in range(50)] for shift in (1, 0))
    expected = roc_auc_score([1] * 50 + [0] * 50, members + others)
    assert area_under_curve(members, others) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="members and others"):
        area_under_curve(members, [])


@pytest.mark.parametrize(("hits", "trials"), [(0, 20), (1, 20), (7, 20), (20, 20), (40, 100), (499, 1000)])
def test_the_interval_of_a_rate_is_clopper_and_pearson_s(hits: int, trials: int) -> None:
    expected = stats.binomtest(hits, trials).proportion_ci(method="exact")
    assert rate_interval(hits, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(
    ("auc", "members", "others", "answer"),
    [
        (0.54, 150, 100, "within"),
        (0.60, 150, 100, "unknown"),
        (0.73, 150, 100, "above"),
        (0.50, 20, 20, "unknown"),
        (0.35, 20, 20, "unknown"),  # luck with few people is no safety
        (0.90, 20, 20, "above"),
    ],
)
def test_the_interval_decides_among_three_answers(auc: float, members: int, others: int, answer: str) -> None:
    assert compare(auc, members, others, 0.65) == answer


def test_members_count_as_detected_above_the_score_of_a_tenth_of_the_others() -> None:
    others = [float(score) for score in range(20)]
    assert count_detected([17.0, 17.5, 18.0, 30.0], others) == 3
    assert count_detected([5.0, 6.0], [5.0] * 9) == 1  # of fewer than ten others none may be above


def test_the_policy_judges_what_one_receiver_adds_up() -> None:
    leak = Leak("loss", 0.55, 150, 100, 20, 0.8, 0.85, 12, bound=0.65)
    assert leak.answer(0.65) == "above"
    assert describe(leak_facts(leak)) == (
        "tried here with this artifact: AUC 0.55, interval 0.48 to 0.62, 150 + 100 people; one receiver adds up to "
        "0.80, all together to 0.85; above the bound of 0.65"
    )
    assert describe(leak_facts(dataclasses.replace(leak, bound=None, artifacts=1))).endswith("150 + 100 people")
    assert leak.detection_rate() == (20 / 150, *rate_interval(20, 150))


@pytest.mark.parametrize(
    "changes", [{"members": 0}, {"others": 0}, {"detected": 21}, {"auc": 1.5}, {"all_auc": float("nan")}]
)
def test_figures_that_no_attack_gives_are_no_leak(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"a leak has|an AUC is"):
        dataclasses.replace(Leak("loss", 0.5, 20, 20, 2, 0.5, 0.5), **changes)
