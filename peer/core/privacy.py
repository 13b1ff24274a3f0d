"""The accountant: which differential privacy a number of noisy steps gives, and what that means for an attacker.

A step adds Gaussian noise of standard deviation ``sigma`` times the clipping norm to a sum over persons. Many steps,
each of which may depend on the results of those before, are together ``mu``-GDP with ``mu**2 = sum(1 / sigma**2)``:
whatever is computed from their results tells one person's presence no better than a single draw of N(0, 1) or N(mu, 1)
does. Two data sets are neighbours if one has a person more.

Source: Dong, Roth & Su 2022 (Gaussian differential privacy), corollaries 2.13 and 3.3; Balle & Wang 2018, theorem 8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, NotRequired, TypedDict

from peer.core.leak import LeakFacts, contradicts

BISECTIONS = 200
"""Halvings of an interval, after which its ends are neighbouring floating-point numbers."""
EPSILON_MAX = 100.0
"""Above it, a guarantee excludes nothing, and ``exp`` comes near its limit."""
MU_MAX = 20.0
DIGITS = 4
"""Decimal places of figures in ledger and documents."""


def normal_cdf(x: float) -> float:
    """Return the standard normal distribution function, with a small relative error in both tails."""
    return math.erfc(-x / math.sqrt(2)) / 2


def delta_of(epsilon: float, mu: float) -> float:
    """Return the smallest delta for which mu-GDP is (epsilon, delta)-differentially private."""
    if mu == 0:
        return 0.0
    return normal_cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * normal_cdf(-epsilon / mu - mu / 2)


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon for which mu-GDP is (epsilon, delta)-differentially private, or infinity.

    It is infinite where it exceeds ``EPSILON_MAX``.
    """
    if delta_of(0.0, mu) <= delta:
        return 0.0
    if mu > MU_MAX or delta_of(EPSILON_MAX, mu) > delta:
        return math.inf
    low, high = 0.0, EPSILON_MAX
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if delta_of(middle, mu) <= delta else (middle, high)
    return high


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP is (epsilon, delta)-differentially private."""
    low, high = 0.0, MU_MAX
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(epsilon, middle) <= delta else (low, middle)
    return low


def auc_max(mu: float) -> float:
    """Return the largest AUC that any attack can have in telling whether a person was trained on."""
    return normal_cdf(mu / math.sqrt(2))


def right_guesses_max(mu: float) -> float:
    """Return the largest share of right yes-or-no guesses about one person, where both answers are as likely."""
    return normal_cdf(mu / 2)


def detected_max(mu: float, false_positives: float) -> float:
    """Return the largest share of people that an attack recognises at this share of false positives."""
    from statistics import NormalDist  # here, since the import takes time, and `status` does not need it

    return normal_cdf(NormalDist().inv_cdf(false_positives) + mu)


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of a federation.

    Attributes:
        epsilon, delta: what all its steps together keep to.
        clip: the largest L2 norm of a person's gradient, over all tensors of a step, or of what sums have of a person.
        people: the number by which the sum over persons is divided: public, and the same at every site.
        steps: of all rounds.
        sharers: how many honest sites at least add their noise to every sum that anybody sees. Each then adds a share
            of it, and what one site sends must stay masked.
        colluders: with more than one sharer, how many other sites may tell their noise to each other.
    """

    epsilon: float
    delta: float
    clip: float
    people: int
    steps: int
    sharers: int = field(default=1, repr=False)  # digests of noise that is not shared stay the same
    colluders: int | None = field(default=None, repr=False)

    @property
    def mu(self) -> float:
        return mu_of(self.epsilon, self.delta)

    @property
    def sigma(self) -> float:
        """The standard deviation of a step's noise, in units of ``clip``."""
        return math.sqrt(self.steps) / self.mu

    @property
    def share(self) -> float:
        """The standard deviation of what one site adds to a step, in units of ``clip``."""
        return self.sigma / math.sqrt(self.sharers)

    @property
    def epsilon_alone(self) -> float:
        """The epsilon against all other sites together, which know all noise but this site's own."""
        return epsilon_of(self.mu * math.sqrt(self.sharers), self.delta)

    def mu_squared(self, steps: int) -> float:
        """Return what so many steps add to the square of mu."""
        return steps / self.sigma**2


@dataclass(frozen=True, slots=True)
class NoisySteps:
    """A number of steps whose noise has the standard deviation ``sigma``, in units of the clipping norm."""

    sigma: float
    steps: int


@dataclass(frozen=True, slots=True)
class Spending:
    """What everything that has left until now tells of one person of this site at most.

    Attributes:
        mu: of all federations of the machine together.
        delta: of the federation, for which ``epsilon`` holds.
        epsilon_max: what the site may spend.
        exceeded: whether the artifact would spend more, so that it stays here.
        colluders: where sites share their noise, against how many of them together this holds; ``None``: against all.
        steps: all that ``mu`` counts: its square is the sum of ``steps / sigma**2``.
        federation_mu: the same of the steps of this federation alone, whoever was in them.
    """

    mu: float
    delta: float
    epsilon_max: float
    exceeded: bool = False
    colluders: int | None = None
    steps: tuple[NoisySteps, ...] = ()
    federation_mu: float = 0.0

    @property
    def epsilon(self) -> float:
        return epsilon_of(self.mu, self.delta)


class NoisyStepsFacts(TypedDict):
    """Steps with the same noise."""

    sigma: Annotated[float, "standard deviation of a step's noise, in units of the clipping norm"]
    steps: Annotated[int, "how many; of what another record says was spent, 1 with the sigma that spends as much"]


class SpendingFacts(TypedDict):
    """What has left of a person's privacy."""

    epsilon: Annotated[float | None, "(epsilon, delta)-differential privacy of one person; null above 100"]
    delta: Annotated[float, "of epsilon"]
    epsilon_max: Annotated[float, "what this site may spend"]
    mu: Annotated[float, "the same as Gaussian differential privacy, from which epsilon follows"]
    auc_max: Annotated[float, "no attack tells who was trained on with a larger AUC"]
    exceeded: Annotated[bool, "whether the artifact would spend more, and stays here"]
    colluders: Annotated[NotRequired[int], "only where sites share their noise: against how many of them together"]
    steps: Annotated[list[NoisyStepsFacts], "the steps that mu counts: its square is the sum of steps / sigma**2"]


def spent_facts(spending: Spending | None) -> dict[str, SpendingFacts]:
    """Return the key that the ledger's row of an artifact has for what was spent; none without noise."""
    return {} if spending is None else {"spent": spending_facts(spending)}


def spending_facts(spending: Spending) -> SpendingFacts:
    """Return the figures of a spending, for the ledger and for documents."""
    epsilon = spending.epsilon
    facts: SpendingFacts = {
        "epsilon": None if math.isinf(epsilon) else round(epsilon, DIGITS),
        "delta": spending.delta,
        "epsilon_max": spending.epsilon_max,
        "mu": spending.mu,
        "auc_max": round(auc_max(spending.mu), DIGITS),
        "exceeded": spending.exceeded,
        "steps": [{"sigma": each.sigma, "steps": each.steps} for each in spending.steps],
    }
    if spending.colluders is not None:
        facts["colluders"] = spending.colluders
    return facts


def describe_guarantee(facts: SpendingFacts) -> str:
    """Say in one line what has left of a person's privacy, and what no attack exceeds."""
    stays = "; it is spent: nothing more leaves" if facts["exceeded"] else ""
    whose = f" by {facts['colluders']} of the other sites together" if "colluders" in facts else ""
    return f"{_budget_words(facts)}; no attack on a person{whose} beyond AUC {percent_up(facts['auc_max']):.2f}{stays}"


def explain_guarantee(facts: SpendingFacts) -> str:
    """Say the same to an officer, in whole sentences."""
    right, auc = percent_up(right_guesses_max(facts["mu"])), percent_up(facts["auc_max"])
    colluders = facts.get("colluders")
    against, whoever = "everybody outside this site", "anybody does"
    if colluders is not None:
        against, whoever = f"any {colluders} of the other sites together, which share the noise", "these do"
    return (
        f"Person-level privacy: {_budget_words(facts)} against {against}. Whatever {whoever} with what left, a "
        f"yes-or-no guess about one patient is right in at most {right * 100:.0f} of 100 cases (AUC {auc:.2f})."
    )


def describe_contradiction(leak: LeakFacts, facts: SpendingFacts) -> str:
    """Say that an attack told more of the people than the guarantee allows; empty where it did not."""
    if not contradicts(leak["auc"], leak["members"], leak["others"], facts["auc_max"]):
        return ""
    return (
        f"an attack here reached AUC {leak['auc']:.2f}, which contradicts the guarantee: either the program has a bug, "
        "or the training and the test people of this site differ by more than chance"
    )


def percent_up(share: float) -> float:
    """Round a bound up to a hundredth, so that it stays true."""
    return math.ceil(round(100 * share, DIGITS)) / 100


def power_of_ten(number: float) -> str:
    """Return a small number as people write a delta: 1e-4, 2.5e-5."""
    digits, exponent = f"{number:e}".split("e")
    return f"{float(digits):g}e{int(exponent)}"


def _budget_words(facts: SpendingFacts) -> str:
    epsilon = "above 100" if facts["epsilon"] is None else f"{facts['epsilon']:.2f}"
    return f"ε {epsilon} of {facts['epsilon_max']:.2f} (δ {power_of_ten(facts['delta'])})"
