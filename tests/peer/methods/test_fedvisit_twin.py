"""FedVisit with a twin: who learns from whom, and the step in which own and guest's gradient are one vector."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fakes.canaries import (
    CANARIES,
    ERROR,
    People,
    Scores,
    draw_canaries,
    epsilon_low,
    measured_mu,
    right_guesses,
    split,
)
from fakes.small_sites import BATCH as IMAGES
from fakes.small_sites import DRAW, resnet
from fakes.two_layers import BATCH, SINGLE, TwoLayers, arrays, backward, logits, softmax
from models import Output
from peer.core.plan import Work
from peer.core.privacy import Noise, mu_of
from peer.core.seeds import derive
from peer.methods.method import DAM, TWIN, Batch, Stage, visitor_name
from peer.methods.registry import PLANS
from peer.train.loop import Loop
from peer.train.noise import NormalStream, PrivateSum, StageNoise

ALPHA, GAMMA = visitor_name("alpha"), visitor_name("gamma")
TRAVELS = (TWIN, ALPHA)
KD, PERSONAL_KD, TEMPERATURE = 2.0, 0.5, 3.0
STEPS, CLIP, PUBLIC, EPSILON, DELTA, WIDTH = 25, 0.5, 100, 8.0, 1e-4, 2_500
NOISE = Noise(epsilon=EPSILON, delta=DELTA, clip=CLIP, people=PUBLIC, steps=STEPS)


class ClippedApart(PrivateSum):
    """The mistake: the gradients of twin and guest are clipped each by itself, with noise for one of them."""

    def __init__(self, noise: Noise, parameters: list[nn.Parameter]) -> None:
        super().__init__(noise, parameters)
        half = len(parameters) // 2
        self.networks = [PrivateSum(noise, parameters[:half]), PrivateSum(noise, parameters[half:])]

    def add(self) -> None:
        self.people += 1
        for network in self.networks:
            network.add()

    def release(self, key: bytes, *purpose: object) -> None:
        for number, network in enumerate(self.networks):
            network.release(key, *purpose, number)


@pytest.fixture
def site(make_site: Any) -> Any:
    """A site whose own model and twin differ, and that one model visits; all are networks of two layers."""
    built = make_site(
        "fedvisit_twin", TwoLayers(0), BATCH.images, received={"alpha": TwoLayers(1, width=3)},
        kd=KD, personal_kd=PERSONAL_KD, temperature=TEMPERATURE,
    )  # fmt: skip
    built.context.networks[TWIN].load_state_dict(TwoLayers(2).state_dict())
    return built


def weights(site: Any) -> dict[str, dict[str, np.ndarray]]:
    networks = {**site.context.networks, ALPHA: site.context.received["alpha"]}
    return {name: arrays(network) for name, network in networks.items()}


def distance(teacher: np.ndarray, student: np.ndarray) -> float:
    q, p = softmax(teacher / TEMPERATURE), softmax(student / TEMPERATURE)
    return float((q * np.log(q / p)).sum(1).mean())


def test_the_losses_by_the_equations(site: Any) -> None:
    own, twin, guest = (logits(each) for each in weights(site).values())
    labels = np.arange(len(BATCH.targets)), BATCH.targets.numpy()
    expected = {
        "ce_dam": (-np.log(softmax(own)[labels]).mean(), 1.0),
        "ce_twin": (-np.log(softmax(twin)[labels]).mean(), 1.0),
        "ce_visitor": (-np.log(softmax(guest)[labels]).mean(), 1.0),
        "kl_twin_from_visitor": (distance(guest, twin), KD * TEMPERATURE**2),
        "kl_visitor_from_twin": (distance(twin, guest), KD * TEMPERATURE**2),
        "kl_dam_from_twin": (distance(twin, own), PERSONAL_KD * TEMPERATURE**2),
        "kl_dam_from_visitor": (distance(guest, own), PERSONAL_KD * TEMPERATURE**2),
    }
    terms = site.terms("train", BATCH)
    assert {name: term.weight for name, term in terms.items()} == {name: each[1] for name, each in expected.items()}
    values = {name: float(term.value.detach()) for name, term in terms.items()}
    assert values == pytest.approx({name: each[0] for name, each in expected.items()}, rel=SINGLE)


def test_nobody_learns_from_the_model_that_stays(site: Any) -> None:
    terms = site.terms("train", BATCH)
    for name in ("ce_dam", "kl_dam_from_twin", "kl_dam_from_visitor"):
        torch.autograd.backward(terms[name].value, retain_graph=True)
    assert site.learns(DAM)
    assert site.untouched(TWIN)
    assert site.untouched("alpha")


def test_without_a_visitor_the_twin_learns_from_labels_alone(make_site: Any) -> None:
    site = make_site("fedvisit_twin", resnet(0), IMAGES.images)
    assert site.terms("train", IMAGES).keys() == {"ce_dam", "ce_twin", "kl_dam_from_twin"}
    assert all(
        torch.equal(a, b) for a, b in zip(site.context.dam.parameters(), site.networks[TWIN].parameters(), strict=True)
    )


@pytest.mark.parametrize(("header", "fixed"), [("open", set()), ("fixed_bias", {"fc.bias"})])
def test_the_bias_of_a_visiting_twin_stays(make_site: Any, header: str, fixed: set[str]) -> None:
    visitor = resnet(1, 6)
    before = {name: value.clone() for name, value in visitor.named_parameters()}
    at = make_site("fedvisit_twin", resnet(0), IMAGES.images, received={"alpha": visitor}, header=header)
    at.step("train", IMAGES, steps=2)
    assert {name for name, value in visitor.named_parameters() if torch.equal(value, before[name])} == fixed


def test_the_steps_are_divided_among_the_visitors(make_site: Any) -> None:
    received = {"alpha": resnet(1, 6), "gamma": resnet(2, 2)}
    site = make_site("fedvisit_twin", resnet(0), IMAGES.images, received=received)
    assert site.step("train", IMAGES, steps=5).pass_steps == (3, 2)
    assert [len(site.modes[name]) for name in (DAM, TWIN, ALPHA, GAMMA)] == [5, 5, 3, 2]


def test_numbers_are_compared_by_their_mean_squared_difference(make_site: Any) -> None:
    batch = Batch(IMAGES.images, torch.randn(5, 3, generator=DRAW))
    site = make_site("fedvisit_twin", resnet(0), batch.images, received={"alpha": resnet(1)}, task="number")
    twin, guest = (site.networks[name](batch.images).prediction for name in (TWIN, "alpha"))
    terms = site.terms("train", batch)
    assert {name for name in terms if "from" in name} == {
        "mse_dam_from_twin", "mse_dam_from_visitor", "mse_twin_from_visitor", "mse_visitor_from_twin",
    }  # fmt: skip
    assert float(terms["mse_twin_from_visitor"].value.detach()) == pytest.approx(
        float((twin - guest).square().mean().detach())
    )


def gradients_of(stage: Stage, people: Mapping[str, Batch], *, steps: int) -> dict[str, list[Tensor]]:
    """Train with noise; return what each network's optimiser gets in each step, over all tensors as one vector."""
    noise = StageNoise(NOISE, PLANS["fedvisit_twin"].noised, b"k" * 32, "round 1")
    seed = lambda *parts: derive("stage", *parts)  # noqa: E731
    loop = Loop(
        stage,
        Work("step", steps, 1e-9),
        steps=steps,
        device=torch.device("cpu"),
        precision="fp32",
        seed=seed,
        noise=noise,
    )
    assert loop.noised_steps == steps, "own and guest's gradient are one mechanism"
    gradients: dict[str, list[Tensor]] = {name: [] for name in loop.optimisers}

    def watch(name: str, take: Any) -> Any:
        def step() -> None:
            network = stage.networks[name]
            gradients[name].append(torch.cat([each.grad.flatten() for each in network.parameters()]))
            take()

        return step

    for name, optimiser in loop.optimisers.items():
        optimiser.step = watch(name, optimiser.step)  # type: ignore[method-assign]
    list(loop.run(People(people)))
    return gradients


def slope(own: np.ndarray, batch: Batch, *teachers: np.ndarray, weight: float) -> np.ndarray:
    """The gradient of one network's losses for its logits: softmax less target, and less what each teacher says."""
    error = softmax(own) - np.eye(3)[batch.targets.numpy()]
    for teacher in teachers:
        error += weight * TEMPERATURE * (softmax(own / TEMPERATURE) - softmax(teacher / TEMPERATURE))
    return error / len(own)


def persons_gradients(site: Any, batch: Batch) -> dict[str, np.ndarray]:
    """The gradient of one person for each network, in numpy."""
    networks = weights(site)
    own, twin, guest = (logits(each, batch) for each in networks.values())
    slopes = {
        DAM: slope(own, batch, twin, guest, weight=PERSONAL_KD),
        TWIN: slope(twin, batch, guest, weight=KD),
        ALPHA: slope(guest, batch, twin, weight=KD),
    }
    by_tensor = {name: backward(networks[name], each, batch) for name, each in slopes.items()}
    return {name: np.concatenate([each.ravel() for each in tensors.values()]) for name, tensors in by_tensor.items()}


def part(*indices: int, scale: float = 1.0) -> Batch:
    return Batch(BATCH.images[list(indices)] * scale, BATCH.targets[list(indices)])


@pytest.mark.parametrize("mistake", [None, ClippedApart])
def test_own_and_guests_gradient_of_a_person_are_clipped_as_one_vector(
    site: Any, monkeypatch: pytest.MonkeyPatch, mistake: Any
) -> None:
    monkeypatch.setattr(NormalStream, "draw", lambda self, count, scale: np.zeros(count, np.int64))
    if mistake is not None:
        monkeypatch.setattr("peer.train.loop.PrivateSum", mistake)
    people = {"ann": part(0), "bob": part(1, 2, scale=9.0), "eve": part(3, 4, 5, scale=0.01)}
    each = [persons_gradients(site, batch) for batch in people.values()]
    vectors = [np.concatenate([gradients[name] for name in TRAVELS]) for gradients in each]
    norms = [np.linalg.norm(vector) for vector in vectors]
    assert norms[2] < CLIP < norms[0] < norms[1]
    clipped = sum(vector * min(1.0, CLIP / norm) for vector, norm in zip(vectors, norms, strict=True)) / PUBLIC
    stage = site.method.stages["train"](site.context)
    released = gradients_of(stage, people, steps=1)
    joint = np.concatenate([released[name][0].numpy() for name in TRAVELS])
    error = np.linalg.norm(joint - clipped) / np.linalg.norm(clipped)
    assert error < 10 * SINGLE if mistake is None else error > 0.1
    bare = sum(gradients[DAM] for gradients in each) / len(people)
    assert np.allclose(released[DAM][0].numpy(), bare, rtol=10 * SINGLE, atol=1e-7), (
        "without noise, clip or public number"
    )


class Slope(nn.Module):
    """A number for each sample, whose squared error has the sample's direction as gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Output:
        value = (x * self.weight).sum(1, keepdim=True)
        return Output(value, (value,), value, value)


def scores_of(make_site: Any) -> Scores:
    """Return the scores of canaries who push twin and guest the same way: projections on both together."""
    directions, coins = draw_canaries(WIDTH)
    inside = [index for index in range(CANARIES) if coins[index]]
    people = {str(index): Batch(directions[[index]], torch.full((1, 1), -1000.0)) for index in inside}
    site = make_site(
        "fedvisit_twin", Slope(), directions, received={"alpha": Slope()}, task="number", kd=0.0, personal_kd=0.0
    )
    gradients = gradients_of(site.method.stages["train"](site.context), people, steps=STEPS)
    total = sum(torch.stack(gradients[name]).sum(0) for name in TRAVELS) * PUBLIC / math.sqrt(len(TRAVELS))
    return split((directions @ total / (NOISE.sigma * CLIP * math.sqrt(STEPS))).tolist(), coins)


def test_canaries_in_both_networks_measure_the_claimed_mu(make_site: Any) -> None:
    scores = scores_of(make_site)
    assert abs(measured_mu(scores) - mu_of(EPSILON, DELTA)) < 2 * ERROR
    assert epsilon_low(CANARIES, CANARIES, right_guesses(scores), DELTA) < EPSILON


def test_canaries_show_that_twin_and_guest_are_clipped_apart(make_site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peer.train.loop.PrivateSum", ClippedApart)
    assert measured_mu(scores_of(make_site)) > mu_of(EPSILON, DELTA) + 2 * ERROR
