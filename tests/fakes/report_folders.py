"""Folders of runs as a report reads them: changed, compared, and their tables as texts."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.json_documents import change_documents
from peer.lab.report.comparison import Comparison, compare
from peer.lab.report.measurements import Measurements
from peer.lab.report.results import Results, read
from peer.lab.report.table import Table

SETTING = ("sites", "heterogeneous")
TWO = {"Local": "local", "FedSKD": "fedskd"}


def link(name: str, **keys: Any) -> dict[str, Any]:
    """The links of a federation, of which by default none is lost."""
    return {"name": name, "loss": 0.0, "removed": [], **keys}


def set_values(folder: Path, value: Callable[[Any, str, str], float | None], metric: str = "auc") -> Path:
    """Set a metric by the run's result, the model's site and the data's; None leaves it out."""
    for result in change_documents(folder, "runs/*/result.json"):
        for model, row in result["matrix"].items():
            for site, cell in row.items():
                cell[metric] = value(result, model, site)
                if cell[metric] is None:
                    del cell[metric]
    return folder


def compared(folder: Path, metric: str = "auc") -> tuple[Results, Comparison]:
    """The results in a folder, and their main table without published figures."""
    results = read(folder)
    return results, compare(Measurements(results), SETTING, metric, None, name="t")


def cells(table: Table) -> dict[str, list[str]]:
    """The texts of each row's cells."""
    return {
        row.label: [cell.format(column.digits) for cell, column in zip(row.cells, table.columns, strict=True)]
        for row in table.rows
    }


def texts(table: Table) -> dict[str, dict[str, str]]:
    """The texts of each row's cells, by the heads of their columns."""
    heads = [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns]
    return {label: dict(zip(heads, row, strict=True)) for label, row in cells(table).items()}
