"""The loop: a stage's terms are minimised as declared, networks do not disturb each other, a resume is exact."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import nn

from models import Output
from peer.core.plan import Work
from peer.methods.method import Batch, Forward, Stage, Term
from peer.training.loop import TOTAL, Loop
from peer.training.seeding import derive

WORK = Work("step", 6, 0.05)
CPU = torch.device("cpu")


class Small(nn.Module):
    """A network whose dropout shows which randomness it had."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body, self.drop, self.head = nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> Output:
        feature = self.drop(self.body(x))
        return Output(self.head(feature), (feature,), feature, feature)


class Stream:
    """Batches that are a function of the step."""

    def __getitem__(self, step: int) -> Batch:
        draw = torch.Generator().manual_seed(step)
        return Batch(torch.randn(4, 3, generator=draw), torch.tensor([0, 1, 0, 1]))


def stage_of(*names: str, weights: Mapping[str, float] | None = None) -> Stage:
    def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
        return {
            f"ce_{name}": Term(
                nn.functional.cross_entropy(forward(name, batch.images).prediction.float(), batch.targets),
                (weights or {}).get(name, 1.0),
            )
            for name in names
        }

    return Stage({name: Small(index) for index, name in enumerate(names)}, losses, lambda means: {})


def loop_of(stage: Stage, *, precision: str = "fp32") -> Loop:
    return Loop(stage, WORK, device=CPU, precision=precision, seed=lambda *parts: derive("stage", *parts))


def states(loop: Loop) -> dict[str, torch.Tensor]:
    flat = {f"{name}/{key}": value for name, state in loop.networks().items() for key, value in state.items()}
    return flat | {f"{name}//{key}": value for name, state in loop.moments().items() for key, value in state.items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_a_second_network_does_not_change_the_first() -> None:
    alone, together = loop_of(stage_of("dam")), loop_of(stage_of("dam", "ktm"))
    assert list(alone.run(Stream(), steps=5)) == [1, 2, 3, 4, 5]
    list(together.run(Stream(), steps=5))
    mine = {key: value for key, value in states(together).items() if key.startswith("dam")}
    assert equal(states(alone), mine)


def test_a_resumed_stage_is_the_undisturbed_one_bit_by_bit() -> None:
    straight = loop_of(stage_of("dam", "ktm"))
    list(straight.run(Stream(), steps=6))
    half = loop_of(stage_of("dam", "ktm"))
    list(half.run(Stream(), steps=2))
    later = loop_of(stage_of("dam", "ktm"))
    later.load(half.networks(), half.moments())
    later.resume(half.step, half.sums())
    torch.manual_seed(999)
    assert list(later.run(Stream(), steps=6)) == [3, 4, 5, 6]
    assert equal(states(straight), states(later))
    assert straight.means() == later.means()
    assert straight.losses() == later.losses()


def test_losses_are_reported_unweighted_and_their_total_weighted() -> None:
    loop = loop_of(stage_of("dam", "ktm", weights={"ktm": 3.0}))
    list(loop.run(Stream(), steps=1))
    losses = loop.losses()
    assert losses[TOTAL] == pytest.approx(losses["ce_dam"] + 3 * losses["ce_ktm"])
    assert loop.means() == pytest.approx(losses)


def test_a_mean_is_over_all_steps() -> None:
    loop = loop_of(stage_of("dam"))
    seen = [loop.losses()["ce_dam"] for _ in loop.run(Stream(), steps=4)]
    assert loop.means()["ce_dam"] == pytest.approx(sum(seen) / 4)


def test_training_lowers_the_loss_of_a_fixed_batch() -> None:
    class Same:
        def __getitem__(self, step: int) -> Batch:
            return Stream()[0]

    loop = loop_of(stage_of("dam"))
    seen = [loop.losses()["ce_dam"] for _ in loop.run(Same(), steps=40)]
    assert sum(seen[-5:]) < 0.7 * sum(seen[:5])


def test_frozen_parameters_stay_and_have_no_optimiser() -> None:
    stage = stage_of("dam", "ktm")
    for parameter in stage.networks["ktm"].parameters():
        parameter.requires_grad_(False)
    before = {key: value.clone() for key, value in stage.networks["ktm"].state_dict().items()}
    loop = loop_of(stage)
    list(loop.run(Stream(), steps=2))
    assert set(loop.optimisers) == {"dam"}
    assert equal(before, stage.networks["ktm"].state_dict())


def test_bf16_forward_has_float32_losses_and_weights() -> None:
    stage = stage_of("dam")
    seen: list[torch.dtype] = []
    stage.networks["dam"].head.register_forward_hook(lambda module, args, result: seen.append(result.dtype))
    loop = loop_of(stage, precision="bf16")
    list(loop.run(Stream(), steps=2))
    assert set(seen) == {torch.bfloat16}
    assert stage.networks["dam"].head.weight.dtype == torch.float32
