"""The columns of a table as the channels that networks take, in training, in predictions and in exported graphs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn

from peer.core.columns import TableColumn, parse_number

SCALED, GAP = -1, -2
"""What a channel says instead of a level: the column's value, or that it is missing."""


class ColumnChannels(nn.Module):
    """Computes the channels of rows: a number from -1 to 1 over its range, a flag -1 or 1, a channel for each level.

    The last channel of a column is 1 where the value is missing; the others are then 0. A number outside the range or
    equal to one of the column's words for a missing value, a flag that is neither 0 nor 1, and a level that the column
    does not have are missing.
    """

    columns: Tensor
    levels: Tensor
    lowest: Tensor
    highest: Tensor
    is_whole: Tensor
    absent: Tensor
    gaps: Tensor

    def __init__(self, columns: Sequence[TableColumn]) -> None:
        super().__init__()
        channels = [
            (index, level)
            for index, column in enumerate(columns)
            for level in (*(range(len(column.levels)) if column.levels else (SCALED,)), GAP)
        ]
        ranges = [column.range or (0.0, float(max(len(column.levels) - 1, 1))) for column in columns]
        absent = [[] if column.levels else _numbers(column.missing) for column in columns]
        length = max(map(len, absent))
        buffers = {
            "columns": [index for index, _ in channels],
            "levels": [level for _, level in channels],
            "lowest": [low for low, _ in ranges],
            "highest": [high for _, high in ranges],
            "is_whole": [column.kind != "number" for column in columns],
            "gaps": [place for place, (_, level) in enumerate(channels) if level == GAP],
            "absent": [[*numbers, *[math.nan] * (length - len(numbers))] for numbers in absent],
        }
        dtypes = {"columns": torch.int64, "levels": torch.int64, "gaps": torch.int64, "is_whole": torch.bool}
        for name, values in buffers.items():
            tensor = torch.tensor(values, dtype=dtypes.get(name, torch.float64), device="cpu")
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Return the channels ``(b, channels, 1)``, float32, computed in the dtype of the rows.

        Args:
            rows: ``(b, columns)``: numbers in their units, flags as 0 or 1, the indices of levels; NaN where missing.
        """
        lowest, highest = self.lowest.to(rows.dtype), self.highest.to(rows.dtype)
        fits = (rows >= lowest) & (rows <= highest) & ((rows == rows.round()) | ~self.is_whole)
        for numbers in self.absent.to(rows.dtype).unbind(1):
            fits = fits & (rows != numbers)
        values = torch.where(fits, rows, lowest)
        scaled = (2 * values - lowest - highest) / (highest - lowest)
        present = fits[:, self.columns]
        is_level = (values[:, self.columns] == self.levels.to(rows.dtype)).to(rows.dtype)
        known = torch.where(self.levels == SCALED, scaled[:, self.columns], is_level)
        known = torch.where(present, known, torch.zeros_like(known))
        return torch.where(self.levels == GAP, (~present).to(rows.dtype), known).float()[:, :, None]

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
