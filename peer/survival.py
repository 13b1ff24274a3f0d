"""Metrics of predicted survival, without torch: training and reports share them.

Every function takes follow-up ``times`` ``(n,)`` in one unit of the caller's choice and ``events`` ``(n,)``: 1 where
the person had the event at that time, 0 where the person was last seen without it (censored). At a tied time the events
come before the censorings: who is censored at a time is known to be free of the event at that time. Weights of inverse
probability of censoring (IPCW) come from the same persons' censoring distribution, by Kaplan-Meier, as the probability
of being uncensored just before a time. Pairs of persons are compared in blocks: memory grows with n, not with n².

Every function raises ``ValueError`` if the shapes do not fit, there is no person, a time is negative or not finite, an
event is neither 0 nor 1, a probability is not in [0, 1], a risk is not finite, or the intervals' ends do not ascend
from above 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

RISK_FLOOR = 1e-6
"""A predicted probability is kept so far from 0 and 1 where its logarithm is taken."""
NEWTON_STEPS = 50
NEWTON_PRECISION = 1e-10
"""Steps of a maximisation, which ends after one this small."""
BLOCK = 256
"""Persons whose pairs are compared at once: 5 MB for each comparison with 20,000 others."""


@dataclass(frozen=True, slots=True)
class KaplanMeier:
    """The estimated survival function, constant from one of ``times`` to the next, 1 before the first.

    ``times`` are the distinct follow-up times, ascending; ``survival`` is the estimate from each of them on and
    ``at_risk`` the number of persons under observation just before it. ``lower`` and ``upper`` are pointwise confidence
    limits, 1 before the first event and NaN where ``survival`` is 0. All are ``(times,)``.
    """

    times: Floats
    survival: Floats
    at_risk: NDArray[np.int64]
    lower: Floats
    upper: Floats

    def at(self, moment: float) -> tuple[float, float, float] | None:
        """Return survival, lower and upper limit at this time; ``None`` after the last time unless nobody survives."""
        if moment > self.times[-1] and self.survival[-1] > 0:
            return None
        step = int(np.searchsorted(self.times, moment, side="right")) - 1
        if step < 0:
            return 1.0, 1.0, 1.0
        return float(self.survival[step]), float(self.lower[step]), float(self.upper[step])


@dataclass(frozen=True, slots=True)
class CalibrationGroup:
    """Persons of similar predicted risk: their mean predicted probability of survival beside the observed one.

    ``observed``, ``lower`` and ``upper`` are Kaplan-Meier's, ``None`` where it has no value.
    """

    persons: int
    predicted: float
    observed: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True, slots=True)
class SurvivalCalibration:
    """How predicted survival agrees with observed survival at the horizon, each figure ``None`` where it is undefined.

    ``observed_expected`` is :func:`observed_expected_ratio`, ``slope`` :func:`calibration_slope`, ``log_rank`` the
    p-value of the two halves by predicted risk, and ``halves`` their predicted and observed survival, the lower risk
    first; one alone where too many predictions are equal.
    """

    observed_expected: float | None
    slope: float | None
    log_rank: float | None
    halves: tuple[CalibrationGroup, ...]


@dataclass(frozen=True, slots=True)
class SurvivalScores:
    """The metrics of predicted survival curves on one set of persons, each ``None`` where it is undefined.

    ``c_index`` is Harrell's concordance and ``uno`` Uno's up to the horizon, ``ibs`` the integrated Brier score up to
    the last interval's end, and ``auc`` the time-dependent AUC at the horizon. ``persons`` and ``events`` count what
    they were computed from.
    """

    c_index: float | None
    uno: float | None
    ibs: float | None
    auc: float | None
    persons: int
    events: int


def survival_scores(
    times: ArrayLike, events: ArrayLike, curves: ArrayLike, ends: ArrayLike, horizon: float
) -> SurvivalScores:
    """Compute the metrics of predicted survival curves.

    The function censors follow-up at the last end (:func:`censor_at`). A person's risk is the predicted probability of
    an event by the horizon.

    Args:
        curves: predicted probability of survival at each interval's end, ``(n, K)``.
        ends: of the agreed intervals, ``(K,)``, ascending; the first interval begins at 0.
        horizon: a time in (0, last end].
    """
    times, events = _check_persons(times, events)
    curves, ends = _check_curves(curves, ends, len(times))
    times, events = censor_at(times, events, float(ends[-1]))
    risks = 1 - interpolate_survival(curves, ends, horizon)
    return SurvivalScores(
        c_index=concordance(times, events, risks),
        uno=concordance_ipcw(times, events, risks, horizon),
        ibs=integrated_brier_score(times, events, curves, ends),
        auc=auc_at(times, events, risks, horizon),
        persons=len(times),
        events=int(events.sum()),
    )


def survival_calibration(
    times: ArrayLike, events: ArrayLike, curves: ArrayLike, ends: ArrayLike, horizon: float
) -> SurvivalCalibration:
    """Compare predicted survival curves with what happened until the horizon.

    The arguments are those of :func:`survival_scores`. The log-rank test has the follow-up until the last end.
    """
    times, events = _check_persons(times, events)
    curves, ends = _check_curves(curves, ends, len(times))
    times, events = censor_at(times, events, float(ends[-1]))
    predicted = interpolate_survival(curves, ends, horizon)
    return SurvivalCalibration(
        observed_expected=observed_expected_ratio(times, events, predicted, horizon),
        slope=calibration_slope(times, events, predicted, horizon),
        log_rank=log_rank(times, events, risk_groups(predicted, 2)),
        halves=tuple(calibration_at(times, events, predicted, horizon, 2)),
    )


def censor_at(times: ArrayLike, events: ArrayLike, end: float) -> tuple[Floats, Flags]:
    """End every person's follow-up at this time: later times become it, and later events none."""
    times, events = _check_persons(times, events)
    _check_moment(end)
    return np.minimum(times, end), events & (times <= end)


def interval_position(times: ArrayLike, ends: ArrayLike) -> Floats:
    """Return each time as a position in [0, K], in units of the agreed intervals, linear within each.

    Interval k, counted from 0, holds the positions in (k, k+1] and the times after its start up to its own end;
    interval 0 also holds time 0. Times after the last end become K. The result is float64: rounding to float32 may move
    a time just after an end into the interval before.

    Args:
        times: any shape.
        ends: ``(K,)``, ascending; the first interval begins at 0.
    """
    times, ends = np.asarray(times, dtype=np.float64), _check_ends(ends)
    if not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError("times must be finite and not negative")
    times = np.minimum(times, ends[-1])
    interval = np.searchsorted(ends, times, side="left")
    knots = np.append(0.0, ends)
    passed = times - knots[interval]
    position = interval + passed / (knots[interval + 1] - knots[interval])
    # Rounding must not move a time that is just after an end onto that end.
    positions: Floats = np.where(passed > 0, np.maximum(position, np.nextafter(interval, np.inf)), position)
    return positions


def position_time(positions: ArrayLike, ends: ArrayLike) -> Floats:
    """Return the times of these positions, the inverse of :func:`interval_position` up to rounding."""
    positions, ends = np.asarray(positions, dtype=np.float64), _check_ends(ends)
    if not ((positions >= 0) & (positions <= len(ends))).all():
        raise ValueError(f"positions must be in [0, {len(ends)}], the number of intervals")
    times: Floats = np.interp(positions, np.arange(len(ends) + 1), np.append(0.0, ends))
    return times


def interpolate_survival(curves: ArrayLike, ends: ArrayLike, at: float) -> Floats:
    """Return each curve's value at one time, ``(n,)``: 1 at time 0, and linear between the intervals' ends."""
    curves, ends = _check_curves(curves, ends)
    if not 0 <= at <= ends[-1]:
        raise ValueError(f"the time {at} is not in [0, {ends[-1]}], the agreed intervals")
    knots, values = np.append(0.0, ends), np.insert(curves, 0, 1.0, axis=1)
    interval = int(np.searchsorted(ends, at, side="left"))
    share = (at - knots[interval]) / (knots[interval + 1] - knots[interval])
    interpolated: Floats = (1 - share) * values[:, interval] + share * values[:, interval + 1]
    return interpolated


def kaplan_meier(times: ArrayLike, events: ArrayLike, *, confidence: float = 0.95) -> KaplanMeier:
    """Estimate the survival function, with pointwise confidence limits.

    Source: Kaplan and Meier 1958; Greenwood's variance, with limits on the scale of log(-log S), which stay in [0, 1]
    (Kalbfleisch and Prentice 1980).
    """
    moments, deaths, _, at_risk = _life_table(*_check_persons(times, events))
    survival = np.cumprod((at_risk - deaths) / at_risk, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.cumsum(deaths / (at_risk * (at_risk - deaths)))
        spread = NormalDist().inv_cdf((1 + confidence) / 2) * np.sqrt(variance) / -np.log(survival)
        lower, upper = (np.where(survival == 1, 1.0, survival ** np.exp(sign * spread)) for sign in (1, -1))
    return KaplanMeier(moments, survival, at_risk, lower, upper)


def log_rank(times: ArrayLike, events: ArrayLike, group: ArrayLike) -> float | None:
    """Test whether two groups have the same survival; return the two-sided p-value of chi-squared with one degree.

    Return ``None`` if no time with an event has persons of both groups under observation.

    Args:
        group: ``(n,)`` of 0 and 1.

    Source: Mantel 1966, with the hypergeometric variance.
    """
    times, events = _check_persons(times, events)
    _, second = _check_persons(times, group, "groups")
    moments, deaths, _, at_risk = _life_table(times, events)
    second_at_risk = second.sum() - np.searchsorted(np.sort(times[second]), moments, side="left")
    share = second_at_risk / at_risk
    expected = (deaths * share).sum()
    variance = (deaths * share * (1 - share) * (at_risk - deaths) / np.maximum(at_risk - 1, 1)).sum()
    if variance == 0:
        return None
    return math.erfc(abs((events & second).sum() - expected) / math.sqrt(2 * variance))


def concordance(times: ArrayLike, events: ArrayLike, risks: ArrayLike) -> float | None:
    """Return the probability that of two persons the one with the higher risk has the event first (Harrell's C).

    A pair is comparable if the one of the shorter time had the event; of two equal times, if just one had it. Equal
    risks count one half. Return ``None`` if no pair is comparable.

    Args:
        risks: ``(n,)``, in any unit; higher means an earlier event.

    Source: Harrell et al. 1982.
    """
    times, events = _check_persons(times, events)
    return _weighted_concordance(times, events, _check_values("risks", risks, len(times)), events.astype(np.float64))


def concordance_ipcw(times: ArrayLike, events: ArrayLike, risks: ArrayLike, horizon: float) -> float | None:
    """Return :func:`concordance` of the events before the horizon, independent of the pattern of censoring (Uno's C).

    Each pair weighs the inverse square of the probability of being uncensored just before its event, estimated from
    these same persons.

    Source: Uno et al. 2011. scikit-survival and the paper take that probability after the censorings at the same time.
    """
    times, events = _check_persons(times, events)
    risks = _check_values("risks", risks, len(times))
    _check_moment(horizon)
    counted = events & (times < horizon)
    return _weighted_concordance(times, events, risks, counted / _uncensored_before(times, events, times) ** 2)


def auc_at(times: ArrayLike, events: ArrayLike, risks: ArrayLike, at: float) -> float | None:
    """Return the probability that a person with an event up to this time has a higher risk than one without.

    It is the cumulative/dynamic AUC with IPCW. Who was censored before this time counts in the weights alone; equal
    risks count one half. Return ``None`` if nobody had the event by then, or nobody is known to be free of it.

    Source: Uno et al. 2007; Hung and Chiang 2010.
    """
    times, events = _check_persons(times, events)
    risks = _check_values("risks", risks, len(times))
    dead, alive = _status_at(times, events, at)
    if not dead.any() or not alive.any():
        return None
    weights = 1 / _uncensored_before(times, events, times[dead])
    ranked = np.sort(risks[alive])
    won = sum(np.searchsorted(ranked, risks[dead], side=side) for side in ("left", "right")) / 2
    return float(weights @ won / (weights.sum() * len(ranked)))


def brier_score(times: ArrayLike, events: ArrayLike, survival_at: ArrayLike, at: float) -> float | None:
    """Return the mean squared difference of the predicted probability of survival from the status at one time.

    It is weighted by IPCW. Who was censored before this time counts in the weights alone. Return ``None`` if all
    persons still under observation were censored before this time.

    Args:
        survival_at: predicted probability of survival at this time, ``(n,)``.

    Source: Graf et al. 1999.
    """
    times, events = _check_persons(times, events)
    predicted = _check_values("probabilities of survival", survival_at, len(times), 0.0, 1.0)
    dead, alive = _status_at(times, events, at)
    uncensored = _uncensored_before(times, events, np.append(times, at))
    if uncensored[-1] == 0:
        return None
    return float(np.mean(dead * predicted**2 / uncensored[:-1] + alive * (1 - predicted) ** 2 / uncensored[-1]))


def integrated_brier_score(times: ArrayLike, events: ArrayLike, curves: ArrayLike, ends: ArrayLike) -> float | None:
    """Return the mean of :func:`brier_score` over time, from 0, where it is 0, to the last end, by trapezoids.

    Return ``None`` if it is undefined at an end. scikit-survival begins at the first of the given times instead.

    Args:
        curves: predicted probability of survival at each interval's end, ``(n, K)``.
        ends: of the intervals, ``(K,)``, ascending, in the unit of ``times``.
    """
    times, events = _check_persons(times, events)
    curves, ends = _check_curves(curves, ends, len(times))
    scores = [0.0]
    for column, end in enumerate(ends):
        score = brier_score(times, events, curves[:, column], float(end))
        if score is None:
            return None
        scores.append(score)
    return float(np.trapezoid(scores, np.append(0.0, ends)) / ends[-1])


def observed_expected_ratio(times: ArrayLike, events: ArrayLike, survival_at: ArrayLike, at: float) -> float | None:
    """Return the observed probability of an event by one time over the mean of the predicted ones (O/E ratio).

    1 is right on average; above 1 there are more events than predicted. The observed one is Kaplan-Meier's. Return
    ``None`` where that has no value, or no event is predicted.

    Args:
        survival_at: predicted probability of survival at this time, ``(n,)``.

    Source: McLernon et al. 2023, for a fixed time.
    """
    times, events = _check_persons(times, events)
    predicted = _check_values("probabilities of survival", survival_at, len(times), 0.0, 1.0)
    _check_moment(at)
    observed, expected = kaplan_meier(times, events).at(at), float((1 - predicted).mean())
    return None if observed is None or expected == 0 else (1 - observed[0]) / expected


def calibration_slope(times: ArrayLike, events: ArrayLike, survival_at: ArrayLike, at: float) -> float | None:
    """Return the slope of the observed risk until one time over the predicted one, 1 where both differ alike.

    It is the coefficient of log(-log S) in a Cox model of the persons, censored at this time, with S the predicted
    probability of survival at it. Below 1 the predictions are too extreme, as of an overfitted model. Return ``None``
    where it is not determined: without events, without different predictions, or if these part the events entirely.

    Args:
        survival_at: predicted probability of survival at this time, ``(n,)``.

    Source: van Houwelingen 2000; Austin, Harrell and van Klaveren 2020 for the transformation; ties as Efron 1977.
    """
    times, events = _check_persons(times, events)
    predicted = _check_values("probabilities of survival", survival_at, len(times), 0.0, 1.0)
    _check_moment(at)
    return _cox_coefficient(
        *censor_at(times, events, at), np.log(-np.log(np.clip(predicted, RISK_FLOOR, 1 - RISK_FLOOR)))
    )


def risk_groups(survival_at: ArrayLike, groups: int) -> NDArray[np.int64]:
    """Return each person's group of equal size, ``(n,)``, 0 for the lowest risk; equal predictions share a group."""
    predicted = np.asarray(survival_at, dtype=np.float64)
    if groups < 1:
        raise ValueError(f"calibration needs at least one group, not {groups}")
    rank = np.searchsorted(np.sort(-predicted), -predicted, side="left")
    return rank * groups // len(predicted)


def calibration_at(
    times: ArrayLike, events: ArrayLike, survival_at: ArrayLike, at: float, groups: int
) -> list[CalibrationGroup]:
    """Compare predicted with observed survival at one time, in groups of equal size, the lowest risk first.

    Persons of equal prediction are in one group; a group that this leaves empty is left out.
    """
    times, events = _check_persons(times, events)
    predicted = _check_values("probabilities of survival", survival_at, len(times), 0.0, 1.0)
    _check_moment(at)
    number = risk_groups(predicted, groups)
    compared = []
    for members in (number == k for k in np.unique(number)):
        observed = kaplan_meier(times[members], events[members]).at(at) or (math.nan,) * 3
        limits = (None if math.isnan(value) else value for value in observed)
        compared.append(CalibrationGroup(int(members.sum()), float(predicted[members].mean()), *limits))
    return compared


def _cox_coefficient(times: Floats, events: Flags, covariate: Floats) -> float | None:
    """Maximise Cox's partial likelihood of one covariate; ``None`` if it has no maximum."""
    if not events.any():
        return None
    order = np.argsort(times, kind="stable")
    times, events, x = times[order], events[order], covariate[order] - covariate.mean()
    moments, moment_of, tied = np.unique(times[events], return_inverse=True, return_counts=True)
    first = np.repeat(np.searchsorted(times, moments, side="left"), tied)
    # Efron: of d events at a time, the k-th one's risk set has lost k/d of their weight.
    lost = (np.arange(len(first)) - np.repeat(np.cumsum(tied) - tied, tied)) / np.repeat(tied, tied)
    slope = 0.0
    for _ in range(NEWTON_STEPS):
        weights = np.exp(slope * x - (slope * x).max())
        sums = []
        for power in range(3):
            terms = weights * x**power
            at_risk = np.cumsum(terms[::-1])[::-1][first]
            of_events = np.repeat(np.bincount(moment_of, weights=terms[events]), tied)
            sums.append(at_risk - lost * of_events)
        mean = sums[1] / sums[0]
        information = float((sums[2] / sums[0] - mean**2).sum())
        if information <= NEWTON_PRECISION:
            return None
        step = float(np.clip((x[events].sum() - mean.sum()) / information, -1, 1))
        slope += step
        if abs(step) < NEWTON_PRECISION:
            return slope
    return None


def _weighted_concordance(times: Floats, events: Flags, risks: Floats, weights: Floats) -> float | None:
    """Return the share of concordant pairs; a pair weighs what the person with the earlier event weighs."""
    order = np.lexsort((~events, times))
    times, events, risks, weights = times[order], events[order], risks[order], weights[order]
    # Those comparable to a person with an event come after all events of the same time.
    first, last = (np.searchsorted(times, times, side=side) for side in ("left", "right"))
    earlier_events = np.append(0, np.cumsum(events))
    first += earlier_events[last] - earlier_events[first]
    rows = np.flatnonzero(weights)
    pairs = float(weights[rows] @ (len(times) - first[rows]))
    if pairs == 0:
        return None
    concordant = 0.0
    for block in (rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)):
        start = first[block[0]]
        comparable = np.arange(start, len(times)) >= first[block, None]
        own, others = risks[block, None], risks[start:]
        won = np.count_nonzero((own > others) & comparable, axis=1)
        tied = np.count_nonzero((own == others) & comparable, axis=1)
        concordant += float(weights[block] @ (won + tied / 2))
    return concordant / pairs


def _status_at(times: Floats, events: Flags, at: float) -> tuple[Flags, Flags]:
    """Return who is known to have had the event up to this time, and who is known to be free of it."""
    _check_moment(at)
    dead = events & (times <= at)
    return dead, ~dead & (times >= at)


def _uncensored_before(times: Floats, events: Flags, moments: Floats) -> Floats:
    """Estimate the probability of being uncensored just before these moments, by Kaplan-Meier of the censorings."""
    steps, deaths, censorings, at_risk = _life_table(times, events)
    exposed = np.maximum(at_risk - deaths, 1)  # where all at risk have the event, no one is left to be censored
    probability = np.append(1.0, np.cumprod((exposed - censorings) / exposed))
    return probability[np.searchsorted(steps, moments, side="left")]


def _life_table(times: Floats, events: Flags) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the distinct times, with events, censorings and persons at risk at each."""
    moments, index, persons = np.unique(times, return_inverse=True, return_counts=True)
    deaths = np.bincount(index, weights=events, minlength=len(moments)).astype(np.int64)
    return moments, deaths, persons - deaths, len(times) - np.cumsum(persons) + persons


def _check_persons(times: ArrayLike, events: ArrayLike, name: str = "events") -> tuple[Floats, Flags]:
    times, events = np.asarray(times, dtype=np.float64), np.asarray(events)
    if times.ndim != 1 or events.shape != times.shape:
        raise ValueError(f"times of shape {times.shape} and {name} of shape {events.shape} are not both (n,)")
    if not len(times):
        raise ValueError("there is no person to score")
    if not (np.isfinite(times) & (times >= 0)).all():
        raise ValueError("times must be finite and not negative")
    if not np.isin(events, (0, 1)).all():
        raise ValueError(f"{name} must be 0 or 1")
    return times, events.astype(np.bool_)


def _check_values(
    name: str, values: ArrayLike, persons: int, lowest: float = -math.inf, highest: float = math.inf
) -> Floats:
    values = np.asarray(values, dtype=np.float64)
    if values.shape != (persons,):
        raise ValueError(f"{name} of shape {values.shape} do not fit {persons} persons")
    if not (np.isfinite(values) & (values >= lowest) & (values <= highest)).all():
        raise ValueError(f"{name} must be finite and in [{lowest}, {highest}]")
    return values


def _check_curves(curves: ArrayLike, ends: ArrayLike, persons: int | None = None) -> tuple[Floats, Floats]:
    curves, ends = np.asarray(curves, dtype=np.float64), _check_ends(ends)
    if curves.ndim != 2 or curves.shape != (len(curves) if persons is None else persons, len(ends)):
        raise ValueError(
            f"curves of shape {curves.shape} do not fit {persons or 'n'} persons and {len(ends)} intervals"
        )
    if not ((curves >= 0) & (curves <= 1)).all():
        raise ValueError("curves must be probabilities in [0, 1]")
    return curves, ends


def _check_ends(ends: ArrayLike) -> Floats:
    ends = np.asarray(ends, dtype=np.float64)
    if ends.ndim != 1 or not len(ends) or not np.isfinite(ends).all() or not (np.diff(ends, prepend=0.0) > 0).all():
        raise ValueError(f"the ends of the intervals must be (K,), finite and ascending from above 0, not {ends}")
    return ends


def _check_moment(at: float) -> None:
    if not (math.isfinite(at) and at >= 0):
        raise ValueError(f"the time {at} must be finite and not negative")
