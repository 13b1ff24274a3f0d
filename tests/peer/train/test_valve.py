"""The valve: what a plan does not declare is not there for its stage, and nothing leaves without noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from peer.core.commands import Train
from peer.core.plan import Learning, Plan
from peer.core.privacy import Noise
from peer.core.seeds import derive
from peer.methods.averaging.plan import FEDAVG
from peer.methods.ditto.plan import DITTO
from peer.methods.method import DAM, Batch, Forward, Method, Stage, StageContext, Step, Term, one_step_stage
from peer.methods.pooled_head.plan import POOLED_HEAD
from peer.methods.registry import PLANS
from peer.methods.statistics.plan import STATISTICS
from peer.train.errors import UnusableConfigurationError
from peer.train.loop import Loop
from peer.train.noise import StageNoise
from peer.train.person_batches import PersonBatches, PersonSamples
from peer.train.valve import UndeclaredReadError, Valve, hand_over

NOISE = Noise(8.0, 0.005, 1.0, 4, 3)
TEACHER = "global"
"""A network of DITTO's name, so that its plan declares it."""
BATCH = Batch(torch.randn(1, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([1]))
ONE_PERSON = Batch(torch.ones(1, 4), torch.tensor([0]))


def layer(seed: int) -> nn.Linear:
    torch.manual_seed(seed)
    return nn.Linear(4, 3)


def context(**fields: Any) -> StageContext:
    networks = {DAM: layer(0), TEACHER: layer(1)}
    return StageContext("a", "classification", {}, networks, {}, **fields)


def valve(plan: Plan, *stages: tuple[str, Callable[[StageContext], Stage]]) -> Valve:
    settings: Any = SimpleNamespace(plan=plan, noise=NOISE, noise_key=b"k" * 32, method="ours", parameters={}, site="a")
    return Valve(settings, Method(stages=dict(stages)))


def command(stage: str) -> Train:
    return Train(1, 1, 1, stage=stage, base="", sources=())


def cross_entropy(forward: Forward, name: str, batch: Batch) -> Term:
    return Term(nn.functional.cross_entropy(forward(name, batch.images), batch.targets))


def distilled(read: Callable[[StageContext, Forward, Batch], Tensor], trains: tuple[str, ...] = (TEACHER, DAM)) -> Any:
    """A stage in which both networks learn the labels, and the one that leaves also what is read of the other."""

    def stage(context: StageContext) -> Stage:
        def losses(batch: Batch, forward: Forward) -> Mapping[str, Term]:
            terms = {name: cross_entropy(forward, name, batch) for name in trains}
            student = forward(TEACHER, batch.images)
            return terms | {"distillation": Term((student - read(context, forward, batch)).square().mean())}

        return one_step_stage({name: context.networks[name] for name in trains}, trains, losses)

    return stage


def hard_labels(context: StageContext, forward: Forward, batch: Batch) -> Tensor:
    return nn.functional.one_hot(forward(DAM, batch.images).argmax(1), 3).float()


READS: dict[str, Callable[[StageContext, Forward, Batch], Tensor]] = {
    "a teacher": lambda context, forward, batch: forward(DAM, batch.images).detach(),
    "weights": lambda context, forward, batch: context.networks[DAM].weight.detach().mean() + 0 * batch.images[:, :3],
    "labels of a teacher": hard_labels,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_stage_that_teaches_what_leaves_in_secret_is_refused(read: Any) -> None:
    """The plan says that both networks learn from labels alone; a loss of one step reads the other."""
    guard = valve(DITTO, ("train", distilled(read)))
    with pytest.raises(UndeclaredReadError, match=r"stage 'train' trains global with what it reads of dam, which its"):
        guard.build(command("train"), context(), lambda: BATCH)


def test_a_stage_that_keeps_to_its_plan_is_built_and_nothing_is_changed() -> None:
    given = context()
    tensors = [tensor for network in given.networks.values() for tensor in network.parameters()]
    before, state = [tensor.clone() for tensor in tensors], torch.random.get_rng_state()
    alone = distilled(lambda context, forward, batch: torch.zeros(1, 3))
    stage = valve(DITTO, ("train", alone)).build(command("train"), given, lambda: BATCH)
    assert stage.networks[DAM] is given.networks[DAM]
    assert all(map(torch.equal, tensors, before))
    assert all(tensor.grad is None and tensor.requires_grad for tensor in tensors)
    assert torch.equal(torch.random.get_rng_state(), state)


def pull(stage: Stage) -> None:
    for mine, private in zip(stage.networks[TEACHER].parameters(), stage.networks[DAM].parameters(), strict=True):
        assert mine.grad is not None
        mine.grad += mine.detach() - private.detach()


def copy_weights(stage: Stage) -> None:
    stage.networks[TEACHER].load_state_dict(stage.networks[DAM].state_dict())


@pytest.mark.parametrize("hook", [pull, copy_weights])
def test_what_a_step_does_after_its_losses_is_rehearsed_too(hook: Callable[[Stage], None]) -> None:
    honest = distilled(lambda *_: torch.zeros(1, 3))

    def build(context: StageContext) -> Stage:
        stage: Stage = honest(context)
        ((step,),) = stage.passes
        after = dataclasses.replace(step, after_backward=lambda: hook(stage))
        return dataclasses.replace(stage, passes=((after,),))

    with pytest.raises(UndeclaredReadError, match=r"trains global with what it reads of dam"):
        valve(DITTO, ("train", build)).build(command("train"), context(), lambda: BATCH)


def test_a_stage_that_reads_more_once_it_has_received_something_is_refused_then() -> None:
    def late(context: StageContext, forward: Forward, batch: Batch) -> Tensor:
        return forward(DAM, batch.images).detach() if context.round > 1 else torch.zeros(1, 3)

    guard = valve(DITTO, ("train", distilled(late)))
    guard.build(command("train"), context(round=1), lambda: BATCH)
    with pytest.raises(UndeclaredReadError, match=r"trains global with what it reads of dam"):
        guard.build(command("train"), context(round=2), lambda: BATCH)


def test_a_stage_without_noise_on_any_network_reads_no_sample() -> None:
    personal = dataclasses.replace(
        DITTO,
        phases=(*DITTO.phases, "train:personal"),
        stages={**DITTO.stages, "personal": DITTO.stages["train"]},
        learning={**DITTO.learning, "personal": (Learning((DAM,), reads=(TEACHER,)),)},
    )
    alone: Any = lambda context: one_step_stage(dict(context.networks), (DAM,), dict)  # noqa: E731
    guard, samples = valve(personal, ("personal", alone), ("train", distilled(lambda *_: torch.zeros(1, 3)))), [BATCH]
    guard.build(command("personal"), context(), samples.pop)
    assert samples
    guard.build(command("train"), context(), samples.pop)
    assert not samples


def test_a_network_that_the_stage_does_not_declare_is_not_there() -> None:
    plan = dataclasses.replace(
        FEDAVG,
        phases=("train", "train:again", *FEDAVG.phases[1:]),
        stages={"train": FEDAVG.stages["train"], "again": FEDAVG.stages["train"]},
        learning={"train": (Learning((DAM,)),), "again": (Learning((TEACHER,)),)},
    )
    handed = hand_over(plan, "train", context())
    assert list(handed.networks) == [DAM]
    assert len(handed.networks) == 1
    assert handed.dam is not None
    for read in (
        lambda: handed.networks[TEACHER],
        lambda: TEACHER in handed.networks,
        lambda: handed.networks.get(TEACHER),
    ):
        with pytest.raises(
            UndeclaredReadError, match="stage 'train' reads the network 'global', which its plan does not"
        ):
            read()
    declared = dataclasses.replace(plan, learning={**plan.learning, "train": (Learning((DAM,), reads=(TEACHER,)),)})
    assert set(hand_over(declared, "train", context()).networks) == {DAM, TEACHER}
    assert set(hand_over(FEDAVG, "train", context()).networks) == {DAM, TEACHER}, "nobody here has shaped the other"


READERS: dict[str, Callable[[StageContext], object]] = {
    "samples": lambda context: list(context.samples()),
    "people": lambda context: list(context.people()),
    "validation_samples": lambda context: list(context.validation_samples()),
    "records": lambda context: context.records(),
    "classes_present": lambda context: sorted(context.classes_present),
    "class count": lambda context: len(context.classes_present),
    "class": lambda context: 1 in context.classes_present,
}
OF_ALL = {"samples", "people"}
"""What a stage that sums over people is for."""
CLASSES = {"classes_present", "class count", "class"}


@pytest.mark.parametrize(
    ("plan", "stage", "may"),
    [(FEDAVG, "train", set()), (POOLED_HEAD, "sums", OF_ALL), (STATISTICS, "count", READERS.keys() - CLASSES)],
    ids=["steps", "sums", "sums of everybody"],
)
def test_all_people_at_once_are_there_for_sums_alone(plan: Plan, stage: str, may: set[str]) -> None:
    handed = hand_over(plan, stage, context(classes_present=(0, 1)))
    for name, read in READERS.items():
        if name in may:
            read(handed)
        else:
            with pytest.raises(UndeclaredReadError, match=f"stage '{stage}' reads "):
                read(handed)


def test_a_stage_whose_result_stays_gets_all() -> None:
    guard = valve(
        PLANS["fedavg_ft"], ("finetune", lambda context: one_step_stage({"x": context.networks[TEACHER]}, (), len))
    )  # type: ignore[arg-type]
    assert guard.build(command("finetune"), context(), lambda: BATCH).networks.keys() == {"x"}


class Table(nn.Module):
    """A table of sums, and the number of sites."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(5))
        self.register_buffer("count", torch.ones((), dtype=torch.int64))


@pytest.mark.parametrize("mistake", ["", "no noise", "noise on a part", "changed afterwards", "a count of people"])
def test_sums_without_noise_do_not_leave(mistake: str) -> None:
    sent, held = Table(), list[StageContext]()
    guard = valve(STATISTICS, ("count", lambda context: held.append(context) or one_step_stage({}, (), len)))  # type: ignore[func-returns-value, arg-type]
    guard.build(command("count"), context(), lambda: BATCH)
    noise = held[0].noise
    assert noise is not None
    size = 3 if mistake == "noise on a part" else 5
    if mistake != "no noise":
        (drawn,) = noise.draw([sent.table[:size]], [torch.full((size,), 9.0)])
        sent.table[:size] += drawn
    if mistake == "changed afterwards":
        sent.table[0] += 1
    if mistake == "a count of people":
        sent.count.fill_(17)
    loop: Any = None
    if not mistake:
        guard.confirm(command("count"), loop, sent)
        return
    tensor = "count" if "count" in mistake else "table"
    with pytest.raises(UnusableConfigurationError, match=f"stage 'count' sends the tensor '{tensor}' without noise"):
        guard.confirm(command("count"), loop, sent)


class People(PersonBatches):
    """The same person at every step."""

    def __init__(self) -> None:
        """Read nothing."""

    def at(self, step: int) -> Any:
        yield PersonSamples("one", ((ONE_PERSON, 1.0),))

    def __getitem__(self, step: int) -> Batch:
        return ONE_PERSON


class Bare:
    """The same as a batch, which gets no noise."""

    def __getitem__(self, step: int) -> Batch:
        return ONE_PERSON


@pytest.mark.parametrize(
    ("batches", "first"), [(People(), 0), (People(), 2), (Bare(), 0)], ids=["all", "resumed", "bare"]
)
def test_steps_without_noise_do_not_leave(batches: Any, first: int) -> None:
    guard = valve(FEDAVG, ("train", lambda context: Stage(
        {DAM: context.dam}, ((Step((DAM,), lambda batch, forward: {"loss": cross_entropy(forward, DAM, batch)}),),)
    )))  # fmt: skip
    stage = guard.build(command("train"), context(), lambda: BATCH)
    loop = Loop(
        stage, FEDAVG.stages["train"], steps=4, device=torch.device("cpu"), precision="fp32",
        seed=lambda *parts: derive("stage", *parts), noise=StageNoise(NOISE, frozenset({DAM}), b"k" * 32, "1/train"),
    )  # fmt: skip
    if first:
        loop.resume(first, {})
    assert (loop.noised_steps, loop.noised_steps_from(first)) == (4, 4 - first)
    list(loop.run(batches))
    if isinstance(batches, PersonBatches):
        assert loop.releases == 4 - first
        guard.confirm(command("train"), loop, stage.networks[DAM])
        return
    with pytest.raises(UnusableConfigurationError, match=r"stage 'train' took 4 steps, 4 of them without noise"):
        guard.confirm(command("train"), loop, stage.networks[DAM])
