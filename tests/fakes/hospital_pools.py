"""What every pool of real hospitals keeps to."""

import json
from pathlib import Path
from typing import Any

from peer.lab.datasets.hospital_table import HospitalTable
from peer.lab.experiments.experiment import Experiment
from peer.train.data.datalist import inspect_datalist

PRESETS = Path(__file__).parents[2] / "deploy/examples/experiments"


def read_pool(folder: Path, table: HospitalTable) -> list[dict[str, Any]]:
    """Read a prepared pool; its values fit the columns and the target of the preset of its name, and each person is in
    one row at one of the sites.
    """
    task = Experiment.load(PRESETS / f"{table.dataset}.toml").task
    assert [column.to_column() for column in task.column] == list(table.columns.values())
    listed = inspect_datalist(folder / "pool.json", **task.labelling())
    assert (listed.problems, listed.notes) == ((), ())
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
