"""Columns: what a cell means, what does not fit, and the channels that the network gets."""

import math

import pytest

from peer.core.columns import TableColumn, count_channels

AGE = TableColumn("age", "number", (20.0, 90.0), unit="years", missing=("-9",))
PAIN = TableColumn("chest pain", "category", levels=("typical", "Atypical", "3"))
FASTING = TableColumn("fasting", "flag")


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        (AGE, "63", 63.0),
        (AGE, " 63,5 ", 63.5),
        (AGE, 63, 63.0),
        (AGE, "2e1", 20.0),
        (AGE, "90", 90.0),
        (PAIN, "typical", 0.0),
        (PAIN, "ATYPICAL ", 1.0),
        (PAIN, "3.0", 2.0),
        (FASTING, "Yes", 1.0),
        (FASTING, "0.0", 0.0),
        (FASTING, True, 1.0),
        (FASTING, "f", 0.0),
    ],
)
def test_a_cell_has_one_value(column: TableColumn, cell: object, value: float) -> None:
    assert column.parse(cell) == value
    assert column.parse(column.show(value)) == value


@pytest.mark.parametrize("column", [AGE, PAIN, FASTING])
@pytest.mark.parametrize("cell", ["", " ", "NA", "n/a", "?", ".", None, math.nan])
def test_a_cell_without_a_value_is_missing(column: TableColumn, cell: object) -> None:
    assert math.isnan(column.parse(cell))
    assert column.show(math.nan) is None


def test_what_stands_where_nothing_was_measured_is_missing_also_as_another_number() -> None:
    assert math.isnan(AGE.parse("-9"))
    assert math.isnan(AGE.parse("-9.0"))


def test_of_two_levels_alike_the_first_counts_in_every_column_with_these_levels() -> None:
    for name in ("grade", "stage"):
        column = TableColumn(name, "category", levels=("I", "2", "i", "2.0", "02"))
        assert [column.parse(cell) for cell in ("i", "I", 2, "2.0", "2,0", "02")] == [0, 0, 1, 3, 1, 4]


def test_a_level_may_be_called_what_else_is_missing() -> None:
    assert TableColumn("smoking", "category", levels=("none", "daily")).parse("None") == 0.0


@pytest.mark.parametrize(
    ("column", "cell", "message"),
    [
        (AGE, "630", "630 is outside 20 to 90 years"),
        (AGE, "0", "0 is outside 20 to 90 years"),
        (AGE, "old", "'old' is no number"),
        (AGE, "inf", "'inf' is no number"),
        (AGE, "1e999", "'1e999' is no number"),
        (AGE, "2024-03-01", "'2024-03-01' is a date"),
        (AGE, "01.03.2024", "'01.03.2024' is a date"),
        (AGE, "1,250", "'1,250' has a comma that may group thousands or part decimals"),
        (PAIN, "4", "'4' is none of the levels typical, Atypical, 3"),
        (FASTING, "2", "'2' is neither yes nor no"),
    ],
)
def test_a_value_that_does_not_fit_is_named(column: TableColumn, cell: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        column.parse(cell)


def test_each_column_has_a_channel_for_what_is_missing() -> None:
    assert count_channels([AGE.levels, PAIN.levels, FASTING.levels]) == 8
    assert [column.channels for column in (AGE, PAIN, FASTING)] == [2, 4, 2]
