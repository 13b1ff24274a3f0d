"""Private steps: what leaves has the claimed noise on each person, and on every tensor; each known mistake shows."""

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch
from torch import nn

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
from models import Output
from peer.core.plan import Work
from peer.core.privacy import Noise, mu_of
from peer.core.seeds import derive
from peer.methods.method import DAM, Batch, Forward, Stage, Term, one_step_stage
from peer.train import noise as mechanism
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import Loop
from peer.train.noise import (
    NormalStream,
    PrivateSum,
    StageNoise,
    SumNoise,
    buffers_of,
    refuse_batch_norm,
    refuse_changed,
)

CPU = torch.device("cpu")
KEY = b"k" * 32
PARTS, WIDTH = 2, 5_000
STEPS, CLIP, PEOPLE = 25, 0.5, 100
NOISE = Noise(epsilon=8.0, delta=1e-4, clip=CLIP, people=PEOPLE, steps=STEPS)
STANDARD_ERRORS = 2.5
"""The bound for a right mechanism: each test has one fixed draw."""


class Linear(nn.Module):
    """Two tensors whose gradient is the sample itself, ``(PARTS * WIDTH,)``."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(WIDTH)) for _ in range(PARTS)])

    def forward(self, x: torch.Tensor) -> Output:
        value = torch.stack([(row * torch.cat(list(self.parts))).sum() for row in x])
        return Output(value, (value,), value, value)


def people_of(samples: Mapping[str, torch.Tensor]) -> People:
    return People({person: Batch(sample[None], torch.zeros(1)) for person, sample in samples.items()})


def stage_of(network: nn.Module) -> Stage:
    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        return {"value": Term(forward(DAM, batch.images).prediction.mean())}

    return one_step_stage({DAM: network}, (DAM,), losses)


def noise_of(noise: Noise = NOISE, *, key: bytes = KEY, purpose: str = "round 1") -> StageNoise:
    return StageNoise(noise, frozenset({DAM}), key, purpose)


def released(people: Mapping[str, torch.Tensor], noise: StageNoise, steps: int = STEPS) -> list[torch.Tensor]:
    """Return the gradients ``(PARTS * WIDTH,)`` of each step, as the optimiser gets them, times the public number."""
    network, gradients = Linear(), []
    seed = lambda *parts: derive("stage", *parts)  # noqa: E731
    loop = Loop(
        stage_of(network), Work("step", steps, 1e-9), steps=steps, device=CPU, precision="fp32", seed=seed, noise=noise
    )
    optimiser = loop.optimisers[DAM]
    take = optimiser.step

    def step(*arguments: object) -> None:
        gradients.append(torch.cat([each.grad for each in network.parts if each.grad is not None]) * PEOPLE)
        take()

    optimiser.step = step  # type: ignore[method-assign,assignment]
    list(loop.run(people_of(people)))
    return gradients


def scores_of(noise: StageNoise) -> Scores:
    """Return the scores of 200 canaries, unit directions each in the data by a coin; a score is its projection."""
    directions, coins = draw_canaries(PARTS * WIDTH)
    people = {str(index): directions[index] * 1000 for index in range(CANARIES) if coins[index]}
    total = torch.stack(released(people, noise)).sum(0)
    return split((directions @ total / (NOISE.sigma * CLIP * math.sqrt(STEPS))).tolist(), coins)


def audit(noise: StageNoise) -> float:
    """Return the mu that canaries measure."""
    return measured_mu(scores_of(noise))


@pytest.mark.parametrize(
    ("canaries", "guesses", "right", "delta", "expected"),
    [
        (100, 100, 70, 0.0, 0.471672),
        (100, 100, 90, 0.0, 1.630823),
        (100, 100, 100, 0.0, 3.492965),
        (1000, 100, 95, 1e-5, 2.165176),
        (1000, 1000, 750, 1e-5, 0.976367),
    ],
)
def test_a_one_run_audit_has_the_known_answers(
    canaries: int, guesses: int, right: int, delta: float, expected: float
) -> None:
    assert epsilon_low(canaries, guesses, right, delta) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("epsilon", "contradicted"), [(8.0, False), (0.5, True)])
def test_one_run_contradicts_a_guarantee_that_is_sixteen_times_too_small_and_not_the_right_one(
    epsilon: float, contradicted: bool
) -> None:
    """The noise is that of epsilon 8; an attacker guesses the half with the larger scores."""
    right = right_guesses(scores_of(noise_of()))
    assert (epsilon_low(CANARIES, CANARIES, right, NOISE.delta) > epsilon) == contradicted


def test_canaries_measure_the_claimed_mu() -> None:
    assert abs(audit(noise_of()) - mu_of(8.0, 1e-4)) < STANDARD_ERRORS * ERROR


def test_the_noise_of_sums_has_its_deviations_and_is_of_one_release_alone() -> None:
    noise = dataclasses.replace(NOISE, steps=1, sharers=4)
    sums, scales = [torch.arange(9_999), torch.zeros(3, 2)], [torch.linspace(1e3, 1e6, 9_999), torch.full((3, 2), 5e4)]
    source = SumNoise(noise, KEY, "1/sums")
    assert source.multiplier == pytest.approx(noise.sigma / 2)
    one, other = source.draw(sums, scales)
    assert (one.shape, other.shape, one.dtype) == (sums[0].shape, sums[1].shape, torch.int64)
    assert float((one / scales[0]).std()) == pytest.approx(1, abs=4 / math.sqrt(2 * 9_999))
    assert torch.equal(source.draw(sums, scales)[0], one), "a repeated stage has the same noise"
    for changed in (
        SumNoise(noise, b"j" * 32, "1/sums").draw(sums, scales),
        SumNoise(noise, KEY, "2/sums").draw(sums, scales),
        SumNoise(dataclasses.replace(noise, sharers=2), KEY, "1/sums").draw(sums, scales),
        source.draw([sums[0] + 1, sums[1]], scales),
        source.draw(sums, [scales[0] + 1, scales[1]]),
    ):
        assert abs(float(np.corrcoef(changed[0], one)[0, 1])) < 5 / math.sqrt(9_999)
    assert "j" * 4 not in repr(SumNoise(noise, b"j" * 32, ""))


def halve_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = NormalStream.draw
    monkeypatch.setattr(NormalStream, "draw", lambda self, count, scale: draw(self, count, scale / 2))


def clip_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(self: PrivateSum) -> None:
        self.people += 1
        for total, parameter in zip(self._sums, self._parameters, strict=True):
            assert parameter.grad is not None
            norm = float(parameter.grad.double().norm())
            total += (parameter.grad.double() * (mechanism.UNITS / max(norm, CLIP))).round().to(torch.int64)
            parameter.grad = None

    monkeypatch.setattr(PrivateSum, "add", add)


def leave_one_tensor_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, calls = NormalStream.draw, iter(range(10_000))

    def none_for_the_second(self: NormalStream, count: int, scale: float) -> np.ndarray:
        return draw(self, count, 0.0 if next(calls) % PARTS else scale)

    monkeypatch.setattr(NormalStream, "draw", none_for_the_second)


def repeat_the_noise_of_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    release = PrivateSum.release
    monkeypatch.setattr(PrivateSum, "release", lambda self, key, *purpose: release(self, key))


@pytest.mark.parametrize("mistake", [halve_the_noise, clip_each_tensor, leave_one_tensor_without_noise])
def test_canaries_show_a_mistake(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[pytest.MonkeyPatch], None]
) -> None:
    mistake(monkeypatch)
    assert audit(noise_of()) > mu_of(8.0, 1e-4) + STANDARD_ERRORS * ERROR


def test_every_tensor_and_every_step_has_noise_of_its_own() -> None:
    steps = released({"ann": torch.zeros(PARTS * WIDTH)}, noise_of(), steps=6)
    for gradient in steps:
        for part in gradient.split(WIDTH):
            assert float(part.std()) / (NOISE.sigma * CLIP) == pytest.approx(1, abs=5 / math.sqrt(2 * WIDTH))
    together = torch.cat([torch.stack(gradient.split(WIDTH)) for gradient in torch.stack(steps)])
    correlations = torch.corrcoef(together) - torch.eye(len(together))
    assert float(correlations.abs().max()) < 5 / math.sqrt(WIDTH)


def test_a_repeated_step_has_the_same_noise_and_a_changed_one_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    one = {"ann": torch.full((PARTS * WIDTH,), 1.0)}
    two = one | {"bob": torch.full((PARTS * WIDTH,), -1.0)}
    first = released(one, noise_of(), steps=1)[0]
    assert torch.equal(first, released(one, noise_of(), steps=1)[0])
    for other in (
        released(two, noise_of(), steps=1)[0],
        released(one, noise_of(key=b"j" * 32), steps=1)[0],
        released(one, noise_of(purpose="round 2"), steps=1)[0],
        released(one, noise_of(), steps=2)[1],
    ):
        difference = float((other - first).std()) / (NOISE.sigma * CLIP)
        assert difference == pytest.approx(math.sqrt(2), abs=0.05)
    repeat_the_noise_of_the_first_step(monkeypatch)
    same = released(one, noise_of(), steps=2)
    assert torch.equal(same[0], same[1]), "the mistake is one"


def test_a_sum_is_over_the_public_number_of_people() -> None:
    """A mean over the true number would tell it, and would let one person change every other's share."""
    quiet = dataclasses.replace(NOISE, epsilon=100.0, steps=1)
    sample = torch.zeros(PARTS * WIDTH)
    sample[0] = 100.0
    for count in (1, 3):
        people = {str(index): sample for index in range(count)}
        gradient = released(people, noise_of(quiet), steps=1)[0]
        assert float(gradient[0]) == pytest.approx(count * CLIP, abs=5 * quiet.sigma * CLIP)


def test_a_short_gradient_is_not_stretched_and_one_that_is_no_number_counts_as_zero() -> None:
    parameter = nn.Parameter(torch.zeros(4))
    private = PrivateSum(NOISE, [parameter])
    for gradient in ([0.25, 0, 0, 0], [0, 8.0, 0, 0], [0, 0, math.nan, 1], [0, 0, math.inf, 1]):
        parameter.grad = torch.tensor(gradient)
        private.add()
        assert parameter.grad is None
    units = mechanism.UNITS / CLIP
    assert private._sums[0].tolist() == [0.25 * units, 0.5 * units, 0, 0]
    assert (private.people, private.clipped) == (4, 2)


def test_nobody_changes_what_another_contributes() -> None:
    """A position in the datalist would tell who stands before: dropout must not depend on it."""

    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(8, 1, bias=False)
            nn.init.ones_(self.head.weight)

        def forward(self, x: torch.Tensor) -> Output:
            value = self.head(self.drop(x))[:, 0]
            return Output(value, (value,), value, value)

    def contribution(people: dict[str, torch.Tensor]) -> torch.Tensor:
        added: list[torch.Tensor] = []

        class Watched(PrivateSum):
            def add(self) -> None:
                grad = self._parameters[0].grad
                assert grad is not None
                added.append(grad.clone())
                super().add()

        network = Dropping()
        seed = lambda *parts: derive("stage", *parts)  # noqa: E731
        loop = Loop(
            stage_of(network), Work("step", 1, 0.1), steps=1, device=CPU, precision="fp32", seed=seed, noise=noise_of()
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("peer.train.loop.PrivateSum", Watched)
            list(loop.run(people_of(people)))
        return added[list(people).index("zoe")]

    sample = torch.arange(1.0, 9.0)
    assert torch.equal(contribution({"zoe": sample}), contribution({"ann": -sample, "bob": sample, "zoe": sample}))


def test_normal_numbers_are_normal() -> None:
    """Kolmogorov and Smirnov's distance of 100,000 numbers is below its 1 % point."""
    count, scale = 100_001, 2.0**36
    numbers = np.sort(NormalStream(KEY).draw(count, scale) / scale)
    expected = np.array([statistics.NormalDist().cdf(each) for each in numbers])
    assert np.abs(expected - (np.arange(count) + 0.5) / count).max() < 1.63 / math.sqrt(count)
    assert not np.array_equal(numbers, np.sort(NormalStream(b"j" * 32).draw(count, scale) / scale))


def test_batch_norm_is_refused_with_the_remedy() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    refuse_batch_norm([network.eval(), nn.GroupNorm(2, 4).train()])
    with pytest.raises(UnusableConfigurationError, match=r'1 is a batch norm.*norm = "group"'):
        refuse_batch_norm([network.train()])


def test_running_statistics_are_refused() -> None:
    network = nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True), nn.GroupNorm(1, 3)).train()
    buffers = buffers_of([network])
    refuse_changed(buffers)
    network(torch.ones(2, 3, 5))
    with pytest.raises(UnusableConfigurationError, match=r"buffer 0\.(running_mean|running_var|num_batches_tracked)"):
        refuse_changed(buffers)


def test_a_frozen_part_stays_as_it_is() -> None:
    network = Linear()
    head = nn.ParameterList([network.parts[1]])
    stage = dataclasses.replace(stage_of(network), networks={DAM: network, "head": head})
    seed = lambda *parts: derive("stage", *parts)  # noqa: E731
    loop = Loop(stage, Work("step", 1, 0.1), steps=1, device=CPU, precision="fp32", seed=seed, noise=noise_of())
    list(loop.run(people_of({"ann": torch.ones(PARTS * WIDTH)})))
    assert bool((network.parts[0] != 0).all())
    assert bool((network.parts[1] == 0).all())
