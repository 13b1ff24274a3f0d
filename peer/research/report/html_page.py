"""The report as one HTML file: style and pictures inside it, no script, nothing fetched."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator
from pathlib import Path

from peer.research.report.contents import Part, ReportContents, Section
from peer.research.report.plotting import ReportFigure
from peer.research.report.table import BEST, SECOND, Cell, Table, TableRow

LONG_ROWS = 20
"""A table with more rows is folded away."""


def written(contents: ReportContents, *, version: str) -> str:
    style = Path(__file__).with_name("style.css").read_text("utf-8")
    missing = "".join(f"<p>{_text(line)}</p>" for line in contents.missing)
    links = "".join(f'<a href="#{section.anchor}">{_text(section.title)}</a> ' for section in contents.sections)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_text(contents.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<h1>{_text(contents.title)}</h1>",
            *(f"<p>{_text(line)}</p>" for line in contents.lead),
            f'<div class="missing">{missing}</div>'
            if len(contents.missing) > 1
            else f"<p>{_text(contents.missing[0])}</p>",
            f"<nav>{links}</nav>",
            *(line for section in contents.sections for line in _section(section)),
            f"<footer>mhfl-peer {_text(version)}</footer>\n</body>\n</html>\n",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.anchor}">\n<h2>{_text(section.title)}</h2>'
    for part in section.parts:
        yield _part(part)
    yield "</section>"


def _part(part: Part) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, ReportFigure):
        name = f'<p class="name">{_text(part.title)}</p>'
        return f"<figure>\n{name}{part.inline}<figcaption>{_text(part.caption)}</figcaption>\n</figure>"
    if part.startswith("## "):
        return f"<h3>{_text(part.removeprefix('## '))}</h3>"
    return f"<p>{_text(part)}</p>"


def _table(table: Table) -> str:
    data = base64.b64encode(table.csv().encode()).decode()
    name = f'<p class="name">{_text(table.title)}'
    name += f'<a download="{table.name}.csv" href="data:text/csv;base64,{data}">CSV</a></p>'
    body = "\n".join(_row(table, row) for row in table.rows)
    drawn = f'<div class="wide"><table>\n<thead>{_head(table)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    if len(table.rows) > LONG_ROWS:
        drawn = f"<details><summary>{len(table.rows)} rows</summary>{drawn}</details>"
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in table.notes)
    return f"<figure>\n{name}{drawn}{notes}\n</figure>"


def _head(table: Table) -> str:
    lines = []
    if any(name for name, _ in table.groups):
        groups = "".join(
            f'<th class="group first" colspan="{width}">{_text(name)}</th>' for name, width in table.groups
        )
        lines.append(f"<tr><th></th>{groups}</tr>")
    names = "".join(
        f"<th{_class('first' if first else '', 'text' if _is_text(table, place) else '')}>{_text(column.name)}</th>"
        for place, (column, first) in enumerate(zip(table.columns, _firsts(table), strict=True))
    )
    lines.append(f"<tr><th>{_text(table.head)}</th>{names}</tr>")
    return "".join(lines)


def _row(table: Table, row: TableRow) -> str:
    cells = "".join(
        f"<td{_class('first' if first else '', *_classes(cell, text=_is_text(table, place)))}>"
        f"{_text(cell.shown(column.digits)).replace(' ± ', '&thinsp;±&thinsp;')}</td>"
        for place, (cell, column, first) in enumerate(zip(row.cells, table.columns, _firsts(table), strict=True))
    )
    return f"<tr{_class('published' if row.published else '')}><td>{_text(row.label)}</td>{cells}</tr>"


def _classes(cell: Cell, *, text: bool) -> list[str]:
    return [{BEST: "best", SECOND: "second"}.get(cell.rank, ""), "text" if text else ""]


def _is_text(table: Table, place: int) -> bool:
    """Whether a column is of words, which stand to the left."""
    return all(row.cells[place].value is None for row in table.rows) and any(
        len(row.cells[place].text or "") > 1 and not (row.cells[place].text or "")[0].isdigit() for row in table.rows
    )


def _firsts(table: Table) -> list[bool]:
    """Which columns begin a group."""
    return [flag for _, width in table.groups for flag in (True, *[False] * (width - 1))]


def _class(*names: str) -> str:
    found = " ".join(name for name in names if name)
    return f' class="{found}"' if found else ""


def _text(value: str) -> str:
    """Escaped; what stands in backquotes is code."""
    parts = html.escape(value).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
