"""The report as one HTML file, with style and figures inside and without scripts."""

from __future__ import annotations

import base64

from peer.lab.report.contents import ReportContents, ReportPart
from peer.lab.report.plotting import ReportFigure
from peer.lab.report.table import Table
from peer.web_page import render_page

LONG_ROWS = 20
"""A table with more rows is collapsed."""


def render_html(contents: ReportContents, *, version: str) -> str:
    return render_page(
        "report.html.j2",
        title=contents.title,
        strict=False,
        contents=contents,
        sections=[
            {"anchor": section.anchor, "title": section.title, "parts": list(map(_part, section.parts))}
            for section in contents.sections
        ],
        version=version,
    )


def _part(part: ReportPart) -> dict[str, object]:
    """Return the part under the name of its kind."""
    kinds: dict[str, object] = dict.fromkeys(("table", "drawing", "heading", "paragraph"))
    if isinstance(part, Table):
        return {**kinds, "table": _table(part)}
    if isinstance(part, ReportFigure):
        return {**kinds, "drawing": part}
    heading = part.removeprefix("## ")
    return {**kinds, "paragraph" if heading == part else "heading": heading}


def _table(table: Table) -> dict[str, object]:
    starts = [flag for _, width in table.groups for flag in (True, *[False] * (width - 1))]
    return {
        "title": table.title,
        "name": table.name,
        "csv": base64.b64encode(table.csv().encode()).decode(),
        "is_long": len(table.rows) > LONG_ROWS,
        "groups": table.groups if any(name for name, _ in table.groups) else [],
        "head": table.head,
        "columns": [
            {
                "name": column.name,
                "digits": column.digits,
                "first": "first" if is_start else "",
                "text": "text" if _is_text(table, index) else "",
            }
            for index, (column, is_start) in enumerate(zip(table.columns, starts, strict=True))
        ],
        "rows": table.rows,
        "notes": table.notes,
    }


def _is_text(table: Table, index: int) -> bool:
    """Return whether a column has words, which are aligned left."""
    return all(row.cells[index].value is None for row in table.rows) and any(
        len(row.cells[index].text or "") > 1 and not (row.cells[index].text or "")[0].isdigit() for row in table.rows
    )
