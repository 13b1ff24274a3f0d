"""The channels of a table's columns: in a fixed range, with one for what is missing, and alike in every precision."""

import math

import pytest
import torch

from peer.core.columns import TableColumn
from peer.train.column_channels import ColumnChannels, encode_row

AGE = TableColumn("age", "number", (20.0, 90.0), unit="years")
PAIN = TableColumn("chest pain", "category", levels=("typical", "atypical", "none"))
FASTING = TableColumn("fasting", "flag")
EXCESS = TableColumn("base excess", "number", (-20.0, 20.0), missing=("-9", "not done", "-8,0"))
COLUMNS = (AGE, PAIN, FASTING, EXCESS)
NAN = math.nan


def channels(column: TableColumn, *values: float, dtype: torch.dtype = torch.float32) -> list[list[float]]:
    """Return the channels of values of one column."""
    encoded: list[list[float]] = ColumnChannels([column])(torch.tensor(values, dtype=dtype)[:, None])[:, :, 0].tolist()
    return encoded


def test_the_channels_are_in_a_fixed_range_and_tell_what_is_missing() -> None:
    assert channels(AGE, 20, 55, 90, NAN) == [[-1, 0], [0, 0], [1, 0], [0, 1]]
    assert channels(PAIN, 0, 2, NAN) == [[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert channels(FASTING, 0, 1, NAN) == [[-1, 0], [1, 0], [0, 1]]
    assert [len(channels(column, NAN)[0]) for column in COLUMNS] == [column.channels for column in COLUMNS]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (AGE, (19.9, 90.1, -math.inf, math.inf)),
        (PAIN, (-1, 3, 0.5, math.inf)),
        (FASTING, (-1, 2, 0.5)),
        (EXCESS, (-9, -8, 20.5)),
    ],
    ids=lambda value: value.name if isinstance(value, TableColumn) else "",
)
def test_a_value_that_does_not_fit_is_missing(column: TableColumn, values: tuple[float, ...]) -> None:
    assert channels(column, *values) == channels(column, *[NAN] * len(values))


def test_the_ends_of_a_range_fit_in_float32_too() -> None:
    column = TableColumn("share", "number", (0.1, 0.3))
    assert channels(column, 0.1, 0.3) == [[pytest.approx(-1), 0], [pytest.approx(1), 0]]
    assert channels(column, 0.1, 0.3, dtype=torch.float64) == [[-1, 0], [1, 0]]


def test_the_columns_of_a_row_lie_one_after_the_other() -> None:
    row = (34.7, 1.0, NAN, -3.3)
    expected = [(2 * 34.7 - 20 - 90) / (90 - 20), 0, 0, 1, 0, 0, 0, 1, (2 * -3.3 + 20 - 20) / 40, 0]
    assert torch.equal(encode_row(COLUMNS, row), torch.tensor(expected)[:, None]), "to the bit"
    assert encode_row(COLUMNS, row).dtype == torch.float32


def test_a_row_without_any_value_is_refused_and_marked() -> None:
    with pytest.raises(ValueError, match="has no value in any column"):
        encode_row(COLUMNS, [NAN] * 4)
    module = ColumnChannels(COLUMNS)
    rows = torch.tensor([[NAN] * 4, [NAN, NAN, NAN, 0.0], [5.0, 7.0, 3.0, -9.0]])
    assert module.without_value(module(rows)).tolist() == [[True], [False], [True]]
