"""The loop: a stage's terms are minimised as declared, networks do not disturb each other, a resume is exact."""

import dataclasses
from collections.abc import Mapping

import pytest
import torch
from torch import nn

import models
from models import Output
from peer.core.plan import Work
from peer.core.seeds import derive
from peer.methods.method import Batch, Forward, Stage, Step, Term, one_step_stage
from peer.train.loop import TOTAL, Loop

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

    return one_step_stage({name: Small(index) for index, name in enumerate(names)}, names, losses)


def loop_of(stage: Stage, *, steps: int = 6, precision: str = "fp32", clip_norm: float | None = None) -> Loop:
    seed = lambda *parts: derive("stage", *parts)  # noqa: E731
    return Loop(stage, WORK, steps=steps, device=CPU, precision=precision, seed=seed, clip_norm=clip_norm)


def states(loop: Loop) -> dict[str, torch.Tensor]:
    flat = {f"{name}/{key}": value for name, state in loop.networks().items() for key, value in state.items()}
    return flat | {f"{name}//{key}": value for name, state in loop.moments().items() for key, value in state.items()}


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[key]) for key, value in first.items())


def test_a_second_network_does_not_change_the_first() -> None:
    alone, together = loop_of(stage_of("dam"), steps=5), loop_of(stage_of("dam", "ktm"), steps=5)
    assert list(alone.run(Stream())) == [1, 2, 3, 4, 5]
    list(together.run(Stream()))
    mine = {key: value for key, value in states(together).items() if key.startswith("dam")}
    assert equal(states(alone), mine)


def test_a_resumed_stage_is_the_undisturbed_one_bit_by_bit() -> None:
    straight = loop_of(stage_of("dam", "ktm"))
    list(straight.run(Stream()))
    half = loop_of(stage_of("dam", "ktm"), steps=2)
    list(half.run(Stream()))
    later = loop_of(stage_of("dam", "ktm"))
    later.load(half.networks(), half.moments())
    later.resume(half.step, half.sums())
    torch.manual_seed(999)
    assert list(later.run(Stream())) == [3, 4, 5, 6]
    assert equal(states(straight), states(later))
    assert straight.means() == later.means()
    assert straight.losses() == later.losses()


def test_gradients_are_clipped_to_their_joint_norm_after_a_method_has_changed_them() -> None:
    gradients: list[list[torch.Tensor]] = []

    def stage() -> Stage:
        plain = stage_of("dam", "ktm")
        ((step,),) = plain.passes
        learning = [parameter for network in plain.networks.values() for parameter in network.parameters()]

        def change() -> None:
            for parameter in learning:
                parameter.grad = parameter.grad * 3
            gradients.append([parameter.grad.clone() for parameter in learning])

        return dataclasses.replace(plain, passes=((dataclasses.replace(step, after_backward=change),),))

    clipped, untouched = loop_of(stage(), steps=1, clip_norm=0.01), loop_of(stage(), steps=1, clip_norm=1e6)
    list(clipped.run(Stream()))
    list(untouched.run(Stream()))
    for loop, before, clip_norm in zip((clipped, untouched), gradients, (0.01, 1e6), strict=True):
        expected = [nn.Parameter(torch.empty_like(gradient)) for gradient in before]
        for parameter, gradient in zip(expected, before, strict=True):
            parameter.grad = gradient
        norm = nn.utils.clip_grad_norm_(expected, clip_norm)
        assert 0.01 < norm.item() < 1e6
        learning = [parameter for network in loop.stage.networks.values() for parameter in network.parameters()]
        assert all(torch.equal(own.grad, other.grad) for own, other in zip(learning, expected, strict=True))


def test_losses_are_reported_unweighted_and_their_total_weighted() -> None:
    loop = loop_of(stage_of("dam", "ktm", weights={"ktm": 3.0}), steps=1)
    list(loop.run(Stream()))
    losses = loop.losses()
    assert losses[TOTAL] == pytest.approx(losses["ce_dam"] + 3 * losses["ce_ktm"])
    assert loop.means() == pytest.approx(losses)


def test_a_mean_is_over_all_steps() -> None:
    loop = loop_of(stage_of("dam"), steps=4)
    losses = [loop.losses()["ce_dam"] for _ in loop.run(Stream())]
    assert loop.means()["ce_dam"] == pytest.approx(sum(losses) / 4)


def test_frozen_parameters_stay_and_have_no_optimiser() -> None:
    stage = stage_of("dam", "ktm")
    for parameter in stage.networks["ktm"].parameters():
        parameter.requires_grad_(False)
    before = {key: value.clone() for key, value in stage.networks["ktm"].state_dict().items()}
    loop = loop_of(stage, steps=2)
    list(loop.run(Stream()))
    assert set(loop.optimisers) == {"dam"}
    assert equal(before, stage.networks["ktm"].state_dict())


def test_bf16_forward_has_float32_losses_and_weights() -> None:
    stage = stage_of("dam")
    dtypes: list[torch.dtype] = []
    stage.networks["dam"].head.register_forward_hook(lambda module, args, result: dtypes.append(result.dtype))
    loop = loop_of(stage, steps=2, precision="bf16")
    list(loop.run(Stream()))
    assert set(dtypes) == {torch.bfloat16}
    assert stage.networks["dam"].head.weight.dtype == torch.float32


class Normed(nn.Module):
    """A network whose batch norm shows in which mode it was run."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.norm, self.head = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> Output:
        feature = self.norm(x)
        return Output(self.head(feature), (feature,), feature, feature)


def turns(order: list[str], *, apart: bool) -> Stage:
    """Two networks that learn in turn, on each batch or one after the other."""
    networks = {name: Normed(index) for index, name in enumerate(("dam", "proxy"))}

    def step_of(name: str) -> Step:
        def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
            order.append(f"{name}{batch.targets.tolist()}")
            mine, other = (forward(each, batch.images).prediction for each in networks)
            return {f"gap_{name}": Term((mine - other).square().mean())}

        return Step((name,), losses)

    steps_of_a_batch = step_of("proxy"), step_of("dam")
    return Stage(networks, ((steps_of_a_batch[0],), (steps_of_a_batch[1],)) if apart else (steps_of_a_batch,))


@pytest.mark.parametrize("apart", [False, True])
def test_moves_take_turns_on_a_batch_and_passes_on_all_batches(apart: bool) -> None:
    order: list[str] = []
    loop = loop_of(turns(order, apart=apart), steps=2)
    steps = list(loop.run(Stream()))
    order_of_networks = [entry.partition("[")[0] for entry in order]
    assert order_of_networks == (["proxy", "proxy", "dam", "dam"] if apart else ["proxy", "dam", "proxy", "dam"])
    assert steps == ([1, 2, 3, 4] if apart else [1, 2])
    assert loop.steps == len(steps)
    assert loop.means().keys() == {TOTAL, "gap_dam", "gap_proxy"}


def test_who_does_not_learn_in_a_move_is_frozen_with_its_statistics() -> None:
    stage = turns([], apart=True)
    loop = loop_of(stage, steps=3)
    before = {
        name: {key: value.clone() for key, value in net.state_dict().items()} for name, net in stage.networks.items()
    }
    for step in loop.run(Stream()):
        if step == 3:
            assert equal(before["dam"], stage.networks["dam"].state_dict())
            between = {key: value.clone() for key, value in stage.networks["proxy"].state_dict().items()}
            assert not equal(before["proxy"], between)
    assert equal(between, stage.networks["proxy"].state_dict())
    assert not equal(before["dam"], stage.networks["dam"].state_dict())
    assert set(loop.moments()) == {"dam", "proxy"}
    assert all(loop.moments().values())
    loop.close()
    assert all(parameter.requires_grad for net in stage.networks.values() for parameter in net.parameters())


@pytest.mark.parametrize(("dims", "size"), [(1, (32,)), (2, (16, 16)), (3, (8, 8, 8))])
def test_with_channels_last_a_step_is_the_same_but_for_rounding(dims: int, size: tuple[int, ...]) -> None:
    class Images:
        def __getitem__(self, step: int) -> Batch:
            return Batch(torch.randn(4, 1, *size, generator=torch.Generator().manual_seed(step)), torch.arange(4) % 2)

    def run(*, channels_last: bool) -> Loop:
        torch.manual_seed(1)
        network = models.create_model("unet", spatial_dims=dims, in_channels=1, classes=2, width=4, depth=1)
        layouts: list[bool] = []

        def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
            layouts.append(batch.images.stride(1) == 1)
            prediction = forward("dam", batch.images).prediction
            return {"ce": Term(nn.functional.cross_entropy(prediction.flatten(2).mean(2), batch.targets))}

        stage = one_step_stage({"dam": network}, ("dam",), losses)
        seed = lambda *parts: derive("stage", *parts)  # noqa: E731
        loop = Loop(stage, WORK, steps=1, device=CPU, precision="fp32", seed=seed, channels_last=channels_last)
        assert list(loop.run(Images())) == [1]
        assert layouts == [channels_last and dims > 1]
        return loop

    plain, loop = run(channels_last=False), run(channels_last=True)
    assert loop.losses() == pytest.approx(plain.losses(), rel=1e-5)
    assert all(tensor.is_contiguous() for tensor in loop.networks()["dam"].values())
    for name, tensor in loop.moments()["dam"].items():  # of gradients: Adam turns rounding near 0 into a whole step
        torch.testing.assert_close(tensor, plain.moments()["dam"][name], rtol=1e-3, atol=1e-6)
