"""The report as Markdown: the same tables, with the figures as separate files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from peer.lab.report.contents import ReportContents, ReportPart
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.table import BEST, SECOND, Cell, Table

PICTURES, TABLES = "pictures", "tables"
"""Folders next to the Markdown file."""
SPECIAL = re.compile(r"([\\`*_\[\]<>|])")


def render_markdown(contents: ReportContents) -> str:
    lines = [f"# {_escape(contents.title)}", *map(_escape, contents.lead), " ".join(map(_escape, contents.missing))]
    for section in contents.sections:
        lines.append(f"## {_escape(section.title)}")
        for part in section.parts:
            lines.extend(_part(part))
    return "\n\n".join(lines) + "\n"


def _part(part: ReportPart) -> Iterator[str]:
    if isinstance(part, Table):
        yield f"**{_escape(part.title)}** ([CSV]({TABLES}/{part.name}.csv))"
        yield _table(part)
        yield from map(_escape, part.notes)
    elif isinstance(part, ReportFigure):
        yield f"**{_escape(part.title)}**"
        yield f"![{_escape(part.title)}]({PICTURES}/{part.name}.svg)"
        yield _escape(part.caption)
    elif part.startswith("## "):
        yield f"### {_escape(part.removeprefix('## '))}"
    else:
        yield _escape(part)


def _table(table: Table) -> str:
    heads = [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns]
    lines = [_line([table.head, *heads]), "|---|" + "---:|" * len(table.columns)]
    for row in table.rows:
        label = f"*{_escape(row.label)}*" if row.published else _escape(row.label)
        cells = [_cell(cell, column.digits) for cell, column in zip(row.cells, table.columns, strict=True)]
        lines.append("| " + " | ".join([label, *cells]) + " |")
    return "\n".join(lines)


def _cell(cell: Cell, digits: int) -> str:
    text = _escape(cell.format(digits))
    if cell.rank == BEST:
        return f"**{text}**"
    return f"<u>{text}</u>" if cell.rank == SECOND else text


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(map(_escape, cells)) + " |"


def _escape(text: str) -> str:
    """Escape Markdown, except for code in backquotes."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return SPECIAL.sub(r"\\\1", text)
    return "`".join(part if index % 2 else SPECIAL.sub(r"\\\1", part) for index, part in enumerate(parts))
