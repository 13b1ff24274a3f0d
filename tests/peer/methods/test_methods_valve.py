"""What leaves a site learns from nothing that this site's people have shaped without noise: the plans say so, and the
gradients of their stages agree.

Gradients are those of training with noise: the losses of one person at a time, then ``after_backward`` once. All
networks are in evaluation mode, since batch normalisation is refused there.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import models
from fakes.two_layers import TwoLayers
from models.moe import Expert, Mixture
from peer.core.plan import Learning
from peer.methods.method import HEAD, VISITOR, Batch, Record, Stage, Step, visitor_name
from peer.methods.registry import PLANS
from peer.train.valve import hand_over

GOLDEN = Path(__file__).with_name("methods_valve.json")
"""By plan with its defaults: what trains with noise, and tables from it; or why no noise helps."""
UNCOUPLED: dict[str, dict[str, Any]] = {
    "dfml": {"absent_classes": "in"},
    **{name: {"public_batch": 2} for name in ("fedmd", "feddf", "pfeddf", "ds_pfl", "kt_pfl")},
}
"""Parameters with which a plan takes noise that refuses it with its defaults."""

PRIVATE = [name for name, plan in PLANS.items() if plan.noised and not plan.noise_problem(UNCOUPLED.get(name, {}))]
STAGES = [(name, stage) for name in PRIVATE for stage in PLANS[name].noised_stages]
PINNED = {"public"}
"""The public images."""

DRAW = torch.Generator().manual_seed(0)
PEOPLE = [
    Batch(torch.randn(2, 1, 32, generator=DRAW).double(), torch.tensor(targets))
    for targets in ([0, 1], [2, 2], [1, 1], [0, 2])
]
"""Four people with two images each."""
PERSON, OTHERS = PEOPLE[0], PEOPLE[1:3]
TOGETHER = Batch(torch.cat([each.images for each in PEOPLE]), torch.cat([each.targets for each in PEOPLE]))


def task_of(name: str) -> str:
    return "segmentation" if "classification" in PLANS[name].not_for else "classification"


def network(seed: int, kind: str) -> models.Network:
    torch.manual_seed(seed)
    if kind == "classification":
        return TwoLayers(seed)
    architecture, hyper = ("unet", {"depth": 1}) if kind == "segmentation" else ("resnet10", {})
    return models.create_model(architecture, spatial_dims=1, in_channels=1, classes=3, width=4, **hyper)


def join(people: Sequence[Batch], kind: str) -> Batch:
    """One batch of these people for networks of this kind."""
    images, targets = (torch.cat([getattr(each, key) for each in people]) for key in ("images", "targets"))
    if kind == "segmentation":
        targets = (torch.arange(32) + targets[:, None]) % 3
    return Batch(images[..., :5] if kind == "classification" else images, targets)


@pytest.fixture
def make_scene(make_site: Any) -> Callable[..., Any]:
    """Makes a site under a method that two others have sent something to; two scenes are alike to the bit."""

    def make(name: str, kind: str = "", **parameters: Any) -> Any:
        task, other_sites = task_of(name), ("alpha", "gamma")
        kind = kind or task
        received: dict[str, Any] = {site: network(20 + i, kind) for i, site in enumerate(other_sites)}
        if PLANS[name].artifact == "head":
            received = {site: each.head for site, each in received.items()}
        if name == "dflmoe_averaged":
            received = {site: Expert(head, mixture(site, head)) for site, head in received.items()}
        site = make_site(
            name, network(0, kind).double(), join(PEOPLE, kind).images, shared=lambda: network(9, kind).double(),
            received=received, task=task, **{**UNCOUPLED.get(name, {}), **parameters},
        )  # fmt: skip
        if (table := site.context.networks.get("predictions")) is not None:
            draw = torch.Generator().manual_seed(5)
            for origin in other_sites:
                site.context.received[origin] = models.build(table.spec)
            for each in (table, *site.context.received.values()):
                each.network.logits.copy_(torch.randn(each.network.logits.shape, generator=draw))
                each.network.taken.fill_(1)
        site.context, site.plan, site.kind = dataclasses.replace(site.context, round=3), PLANS[name], kind
        site.exact()
        if "coefficients" in site.context.networks:  # KT-pFL mixes float32 predictions
            site.context.networks["coefficients"].float()
        return site

    return make


def mixture(site: str, head: nn.Module) -> Mixture:
    torch.manual_seed(40)
    mixed = Mixture(own=site, features=head.get_parameter("weight").shape[1], classes=3)
    mixed.add_expert("beta", mixed.features)
    return mixed


def perturb(site: Any, names: Iterable[str]) -> None:
    """Move every tensor of the networks far."""
    draw = torch.Generator().manual_seed(6)
    visitors = nn.ModuleDict(site.context.received) if VISITOR in names else None
    for name in names:
        module = {HEAD: site.context.dam.head, VISITOR: visitors}.get(name) or site.context.networks[name]
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.randn(tensor.shape, generator=draw, dtype=tensor.dtype) * 2)
            else:
                tensor.copy_(1 - tensor.long())


def steps_of(stage: Stage) -> list[Step]:
    return [step for steps in stage.passes for step in steps]


def learn(site: Any, name: str, people: Sequence[Batch]) -> dict[str, Tensor]:
    """The last person's gradients in each optimiser step of a stage, and the tables that it leaves, by network."""
    stage = site.method.stages[name](site.context)
    trainable = {key: [p for p in each.parameters() if p.requires_grad] for key, each in stage.networks.items()}

    def forward(network: str, *inputs: Any, part: str = "") -> Any:
        module = stage.networks[network]
        return (module.get_submodule(part) if part else module)(*inputs)

    learnt = {}
    for number, step in enumerate(steps_of(stage)):
        for key, parameters in trainable.items():
            for parameter in parameters:
                parameter.requires_grad_(key in step.trains)
        for person in people:
            for parameter in (p for parameters in trainable.values() for p in parameters):
                parameter.grad = None
            terms = step.losses(join([person], site.kind), forward)
            if step.trains:
                torch.autograd.backward(torch.stack([term.value * term.weight for term in terms.values()]).sum())
        if step.trains:
            step.after_backward()
        for key in step.trains:
            for parameter_name, parameter in stage.networks[key].named_parameters():
                if parameter.grad is not None:
                    learnt[f"{bare(key)}/{number}/{key}/{parameter_name}"] = parameter.grad.clone()
    for key in {name for each in site.plan.learning[name] for name in each.computes}:
        for tensor_name, tensor in site.context.networks[key].state_dict().items():
            learnt[f"{key}/{tensor_name}"] = tensor.clone()
    return learnt


def bare(name: str) -> str:
    """The name of a network as plans have it."""
    return "visitor" if name.startswith(visitor_name("")) else name


def of(names: Iterable[str], learnt: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in learnt.items() if key.partition("/")[0] in names}


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[key]) for key, tensor in one.items())


def test_each_plan_says_what_trains_with_noise(rewrite: bool) -> None:
    """``--rewrite-scenarios`` writes the file as the plans are now; read the difference first."""
    noised = {name: plan.noise_problem(plan.defaults()) or sorted(plan.noised) for name, plan in PLANS.items()}
    if rewrite:
        GOLDEN.write_text(json.dumps(noised, indent=1) + "\n")
    assert noised == json.loads(GOLDEN.read_text())
    for name, parameters in UNCOUPLED.items():
        assert PLANS[name].noise_problem(parameters) is None


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_what_leaves_does_not_depend_on_what_trains_without_noise(make_scene: Any, name: str, stage: str) -> None:
    as_is, other = make_scene(name), make_scene(name)
    perturb(other, other.context.networks.keys() - PLANS[name].noised - PINNED)
    expected = of(PLANS[name].noised, learn(as_is, stage, [PERSON]))
    assert equal(expected, of(PLANS[name].noised, learn(other, stage, [PERSON])))
    assert {key.partition("/")[0] for key in expected} == {
        each for step in PLANS[name].learning[stage] for each in step.changes if each in PLANS[name].noised
    }


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_a_stage_needs_nothing_but_what_its_plan_declares(make_scene: Any, name: str, stage: str) -> None:
    expected, site = learn(make_scene(name), stage, [PERSON]), make_scene(name)
    site.context = hand_over(PLANS[name], stage, site.context)
    assert equal(expected, learn(site, stage, [PERSON]))


def test_there_are_networks_without_noise_to_depend_on(make_scene: Any) -> None:
    without = {name: set(make_scene(name).context.networks) - PLANS[name].noised - PINNED for name in PRIVATE}
    assert {name: networks for name, networks in without.items() if networks} == {
        "fedvisit_twin": {"dam"},
        "ditto": {"dam"},
        "apfl": {"dam", "share"},
        "fedsm": {"personals"},
        "lc_fed": {"heads", "calibration"},
        "dfml": {"peak"},
    }


@pytest.mark.parametrize(
    ("name", "stage", "step", "read"),
    [
        (name, stage, number, read)
        for name in PRIVATE
        for stage, steps in PLANS[name].learning.items()
        for number, step in enumerate(steps)
        for read in step.reads
    ],
)
def test_each_network_that_a_plan_says_is_read_is_read(
    make_scene: Any, name: str, stage: str, step: int, read: str
) -> None:
    """So a plan without one of them would have failed above, or trains more with noise than it must."""
    as_is, other = make_scene(name), make_scene(name)
    perturb(other, [read])
    changes = PLANS[name].learning[stage][step].changes - {read}
    assert not equal(of(changes, learn(as_is, stage, [PERSON])), of(changes, learn(other, stage, [PERSON])))


@pytest.mark.parametrize(
    ("name", "read", "trained"),
    [("proxyfl", "dam", "proxy"), ("proxyfl", "proxy", "dam"), ("scaffold", "own_control", "dam")],
)
def test_networks_of_one_step_read_each_other(make_scene: Any, name: str, read: str, trained: str) -> None:
    as_is, other = make_scene(name), make_scene(name)
    perturb(other, [read])
    assert not equal(of([trained], learn(as_is, "train", [PERSON])), of([trained], learn(other, "train", [PERSON])))


def among_others(site: Any) -> Any:
    """The site with other people: their samples before this person's, another mix of classes, other records."""
    samples = [(each.images[:1], each.targets[:1]) for each in OTHERS]
    site.context = dataclasses.replace(
        site.context,
        classes_present=(1, 2),
        samples=lambda: samples,
        validation_samples=lambda: samples,
        records=lambda: [Record("p1", (1.0,), 1)],
        count_min=7,
    )
    return site


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_a_persons_gradient_is_the_same_whoever_else_is_there(make_scene: Any, name: str, stage: str) -> None:
    alone = learn(make_scene(name), stage, [PERSON])
    assert equal(alone, learn(among_others(make_scene(name)), stage, [*OTHERS, PERSON]))


@pytest.mark.parametrize(("name", "stage"), STAGES)
def test_losses_are_means_over_people(make_scene: Any, name: str, stage: str) -> None:
    """The gradient of a batch is the mean of its people's: no term compares two of them."""
    of_batch = of_people(learn(make_scene(name), stage, [TOGETHER]))
    singles = [of_people(learn(make_scene(name), stage, [person])) for person in PEOPLE]
    for key, gradient in of_batch.items():
        mean = torch.stack([each[key] for each in singles]).mean(0)
        torch.testing.assert_close(gradient, mean, rtol=1e-4, atol=1e-6)


def of_people(learnt: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The gradients alone: control variates hold steps and correct the gradient alike for all."""
    return {key: tensor for key, tensor in learnt.items() if len(key.split("/")) > 3}


COUPLED = [
    ("fedvisit", "distillation", "similarity", "train"),
    ("fedvisit", "distillation", "both", "train"),
    ("dfml", "absent_classes", "left_out", "train"),
    ("fedmd", "public_batch", 0, "digest"),
    ("feddf", "public_batch", 0, "fuse"),
    ("pfeddf", "public_batch", 0, "digest"),
    ("ds_pfl", "public_batch", 0, "digest"),
    ("kt_pfl", "public_batch", 0, "digest"),
]


def test_these_values_couple_people() -> None:
    coupled = {
        (name, key, value) for name, plan in PLANS.items() for key in plan.couples for value in plan.couples[key]
    }
    assert coupled == {case[:3] for case in COUPLED}


@pytest.mark.parametrize(("name", "parameter", "value", "stage"), COUPLED)
def test_what_a_plan_says_couples_people_couples_them(
    make_scene: Any, name: str, parameter: str, value: Any, stage: str
) -> None:
    scene = partial(make_scene, name, "stages" if name == "fedvisit" else "", **{parameter: value})
    alone = learn(scene(), stage, [PERSON])
    singles = [of_people(learn(scene(), stage, [person])) for person in PEOPLE]
    of_batch = of_people(learn(scene(), stage, [TOGETHER]))
    gaps = [torch.stack([each[key] for each in singles]).mean(0) - gradient for key, gradient in of_batch.items()]
    compares = max(float(gap.abs().max()) for gap in gaps) > 1e-3
    assert compares == (name != "dfml")
    assert equal(alone, learn(among_others(scene()), stage, [*OTHERS, PERSON])) == (name == "fedvisit")


@pytest.mark.parametrize("name", PRIVATE)
def test_stages_take_the_steps_that_plans_declare(make_scene: Any, name: str) -> None:
    plan = PLANS[name]
    for stage, declared in plan.learning.items():
        site = make_scene(name)
        built = site.method.stages[stage](site.context)
        batches = list(built.passes) if built.divides else [tuple(steps_of(built))]
        for steps in batches:
            trains = [step.trains for step in steps]
            assert plan.training_problem(stage, trains) is None
            if name != "dfml":  # one step trains all visitors
                trained = Counter(bare(each) for names in trains for each in names)
                assert trained == Counter(each for step in declared for each in step.trains)
            if stage in plan.noised_stages:
                noised = sum(1 for names in trains if plan.noised & set(map(bare, names)))
                assert noised == plan.noised_steps(
                    {**dict.fromkeys(plan.stages, 0), stage: 1}, rounds=1 + bool(plan.last_round)
                )


@pytest.mark.parametrize("name", PRIVATE)
def test_a_plan_says_if_a_part_of_what_leaves_stays(make_scene: Any, name: str) -> None:
    site = make_scene(name, "" if name == "lc_fed" else "stages")  # FedBN's networks have normalisation layers
    method, sent = site.method, site.context.networks[site.method.artifact_network]
    sends_all = set(method.artifact_tensors(sent, site.context.parameters)) == set(sent.state_dict())
    plan = PLANS[name]
    assert sends_all != bool(plan.keeps or (plan.artifact == "model" and "head" in plan.never_leaves))


def test_a_plan_that_hides_a_private_teacher_is_seen_by_these_tests(make_scene: Any) -> None:
    hidden = dataclasses.replace(PLANS["feddal"], learning={"train": (Learning(("proxy",)), Learning(("dam",)))})
    assert hidden.noised == {"proxy"}
    as_is, other = make_scene("feddal"), make_scene("feddal")
    perturb(other, other.context.networks.keys() - hidden.noised - PINNED)
    assert not equal(of(["proxy"], learn(as_is, "train", [PERSON])), of(["proxy"], learn(other, "train", [PERSON])))
