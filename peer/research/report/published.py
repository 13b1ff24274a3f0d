"""The four papers' own figures: which of them stand beside an experiment's, and what is wrong with them.

``published.json`` holds numbers, names and table ids as printed; a cell is a number, or mean and standard deviation.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from peer.research.report.table import Cell, Column, Table, TableRow, unit
from peer.research.result_files import CENTRALISED

SAME = {
    "onlylocaltraining": "local",
    "central": CENTRALISED,
    "centralized": CENTRALISED,
    "fedcrosshet": "fedcross",
    "mhpflid": "mhpflid",
}
"""One name for what the papers call differently."""
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
        """Homogeneous or heterogeneous, and of which networks."""
        return str(self.document["setting"])

    @property
    def kind(self) -> str:
        """What it shows: ``comparison``, ``disconnection``, ``cross-site``, ``fairness``, ``footprint`` and so on."""
        return str(self.document["kind"])

    @property
    def unit(self) -> str:
        """``percent`` or ``fraction``, of shares."""
        return str(self.document["unit"])

    @property
    def labels(self) -> list[str]:
        return [str(row[0]) for row in self.document["rows"]]

    def has(self, metric: str) -> bool:
        return any(test in TESTS and found == metric for test, _, found in self.document["columns"])

    def sites(self, metric: str) -> list[str]:
        """The columns of the Local Test but for the mean."""
        columns = self.document["columns"]
        return [name for test, name, found in columns if (test, found) == ("local", metric) and name != MEAN]

    @property
    def known_sites(self) -> dict[str, str]:
        """The columns that are numbered in print by the names that `data prepare` gives these sites."""
        return dict(self.document.get("sites", {}))

    def cell(self, label: str, test: str, site: str, metric: str) -> Cell:
        """What the table prints; an empty cell where it prints nothing, or nothing for this site."""
        for (group, name, found), value in zip(self.document["columns"], self._row(label), strict=True):
            if (group, found) == (test, metric) and plain(name) == plain(site):
                return printed(value)
        return Cell()

    def table(self, name: str) -> Table:
        columns = []
        for group, site, metric in self.document["columns"]:
            shown = unit(metric, self.unit) if metric else None
            head = f"{group.title()} Test" if group in TESTS else group
            head += f" ({shown.axis})" if shown and head else ""
            columns.append(Column(site, head, digits=shown.digits if shown else 3))
        rows = [TableRow(row[0], tuple(map(printed, row[1:])), published=True) for row in self.document["rows"]]
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
            for remark in _everything()["remarks"]
            if self.paper in remark["papers"]
            and self.document["table"] in remark["tables"]
            and remark["dataset"] in (None, self.dataset)
        ]

    def _row(self, label: str) -> Sequence[Any]:
        return next(row[1:] for row in self.document["rows"] if row[0] == label)


def beside(reference: Mapping[str, Any] | None) -> list[Published]:
    """The published tables that an experiment refers to: the named one, and what the paper shows of the same data.

    Args:
        reference: of ``experiment.json``: ``paper``, ``table``, ``dataset`` and perhaps ``setting``.
    """
    if reference is None:
        return []
    found = [Published(table) for table in _everything()["tables"] if table["paper"] == reference["paper"]]
    named = [table for table in found if _is(table, reference)]
    also = [
        table
        for table in found
        if table.kind not in ("comparison",) and table not in named and _of(table.dataset, str(reference["dataset"]))
    ]
    return [*named, *also]


def chosen(tables: Sequence[Published], setting: tuple[str, str], metric: str) -> Published | None:
    """The one comparison that stands beside a partition and a set of networks; nothing where it is not clear which."""
    found = [table for table in tables if table.kind == "comparison" and table.has(metric)]
    for what, name in (("dataset", setting[0]), ("setting", setting[1])):
        if len({table.document[what] for table in found}) > 1:
            found = [table for table in found if _fits(str(table.document[what]), name)]
    return found[0] if len(found) == 1 else None


def plain(name: str) -> str:
    """A name without case, spaces and signs, and one for what has several."""
    letters = re.sub(r"[^0-9a-z]", "", name.casefold())
    return SAME.get(letters, letters)


def printed(value: Any) -> Cell:
    if value is None:
        return Cell()
    if isinstance(value, str):
        return Cell(text=value)
    if isinstance(value, list):
        return Cell(float(value[0]), float(value[1]))
    return Cell(float(value))


def reference(paper: str) -> str:
    return str(_everything()["papers"][paper])


def _is(table: Published, reference: Mapping[str, Any]) -> bool:
    wanted = str(reference["table"])
    number = str(table.document["table"])
    same = number == wanted or number.rstrip("ab") == wanted
    setting = reference.get("setting")
    return (
        same
        and _of(table.dataset, str(reference["dataset"]))
        and (setting is None or plain(table.setting).startswith(plain(str(setting))))
    )


def _of(dataset: str, wanted: str) -> bool:
    """Whether a table is about the wanted data: the same name, or a variant of it."""
    return dataset == "all" or plain(dataset).startswith(plain(wanted))


def _fits(printed_name: str, name: str) -> bool:
    """Whether a partition or set of networks is a published one by its name: ``alpha-0.5`` is ``FedSkin alpha=0.5``."""
    ours, theirs = plain(name), plain(printed_name)
    return theirs.startswith(ours) or theirs.endswith(ours)


@cache
def _everything() -> Any:
    return json.loads(Path(__file__).with_name("published.json").read_text("utf-8"))
