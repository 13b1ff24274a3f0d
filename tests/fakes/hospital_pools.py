"""What every pool of real hospitals keeps to."""

import json
from pathlib import Path
from typing import Any

from peer.lab.datasets.hospital_table import HospitalTable


def read_pool(folder: Path, table: HospitalTable) -> list[dict[str, Any]]:
    """Read a prepared pool; its values fit the columns, and each person is in one row at one of the sites."""
    entries: list[dict[str, Any]] = json.loads((folder / "pool.json").read_text())["training"]
    columns = list(table.columns.values())
    for entry in entries:
        assert list(entry["row"]) == [column.name for column in columns]
        assert [column.show(column.parse(entry["row"][column.name])) for column in columns] == [*entry["row"].values()]
    assert len({entry["subject"] for entry in entries}) == len(entries)
    assert {entry["site"] for entry in entries} == set(table.sites)
    return entries


def missing_values(entries: list[dict[str, Any]]) -> dict[str, int]:
    """Count the missing values of each column that has some."""
    counts = {name: sum(entry["row"][name] is None for entry in entries) for name in entries[0]["row"]}
    return {name: count for name, count in counts.items() if count}
