"""A plan that contradicts itself is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peer.core.plan import Learning, Parameter, Plan, Work
from peer.methods.method import Method
from peer.methods.registry import PLANS


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"implementation": "peer.methods.fedskd.stages"}, "must be module:OBJECT, not 'peer.methods.fedskd.stages'"),
        ({"stages": {"other": Work("step", 1, 0.1)}}, r"phases name the stages \['train'\], the table has \['other'\]"),
        ({"parameters": {"package": Parameter(1, "")}}, "a parameter must not be called 'package'"),
        ({"circulating_share": "rho"}, "there is no parameter 'rho'"),
        ({"visits": "activation"}, "the pattern `visit`, and no other, has a parameter"),
        ({"final_rates": {"other": 0.1}}, "final_rates: there is no stage 'other'"),
        ({"earlier_defaults": {"method.visits": 2}}, "earlier_defaults: there is no key 'method.visits'"),
        ({"earlier_defaults": {"stages.train.rate": 0.1}}, "earlier_defaults: there is no key 'stages.train.rate'"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        replace(PLANS["fedskd"], **changes)


def sends_a_student(*teacher: str, **changes: Any) -> Plan:
    """ProxyFL, whose proxy learns from these networks, and the local model from labels."""
    learning = {"train": (Learning(("proxy",), reads=teacher), Learning(("dam",)))}
    return replace(PLANS["proxyfl"], **{"learning": learning, **changes})


def test_a_private_teacher_of_what_is_sent_trains_with_noise_too() -> None:
    """The trap: noise in the student alone, whose teacher knows every person, protects nobody."""
    assert sends_a_student().noised == {"proxy"}
    assert sends_a_student("dam").noised == {"proxy", "dam"}
    assert sends_a_student("dam").noised_at_home == ("model",)


def test_teachers_of_teachers_train_with_noise_and_so_does_what_trains_beside_them() -> None:
    steps = (Learning(("proxy",), reads=("dam",)), Learning(("dam", "adapter"), reads=("attention",)))
    assert sends_a_student(learning={"train": steps}).noised == {"proxy", "dam", "adapter", "attention"}


def test_a_student_of_what_is_sent_trains_without_noise() -> None:
    steps = (Learning(("proxy",)), Learning(("dam",), reads=("proxy",)))
    assert sends_a_student(learning={"train": steps}).noised == {"proxy"}


def test_the_network_from_which_a_table_is_computed_trains_with_noise() -> None:
    steps = (Learning(("dam",)), Learning((), reads=("dam",), computes=("proxy",)))
    plan = sends_a_student(learning={"train": steps})
    assert (plan.noised, plan.noised_at_home) == ({"proxy", "dam"}, ("model",))
    assert plan.noised_steps({"train": 10}, rounds=3) == 30  # a table takes no step


@pytest.mark.parametrize(
    "steps",
    [
        (Learning(("twin", "visitor"), reads=("dam",)), Learning(("dam",))),
        (Learning(("dam", "twin", "visitor")),),
        (Learning(("twin", "visitor"), reads=("head",)), Learning(("head",), reads=("dam",)), Learning(("dam",))),
    ],
)
def test_a_twin_that_learns_from_the_personal_model_is_refused_at_load(steps: tuple[Learning, ...]) -> None:
    plan = PLANS["fedvisit_twin"]
    assert (plan.noised, plan.noised_at_home) == ({"twin", "visitor"}, ())
    with pytest.raises(ValueError, match="personal: what travels learns from the network 'dam', which has no noise"):
        replace(plan, learning={"train": steps})


def test_a_plan_without_a_declaration_takes_no_noise() -> None:
    reason = "does not declare what its stages learn from (`learning` and `travels` of its plan)"
    assert sends_a_student(learning={}, travels=()).noise_problem({}) == reason
    assert sends_a_student(travels=()).noise_problem({}) == reason
    assert sends_a_student().noise_problem({}) is None


def test_what_couples_people_is_refused_with_the_value() -> None:
    plan = sends_a_student(couples={"alpha": (0.5, 1.0)})
    assert plan.noise_problem({}) == "has losses of one person that depend on the data of others with alpha = 0.5"
    assert plan.noise_problem({"alpha": 0.25}) is None
    assert replace(plan, unnoised="its reason").noise_problem({"alpha": 0.25}) == "its reason"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learning": {"training": ()}}, r"learning names the stages \['training'\], the table has \['train'\]"),
        ({"couples": {"beta": (1.0,)}}, "couples: there is no parameter 'beta'"),
        ({"travels": ("proxy", "messenger")}, "travels: no stage whose results may leave changes the network 'messeng"),
    ],
)
def test_a_declaration_with_an_unknown_name_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        sends_a_student(**changes)


def test_what_trains_in_the_last_round_alone_leaves_nothing() -> None:
    plan = PLANS["fedavg_ft"]
    assert plan.noised_stages == ("train",)
    assert plan.noised_steps({"train": 5, "finetune": 60}, rounds=10) == 45
    with pytest.raises(ValueError, match="no stage whose results may leave changes the network 'other'"):
        replace(plan, travels=("other",), learning={**plan.learning, "finetune": (Learning(("other",)),)})


def test_steps_with_noise_are_counted_for_each_stage_that_takes_some() -> None:
    counts = {"head": 10, "body": 7, "calibrate": 3}
    assert PLANS["fedrep"].noised_steps(counts, rounds=2) == 34
    assert PLANS["lc_fed"].noised_steps(counts, rounds=2) == 34
    assert PLANS["ditto"].noised_steps({"train": 5}, rounds=2) == 10
    assert PLANS["fedvisit_twin"].noised_steps({"train": 5}, rounds=2) == 10
    assert PLANS["feddal"].noised_steps({"train": 5}, rounds=2) == 20


def test_a_stage_that_trains_otherwise_than_declared_is_named() -> None:
    plan = PLANS["fedvisit"]
    for steps in ([("dam", "visitor-alpha")], [("dam",)], []):
        assert plan.training_problem("train", steps) is None
    assert plan.training_problem("train", [("dam", "proxy")]) == (
        "stage 'train' trains proxy, which `learning` of its plan does not name"
    )
    assert plan.training_problem("train", [("dam",), ("visitor-alpha",)]) == (
        "stage 'train' takes 2 steps with noise on a batch, and `learning` of its plan names 1"
    )


def test_a_method_that_sends_what_its_plan_does_not_name_is_refused() -> None:
    plan = replace(PLANS["scaffold"], travels=("dam",))
    with pytest.raises(ValueError, match="SCAFFOLD sends 'control', which the plan's travels does not name"):
        Method.of(plan)


def test_only_sums_that_a_stage_publishes_have_a_sensitivity() -> None:
    plan = PLANS["pooled_head"]
    assert plan.noised_steps({"sums": 1, "solve": 1}, rounds=1) == 1
    assert plan.noised_stages == ("sums",)
    for changes in ({"artifact": "model"}, {"published": "commit"}):
        with pytest.raises(ValueError, match="sensitivity is of sums that a stage publishes"):
            replace(plan, **changes)
    with pytest.raises(ValueError, match="everybody is of sums that have a sensitivity"):
        replace(PLANS["fedavg"], everybody=True)


def test_a_rate_falls_to_its_final_share_in_the_last_round_whatever_the_number_of_rounds() -> None:
    plan = PLANS["fedvisit"]
    for rounds in (2, 12, 100):
        work = replace(plan.stages["train"], decay=plan.default_decay("train", rounds))
        shares = [work.in_round(round).learning_rate / work.learning_rate for round in (1, rounds)]
        assert shares == [1.0, pytest.approx(plan.final_rates["train"], rel=0.01)]
    assert PLANS["fedavg"].default_decay("train", 100) == 1.0
