"""Write a report to a folder: HTML page, Markdown text, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from peer import __version__
from peer.documents.laboratory import ReportTable, ReportWritten
from peer.errors import DiskError
from peer.lab.report import choice, contents, html_page, markdown, room, worst_site
from peer.lab.report.comparison import Comparison, summary
from peer.lab.report.latex import render_latex
from peer.lab.report.results import Results, read
from peer.lab.report.table import Table

PAGE, TEXT = "index.html", "report.md"
RESAMPLES = 1000
"""Resamples of the bootstrap; the ends of a 95 % interval are then the 25th values from either end."""


def report(
    source: Path,
    out: Path,
    *,
    resamples: int = RESAMPLES,
    ddof: int = 0,
    targets: Sequence[float] = (),
    rows: Mapping[str, str] = MappingProxyType({}),
    latex: bool = False,
    pdf: bool = False,
    progress: Callable[[str], None] = lambda title: None,
) -> ReportWritten:
    """Read a folder of runs and write its report.

    Delete pictures and tables of an earlier report in the folder that this report does not contain.

    Args:
        ddof: of standard deviations, 0 or 1.
        targets: of the Local Test, for the table of rounds and bytes to a target.
        rows: the rows to show, in this order, and the name of each; empty: all under their own names.
        latex: also write every table as .tex.
        pdf: also write every figure as .pdf.
        progress: called with the title of each section before it is built.

    Raises:
        UsageError: the source holds no experiment, or the experiment has no such row.
        StateError: a file has another format or is damaged, or no run has finished.
        DiskError: the folder cannot be written.
    """
    results = choice.choose(read(source, ddof=ddof)).with_rows(rows)
    content = contents.build_report(results, resamples=resamples, targets=targets, progress=progress)
    files: dict[Path, str | bytes] = {
        Path(PAGE): html_page.render_html(content, version=__version__),
        Path(TEXT): markdown.render_markdown(content),
    }
    files |= {Path(markdown.PICTURES, f"{figure.name}.svg"): figure.file for figure in content.figures}
    files |= {Path(markdown.TABLES, f"{table.name}.csv"): table.csv() for table in content.tables}
    if latex:
        files |= {Path(markdown.TABLES, f"{table.name}.tex"): render_latex(table) for table in content.tables}
    if pdf:
        files |= {Path(markdown.PICTURES, f"{figure.name}.pdf"): figure.pdf() for figure in content.figures}
    try:
        _write(out, files)
    except OSError as error:
        raise DiskError(f"{out} cannot be written: {error.strerror or error}") from error
    return _document(results, content, out, files)


def _write(out: Path, files: Mapping[Path, str | bytes]) -> None:
    for folder, endings in ((markdown.PICTURES, (".svg", ".pdf")), (markdown.TABLES, (".csv", ".tex"))):
        for path in (out / folder).glob("*"):
            if path.suffix in endings and path.relative_to(out) not in files:
                path.unlink()
    for name, content in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def _document(results: Results, content: contents.ReportContents, out: Path, files: Iterable[Path]) -> ReportWritten:
    """Build the document of ``report --json``."""
    return {
        "folder": str(results.folder),
        "title": content.title,
        "page": str(out / PAGE),
        "text": str(out / TEXT),
        "files": [str(out / name) for name in files],
        "runs": len(results.runs),
        "missing": list(results.unfinished),
        "notes": list(content.missing),
        "metric": results.metric,
        "over": results.repeats,
        "results": [
            {
                "partition": setting[0],
                "models": setting[1],
                "methods": {metric: summary(comparison) for metric, comparison in comparisons.items()},
                "room": {
                    metric: room.document(comparison)
                    for metric, comparison in comparisons.items()
                    if comparison.has_bounds
                },
                "tables": [
                    _table_document(table)
                    for table in (
                        *(each.table for each in comparisons.values() if _is_main(each, results.metric)),
                        worst_site.table(comparisons[results.metric], name="worst-site"),
                        choice.table(results, setting, name="choice"),
                    )
                    if table is not None
                ],
            }
            for setting, comparisons in content.comparisons.items()
        ],
    }


def _is_main(comparison: Comparison, metric: str) -> bool:
    """Return whether the command shows the table: it has the task's own metric, or published rows."""
    return comparison.metric == metric or any(row.published for row in comparison.table.rows)


def _table_document(table: Table) -> ReportTable:
    """Build a table's document with its texts, as `mhfl-peer report` shows it."""
    return {
        "title": table.title,
        "columns": [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns],
        "rows": [
            {
                "label": row.label,
                "published": row.published,
                "cells": [cell.format(column.digits) for cell, column in zip(row.cells, table.columns, strict=True)],
                "ranks": [cell.rank for cell in row.cells],
            }
            for row in table.rows
        ],
    }
