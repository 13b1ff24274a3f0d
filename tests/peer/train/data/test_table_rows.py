"""Rows of tables in a datalist: their values, what does not fit, and columns that tell too much or nothing."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from peer.core.columns import TableColumn
from peer.core.targets import CLASS, Target, TimeToEvent
from peer.train.data.datalist import Datalist, inspect_datalist
from peer.train.data.survey import survey
from peer.train.data.table_rows import column_warnings

COLUMNS = (
    TableColumn("chol", "number", (80.0, 650.0), unit="mg/dl"),
    TableColumn("sex", "category", levels=("female", "male")),
)


def write(folder: Path, *rows: dict[str, Any], labels: tuple[int, ...] = (0, 1)) -> Path:
    entries = [
        {"image": f"t.csv line {line}", "row": row, "label": labels[line % len(labels)], "subject": f"p{line}"}
        for line, row in enumerate(rows, start=2)
    ]
    path = folder / "datalist.json"
    path.write_text(json.dumps({"training": entries, "test": []}))
    return path


def inspect(path: Path, **options: Any) -> Datalist:
    return inspect_datalist(path, task="tabular", classes=2, columns=COLUMNS, **options)


def test_a_row_is_a_sample_without_a_file(tmp_path: Path) -> None:
    listed = inspect(write(tmp_path, {"chol": 233, "sex": "male"}, {"chol": "240,5", "sex": None}))
    assert (listed.problems, listed.notes) == ((), ())
    first, second = listed.training
    assert (first.name, first.images, first.label, first.subject) == ("t.csv line 2", (), 0, "p2")
    assert first.row == (233.0, 1.0)
    assert second.row[0] == 240.5
    assert math.isnan(second.row[1])


def test_single_values_that_do_not_fit_are_counted_and_missing(tmp_path: Path) -> None:
    good = [{"chol": 200 + line, "sex": "female"} for line in range(40)]
    listed = inspect(write(tmp_path, *good, {"chol": 6, "sex": "diverse"}, {"age": 3}))
    assert listed.problems == ()
    assert [math.isnan(value) for value in listed.training[40].row] == [True, True]
    assert listed.notes == (
        "column chol: 1 values do not fit and count as missing (t.csv line 42: 6 is outside 80 to 650 mg/dl)",
        "column sex: 1 values do not fit and count as missing (t.csv line 42: 'diverse' is none of the levels female, "
        "male)",
        "columns that the federation does not have are not used: age",
    )


def test_a_column_in_another_unit_is_a_problem_that_says_what_is_expected(tmp_path: Path) -> None:
    (problem,) = inspect(write(tmp_path, *[{"chol": 5.2, "sex": "male"}] * 3)).problems
    assert problem.startswith("column chol: 3 of 3 values do not fit (t.csv line 2: 5.2 is outside 80 to 650 mg/dl, t")
    assert problem.endswith("convert them to numbers from 80 to 650 mg/dl, or empty the cells without a value")


def test_an_entry_without_a_row_and_a_column_without_a_value_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"chol": 200}, {"chol": 210})
    assert inspect(path).notes == ("columns without any value here: sex",)
    document = json.loads(path.read_text())
    del document["training"][0]["row"]
    path.write_text(json.dumps(document))
    assert "training[0]: t.csv line 2 has no 'row' with the values of the columns" in inspect(path).problems[0]


def test_the_survey_describes_each_column(tmp_path: Path) -> None:
    path = write(tmp_path, {"chol": 200, "sex": "male"}, {"chol": 260}, {"chol": 9, "sex": "male"})
    document = survey(path, task="tabular", classes=2, columns=COLUMNS, whole=True)
    number, category = document["columns"]
    assert number == {
        "name": "chol", "kind": "number", "unit": "mg/dl", "values": 2, "missing": 1,
        "lowest": 200.0, "median": 230.0, "highest": 260.0, "levels": {},
    }  # fmt: skip
    assert (category["values"], category["missing"], category["levels"]) == (2, 1, {"female": 0, "male": 2})
    assert category["lowest"] is None


@pytest.mark.parametrize(
    ("values", "labels", "expected"),
    [
        ([1.0] * 24, [0, 1] * 12, "constant: 1.0 in all 24 rows that have it"),
        ([float(n) for n in range(24)], [0] * 12 + [1] * 12, "tells the class of all 24 rows"),
        ([0.0] * 12 + [1.0] * 12, [1] * 12 + [0] * 12, "tells the class of all 24 rows"),
        ([float(n) for n in range(24)], [0] * 11 + [1, 0] + [1] * 11, ""),
        ([0.0] * 12 + [1.0] * 12, [0] * 11 + [1] * 13, ""),
        ([float(n) for n in range(10)], [0] * 5 + [1] * 5, ""),
        ([math.nan] * 24, [0, 1] * 12, ""),
    ],
)
def test_a_column_that_is_constant_or_tells_the_class_is_named(
    values: list[float], labels: list[int], expected: str
) -> None:
    column = TableColumn("x", "number", (0.0, 100.0))
    rows = [((value,), label) for value, label in zip(values, labels, strict=True)]
    warnings = list(column_warnings([column], rows, CLASS))
    assert len(warnings) == bool(expected)
    assert all(expected in warning for warning in warnings)


NUMBER, LABELS = Target("number", range=(0.0, 99.0)), Target("labels", ("pain", "fever"))
SURVIVAL = Target("survival", times=(30.0,))


@pytest.mark.parametrize(
    ("target", "labels", "expected"),
    [
        (NUMBER, [float(2 * age) for age in range(24)], "tells the label of all 24 rows"),
        (NUMBER, [float(7 * age % 24) for age in range(24)], ""),
        (
            Target("labels", ("pain", "fever")),
            [(age % 2, float(age > 9)) for age in range(24)],
            "tells the fever of all",
        ),
        (
            Target("survival", times=(30.0,)),
            [TimeToEvent(age + 1.0, age % 2 == 0) for age in range(24)],
            "tells the time",
        ),
    ],
)
def test_a_column_that_repeats_what_is_to_be_predicted_is_named(
    target: Target, labels: list[Any], expected: str
) -> None:
    column = TableColumn("x", "number", (0.0, 100.0))
    warnings = list(column_warnings([column], [((float(age),), label) for age, label in enumerate(labels)], target))
    assert len(warnings) == bool(expected)
    assert all(expected in warning for warning in warnings)
