"""Targets: what a label is, how a table's cells become one, and what nobody could learn from."""

import math
from typing import Any

import pytest

from peer.core.targets import Target, TimeToEvent, check_targets, stratum

NUMBER = Target("number", range=(0.0, 60.0), unit="days")
LABELS = Target("labels", ("pain", "fever"))
SURVIVAL = Target("survival", times=(6.0, 12.0), unit="months")


@pytest.mark.parametrize(
    ("target", "cells", "label"),
    [
        (NUMBER, {"label": "12,5"}, 12.5),
        (NUMBER, {"label": "n/a"}, None),
        (LABELS, {"pain": "yes", "fever": "0"}, [1, 0]),
        (LABELS, {"pain": "", "fever": "True"}, [None, 1]),
        (LABELS, {"pain": "?", "fever": "NA"}, None),
        (SURVIVAL, {"time": "7.5", "event": "dead"}, {"time": 7.5, "event": True}),
        (SURVIVAL, {"time": "120", "event": "Alive"}, {"time": 120.0, "event": False}),
        (SURVIVAL, {"time": "7", "event": "1.0"}, {"time": 7.0, "event": True}),
        (SURVIVAL, {"time": "", "event": "1"}, None),
        (SURVIVAL, {"time": "3", "event": ""}, None),
    ],
)
def test_cells_become_the_label_of_a_datalist(target: Target, cells: dict[str, str], label: Any) -> None:
    assert target.read(cells) == label


@pytest.mark.parametrize(
    ("target", "cells", "message"),
    [
        (NUMBER, {"label": "61"}, "is 61, outside 0 to 60 days"),
        (NUMBER, {"label": "long"}, "'long' is no number"),
        (NUMBER, {"label": "2024-05-01"}, "'2024-05-01' is a date"),
        (LABELS, {"pain": "2", "fever": "0"}, "pain is '2', neither yes nor no"),
        (SURVIVAL, {"time": "-3", "event": "1"}, "has the negative time -3"),
        (SURVIVAL, {"time": "0", "event": "1"}, "has an event at time 0"),
        (SURVIVAL, {"time": "0", "event": "0"}, "has no time under observation"),
        (SURVIVAL, {"time": "5", "event": "maybe"}, "event is 'maybe', neither yes nor no"),
    ],
)
def test_a_cell_that_does_not_fit_is_refused(target: Target, cells: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        target.read(cells)


@pytest.mark.parametrize(
    ("target", "document", "label"),
    [
        (Target(), 3, 3),
        (NUMBER, 0, 0.0),
        (SURVIVAL, {"time": 7, "event": 1}, TimeToEvent(7.0, True)),
    ],
)
def test_a_label_is_parsed(target: Target, document: Any, label: Any) -> None:
    assert target.parse(document) == label


@pytest.mark.parametrize(
    ("target", "document"),
    [
        (Target(), True),
        (Target(), 1.5),
        (NUMBER, True),
        (NUMBER, math.nan),
        (NUMBER, "12"),
        (LABELS, 1),
        (LABELS, [1]),
        (LABELS, [None, None]),
        (LABELS, [1, 0.5]),
        (SURVIVAL, 3.0),
        (SURVIVAL, {"time": 3}),
        (SURVIVAL, {"time": math.inf, "event": True}),
        (SURVIVAL, {"time": 3, "event": 2}),
    ],
)
def test_what_is_no_label_of_the_target_is_refused(target: Target, document: Any) -> None:
    with pytest.raises(ValueError, match=r"must|has no"):
        target.parse(document)


def test_an_unknown_label_is_no_number() -> None:
    label = LABELS.parse([1, None])
    assert isinstance(label, tuple)
    assert label[0] == 1.0
    assert math.isnan(label[1])


@pytest.mark.parametrize(
    ("target", "labels", "message"),
    [
        (NUMBER, [3.0, 3.0], "one number only"),
        (NUMBER, [3.0, 4.0], ""),
        (LABELS, [(1.0, 0.0), (1.0, 0.0)], "no label has both"),
        (LABELS, [(1.0, 0.0), (1.0, 1.0)], ""),
        (LABELS, [(1.0, math.nan), (math.nan, 1.0)], "no label has both"),
        (SURVIVAL, [TimeToEvent(3.0, False)] * 5, "5 persons and no event"),
        (SURVIVAL, [TimeToEvent(400.0, True)] * 5, "no event of 'training' is within 12 months"),
        (SURVIVAL, [TimeToEvent(0.5, True)] * 20, "all times of 'training' are below 0.6 months"),
        (SURVIVAL, [TimeToEvent(0.5, True)] * 19, ""),
        (SURVIVAL, [TimeToEvent(3.0, True), TimeToEvent(400.0, False)], ""),
        (Target(), [1, 1], ""),
    ],
)
def test_labels_from_which_nothing_can_be_learnt_are_named(target: Target, labels: list[Any], message: str) -> None:
    problems = check_targets(target, labels)
    assert [message in problem for problem in problems] == ([True] if message else [])


def test_events_and_classes_are_divided_alike() -> None:
    assert [stratum(label) for label in (2, TimeToEvent(3.0, True), 0.5, (1.0, 0.0))] == [2, 1, None, None]


def test_columns_describe_labels_and_predictions() -> None:
    assert [column.name for column in SURVIVAL.table] == ["time", "event"]
    assert SURVIVAL.row(TimeToEvent(3.0, True)) == (3.0, 1.0)
    assert LABELS.row((1.0, 0.0)) == (1.0, 0.0)
    assert Target().row(1) == ()
    assert SURVIVAL.columns == ("survival(6)", "survival(12)", "median")
