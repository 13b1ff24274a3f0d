"""The accountant's known answers, and what is said of them."""

import dataclasses
import math

import pytest

from peer.core.leak import Leak, leak_facts
from peer.core.privacy import (
    Noise,
    Spending,
    SpendingFacts,
    auc_max,
    delta_of,
    describe_contradiction,
    describe_guarantee,
    detected_max,
    epsilon_of,
    explain_guarantee,
    mu_of,
    percent_up,
    power_of_ten,
    right_guesses_max,
    spending_facts,
    spent_facts,
)

DELTA = 1e-4


def facts(epsilon: float, *, exceeded: bool = False) -> SpendingFacts:
    return spending_facts(Spending(mu_of(epsilon, DELTA), DELTA, 3.0, exceeded))


@pytest.mark.parametrize(
    ("mu", "epsilon", "delta"), [(1.0, 1.0, 0.126936737507), (0.5, 0.5, 0.052440323288), (0.0, 1.0, 0.0)]
)
def test_delta_has_the_known_values(mu: float, epsilon: float, delta: float) -> None:
    assert delta_of(epsilon, mu) == pytest.approx(delta, abs=1e-9)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [
        (1.0, 1e-5, 4.377178096),
        (0.25, 1e-5, 0.926341504),
        (1.0, 1e-3, 3.138670549),
        (2.0, 1e-3, 7.581279925),
        (0.500495518 * math.sqrt(3), DELTA, 3.2136),
    ],
)
def test_epsilon_has_the_known_values(mu: float, delta: float, epsilon: float) -> None:
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, abs=1e-9 if epsilon != 3.2136 else 5e-5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        (1.0, 1e-5, 0.268051123),
        (8.0, 1e-5, 1.666030598),
        (0.5, DELTA, 0.169670174),
        (1.0, DELTA, 0.313902458),
        (1.7, DELTA, 0.500495518),
        (3.0, DELTA, 0.817556361),
        (8.0, DELTA, 1.841366273),
    ],
)
def test_mu_has_the_known_values(epsilon: float, delta: float, mu: float) -> None:
    assert mu_of(epsilon, delta) == pytest.approx(mu, abs=1e-9)
    assert epsilon_of(mu_of(epsilon, delta), delta) == pytest.approx(epsilon, abs=1e-9)


def test_epsilon_ends_where_nothing_or_everything_is_lost() -> None:
    assert epsilon_of(0.0, DELTA) == 0.0
    assert epsilon_of(21.0, DELTA) == epsilon_of(14.0, DELTA) == math.inf


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 37.27559), (1.0, 20.14815), (3.0, 7.73593), (8.0, 3.43471)])
def test_noise_of_40_steps_has_the_known_deviation_and_spends_its_budget(epsilon: float, sigma: float) -> None:
    noise = Noise(epsilon, DELTA, clip=1.0, people=150, steps=40)
    assert noise.sigma == pytest.approx(sigma, abs=1e-5)
    assert noise.mu_squared(40) == pytest.approx(noise.mu**2)


@pytest.mark.parametrize(("epsilon", "auc", "detected"), [(1.0, 0.588, 0.02), (3.0, 0.718, 0.066), (8.0, 0.904, 0.31)])
def test_what_no_attack_exceeds_has_the_known_values(epsilon: float, auc: float, detected: float) -> None:
    mu = mu_of(epsilon, DELTA)
    assert auc_max(mu) == pytest.approx(auc, abs=5e-4)
    assert detected_max(mu, 0.01) == pytest.approx(detected, abs=5e-3)
    assert right_guesses_max(mu) < auc_max(mu)


def test_figures_of_a_spending_are_those_of_its_mu() -> None:
    assert facts(1.7) == {
        "epsilon": 1.7, "delta": DELTA, "epsilon_max": 3.0, "mu": mu_of(1.7, DELTA), "auc_max": 0.6383, "steps": [],
        "exceeded": False,
    }  # fmt: skip
    assert spending_facts(Spending(30.0, DELTA, 3.0))["epsilon"] is None
    assert spent_facts(None) == {}
    assert spent_facts(Spending(0.5, DELTA, 3.0))["spent"]["mu"] == 0.5


def test_a_line_and_a_paragraph_say_what_was_spent() -> None:
    line = "ε 1.70 of 3.00 (δ 1e-4); no attack on a person beyond AUC 0.64"
    assert describe_guarantee(facts(1.7)) == line
    assert describe_guarantee(facts(1.7, exceeded=True)) == f"{line}; it is spent: nothing more leaves"
    assert describe_guarantee(spending_facts(Spending(30.0, DELTA, 3.0))).startswith("ε above 100 of 3.00")
    assert explain_guarantee(facts(1.7)) == (
        "Person-level privacy: ε 1.70 of 3.00 (δ 1e-4) against everybody outside this site. Whatever anybody does with "
        "what left, a yes-or-no guess about one patient is right in at most 60 of 100 cases (AUC 0.64)."
    )


def test_sites_that_share_noise_keep_to_epsilon_together_and_to_more_alone() -> None:
    alone = Noise(1.7, DELTA, 1.0, 1, 1)
    shared = dataclasses.replace(alone, sharers=3, colluders=1)
    assert (alone.share, alone.epsilon_alone) == (alone.sigma, pytest.approx(1.7))
    assert shared.sigma == alone.sigma
    assert shared.share * math.sqrt(3) == pytest.approx(shared.sigma)
    assert shared.epsilon_alone == pytest.approx(3.2136, abs=1e-4)  # of mu times the root of 3
    said = explain_guarantee(spending_facts(Spending(mu_of(1.7, DELTA), DELTA, 3.0, colluders=1)))
    assert "against any 1 of the other sites together, which share the noise. Whatever these do with what left" in said
    assert "colluders" not in facts(1.7)
    line = describe_guarantee(spending_facts(Spending(mu_of(1.7, DELTA), DELTA, 3.0, colluders=1)))
    assert line.endswith("no attack on a person by 1 of the other sites together beyond AUC 0.64")


def test_a_bound_is_rounded_up_and_a_delta_is_a_power_of_ten() -> None:
    assert (percent_up(0.6301), percent_up(0.63), percent_up(0.29), percent_up(1.0)) == (0.64, 0.63, 0.29, 1.0)
    assert [power_of_ten(delta) for delta in (1e-4, 2.5e-5, 0.001)] == ["1e-4", "2.5e-5", "1e-3"]


def test_an_attack_contradicts_a_guarantee_only_far_above_it() -> None:
    def said(auc: float, people: int) -> str:
        return describe_contradiction(leak_facts(Leak("loss", auc, people, people, 0, auc, auc)), facts(1.7))

    assert "an attack here reached AUC 0.90, which contradicts the guarantee" in said(0.9, 150)
    assert said(0.77, 150) == ""  # the bound is 0.64, and four standard errors of 150 and 150 people are 0.13
    assert said(0.9, 20) == ""  # of 20 and 20, they are 0.37
