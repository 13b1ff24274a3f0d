"""The published figures of the papers and of FLamby: the tables that an experiment refers to, and remarks on errors.

``published.json`` holds numbers, names and table ids as printed. A cell is a number, or mean and
standard deviation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from peer.lab.experiments.result_files import CENTRALISED
from peer.lab.report.table import Cell, Column, Table, TableRow, unit_of

SYNONYMS = {
    "onlylocaltraining": "local",
    "central": CENTRALISED,
    "centralized": CENTRALISED,
    "fedcrosshet": "fedcross",
    "mhpflid": "mhpflid",
}
"""Our names for methods that a paper names differently; keys and values without case and signs."""
TESTS = ("local", "global")
MEAN = "Mean"


@dataclass(frozen=True)
class Published:
    """One table of one paper for one data set and one setting."""

    document: Mapping[str, Any]

    @property
    def paper(self) -> str:
        return str(self.document["paper"])

    @property
    def source(self) -> str:
        table = str(self.document["table"])
        return f"{self.paper}, {table if table.startswith('§') else f'table {table}'}"

    @property
    def dataset(self) -> str:
        return str(self.document["dataset"])

    @property
    def setting(self) -> str:
        """``homogeneous`` or ``heterogeneous``, in some tables with the networks."""
        return str(self.document["setting"])

    @property
    def kind(self) -> str:
        """``comparison``, ``disconnection``, ``cross-site``, ``fairness``, ``footprint``, ..."""
        return str(self.document["kind"])

    @property
    def unit(self) -> str:
        """The unit of shares: ``percent`` or ``fraction``."""
        return str(self.document["unit"])

    @property
    def labels(self) -> list[str]:
        return [str(row[0]) for row in self.document["rows"]]

    def has(self, metric: str) -> bool:
        return any(test in TESTS and column_metric == metric for test, _, column_metric in self.document["columns"])

    def sites(self, metric: str) -> list[str]:
        """Return the names of the Local Test's columns, without the mean."""
        columns = self.document["columns"]
        return [
            name for test, name, column_metric in columns if (test, column_metric) == ("local", metric) and name != MEAN
        ]

    @property
    def known_sites(self) -> dict[str, str]:
        """The paper's column of a site by the name that `data prepare` gives the site."""
        return dict(self.document.get("sites", {}))

    def cell(self, label: str, test: str, site: str, metric: str) -> Cell:
        """Return the printed value; an empty cell if the paper has none."""
        for (group, name, column_metric), value in zip(self.document["columns"], self._row(label), strict=True):
            if (group, column_metric) == (test, metric) and normalise_name(name) == normalise_name(site):
                return printed_cell(value)
        return Cell()

    def table(self, name: str) -> Table:
        columns = []
        for group, site, metric in self.document["columns"]:
            unit = unit_of(metric, self.unit) if metric else None
            group_title = f"{group.title()} Test" if group in TESTS else group
            group_title += f" ({unit.axis})" if unit and group_title else ""
            columns.append(Column(site, group_title, digits=unit.digits if unit else 3))
        rows = [TableRow(row[0], tuple(map(printed_cell, row[1:])), published=True) for row in self.document["rows"]]
        note = self.document.get("note")
        notes = (
            f"As printed in {self.source} ({reference(self.paper)}): the paper's own figures.",
            *((note,) if note else ()),
        )
        parts = [self.dataset if self.dataset != "all" else "", self.setting]
        title = f"Published: {self.source}: {', '.join(part for part in parts if part)}"
        return Table(name, title, "row", tuple(columns), tuple(rows), notes)

    def remarks(self) -> list[str]:
        return [
            str(remark["text"])
            for remark in _published_document()["remarks"]
            if self.paper in remark["papers"]
            and self.document["table"] in remark["tables"]
            and remark["dataset"] in (None, self.dataset)
        ]

    def _row(self, label: str) -> Sequence[Any]:
        return next(row[1:] for row in self.document["rows"] if row[0] == label)


def reference_tables(reference: Mapping[str, Any] | None) -> list[Published]:
    """Return the published tables that an experiment refers to: the named one, and others on the same data.

    Args:
        reference: from ``experiment.json``: ``paper``, ``table``, ``dataset`` and optionally
            ``setting``.
    """
    if reference is None:
        return []
    paper_tables = [
        Published(table) for table in _published_document()["tables"] if table["paper"] == reference["paper"]
    ]
    named_tables = [table for table in paper_tables if _is_named(table, reference)]
    related_tables = [
        table
        for table in paper_tables
        if table.kind not in ("comparison",)
        and table not in named_tables
        and _is_about(table.dataset, str(reference["dataset"]))
    ]
    return [*named_tables, *related_tables]


def choose_comparison(tables: Sequence[Published], setting: tuple[str, str], metric: str) -> Published | None:
    """Choose the published comparison of a partition and set of networks; None if ambiguous."""
    candidates = [table for table in tables if table.kind == "comparison" and table.has(metric)]
    for key, name in (("dataset", setting[0]), ("setting", setting[1])):
        if len({table.document[key] for table in candidates}) > 1:
            candidates = [table for table in candidates if _names_match(str(table.document[key]), name)]
    return candidates[0] if len(candidates) == 1 else None


def normalise_name(name: str) -> str:
    """Return a name without case, spaces and signs; synonyms have one name."""
    letters = re.sub(r"[^0-9a-z]", "", name.casefold())
    return SYNONYMS.get(letters, letters)


def printed_cell(value: Any) -> Cell:
    if value is None:
        return Cell()
    if isinstance(value, str):
        return Cell(text=value)
    if isinstance(value, list):
        return Cell(float(value[0]), float(value[1]))
    return Cell(float(value))


def reference(paper: str) -> str:
    return str(_published_document()["papers"][paper])


def _is_named(table: Published, reference: Mapping[str, Any]) -> bool:
    table_wanted = str(reference["table"])
    number = str(table.document["table"])
    same = number == table_wanted or number.rstrip("ab") == table_wanted
    setting = reference.get("setting")
    return (
        same
        and _is_about(table.dataset, str(reference["dataset"]))
        and (setting is None or normalise_name(table.setting).startswith(normalise_name(str(setting))))
    )


def _is_about(dataset: str, wanted_dataset: str) -> bool:
    """Return whether a table's data set is the wanted one, or a variant of it."""
    return dataset == "all" or normalise_name(dataset).startswith(normalise_name(wanted_dataset))


def _names_match(printed_name: str, name: str) -> bool:
    """Return whether our name means the published one, as ``alpha-0.5`` means ``FedSkin alpha=0.5``."""
    own_name, published_name = normalise_name(name), normalise_name(printed_name)
    return published_name.startswith(own_name) or published_name.endswith(own_name)


@cache
def _published_document() -> Any:
    return json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
