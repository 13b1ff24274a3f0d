"""Statistics with noise: nobody changes a table by more than the plan says, and errors are those of the figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, TimeToEvent
from peer.methods.method import DAM, Batch, BuildContext, Record, StageContext
from peer.methods.statistics.counts import COUNT_MAX, UNIT, count_records
from peer.methods.statistics.noisy_summary import standard_error, summarise_people
from peer.methods.statistics.person_sums import (
    add_noise,
    deviation_of,
    length_max,
    list_places,
    sum_people,
    unit_in_people,
)
from peer.methods.statistics.plan import STATISTICS as PLAN
from peer.methods.statistics.stages import OWN, STATISTICS, SUMS, build_table, describe, find_impossible
from peer.methods.statistics.summary import summarise
from peer.methods.statistics.variables import Variable, list_variables, values_of

COLUMNS = (
    TableColumn("age", "number", (20.0, 90.0), unit="years"),
    TableColumn("smoker", "flag"),
    TableColumn("pain", "category", levels=("none", "some", "severe")),
)
SURVIVAL = Target("survival", times=(6.0, 12.0, 24.0), unit="months", horizon=12.0)
VARIABLES = {target.kind: list_variables(COLUMNS, target, ("healthy", "ill"), 2, 7) for target in (CLASS, SURVIVAL)}


class Draws:
    """Noise of a known deviation, drawn anew at each call."""

    bound = PLAN.sensitivity

    def __init__(self, multiplier: float, seed: int = 0) -> None:
        self.multiplier, self._draw = multiplier, np.random.default_rng(seed)

    def draw(self, sums: Sequence[torch.Tensor], scales: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.from_numpy(np.rint(self._draw.normal(0, each.numpy())).astype(np.int64)) for each in scales]


def patients(count: int, target: Target = CLASS, *, seed: int = 0, name: str = "p") -> list[Record]:
    draw = np.random.default_rng(seed)
    return [
        Record(
            f"{name}{index}",
            (
                math.nan if draw.random() < 0.1 else min(90.0, max(20.0, draw.normal(55, 9))),
                float(draw.random() < 0.3),
                float(draw.choice(3, p=[0.6, 0.3, 0.1])),
            ),
            int(draw.random() < 0.4) if target is CLASS else TimeToEvent(draw.exponential(15), draw.random() < 0.5),
        )
        for index in range(count)
    ]


def tabulate(records: Sequence[Record], target: Target = CLASS) -> Any:
    values = np.array([values_of(record, target) for record in records], dtype=np.float64)
    return sum_people(VARIABLES[target.kind], records, values)


def in_people(table: Any, target: Target = CLASS) -> Any:
    return table * unit_in_people(VARIABLES[target.kind])


ANY = st.one_of(st.floats(), st.floats(20, 90), st.sampled_from([0.0, 1.0, 2.0]))


@settings(max_examples=300, deadline=None)
@given(rows=st.lists(st.tuples(*[ANY] * 5), min_size=1, max_size=4), survives=st.booleans())
def test_no_person_changes_the_table_by_more_than_the_plan_says(rows: list[Any], survives: bool) -> None:
    """Whatever a row holds: also what no table of the federation may hold."""
    variables = VARIABLES["survival" if survives else "class"]
    values = np.array(rows)[:, : 5 if survives else 4]
    table = sum_people(variables, [Record("one", (), 0)] * len(rows), values)
    assert float(np.linalg.norm(table)) / UNIT <= PLAN.sensitivity + math.sqrt(len(table)) / 2 / UNIT


@pytest.mark.parametrize("target", [CLASS, SURVIVAL], ids=["class", "survival"])
def test_the_longest_person_has_the_length_that_is_paid_for(target: Target) -> None:
    row = (90.0, 1.0, 0.0)
    label: Any = 1 if target is CLASS else TimeToEvent(7.0, True)
    table = tabulate([Record("one", row, label)], target)
    assert float(np.linalg.norm(table)) / UNIT == pytest.approx(PLAN.sensitivity, abs=1e-6)
    assert length_max(VARIABLES[target.kind]) == pytest.approx(math.sqrt(1 + 4 + 1 + (target is SURVIVAL)))


def test_a_person_of_many_rows_counts_once_and_the_sums_are_those_of_the_counts() -> None:
    records = patients(200)
    once, often = tabulate(records), tabulate([*records, *[records[0]] * 9])
    assert np.abs(once - often).max() <= 1
    values = np.array([values_of(record, CLASS) for record in records])
    exact = summarise(VARIABLES["class"], *[count_records(VARIABLES["class"], records, values, 1)] * 2)
    of_people = summarise_people(VARIABLES["class"], in_people(once), in_people(once), 0.0)
    for bare, noisy in zip(exact["variables"], of_people["variables"], strict=True):
        for key in ("known", "missing", "counts", "withheld", "small"):
            assert noisy["all"][key] == bare["all"][key], key
        for key in ("mean", "deviation"):
            assert noisy["own"][key] == (
                None if bare["own"][key] is None else pytest.approx(bare["own"][key], rel=1e-5)
            )
    assert of_people["all"] == {"samples": None, "people": 200}


def test_every_entry_has_the_claimed_noise() -> None:
    noise, table = Draws(2.0), torch.zeros(list_places(VARIABLES["class"])[1], dtype=torch.int64)
    drawn = torch.stack([add_noise(table, noise) for _ in range(2000)]).double() / UNIT
    deviations = drawn.std(0) / (2.0 * PLAN.sensitivity)
    assert torch.allclose(deviations, torch.ones_like(deviations), atol=4.5 / math.sqrt(2 * 2000))


def test_a_person_who_is_counted_shows_by_mu_at_most() -> None:
    mu, releases, noise = 1.5, 3000, Draws(1 / 1.5, seed=4)
    others, person = patients(20), Record("q", (90.0, 1.0, 0.0), 1)
    with_person, without = (torch.from_numpy(tabulate(each)) for each in ([*others, person], others))
    direction = (with_person - without).double()
    scores = [
        [float(add_noise(each, noise).double() @ direction) for _ in range(releases)] for each in (without, with_person)
    ]
    measured = (np.mean(scores[1]) - np.mean(scores[0])) / np.std(scores[0])
    assert measured == pytest.approx(mu, abs=4 * math.sqrt(2 / releases))


@pytest.mark.parametrize("target", [CLASS, SURVIVAL], ids=["class", "survival"])
def test_standard_errors_are_those_of_many_draws(target: Target) -> None:
    """Also that of a distance between groups that are alike, which noise can only raise: within a factor of two."""
    own, others = (
        in_people(tabulate(patients(600, target, seed=seed, name=f"{seed}-"), target), target) for seed in (1, 2)
    )
    variables, deviation, draw = VARIABLES[target.kind], 9.0, np.random.default_rng(0)
    total = own + others
    claimed = summarise_people(variables, own, total, deviation)
    many = [
        summarise_people(variables, own, total + draw.normal(0, deviation, len(total)), deviation) for _ in range(300)
    ]

    def compare(read: Any, error: float) -> None:
        values = np.array([read(each) for each in many], dtype=float)
        assert values.std() == pytest.approx(error, rel=0.2)
        assert abs(values.mean() - read(claimed)) < 0.5 * error

    compare(lambda each: each["all"]["people"], claimed["noise"]["count_error"])
    for index, variable in enumerate(claimed["variables"]):
        compare(lambda each, at=index: each["variables"][at]["all"]["known"], variable["all"]["known_error"])
        compare(lambda each, at=index: each["variables"][at]["all"]["counts"][0], deviation)
        for key in ("mean", "deviation") if variable["kind"] == "number" else ():
            compare(lambda each, at=index, of=key: each["variables"][at]["all"][of], variable["all"][f"{key}_error"])
        moved = np.array([each["variables"][index]["difference"] for each in many]) - variable["difference"]
        assert 0.5 < math.sqrt((moved**2).mean()) / variable["difference_error"] < 2
    for index, row in enumerate(claimed["survival"]["all"] or ()):
        assert "survival_error" not in claimed["survival"]["own"][index]
        compare(lambda each, at=index: each["survival"]["all"][at]["survival"], row["survival_error"])


def test_what_noise_hides_is_missing_and_a_count_below_0_is_shown() -> None:
    own, few = (in_people(tabulate(patients(count, SURVIVAL), SURVIVAL), SURVIVAL) for count in (300, 12))
    total = own + few
    places, _ = list_places(VARIABLES["survival"])
    total[places[2].cells] = -40.0
    document = summarise_people(VARIABLES["survival"], own, total - own, 30.0)
    age, _, pain = document["variables"][:3]
    assert [age["all"][key] for key in ("mean", "mean_error", "deviation", "deviation_error")] == [None] * 4
    assert age["own"]["mean"] is not None
    assert age["difference"] is None
    assert pain["all"]["counts"][0] < -40
    assert {row["survival"] for row in document["survival"]["all"]} == {None}
    assert None not in {row["survival"] for row in document["survival"]["own"]}
    flat = own.copy()
    flat[places[0].moments + 1] += 300  # more than all can have: no variance is left
    mean, spread = (
        summarise_people(VARIABLES["survival"], own, flat, 1.0)["variables"][0]["all"][key]
        for key in ("mean", "deviation")
    )
    assert mean is not None
    assert spread is None


def test_an_error_is_that_of_the_larger_change() -> None:
    at = np.array([0.0, 5.0])
    assert standard_error(lambda each: abs(float(each[0])) + 2 * float(each[1]), at, (0, 1), 3.0) == math.hypot(3, 6)
    assert standard_error(lambda each: None if each[0] > 2 else 1.0, at, (0,), 3.0) is None
    assert standard_error(lambda each: None, at, (), 3.0) is None


def context(**changes: Any) -> BuildContext:
    fields: dict[str, Any] = {"columns": COLUMNS, "class_names": ("healthy", "ill"), **changes}
    return BuildContext("a", "tabular", 2, {"bins": 7}, None, None, lambda: None, in_channels=8, **fields)  # type: ignore[arg-type, return-value]


def test_the_stage_sends_noise_and_keeps_its_own_table_without() -> None:
    build = context(noised=True, noise_multiplier=3.0)
    networks: dict[str, Any] = {name: build_table(build, {}) for name in (OWN, SUMS)}
    records = patients(80)
    stage = STATISTICS.stages["count"](
        StageContext(
            "a",
            "tabular",
            {"bins": 7},
            {DAM: torch.nn.Linear(1, 1), **networks},
            {},
            records=lambda: records,
            target=CLASS,
            count_min=1000,
            noise=Draws(3.0),
        )
    )
    losses = stage.passes[0][0].losses
    losses(Batch(torch.zeros(1), torch.zeros(1)), lambda *_, **__: None)
    own, table = (networks[name].network for name in (OWN, SUMS))
    sent = table.table.clone()
    losses(Batch(torch.zeros(1), torch.zeros(1)), lambda *_, **__: None)
    assert torch.equal(table.table, sent), "a second step draws nothing new"
    assert own.table.tolist() == tabulate(records).tolist()
    assert int(table.count) == 1, "the number of people does not leave"
    assert (table.table != own.table).all()
    table.table.mul_(4)
    table.count.fill_(4)  # of four sites
    error = describe(networks)["noise"]["count_error"]
    assert error == pytest.approx(3 * math.sqrt(6) * math.sqrt(4), rel=1e-6)
    assert error == deviation_of(3.0, len(sent)) * 2 * unit_in_people(own.variables)


def test_tables_with_noise_name_their_sites_and_have_bounds() -> None:
    network: Any = build_table(context(noised=True), {})
    assert network.spec["hyper"]["noised"] is True
    assert "noised" not in build_table(context(), {}).spec["hyper"]
    state = network.network.state_dict()
    state["table"][3] = -5 * UNIT  # as noise may leave it
    state["count"].fill_(1)
    assert find_impossible(state, network) is None
    assert find_impossible(state, network, 2) == "it claims 1 sites, and is of 2"
    state["table"][3] = -2 * COUNT_MAX * UNIT
    assert find_impossible(state, network) == f"an entry has {2 * COUNT_MAX * UNIT} units"


def test_the_variables_that_a_person_cannot_both_have_are_paid_for_once() -> None:
    one, other = (dataclasses.replace(VARIABLES["class"][1], within=(3, cell)) for cell in (0, 1))
    of_class: Sequence[Variable] = VARIABLES["class"]
    assert length_max([*of_class, one, other]) == pytest.approx(math.sqrt(length_max(of_class) ** 2 + 1))
