"""Statistics: known answers of counts and sums, what is withheld of few people, and what no samples can give."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, TimeToEvent
from peer.methods.method import DAM, BuildContext, Record
from peer.methods.statistics.counts import COUNT_MAX, UNIT, VariableCounts, count_records, find_impossible, split_table
from peer.methods.statistics.stages import OWN, SUMS, build_table, describe
from peer.methods.statistics.summary import difference, moments, summarise, survival_table
from peer.methods.statistics.variables import Variable, list_variables, values_of
from peer.survival import kaplan_meier

COLUMNS = (
    TableColumn("age", "number", (20.0, 90.0), unit="years"),
    TableColumn("smoker", "flag"),
    TableColumn("pain", "category", levels=("none", "some", "severe")),
)
NAMES = ("healthy", "ill")
SURVIVAL = Target("survival", times=(6.0, 12.0, 24.0), unit="months", horizon=12.0)


def patients(count: int, *, name: str = "p", seed: int = 0) -> list[Record]:
    """Records with ages, one of twenty missing, a rare level and a rare class."""
    draw = np.random.default_rng(seed)
    return [
        Record(
            f"{name}{index}",
            (
                math.nan if draw.random() < 0.05 else round(draw.uniform(25, 85), 1),
                float(draw.random() < 0.3),
                float(draw.choice(3, p=[0.6, 0.37, 0.03])),
            ),
            int(draw.random() < 0.4),
        )
        for index in range(count)
    ]


def tabulate(records: list[Record], count_min: int = 1, target: Target = CLASS) -> tuple[Any, int, Any]:
    variables = list_variables(COLUMNS, target, NAMES, 2, bins=7)
    values = np.array([values_of(record, target) for record in records], dtype=np.float64)
    return variables, *count_records(variables, records, values, count_min)


def test_counts_and_sums_are_those_of_numpy() -> None:
    records = patients(200)
    variables, samples, table = tabulate(records)
    age, smoker, pain, label = split_table(table, variables)
    ages = np.array([record.row[0] for record in records])
    known = ages[~np.isnan(ages)]
    assert (samples, table[0], age.known) == (200, 200, len(known))
    assert age.cells.tolist() == np.histogram(known, 7, (20, 90))[0].tolist()
    mean, deviation = moments(variables[0], age)
    assert mean == pytest.approx(known.mean(), abs=1e-5)
    assert deviation == pytest.approx(known.std(ddof=1), abs=1e-5)
    for counts, values in ((smoker, [r.row[1] for r in records]), (pain, [r.row[2] for r in records])):
        assert counts.cells.tolist() == np.bincount(np.array(values, dtype=int)).tolist()
        assert (counts.known, counts.sum, counts.squares, counts.small.sum()) == (200, 0, 0, 0)
    assert label.cells.tolist() == np.bincount([int(r.label) for r in records]).tolist()  # type: ignore[arg-type]


def test_the_table_of_all_samples_is_the_sum_of_any_sites_to_the_bit() -> None:
    records = patients(300)
    _, samples, whole = tabulate(records)
    for cuts in ([100, 200], [1, 17], [299]):
        parts = [tabulate([*part])[1:] for part in np.split(np.array(records, dtype=object), cuts)]
        assert sum(count for count, _ in parts) == samples
        assert (sum(table for _, table in parts) == whole).all()


@pytest.mark.parametrize("count_min", [3, 10, 25])
@pytest.mark.parametrize("target", [CLASS, SURVIVAL], ids=["class", "survival"])
def test_no_number_that_leaves_or_follows_is_small(count_min: int, target: Target) -> None:
    draw = np.random.default_rng(1)
    withheld = 0
    for size in (count_min - 1, count_min, 2 * count_min, 60, 180):
        records = [
            Record(
                r.person, r.row, r.label if target is CLASS else TimeToEvent(draw.exponential(15), draw.random() < 0.4)
            )
            for r in patients(size, seed=size)
        ]
        variables, samples, table = tabulate(records, count_min, target)
        if size < count_min:
            assert samples == 0
            assert not table.any()
            continue
        _, _, full = tabulate(records, 1, target)
        for variable, sent, true in zip(
            variables, split_table(table, variables), split_table(full, variables), strict=True
        ):
            numbers = [*sent.cells, sent.known]
            if variable.within is None:
                numbers.append(samples - sent.known)
            assert all(number == 0 or number >= count_min for number in numbers), (variable.name, numbers)
            outside = sent.known - sent.cells.sum()
            assert outside == 0 or outside >= count_min
            assert sent.cells.any() == (outside < sent.known)
            if sent.cells.any():
                assert outside % count_min == 0, "how many people are in no cell says little of a small cell"
            assert (sent.cells <= true.cells).all()
            assert not sent.small[true.cells == 0].any()
            withheld += sent.small.sum()
    assert withheld


def test_a_small_class_takes_others_with_it_and_a_person_of_many_rows_counts_once() -> None:
    records = [Record(f"p{index}", (50.0, 0.0, 0.0), int(index >= 3)) for index in range(40)]
    variables, _, table = tabulate(records, 10)
    label = split_table(table, variables)[3]
    assert (label.known, label.cells.tolist(), label.small.tolist()) == (40, [0, 30], [1, 0])
    records += [Record("p0", (50.0, 0.0, 0.0), 0)] * 30
    variables, samples, table = tabulate(records, 10)
    label = split_table(table, variables)[3]
    assert (samples, table[0], label.known, label.cells.tolist()) == (70, 40, 70, [0, 30])


def test_few_without_a_value_take_others_with_them_and_few_with_one_are_not_counted() -> None:
    records = [Record(f"p{index}", (math.nan if index < 2 else 50.0, 1.0, 0.0), 1) for index in range(40)]
    variables, _, table = tabulate(records, 10)
    age = split_table(table, variables)[0]
    assert (age.known, age.withheld, age.cells.sum(), age.sum) == (30, 1, 30, round(-UNIT / 7) * 30)
    records = [Record(f"p{index}", (math.nan if index >= 2 else 50.0, 1.0, 0.0), 1) for index in range(40)]
    variables, _, table = tabulate(records, 10)
    age = split_table(table, variables)[0]
    assert (age.known, age.withheld, age.sum, age.squares) == (0, 1, 0, 0)


def test_more_samples_than_fit_are_refused() -> None:
    class Many(list[Record]):
        def __len__(self) -> int:
            return COUNT_MAX + 1

    with pytest.raises(ValueError, match=r"there are 536870913 samples; a table takes 536870912"):
        count_records((), Many(), np.zeros((0, 0)), 1)


def test_every_target_has_its_variables() -> None:
    labels = Target("labels", names=("pain", "fever"))
    variables = list_variables((), labels, ("pain", "fever"), 2, bins=4)
    assert [(each.role, each.name, each.cells) for each in variables] == [
        ("target", "pain", ("no", "yes")),
        ("target", "fever", ("no", "yes")),
    ]
    records = [Record(str(index), (), (1.0, math.nan)) for index in range(3)]
    values = np.array([values_of(record, labels) for record in records])
    pain, fever = split_table(count_records(variables, records, values, 1)[1], variables)
    assert (pain.cells.tolist(), fever.known) == ([0, 3], 0)
    number = Target("number", range=(0.0, 8.0), unit="days")
    (days,) = list_variables((), number, (), 1, bins=4)
    assert (days.cells, days.unit) == (("0 to 2", "2 to 4", "4 to 6", "6 to 8"), "days")
    values = np.array([values_of(Record("a", (), 8.0), number)])
    assert days.locate(values[:, 0]).tolist() == [3]


def test_the_survival_table_is_kaplan_meiers() -> None:
    draw = np.random.default_rng(2)
    times, happened = draw.uniform(0.5, 30, 400), draw.random(400) < 0.5
    records = [
        Record(str(index), (50.0, 0.0, 0.0), TimeToEvent(float(time), bool(event)))
        for index, (time, event) in enumerate(zip(times, happened, strict=True))
    ]
    variables, _, table = tabulate(records, 1, SURVIVAL)
    rows = survival_table(variables, split_table(table, variables))
    ends = np.array(SURVIVAL.times)
    at = ends[np.minimum(np.searchsorted(ends, times), 2)]  # all of an interval at its end, the events first
    curve = kaplan_meier(at, happened & (times <= 24))
    assert rows is not None
    for row, end in zip(rows, SURVIVAL.times, strict=True):
        estimate = curve.at(end)
        assert estimate is not None
        assert row["survival"] == pytest.approx(estimate[0])
        assert row["events"] == (happened & (times <= 24) & (at == end)).sum()
        assert row["at_risk"] == (at >= end).sum()
    few = [Record(record.person, record.row, TimeToEvent(20.0, True)) for record in records[:3]]
    variables, _, table = tabulate([*[r for r in records if r.label.time <= 12], *few], 10, SURVIVAL)  # type: ignore[union-attr]
    rows = survival_table(variables, split_table(table, variables))
    assert rows is not None
    assert [row["survival"] is None for row in rows] == [False, False, True]


def test_differences_are_standardised() -> None:
    age = Variable("column", "age", "number", ("20 to 90",), 0, range=(20.0, 90.0))
    groups = [np.array([30.0, 40.0, 62.0]), np.array([50.0, 70.0])]
    scaled = [age.scale(group) * UNIT for group in groups]
    counts = [
        VariableCounts(
            len(each), 0, round(each.sum()), round((each**2 / UNIT).sum()), np.array([len(each)]), np.zeros(1)
        )  # type: ignore[arg-type]
        for each in scaled
    ]
    spread = math.sqrt((groups[0].var(ddof=1) + groups[1].var(ddof=1)) / 2)
    assert difference(age, *counts) == pytest.approx(abs(groups[0].mean() - groups[1].mean()) / spread, rel=1e-5)
    flag = Variable("column", "smoker", "flag", ("no", "yes"), 0)
    one, other = (
        VariableCounts(100, 0, 0, 0, np.array([100 - yes, yes]), np.zeros(2, dtype=np.int64)) for yes in (30, 50)
    )
    assert difference(flag, one, other) == pytest.approx(0.2 / math.sqrt((0.21 + 0.25) / 2))
    assert difference(flag, VariableCounts(100, 0, 0, 0, np.array([0, 100]), np.array([1, 0])), other) is None


def context(**changes: Any) -> BuildContext:
    fields: dict[str, Any] = {"columns": COLUMNS, "class_names": NAMES, **changes}
    return BuildContext("a", "tabular", 2, {"bins": 7}, None, None, lambda: None, in_channels=8, **fields)  # type: ignore[arg-type, return-value]


def test_tables_of_other_variables_have_another_spec() -> None:
    specs = [
        build_table(each, {DAM: None}).spec
        for each in (context(), context(class_names=("ill", "healthy")), context(columns=COLUMNS[:2]))
    ]
    assert len({str(spec) for spec in specs}) == 3
    assert specs[0] == build_table(context(), {DAM: None}).spec


def test_what_no_samples_can_give_is_named() -> None:
    network: Any = build_table(context(), {DAM: None})
    _, samples, table = tabulate(patients(100))
    state = {"network.table": torch.from_numpy(table), "network.count": torch.tensor(samples)}
    assert find_impossible(state, network) is None
    for place, value, reason in (
        (0, 101, "it claims 101 people in 100 samples"),
        (1, 101, "101 values of column age are in 100 samples"),
        (2, 2, "what it withholds of column age is not within 0 and 1"),
        (3, 101 * UNIT, "a sum of column age is above that of"),
        (4, -1, "a sum of column age is above that of"),
        (4, 0, "the sum of squares of column age is too small for its sum"),
        (5, -1, "the cells of column age hold more than its"),
        (6, 100, "the cells of column age hold more than its"),
    ):
        forged = state["network.table"].clone()
        forged[place] = value
        if place == 4 and value == 0:
            forged[3] = 50 * UNIT
        reason_given = find_impossible({**state, "network.table": forged}, network)
        assert reason_given is not None
        assert reason_given.startswith(reason), (place, reason_given)
    assert "it claims -1 samples" in str(find_impossible({**state, "network.count": torch.tensor(-1)}, network))


def test_of_several_sites_flags_and_samples_add_up() -> None:
    network: Any = build_table(context(), {DAM: None})
    _, samples, table = tabulate(patients(100))
    total = torch.from_numpy(table) * 3
    total[2] = 3  # all three withhold an age
    state = {"network.table": total, "network.count": torch.tensor(3 * samples)}
    assert find_impossible(state, network, 3) is None
    assert "of column age is not within 0 and 2" in str(find_impossible(state, network, 2))
    state = {"network.table": torch.zeros_like(total), "network.count": torch.tensor(COUNT_MAX + 1)}
    assert "it claims" in str(find_impossible(state, network))
    assert find_impossible(state, network, 2) is None


def test_the_document_has_own_figures_beside_those_of_all() -> None:
    networks: dict[str, Any] = {name: build_table(context(), {DAM: None}) for name in (OWN, SUMS)}
    _, count, own = tabulate(patients(50), 10)
    _, more, other = tabulate(patients(90, seed=5, name="q"), 10)
    for name, samples, table in ((OWN, count, own), (SUMS, count + more, own + other)):
        networks[name].network.count.fill_(samples)
        networks[name].network.table.copy_(torch.from_numpy(table))
    document = describe(networks)
    assert document == summarise(networks[OWN].network.variables, (50, own), (140, own + other))
    assert (document["own"]["samples"], document["all"]["people"]) == (50, 140)
    age = document["variables"][0]
    assert age["own"]["missing"] == 50 - age["own"]["known"]
    assert 0 <= age["difference"] < 1
    assert document["survival"] == {"own": None, "all": None}
