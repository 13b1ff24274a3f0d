"""Distributions of a table's columns: by split and class or event, over what all sites have agreed on."""

import math
from typing import Any

import pytest

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, TimeToEvent
from peer.train.data.datalist import Sample
from peer.train.data.table_sheet import BINS, describe_columns

AGE = TableColumn("age", "number", (0.0, 100.0), unit="years")
PAIN = TableColumn("pain", "category", levels=("none", "some", "much"))
SMOKES = TableColumn("smokes", "flag")
COLUMNS = (AGE, PAIN, SMOKES)
NAN = math.nan


def rows(*pairs: tuple[tuple[float, ...], Any]) -> list[Sample]:
    return [Sample(f"row {number}", (), label, row=row) for number, (row, label) in enumerate(pairs)]


def test_each_split_and_class_has_its_shares_with_the_missing_ones() -> None:
    training = rows(((2.0, 0.0, 1.0), 0), ((100.0, 1.0, NAN), 0), ((NAN, 2.0, 0.0), 0), ((97.0, NAN, 0.0), 1))
    age, pain, smokes = describe_columns(COLUMNS, {"training": training, "test": rows(((50.0, 0.0, 0.0), 1))}, CLASS)
    parts = [(part["split"], part["group"], part["rows"], part["missing"]) for part in age["distributions"]]
    assert parts == [("training", 0, 3, 1), ("training", 1, 1, 0), ("test", 1, 1, 0)]
    first, second, test = (part["shares"] for part in age["distributions"])
    assert (first[0], first[-1], sum(first)) == (0.3333, 0.3333, pytest.approx(2 / 3, abs=1e-3))
    assert (second[-1], test[BINS // 2]) == (1.0, 1.0)
    assert [part["shares"] for part in pain["distributions"]] == [[0.3333] * 3, [0, 0, 0], [1, 0, 0]]
    assert [part["shares"] for part in smokes["distributions"]] == [[0.3333, 0.3333], [1, 0], [1, 0]]
    assert (age["lowest"], age["highest"], age["unit"], pain["lowest"]) == (0, 100, "years", None)
    assert (smokes["levels"], pain["levels"]) == (["no", "yes"], ["none", "some", "much"])


def test_persons_are_grouped_by_their_event_and_late_times_count_in_the_last_bin() -> None:
    target = Target("survival", times=(6.0, 12.0), unit="months", horizon=12.0)
    people = rows(((1.0,), TimeToEvent(1.0, True)), ((2.0,), TimeToEvent(90.0, False)))
    described = describe_columns([AGE], {"training": people}, target)
    assert [(column["name"], column["is_target"]) for column in described] == [("age", False), ("time", True)]
    censored, event = described[1]["distributions"]
    assert (censored["group"], censored["shares"][-1]) == (0, 1.0)
    assert (event["group"], event["shares"].index(1.0)) == (1, BINS // 12)
    assert (described[1]["highest"], described[1]["unit"]) == (12.0, "months")


def test_labels_and_numbers_have_one_group_and_are_described_themselves() -> None:
    labels = rows(((1.0,), (1.0, NAN)), ((2.0,), (0.0, 1.0)))
    _, pain, fever = describe_columns([AGE], {"test": labels}, Target("labels", ("pain", "fever")))
    assert [part["group"] for part in pain["distributions"]] == [None]
    assert (pain["distributions"][0]["shares"], fever["distributions"][0]["missing"]) == ([0.5, 0.5], 1)
    number = describe_columns([AGE], {"test": rows(((1.0,), 9.5))}, Target("number", range=(0.0, 10.0)))[1]
    assert number["distributions"][0]["shares"][-1] == 1.0
