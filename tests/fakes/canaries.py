"""Canaries in the gradient, and people without a site: one run measures the mu of steps with noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from scipy.stats import binom
from torch import Tensor, nn

from peer.methods.method import Batch
from peer.train.person_batches import PersonBatches, PersonSamples

CANARIES = 200
ERROR = 2 / math.sqrt(CANARIES)
"""The standard error of a measured mu."""

Scores = tuple[list[float], list[float]]
"""Of the canaries inside, and of those outside."""


class People(PersonBatches):
    """People with a batch each, in place of a site's data."""

    def __init__(self, batches: Mapping[str, Batch]) -> None:
        self.batches = batches

    def at(self, step: int) -> Iterator[PersonSamples]:
        for person, batch in self.batches.items():
            yield PersonSamples(person, ((batch, 1.0),))


def draw_canaries(width: int) -> tuple[Tensor, list[bool]]:
    """Return unit directions, ``(CANARIES, width)``, and the coins that say which of them are in the data."""
    draw = torch.Generator().manual_seed(5)
    directions = nn.functional.normalize(torch.randn(CANARIES, width, generator=draw), dim=1)
    return directions, (torch.rand(CANARIES, generator=draw) < 0.5).tolist()


def split(scores: Sequence[float], coins: Sequence[bool]) -> Scores:
    pairs = list(zip(scores, coins, strict=True))
    return [score for score, coin in pairs if coin], [score for score, coin in pairs if not coin]


def measured_mu(scores: Scores) -> float:
    inside, outside = scores
    spread = math.sqrt((statistics.variance(inside) + statistics.variance(outside)) / 2)
    return (statistics.mean(inside) - statistics.mean(outside)) / spread


def right_guesses(scores: Scores) -> int:
    """Return how often an attacker is right who guesses that the half with the larger scores is inside."""
    inside, outside = scores
    median = statistics.median([*inside, *outside])
    return sum(score > median for score in inside) + sum(score <= median for score in outside)


def epsilon_low(canaries: int, guesses: int, right: int, delta: float) -> float:
    """Return which epsilon a mechanism has at least, at 95 % confidence, by an attack's right guesses of coins.

    Source: Steinke, Nasr & Jagielski 2023, theorem 5.2.
    """

    def p_value(epsilon: float) -> float:
        shares = binom.pmf(range(guesses + 1), guesses, 1 / (1 + math.exp(-epsilon)))
        below = np.cumsum(shares[right - 1 :: -1]) if right else np.zeros(1)
        slack = float(np.max(below / np.arange(1, len(below) + 1)))
        return min(1.0, float(shares[right:].sum()) + 2 * canaries * delta * slack)

    low, high = 0.0, 20.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(middle) <= 0.05 else (low, middle)
    return low
