"""The columns of a table as the channels that networks take, in training, in predictions and in exported graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from peer.core.columns import TableColumn, parse_number


class ColumnChannels(nn.Module):
    """Computes the channels of rows: a number from -1 to 1 over its range, a flag -1 or 1, a channel for each level.

    The last channel of a column is 1 where the value is missing; the others are then 0. A number outside the range or
    equal to one of the column's words for a missing value, a flag that is neither 0 nor 1, and a level that the column
    does not have are missing.

    Every buffer but ``gaps`` has an entry for each channel: its column, the limits of that column's values, whether
    they are whole numbers, which values mean that nothing was measured; whether the channel is the scaled value, else
    the level for which it is 1 (NaN for none), and its value where there is no value.
    """

    column: Tensor
    lowest: Tensor
    highest: Tensor
    is_whole: Tensor
    absent: Tensor
    is_scaled: Tensor
    level: Tensor
    gap: Tensor
    gaps: Tensor

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        super().__init__()
        absent = [[] if column.levels else _numbers(column.missing) for column in columns]
        length = max(map(len, absent))
        entries: list[dict[str, object]] = []
        for index, column in enumerate(columns):
            lowest, highest = column.range or (0.0, float(max(len(column.levels) - 1, 1)))
            shared = {
                "column": index,
                "lowest": lowest,
                "highest": highest,
                "is_whole": column.kind != "number",
                "absent": absent[index] + [math.nan] * (length - len(absent[index])),
            }
            values = [{"level": float(level), "is_scaled": False, "gap": 0.0} for level in range(len(column.levels))]
            values = values or [{"level": math.nan, "is_scaled": True, "gap": 0.0}]
            entries += [{**shared, **each} for each in (*values, {"level": math.nan, "is_scaled": False, "gap": 1.0})]
        buffers = {name: [entry[name] for entry in entries] for name in entries[0]}
        buffers["gaps"] = [place for place, entry in enumerate(entries) if entry["gap"]]
        dtypes = {
            **dict.fromkeys(("column", "gaps"), torch.int64),
            **dict.fromkeys(("is_whole", "is_scaled"), torch.bool),
        }
        for name, numbers in buffers.items():
            tensor = torch.tensor(numbers, dtype=dtypes.get(name, torch.float64), device="cpu")
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the channels ``(b, channels, 1)``, float32, computed in the precision of the rows.

        Args:
            rows: ``(b, columns)``: numbers in their units, flags as 0 or 1, the indices of levels; NaN where missing.
        """
        values, lowest, highest = rows[:, self.column], self.lowest.to(rows.dtype), self.highest.to(rows.dtype)
        nearest = torch.where(self.is_whole, values.round(), values).clamp(lowest, highest)
        present = values == nearest
        for numbers in self.absent.to(rows.dtype).unbind(1):
            present = present & (values != numbers)
        scaled = (2 * values - lowest - highest) / (highest - lowest)
        known = torch.where(self.is_scaled, scaled, (values == self.level.to(rows.dtype)).to(rows.dtype))
        return torch.where(present, known, self.gap.to(rows.dtype)).float()[:, :, None]

    def without_value(self, channels: Tensor) -> Tensor:
        """Return of each row's channels ``(b, channels, 1)`` whether every column is missing, ``(b, 1)``."""
        return channels[:, self.gaps, 0].amin(1, keepdim=True) == 1


@lru_cache
def column_channels(columns: tuple[TableColumn, ...]) -> ColumnChannels:
    """Return the module of these columns, built once."""
    return ColumnChannels(columns)


def encode_row(columns: Sequence[TableColumn], row: Sequence[float]) -> Tensor:
    """Return the network's input for a row, float32 ``(channels, 1)``; raise ``ValueError`` if it has no value."""
    if all(math.isnan(value) for value in row):
        raise ValueError("has no value in any column")
    channels: Tensor = column_channels(tuple(columns))(torch.tensor([row], dtype=torch.float64))[0]
    return channels


def _numbers(words: Sequence[str]) -> list[float]:
    """Return those words that are numbers."""
    numbers = []
    for word in words:
        try:
            numbers.append(parse_number(word.strip()))
        except ValueError:
            continue
    return numbers
