"""The report as Markdown: the same tables, the pictures as files beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from peer.research.report.contents import Part, ReportContents
from peer.research.report.plotting import ReportFigure
from peer.research.report.table import BEST, SECOND, Cell, Table

PICTURES, TABLES = "pictures", "tables"
"""Folders beside the text."""
SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def written(contents: ReportContents) -> str:
    lines = [f"# {_escaped(contents.title)}", *map(_escaped, contents.lead), " ".join(map(_escaped, contents.missing))]
    for section in contents.sections:
        lines.append(f"## {_escaped(section.title)}")
        for part in section.parts:
            lines.extend(_part(part))
    return "\n\n".join(lines) + "\n"


def _part(part: Part) -> Iterator[str]:
    if isinstance(part, Table):
        yield f"**{_escaped(part.title)}** ([CSV]({TABLES}/{part.name}.csv))"
        yield _table(part)
        yield from map(_escaped, part.notes)
    elif isinstance(part, ReportFigure):
        yield f"**{_escaped(part.title)}**"
        yield f"![{_escaped(part.title)}]({PICTURES}/{part.name}.svg)"
        yield _escaped(part.caption)
    elif part.startswith("## "):
        yield f"### {_escaped(part.removeprefix('## '))}"
    else:
        yield _escaped(part)


def _table(table: Table) -> str:
    heads = [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns]
    lines = [_line([table.head, *heads]), "|---|" + "---:|" * len(table.columns)]
    for row in table.rows:
        label = f"*{_escaped(row.label)}*" if row.published else _escaped(row.label)
        cells = [_cell(cell, column.digits) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append("| " + " | ".join([label, *cells]) + " |")
    return "\n".join(lines)


def _cell(cell: Cell, digits: int) -> str:
    shown = _escaped(cell.shown(digits))
    if cell.rank == BEST:
        return f"**{shown}**"
    return f"<u>{shown}</u>" if cell.rank == SECOND else shown


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(_escaped, cells)) + " |"


def _escaped(text: str) -> str:
    """Text in which nothing is markup but code in backquotes."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return SPECIAL.sub(r"\\\1", text)
    return "`".join(part if index % 2 else SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts))
