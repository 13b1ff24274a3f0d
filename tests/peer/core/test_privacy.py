"""The accountant: known answers to 1e-9, the two directions agree, and no bound is looser than a simulated attack."""

import math

import pytest

from peer.core.privacy import (
    EPSILON_MAX,
    Noise,
    Spending,
    auc_max,
    delta_of,
    detected_max,
    epsilon_of,
    mu_of,
    right_guesses_max,
    spending_facts,
    spent_facts,
)


@pytest.mark.parametrize(("epsilon", "mu", "delta"), [(1, 1, 0.126936737507), (0.5, 0.5, 0.052440323288)])
def test_delta(epsilon: float, mu: float, delta: float) -> None:
    assert delta_of(epsilon, mu) == pytest.approx(delta, abs=1e-9)


@pytest.mark.parametrize(
    ("mu", "delta", "epsilon"),
    [(1, 1e-5, 4.377178096), (0.25, 1e-5, 0.926341504), (1, 1e-3, 3.138670549), (2, 1e-3, 7.581279925)],
)
def test_epsilon(mu: float, delta: float, epsilon: float) -> None:
    assert epsilon_of(mu, delta) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        (1, 1e-5, 0.268051123),
        (8, 1e-5, 1.666030598),
        (0.5, 1e-4, 0.169670174),
        (1, 1e-4, 0.313902458),
        (3, 1e-4, 0.817556361),
        (8, 1e-4, 1.841366273),
        (1.7, 1e-4, 0.500495518),
    ],
)
def test_mu(epsilon: float, delta: float, mu: float) -> None:
    assert mu_of(epsilon, delta) == pytest.approx(mu, abs=1e-9)
    assert epsilon_of(mu_of(epsilon, delta), delta) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(("epsilon", "sigma"), [(0.5, 37.27559), (1, 20.14815), (3, 7.73593), (8, 3.43471)])
def test_the_noise_of_forty_steps(epsilon: float, sigma: float) -> None:
    noise = Noise(epsilon, 1e-4, clip=1.0, people=150, steps=40)
    assert noise.sigma == pytest.approx(sigma, abs=1e-5)
    assert epsilon_of(math.sqrt(4 * noise.mu_squared(10)), 1e-4) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize(("epsilon", "auc", "detected"), [(1, 0.588, 0.022), (3, 0.718, 0.0657), (8, 0.904, 0.3138)])
def test_the_ceilings_of_an_attack(epsilon: float, auc: float, detected: float) -> None:
    mu = mu_of(epsilon, 1e-4)
    assert auc_max(mu) == pytest.approx(auc, abs=5e-4)
    assert detected_max(mu, 0.01) == pytest.approx(detected, abs=5e-4)


def test_the_officers_sentence() -> None:
    mu = mu_of(1.7, 1e-4)
    assert right_guesses_max(mu) == pytest.approx(0.5988, abs=5e-5)
    assert epsilon_of(mu * math.sqrt(3), 1e-4) == pytest.approx(3.2136, abs=5e-5)


def test_nothing_spent_and_everything_lost() -> None:
    assert epsilon_of(0.0, 1e-4) == 0
    assert (delta_of(0.0, 0.0), auc_max(0.0)) == (0, 0.5)
    assert epsilon_of(19.0, 1e-9) == math.inf
    assert mu_of(EPSILON_MAX, 1e-4) == pytest.approx(10.9, abs=0.1)
    facts = spending_facts(Spending(19.0, 1e-9, 3.0, exceeded=True))
    assert (facts["epsilon"], facts["exceeded"], facts["auc_max"]) == (None, True, 1.0)
    assert spent_facts(None) == {}
