"""``[sweep]``: a row of [methods] becomes candidates, one for each combination of values.

Every candidate is trained like a row. The report chooses by validation samples; see
``peer.lab.report.choice``.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any

from peer.site.config.toml import suggestion

EVERY_ROW = "*"
VALUE_CHARACTERS_MAX = 24
"""Of a value in the name of a run's folder; names of files end at 255 bytes."""

Key = tuple[str, ...]
"""The parts of a dotted key of a row."""


def expand(rows: Mapping[str, Any], sweep: Mapping[str, Any]) -> dict[str, Any]:
    """Replace each row that the sweep names by its candidates.

    A candidate's name has its values, so that the names of runs stay when a value is added.

    Args:
        rows: the table [methods].
        sweep: the table [sweep]: by row, or ``"*"``, keys as in [methods] with lists of values.

    Raises:
        ValueError: a row does not exist, a key has no list of values, or the rows' numbers of
            combinations differ without a bound; the message begins with the dotted key.
    """
    grids = sweep["methods"]
    for row in sorted(grids.keys() - rows.keys() - {EVERY_ROW}):
        raise ValueError(f"sweep.methods.{row}: no such row{suggestion(row, rows)}")
    expanded: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for row, keys in rows.items():
        grid = {**dict(_leaves(EVERY_ROW, grids.get(EVERY_ROW, {}))), **dict(_leaves(row, grids.get(row, {})))}
        if not grid:
            expanded[row] = keys
            continue
        combinations = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        random.Random(row).shuffle(combinations)  # a larger number keeps the candidates of a smaller one
        counts[row] = len(combinations)
        for combination in combinations[: sweep.get("candidates")]:
            label = row + "".join(f"+{_name(key, value)}" for key, value in combination.items())
            if label in expanded or label in rows:
                raise ValueError(f"sweep.methods.{row}: two rows would both be called {label!r}")
            expanded[label] = _with_values(keys, combination) | {"method": keys.get("method", row), "candidate_of": row}
    if len(set(counts.values())) > 1 and "candidates" not in sweep:
        numbers = ", ".join(f"{row} {count}" for row, count in counts.items())
        raise ValueError(
            f"sweep.candidates: is needed, as the rows have different numbers of combinations ({numbers}); no row "
            "tries more than it says"
        )
    return expanded


def _leaves(row: str, table: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, list[Any]]]:
    """Yield every list of values with its dotted key."""
    for name, value in table.items():
        key = (*above, name)
        if isinstance(value, dict):
            yield from _leaves(row, value, key)
        elif isinstance(value, list) and value:
            yield key, value
        else:
            where = ".".join(("sweep", "methods", row, *key))
            raise ValueError(f"{where}: expected a list of values to choose from, such as [0.1, 1.0]")


def _name(key: Key, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    word = re.sub(r"[^A-Za-z0-9.+-]+", "_", text).strip("_")[:VALUE_CHARACTERS_MAX]
    return f"{'.'.join(part for part in key if part not in ('stages', 'budget'))}-{word}"


def _with_values(row: Mapping[str, Any], values: Mapping[Key, Any]) -> dict[str, Any]:
    """Return a row of [methods] with the values at their keys; the row itself is unchanged."""
    changed: dict[str, Any] = json.loads(json.dumps(row))
    for (*tables, name), value in values.items():
        table = changed
        for part in tables:
            table = table.setdefault(part, {})
        table[name] = value
    return changed
