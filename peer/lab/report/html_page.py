"""The report as one HTML file, with style and figures inside and without scripts."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator

from peer.lab.report.contents import ReportContents, ReportPart, Section
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.table import BEST, SECOND, Cell, Table, TableRow
from peer.web_page import STYLE

LONG_ROWS = 20
"""A table with more rows is collapsed."""


def render_html(contents: ReportContents, *, version: str) -> str:
    style = STYLE.read_text("utf-8")
    missing = "".join(f"<p>{_escape(line)}</p>" for line in contents.missing)
    links = "".join(f'<a href="#{section.anchor}">{_escape(section.title)}</a> ' for section in contents.sections)
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{_escape(contents.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>",
            f"<h1>{_escape(contents.title)}</h1>",
            *(f"<p>{_escape(line)}</p>" for line in contents.lead),
            f'<div class="missing">{missing}</div>'
            if len(contents.missing) > 1
            else f"<p>{_escape(contents.missing[0])}</p>",
            f"<nav>{links}</nav>",
            *(line for section in contents.sections for line in _section(section)),
            f"<footer>mhfl-peer {_escape(version)}</footer>\n</body>\n</html>\n",
        ]
    )


def _section(section: Section) -> Iterator[str]:
    yield f'<section id="{section.anchor}">\n<h2>{_escape(section.title)}</h2>'
    for part in section.parts:
        yield _part(part)
    yield "</section>"


def _part(part: ReportPart) -> str:
    if isinstance(part, Table):
        return _table(part)
    if isinstance(part, ReportFigure):
        name = f'<p class="name">{_escape(part.title)}</p>'
        drawing = f'<div class="wide">{part.inline}</div>'
        return f"<figure>\n{name}{drawing}<figcaption>{_escape(part.caption)}</figcaption>\n</figure>"
    if part.startswith("## "):
        return f"<h3>{_escape(part.removeprefix('## '))}</h3>"
    return f"<p>{_escape(part)}</p>"


def _table(table: Table) -> str:
    data = base64.b64encode(table.csv().encode()).decode()
    name = f'<p class="name">{_escape(table.title)}'
    name += f'<a download="{table.name}.csv" href="data:text/csv;base64,{data}">CSV</a></p>'
    body = "\n".join(_row(table, row) for row in table.rows)
    table_html = f'<div class="wide"><table>\n<thead>{_head(table)}</thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'
    if len(table.rows) > LONG_ROWS:
        table_html = f"<details><summary>{len(table.rows)} rows</summary>{table_html}</details>"
    notes = "".join(f'<p class="note">{_escape(note)}</p>' for note in table.notes)
    return f"<figure>\n{name}{table_html}{notes}\n</figure>"


def _head(table: Table) -> str:
    lines = []
    if any(name for name, _ in table.groups):
        groups = "".join(
            f'<th class="group first" colspan="{width}">{_escape(name)}</th>' for name, width in table.groups
        )
        lines.append(f"<tr><th></th>{groups}</tr>")
    names = "".join(
        f"<th{_class_attribute('first' if starts else '', 'text' if _is_text(table, index) else '')}>"
        f"{_escape(column.name)}</th>"
        for index, (column, starts) in enumerate(zip(table.columns, _group_starts(table), strict=True))
    )
    lines.append(f"<tr><th>{_escape(table.head)}</th>{names}</tr>")
    return "".join(lines)


def _row(table: Table, row: TableRow) -> str:
    cells = "".join(
        f"<td{_class_attribute('first' if starts else '', *_classes(cell, text=_is_text(table, index)))}>"
        f"{_escape(cell.format(column.digits)).replace(' ± ', '&thinsp;±&thinsp;')}</td>"
        for index, (cell, column, starts) in enumerate(zip(row.cells, table.columns, _group_starts(table), strict=True))
    )
    return f"<tr{_class_attribute('published' if row.published else '')}><td>{_escape(row.label)}</td>{cells}</tr>"


def _classes(cell: Cell, *, text: bool) -> list[str]:
    return [{BEST: "best", SECOND: "second"}.get(cell.rank, ""), "text" if text else ""]


def _is_text(table: Table, index: int) -> bool:
    """Whether a column has words, which are aligned left."""
    return all(row.cells[index].value is None for row in table.rows) and any(
        len(row.cells[index].text or "") > 1 and not (row.cells[index].text or "")[0].isdigit() for row in table.rows
    )


def _group_starts(table: Table) -> list[bool]:
    """For each column, whether it begins a group."""
    return [flag for _, width in table.groups for flag in (True, *[False] * (width - 1))]


def _class_attribute(*names: str) -> str:
    classes = " ".join(name for name in names if name)
    return f' class="{classes}"' if classes else ""


def _escape(value: str) -> str:
    """Escape HTML; text in backquotes becomes code."""
    parts = html.escape(value).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
