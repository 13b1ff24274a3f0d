"""The measured leak of an artifact: how well its sender's attack tells the people that it was trained on from others.

The worker attacks each artifact before it leaves (``peer.train.leak_meter``). The figures here need no torch: the
daemon compares them with the site's bound, and every page shows them with their interval.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

from peer.core.kinds import Kind

Answer = Literal["within", "above", "unknown"]
Attack = Literal["loss", "likelihood_ratio"]

ERRORS = 1.96
"""Half the width of an interval, in standard errors: 95 of 100 intervals hold the true value."""
ALARM_ERRORS = 4.0
"""Standard errors by which a measured AUC must exceed a proven bound before it contradicts it: one in 30,000 honest
artifacts does by chance. All rounds measure the same people, and a bound of few steps is hardly above chance, so that
with ``ERRORS`` one site in forty would raise a false alarm in round after round."""
CHANCE = 0.5
"""The AUC of an attack that learns nothing."""
FALSE_ALARMS = 0.1
"""The false-positive rate at which the true-positive rate is stated."""
CONFIDENCE = 0.95
"""Of the interval of a rate."""
BISECTIONS = 60
"""Halvings of [0, 1] until an end of that interval has the precision of a float."""
ANSWER_WORDS: Mapping[Answer, str] = {
    "within": "within the bound of {:g}",
    "above": "above the bound of {:g}",
    "unknown": "whether that is above the bound of {:g}, so few people cannot tell",
}
PREDICTING: tuple[Kind, ...] = ("model", "proxy", "return")
"""Kinds of artifacts that predict by themselves; no other kind is attacked."""


@dataclass(frozen=True, slots=True)
class Leak:
    """The better of two attacks on one artifact, and what the artifacts of all rounds so far tell together.

    Attributes:
        attack: the better attack: by the loss, or by the likelihood ratio to a reference network.
        auc: its AUC over people.
        members: people that the artifact was trained on.
        others: people of the validation and test splits.
        detected: members above the score that at most a tenth of the others exceeds.
        receiver_auc: the AUC of the mean of the standardised scores of all artifacts of its kind and owner, at most
            what one receiver has.
        all_auc: the same of all artifacts of this site: what all receivers have together.
        artifacts: how many artifacts are in ``all_auc``.
        class_mix: correlation of the change of the head's bias with the numbers of training samples of each class;
            ``None`` below three classes, or without a bias or a reference network.
        bound: the site's ``leak_auc_max`` when it was measured.
    """

    attack: Attack
    auc: float
    members: int
    others: int
    detected: int
    receiver_auc: float
    all_auc: float
    artifacts: int = 1
    class_mix: float | None = None
    bound: float | None = None

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for figures that no attack gives: the daemon does not trust its worker."""
        if min(self.members, self.others, self.artifacts) < 1 or not 0 <= self.detected <= self.members:
            raise ValueError(f"a leak has members and others, not {self}")
        if not all(0.0 <= auc <= 1.0 for auc in (self.auc, self.receiver_auc, self.all_auc)):
            raise ValueError(f"an AUC is from 0 to 1, not as in {self}")

    @property
    def highest_auc(self) -> float:
        """The larger AUC of this artifact and of all that one receiver has: the policy judges this one."""
        return max(self.auc, self.receiver_auc)

    def answer(self, bound: float) -> Answer:
        """Compare what one receiver learns with a bound."""
        return compare(self.highest_auc, self.members, self.others, bound)

    @property
    def verdict(self) -> Answer | None:
        """The answer to the bound when it was measured; ``None`` without one."""
        return None if self.bound is None else self.answer(self.bound)

    def interval_of(self, auc: float) -> tuple[float, float]:
        """Return the interval of one of the AUCs."""
        return interval(auc, self.members, self.others)

    def detection_rate(self) -> tuple[float, float, float]:
        """Return the true-positive rate at ``FALSE_ALARMS``, and its interval."""
        return self.detected / self.members, *rate_interval(self.detected, self.members)


def area_under_curve(members: Sequence[float], others: Sequence[float]) -> float:
    """Return the AUC of "the higher the score, the likelier a member"; equal scores count half.

    Raises:
        ValueError: one of the groups is empty.
    """
    if not members or not others:
        raise ValueError("an AUC needs members and others")
    ordered = sorted(others)
    wins = sum(bisect.bisect_left(ordered, score) + bisect.bisect_right(ordered, score) for score in members)
    return wins / (2 * len(members) * len(others))


def standard_error(members: int, others: int) -> float:
    """Return the standard error of an AUC that is by chance alone: that of the rank-sum statistic.

    Source: Mann and Whitney 1947. Of an AUC near 1 the true error is smaller.
    """
    return math.sqrt((members + others + 1) / (12 * members * others))


def interval(auc: float, members: int, others: int) -> tuple[float, float]:
    """Return the AUC's interval of ``ERRORS`` standard errors on each side, within [0, 1]."""
    half = ERRORS * standard_error(members, others)
    return max(0.0, auc - half), min(1.0, auc + half)


def compare(auc: float, members: int, others: int, bound: float) -> Answer:
    """Compare an AUC with a bound by its interval; ``unknown``: so few people cannot tell.

    No attack is worse than chance, so an AUC below a half counts as a half: few people must not seem safe by luck.
    """
    low, high = interval(max(auc, CHANCE), members, others)
    if low > bound:
        return "above"
    return "within" if high <= bound else "unknown"


def contradicts(auc: float, members: int, others: int, proven_max: float) -> bool:
    """Return whether a measured AUC contradicts a proof that no attack exceeds ``proven_max``."""
    return auc - ALARM_ERRORS * standard_error(members, others) > proven_max


def count_detected(members: Sequence[float], others: Sequence[float], *, rate: float = FALSE_ALARMS) -> int:
    """Count the members above the smallest score that at most a share ``rate`` of the others exceeds."""
    allowed = int(rate * len(others))
    threshold = sorted(others, reverse=True)[allowed]
    return sum(score > threshold for score in members)


@functools.lru_cache(maxsize=64)
def rate_interval(hits: int, trials: int) -> tuple[float, float]:
    """Return the interval of Clopper and Pearson (1934) for a rate of ``hits`` of ``trials``."""
    tail = (1 - CONFIDENCE) / 2
    low = _bisect(lambda p: _at_least(hits, trials, p) > tail) if hits else 0.0
    high = _bisect(lambda p: _at_least(hits + 1, trials, p) > 1 - tail) if hits < trials else 1.0
    return low, high


class LeakFacts(TypedDict):
    """The measured leak of an artifact."""

    attack: Annotated[Attack, "the better attack: by the loss, or by the likelihood ratio to a reference network"]
    auc: Annotated[float, "how well it told training people from others; 0.5 is chance, 1 certainty"]
    low: Annotated[float, "lower end of the AUC's interval of 95 %"]
    high: Annotated[float, "upper end"]
    members: Annotated[int, "people that the artifact was trained on"]
    others: Annotated[int, "people of the validation and test splits"]
    detected_share: Annotated[float, "training people that were detected at a false alarm rate of 10 %"]
    detected_low: Annotated[float, "lower end of that share's interval of Clopper and Pearson"]
    detected_high: Annotated[float, "upper end"]
    receiver_auc: Annotated[
        float, "AUC of all measured artifacts of this kind and owner: at most what one receiver has"
    ]
    all_auc: Annotated[float, "AUC of all measured artifacts of this site together"]
    artifacts: Annotated[int, "number of artifacts in `all_auc`"]
    class_mix: Annotated[
        float | None, "correlation of the change of the head's bias with the training samples of each class"
    ]
    bound: Annotated[float | None, "`[egress] leak_auc_max` when it was measured"]
    answer: Annotated[
        Answer | None,
        "compared with the bound: `within`, `above`, or `unknown` with so few people; null without a bound",
    ]


def leak_facts(leak: Leak) -> LeakFacts:
    """Return the figures of a leak with their intervals, for the ledger and for documents."""
    low, high = leak.interval_of(leak.auc)
    share, share_low, share_high = leak.detection_rate()
    return {
        "attack": leak.attack,
        "auc": leak.auc,
        "low": round(low, 4),
        "high": round(high, 4),
        "members": leak.members,
        "others": leak.others,
        "detected_share": round(share, 4),
        "detected_low": round(share_low, 4),
        "detected_high": round(share_high, 4),
        "receiver_auc": leak.receiver_auc,
        "all_auc": leak.all_auc,
        "artifacts": leak.artifacts,
        "class_mix": leak.class_mix,
        "bound": leak.bound,
        "answer": leak.verdict,
    }


def ledger_facts(leak: Leak | None) -> dict[str, LeakFacts]:
    """Return the key that the ledger's row of an artifact has for its leak; none where it was not measured."""
    return {} if leak is None else {"leak": leak_facts(leak)}


def describe(facts: LeakFacts) -> str:
    """Say in one sentence what the attack reached, with the interval, and how that compares with the bound."""
    tried = (
        f"tried here with this artifact: AUC {facts['auc']:.2f}, interval {facts['low']:.2f} to {facts['high']:.2f}, "
        f"{facts['members']} + {facts['others']} people"
    )
    if facts["artifacts"] > 1:
        tried += f"; one receiver adds up to {facts['receiver_auc']:.2f}, all together to {facts['all_auc']:.2f}"
    answer = facts["answer"]
    return tried if answer is None else f"{tried}; {ANSWER_WORDS[answer].format(facts['bound'])}"


def _bisect(is_above: Callable[[float], bool]) -> float:
    """Return where in [0, 1] an increasing condition begins to hold."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_above(middle) else (middle, high)
    return (low + high) / 2


def _at_least(hits: int, trials: int, rate: float) -> float:
    """Return the probability of at least so many hits."""
    log_rate, log_rest, total = math.log(rate), math.log1p(-rate), math.lgamma(trials + 1)
    return math.fsum(
        math.exp(total - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log_rate + (trials - k) * log_rest)
        for k in range(hits, trials + 1)
    )
