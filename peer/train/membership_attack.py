"""Attacks that tell the people whom a network was trained on from others: scores for each person, from losses.

The sender attacks the artifact that it is about to send (``peer.train.leak_meter``), and ``tests/privacy`` attacks
every kind of artifact with the same functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor

POPULATION_SHARE = 0.3
"""The ``a`` of the approximation p(x) = ((1 + a) p_ref(x) + 1 - a) / 2, as in the paper's experiments."""

Loss = Callable[[Tensor, Tensor], Tensor]
"""A task's loss of ``(prediction, targets)``, a mean over the batch."""


def sample_losses(predict: Callable[[Tensor], Tensor], batches: Iterable[tuple[Tensor, Tensor]], loss: Loss) -> Tensor:
    """Return the loss of each sample, in order; ``(samples,)``, float64.

    Args:
        predict: returns logits or images for images ``(b, c, *space)``, on the CPU.
        batches: images and targets.
        loss: the task's.
    """
    losses = []
    with torch.inference_mode():
        for images, targets in batches:
            prediction = predict(images).float()
            losses += [loss(prediction[index : index + 1], targets[index : index + 1]) for index in range(len(images))]
    return torch.stack(losses).double() if losses else torch.zeros(0, dtype=torch.float64)


def likelihood_ratio_scores(
    losses: Tensor, reference_losses: Tensor, population: Tensor, people: Sequence[str]
) -> Tensor:
    r"""Score each sample by the share of a population whose likelihood ratio is at most its own.

    .. math:: \frac{p_\theta(x)}{p(x)} \ge \frac{p_\theta(z)}{p(z)}, \quad
        p(x) \approx \tfrac12 \left((1 + a)\, p_{ref}(x) + 1 - a\right)

    Source: Zarifzadeh, Liu and Shokri 2024, "Low-Cost High-Power Membership Inference Attacks", arXiv 2312.03262.
    Differs: one reference network; likelihoods are ``exp(-loss)`` for any loss; the threshold of the ratio is 1.

    Args:
        losses: of the attacked network, ``(samples,)``.
        reference_losses: of the reference network.
        population: which samples are the population; those of the sample's own person do not count.
        people: the person of each sample.

    Returns:
        Scores ``(samples,)`` in [0, 1]; 0 where no other person is in the population.
    """
    average = ((1 + POPULATION_SHARE) * (-reference_losses).exp() + 1 - POPULATION_SHARE) / 2
    ratios = -losses - average.log()
    numbers = {person: number for number, person in enumerate(dict.fromkeys(people))}
    persons = torch.tensor([numbers[person] for person in people])
    scores = torch.zeros_like(ratios)
    for index in range(len(ratios)):
        others = ratios[population & (persons != persons[index])]
        scores[index] = (ratios[index] >= others).double().mean() if len(others) else 0.0
    return scores


def mean_by_person(scores: Tensor, people: Sequence[str]) -> dict[str, float]:
    """Return the mean score of each person's samples, in the order of the first ones."""
    sums: dict[str, list[float]] = {}
    for person, score in zip(people, scores.tolist(), strict=True):
        sums.setdefault(person, []).append(score)
    return {person: sum(each) / len(each) for person, each in sums.items()}


def standardise(scores: Mapping[str, float]) -> dict[str, float]:
    """Shift and scale the scores to mean 0 and standard deviation 1; scores that are all equal become 0."""
    values = torch.tensor(list(scores.values()), dtype=torch.float64)
    deviation = values.std(correction=0)
    scaled = (values - values.mean()) / deviation if deviation > 0 else torch.zeros_like(values)
    return dict(zip(scores, scaled.tolist(), strict=True))
