"""The scores of the membership attacks, against values by hand and a plain double loop."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peer.train.membership_attack import likelihood_ratio_scores, mean_by_person, sample_losses, standardise


def test_the_losses_are_those_of_the_samples_in_order() -> None:
    images, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
    batches = [(images[:3], targets[:3]), (images[3:], targets[3:])]
    losses = sample_losses(lambda batch: batch, batches, F.cross_entropy)
    torch.testing.assert_close(losses, F.cross_entropy(images, targets, reduction="none").double())
    assert sample_losses(lambda batch: batch, [], F.cross_entropy).shape == (0,)


def test_a_ratio_s_score_is_the_share_of_other_people_whose_ratio_is_at_most_its_own() -> None:
    draw = torch.Generator().manual_seed(1)
    losses, references = (torch.rand(8, generator=draw, dtype=torch.float64) for _ in range(2))
    people = ["a", "a", "b", "c", "c", "d", "e", "f"]
    population = torch.tensor([False, False, False, True, True, True, True, True])

    def ratio(index: int) -> float:
        p, reference = math.exp(-float(losses[index])), math.exp(-float(references[index]))
        return p / (0.5 * (1.3 * reference + 0.7))

    for index, score in enumerate(likelihood_ratio_scores(losses, references, population, people)):
        others = [other for other in range(3, 8) if people[other] != people[index]]
        share = sum(ratio(index) >= ratio(other) for other in others) / len(others)
        assert float(score) == pytest.approx(share, abs=1e-12)


def test_a_sample_without_a_population_scores_nothing() -> None:
    scores = likelihood_ratio_scores(torch.zeros(2), torch.zeros(2), torch.tensor([False, True]), ["a", "b"])
    assert scores.tolist() == [1.0, 0.0]


def test_a_person_s_score_is_the_mean_of_the_samples() -> None:
    assert mean_by_person(Tensor([1.0, 2.0, 5.0]), ["b", "a", "b"]) == {"b": 3.0, "a": 2.0}


def test_standardised_scores_have_mean_0_and_deviation_1() -> None:
    assert standardise({"a": 1.0, "b": 3.0}) == {"a": -1.0, "b": 1.0}
    assert standardise({"a": 2.0, "b": 2.0}) == {"a": 0.0, "b": 0.0}
