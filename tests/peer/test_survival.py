"""Metrics of survival, beside lifelines', scikit-survival's, plain definitions and values by hand."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.classification import area_under_curve
from peer.survival import (
    BLOCK,
    CalibrationGroup,
    SurvivalScores,
    auc_at,
    brier_score,
    calibration_at,
    calibration_slope,
    censor_at,
    concordance,
    concordance_ipcw,
    integrated_brier_score,
    interpolate_survival,
    interval_position,
    kaplan_meier,
    log_rank,
    observed_expected_ratio,
    position_time,
    survival_calibration,
    survival_scores,
)

REFERENCE = json.loads(Path(__file__).with_name("survival_reference.json").read_text())
SEEDS, PERSONS = st.integers(0, 2**32), st.integers(2, 40)
ENDS = np.array([2.0, 3.0, 7.0])


def reference(name: str) -> dict[str, Any]:
    return {key.removeprefix(f"{name}."): np.array(value) for key, value in REFERENCE.items() if key.startswith(name)}


def follow(seed: int, persons: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times with ties of events and censorings, and risks with ties."""
    random = np.random.default_rng(seed)
    return random.integers(9, size=persons) * 1.0, random.random(persons) < 0.6, random.integers(6, size=persons) / 5


def exactly(value: Any) -> Any:
    return pytest.approx(value, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", ["separate", "mixed"])
def test_what_does_not_depend_on_ties_is_that_of_both_libraries(name: str) -> None:
    known = reference(name)
    curve = kaplan_meier(known["times"], known["events"], confidence=0.9)
    np.testing.assert_array_equal(curve.times, known["km_times"])
    np.testing.assert_array_equal(curve.at_risk, known["km_at_risk"])
    assert curve.survival == exactly(known["km_survival"])
    assert curve.lower == exactly(known["km_lower_90"])
    assert curve.upper == exactly(known["km_upper_90"])
    assert log_rank(known["times"], known["events"], known["group"]) == exactly(known["log_rank"])
    c_index = concordance(known["times"], known["events"], known["risks"])
    assert c_index == exactly(known["harrell"]) == exactly(known["harrell_sksurv"])


@pytest.mark.parametrize("name", ["separate", "mixed"])
def test_calibration_in_numbers_is_that_of_lifelines(name: str) -> None:
    known = reference(name)
    times, events, curves = known["times"], known["events"], known["curves"]
    slope = calibration_slope(times, events, curves[:, 2], 12)
    assert slope == pytest.approx(known["slope_12"], rel=1e-6), "lifelines' steps end at its precision"
    ratio = observed_expected_ratio(times, events, curves[:, 2], 12)
    assert ratio == exactly(known["observed_expected_12"])


def test_the_slope_by_hand() -> None:
    # Of covariates 1, 0, 1 the derivative is 1 - 2u / (2u + 1) - u / (u + 1) with u = exp(slope).
    survival = np.exp(-np.exp([1.0, 0.0, 1.0]))
    assert calibration_slope([1, 2, 3], [1, 1, 1], survival, 9) == pytest.approx(-math.log(2) / 2)
    # The same persons, of whom the last two are last seen at the horizon: 1 - 2u / (2u + 1) has no root.
    assert calibration_slope([1, 2, 3], [1, 1, 1], survival, 1.5) is None
    assert calibration_slope([1, 2], [0, 0], [0.2, 0.9], 9) is None
    assert calibration_slope([1, 2], [1, 1], [0.5, 0.5], 9) is None, "all predictions are equal"
    assert calibration_slope([1, 2, 3, 4], [1, 1, 1, 1], [0.0, 0.2, 0.9, 1.0], 9) is None, "they part the events"


def test_right_curves_have_a_slope_of_one_and_too_extreme_ones_a_smaller() -> None:
    random = np.random.default_rng(0)
    hazards = np.exp(random.normal(size=20_000))
    times, survival = random.exponential(1 / hazards), np.exp(-hazards)
    events = np.ones(len(times))
    assert calibration_slope(times, events, survival, 1) == pytest.approx(1, abs=0.03)
    assert observed_expected_ratio(times, events, survival, 1) == pytest.approx(1, abs=0.02)
    extreme = np.exp(-(hazards**2))
    assert calibration_slope(times, events, extreme, 1) == pytest.approx(0.5, abs=0.03)
    assert observed_expected_ratio(times, events, survival**0.5, 1) > 1.2


def test_the_ratio_by_hand_and_where_there_is_none() -> None:
    assert observed_expected_ratio([1, 9, 9, 9], [1, 0, 0, 0], [0.5] * 4, 5) == 0.5
    assert observed_expected_ratio([1, 3], [1, 0], [0.5] * 2, 5) is None, "nobody is followed for so long"
    assert observed_expected_ratio([9, 9], [0, 0], [1.0, 1.0], 5) is None


def test_calibration_has_both_halves_by_risk_and_their_log_rank_test() -> None:
    times, events = np.array([1.0, 2.0, 6.0, 9.0]), [1, 1, 1, 0]
    curves = np.array([[0.5, 0.3, 0.1], [0.4, 0.2, 0.2], [0.9, 0.8, 0.7], [1.0, 0.9, 0.8]])
    figures = survival_calibration(times, events, curves, ENDS, 3)
    censored = censor_at(times, events, 7.0)
    assert figures.halves == tuple(calibration_at(*censored, curves[:, 1], 3, 2))
    assert [half.predicted for half in figures.halves] == pytest.approx([0.85, 0.25])
    assert [half.observed for half in figures.halves] == [1.0, 0.0]
    assert figures.log_rank == log_rank(*censored, [1, 1, 0, 0])
    assert figures.observed_expected == pytest.approx(0.5 / 0.45)
    assert figures.slope == calibration_slope(*censored, curves[:, 1], 3)
    equal = survival_calibration(times, events, np.ones((4, 3)), ENDS, 3)
    assert (len(equal.halves), equal.log_rank, equal.observed_expected) == (1, None, None)


def test_weighted_metrics_are_those_of_scikit_survival() -> None:
    known = reference("separate")
    times, events, risks, curves, ends = (known[key] for key in ("times", "events", "risks", "curves", "ends"))
    assert concordance_ipcw(times, events, risks, 12) == exactly(known["uno_12"])
    assert [auc_at(times, events, risks, end) for end in ends] == exactly(known["auc"])
    brier = [brier_score(times, events, curves[:, k], end) for k, end in enumerate(ends)]
    assert brier == exactly(known["brier"])
    # scikit-survival integrates from the first end, here from 0, where the score is 0.
    area = known["ibs"] * (ends[-1] - ends[0]) + known["brier"][0] * ends[0] / 2
    assert integrated_brier_score(times, events, curves, ends) == exactly(area / ends[-1])


def test_weights_with_ties_by_hand() -> None:
    # At 2 one has the event and one is censored. Just before 2 all are uncensored; after it 2 of the 3 left are.
    times, events, risks = [1, 2, 2, 3, 4], [1, 1, 0, 1, 0], [4, 1, 3, 0, 2]
    assert brier_score(times, events, [0, 0, 0.5, 0, 0], 2) == pytest.approx((0.25 + 1 + 1) / 5)
    assert brier_score(times, events, [0, 0, 0, 1, 1], 3) == pytest.approx(1.5 / 5)
    # Risk 4 wins all its pairs, risk 1 one of three, and risk 0, which weighs 1.5 in the AUC and 9/4 here, none.
    assert auc_at(times, events, risks, 3) == pytest.approx(1 / (1 + 1 + 1.5))
    assert concordance_ipcw(times, events, risks, 9) == pytest.approx((4 + 1 + 0) / (4 + 3 + 9 / 4))
    assert concordance_ipcw(times, events, risks, 3) == pytest.approx((4 + 1) / (4 + 3))
    assert concordance(times, events, risks) == pytest.approx((4 + 1 + 0) / (4 + 3 + 1))
    assert concordance([1, 1], [1, 0], [3, 3]) == 0.5
    assert concordance([1, 1], [1, 1], [2, 1]) is None
    assert concordance([1, 2], [0, 1], [2, 1]) is None


@given(SEEDS, PERSONS, st.integers(0, 9))
def test_the_weights_of_the_known_add_up_to_kaplan_meiers_estimate(seed: int, persons: int, at: int) -> None:
    times, events, _ = follow(seed, persons)
    observed = kaplan_meier(times, events).at(at)
    dead = brier_score(times, events, np.ones(persons), at)
    if observed is None or dead is None:
        assert observed is dead is None
    else:
        assert observed[1] <= observed[0] <= observed[2] or math.isnan(observed[1])
        assert dead == pytest.approx(1 - observed[0])
        assert brier_score(times, events, np.zeros(persons), at) == pytest.approx(observed[0])


@given(SEEDS, PERSONS)
def test_concordance_of_reversed_and_of_transformed_risks(seed: int, persons: int) -> None:
    times, events, risks = follow(seed, persons)
    for metric in (concordance, lambda *a: concordance_ipcw(*a, 5.0), lambda *a: auc_at(*a, 5.0)):
        value = metric(times, events, risks)
        assert metric(times, events, np.exp(3 * risks)) == value
        assert metric(times, events, -risks) == (None if value is None else pytest.approx(1 - value))
    assert concordance(times**2, events, risks) == concordance(times, events, risks)


@given(SEEDS, PERSONS, st.integers(0, 8))
def test_without_censoring_the_metrics_are_the_plain_ones(seed: int, persons: int, at: int) -> None:
    times, _, risks = follow(seed, persons)
    events, alive = np.ones(persons), times > at
    assert kaplan_meier(times, events).survival == exactly([np.mean(times > t) for t in np.unique(times)])
    assert brier_score(times, events, risks, at) == pytest.approx(np.mean((risks - alive) ** 2))
    area = area_under_curve(risks, ~alive)
    assert auc_at(times, events, risks, at) == (None if area is None else pytest.approx(area))
    assert concordance_ipcw(times, events, risks, 9) == concordance(times, events, risks)


@given(SEEDS, PERSONS)
def test_follow_up_after_the_last_end_changes_no_score_up_to_it(seed: int, persons: int) -> None:
    times, events, _ = follow(seed, persons)
    curves = np.cumprod(np.random.default_rng(seed).random((persons, 3)), axis=1)
    scores = survival_scores(times, events, curves, ENDS, 7)
    assert scores.ibs == integrated_brier_score(times, events, curves, ENDS)
    assert scores.auc == auc_at(times, events, 1 - curves[:, 2], 7)
    assert scores.uno == concordance_ipcw(times, events, 1 - curves[:, 2], 7)
    assert scores.events == np.sum(events & (times <= 7))
    assert scores.c_index == concordance(*censor_at(times, events, 7.0), 1 - curves[:, 2])


def test_pairs_in_blocks_are_all_pairs() -> None:
    times, events, risks = follow(1, 3 * BLOCK)
    earlier = events[:, None] & ((times[:, None] < times) | (times[:, None] == times) & ~events)
    won = (risks[:, None] > risks) + 0.5 * (risks[:, None] == risks)
    assert concordance(times, events, risks) == exactly(won[earlier].mean())
    # Probability of being uncensored just before each time, censoring by censoring.
    uncensored = np.ones(len(times))
    for c in np.unique(times[~events]):
        exposed = np.sum((times > c) | (times == c) & ~events)
        uncensored[times > c] *= 1 - np.sum((times == c) & ~events) / exposed
    weights = earlier * (uncensored**-2 * (times < 6))[:, None]
    assert concordance_ipcw(times, events, risks, 6) == exactly((won * weights).sum() / weights.sum())


def test_scores_that_are_undefined_are_none() -> None:
    curves = np.array([[0.9, 0.5, 0.2], [0.8, 0.6, 0.4]])
    assert survival_scores([1, 9], [1, 1], curves, ENDS, 5) == SurvivalScores(
        c_index=1.0, uno=1.0, ibs=pytest.approx((0.425 + 0.315 + 0.81) / 7), auc=1.0, persons=2, events=1
    )
    undefined = SurvivalScores(c_index=None, uno=None, ibs=None, auc=None, persons=2, events=0)
    assert survival_scores([1, 2], [0, 0], curves, ENDS, 5) == undefined
    assert interpolate_survival(curves, ENDS, 5) == pytest.approx([0.35, 0.5])
    assert interpolate_survival(curves, ENDS, 0.5) == pytest.approx([0.975, 0.95])
    assert interpolate_survival(curves, ENDS, 7.0).tolist() == [0.2, 0.4]


def test_limits_before_the_first_event_and_after_the_last_survivor() -> None:
    curve = kaplan_meier([1, 2, 3], [0, 1, 1])
    assert (curve.at(0.5), curve.at(1), curve.at(2.5)[0]) == ((1, 1, 1), (1, 1, 1), 0.5)
    assert curve.at(99)[0] == 0
    assert np.isnan([*curve.at(3)[1:]]).all()
    assert kaplan_meier([1, 2], [1, 0]).at(2.1) is None


def test_groups_of_risk_by_hand() -> None:
    times, events, predicted = [9, 9, 1, 9, 2, 9, 3], [0, 0, 1, 0, 1, 0, 0], [0.9, 0.9, 0.9, 0.6, 0.6, 0.3, 0.2]
    low, middle, high = calibration_at(times, events, predicted, 5, 3)
    _, lower, upper = kaplan_meier([9, 9, 1], [0, 0, 1]).at(5)
    assert low == CalibrationGroup(3, pytest.approx(0.9), pytest.approx(2 / 3), lower, upper)
    assert (middle.persons, middle.predicted, middle.observed) == (2, pytest.approx(0.6), 0.5)
    assert (high.persons, high.predicted, high.observed) == (2, 0.25, 1.0)
    nobody = CalibrationGroup(1, 0.5, None, None, None)
    assert calibration_at([1], [0], [0.5], 5, 4) == [nobody]
    assert calibration_at([1], [1], [0.5], 5, 1) == [CalibrationGroup(1, 0.5, 0.0, None, None)]


def test_log_rank_by_hand_and_where_there_is_nothing_to_test() -> None:
    difference, variance = 2 - (1 / 2 + 2 / 3 + 1 / 2), 1 / 4 + 2 / 9 + 1 / 4
    expected = math.erfc(difference / math.sqrt(2 * variance))
    assert log_rank([1, 2, 3, 4], [1, 1, 1, 1], [0, 1, 1, 0]) == pytest.approx(expected)
    assert log_rank([1, 1], [1, 1], [0, 1]) is None
    assert log_rank([1, 2], [0, 0], [0, 1]) is None
    assert log_rank([1, 2], [1, 1], [1, 1]) is None


@given(st.lists(st.floats(0, 9), min_size=1, max_size=20))
def test_positions_lie_in_the_interval_of_their_time_and_lead_back(drawn: list[float]) -> None:
    times = np.concatenate([drawn, ENDS, np.nextafter(ENDS, 9), np.nextafter(ENDS, 0), [0.0, 5e-324]])
    positions = interval_position(times, ENDS)
    expected = np.minimum(np.searchsorted(ENDS, times, side="left"), 2)
    np.testing.assert_array_equal(np.maximum(np.ceil(positions) - 1, 0), expected)
    assert position_time(positions, ENDS) == pytest.approx(np.minimum(times, 7), abs=1e-12)
    assert (np.diff(interval_position(np.sort(times), ENDS)) >= 0).all()


def test_positions_by_hand() -> None:
    assert interval_position([0, 1, 2, 2.25, 3, 5, 7, 8], ENDS).tolist() == [0, 0.5, 1, 1.25, 2, 2.5, 3, 3]
    assert position_time([0, 0.5, 1.25, 3], ENDS).tolist() == [0, 1, 2.25, 7]


METRICS = {
    "kaplan_meier": kaplan_meier,
    "concordance": lambda t, e: concordance(t, e, t),
    "brier_score": lambda t, e: brier_score(t, e, np.ones(np.shape(t)), 1),
    "log_rank": lambda t, e: log_rank(t, e, e),
    "calibration": lambda t, e: survival_calibration(t, e, np.ones((np.size(t), 3)), ENDS, 1),
    "slope": lambda t, e: calibration_slope(t, e, np.ones(np.shape(t)), 1),
    "ratio": lambda t, e: observed_expected_ratio(t, e, np.ones(np.shape(t)), 1),
    "scores": lambda t, e: survival_scores(t, e, np.ones((np.size(t), 3)), ENDS, 1),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize(
    ("times", "events", "message"),
    [
        ([1, 2], [1], r"times of shape \(2,\) and events of shape \(1,\)"),
        ([[1]], [[1]], "are not both"),
        ([], [], "no person"),
        ([-1, 2], [1, 0], "finite and not negative"),
        ([math.nan, 2], [1, 0], "finite and not negative"),
        ([math.inf, 2], [1, 0], "finite and not negative"),
        ([1, 2], [1, 2], "events must be 0 or 1"),
    ],
)
def test_persons_that_do_not_fit_are_refused(metric: Any, times: Any, events: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metric(times, events)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: concordance([1, 2], [1, 0], [1]), r"risks of shape \(1,\) do not fit 2 persons"),
        (lambda: auc_at([1, 2], [1, 0], [1, math.nan], 1), "risks must be finite"),
        (lambda: auc_at([1, 2], [1, 0], [1, 2], -1), "the time -1 must be finite"),
        (lambda: concordance_ipcw([1], [1], [1], math.inf), "the time inf must be finite"),
        (lambda: brier_score([1], [1], [1.1], 1), r"in \[0.0, 1.0\]"),
        (lambda: calibration_at([1], [1], [1], 1, 0), "at least one group"),
        (lambda: calibration_slope([1], [1], [1.1], 1), r"in \[0.0, 1.0\]"),
        (lambda: observed_expected_ratio([1], [1], [0.5], -1), "the time -1 must be finite"),
        (lambda: log_rank([1, 2], [1, 1], [1, 2]), "groups must be 0 or 1"),
        (lambda: survival_scores([1], [1], np.ones((1, 2)), ENDS, 1), r"curves of shape \(1, 2\) do not fit 1 persons"),
        (lambda: survival_scores([1], [1], np.full((1, 3), 1.5), ENDS, 1), "curves must be probabilities"),
        (lambda: survival_scores([1], [1], np.ones((1, 3)), ENDS, 8), "the time 8 is not in"),
        (lambda: interval_position([-1], ENDS), "finite and not negative"),
        (lambda: interval_position([1], [0, 1]), "ascending from above 0"),
        (lambda: interval_position([1], []), "ascending from above 0"),
        (lambda: position_time([3.1], ENDS), r"in \[0, 3\]"),
    ],
)
def test_what_does_not_fit_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
