"""Writing a report down: page, text, pictures, tables, in a folder of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer import __version__
from peer.documents import ReportTable, ReportWritten
from peer.errors import DiskError
from peer.extras import require_extra
from peer.research.report import comparison, contents, html_page, markdown
from peer.research.report.results import Results, read

PAGE, TEXT = "index.html", "report.md"
RESAMPLES = 1000
"""Of the bootstrap; the ends of a 95 % interval then are the 25th values from either end."""


def report(
    source: Path, out: Path, *, resamples: int = RESAMPLES, progress: Callable[[str], None] = lambda what: None
) -> ReportWritten:
    """Read a folder of runs and write its report.

    Files of an earlier report that this one does not have are deleted from its folders of pictures and tables.

    Args:
        source: what `simulate --out` made.
        out: the folder to write; made where it is not there.
        resamples: of the bootstrap over subjects; 0 leaves it out.
        progress: is told what is being made.

    Returns:
        Where the files are, what is missing, and the main tables as numbers.

    Raises:
        UsageError: the source holds no experiment.
        ConfigError: a package of the extra ``research`` is not installed.
        StateError: it is of another format, damaged, or no run has finished.
        DiskError: the folder cannot be written.
    """
    require_extra("research", "`report`")
    results = read(source)
    written = contents.made(results, resamples=resamples, progress=progress)
    files = {Path(PAGE): html_page.written(written, version=__version__), Path(TEXT): markdown.written(written)}
    files |= {Path(markdown.PICTURES, f"{picture.name}.svg"): picture.file for picture in written.pictures}
    files |= {Path(markdown.TABLES, f"{table.name}.csv"): table.csv() for table in written.tables}
    try:
        _write(out, files)
    except OSError as error:
        raise DiskError(f"{out} cannot be written: {error.strerror or error}") from error
    return _document(results, written, out, files)


def _write(out: Path, files: dict[Path, str]) -> None:
    for folder, ending in ((markdown.PICTURES, "svg"), (markdown.TABLES, "csv")):
        for path in (out / folder).glob(f"*.{ending}"):
            if path.relative_to(out) not in files:
                path.unlink()
    for name, text in files.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def _document(results: Results, written: contents.ReportContents, out: Path, files: dict[Path, str]) -> ReportWritten:
    """What a script gets to know."""
    return {
        "folder": str(results.folder),
        "title": written.title,
        "page": str(out / PAGE),
        "text": str(out / TEXT),
        "files": [str(out / name) for name in files],
        "runs": len(results.runs),
        "missing": list(results.unfinished),
        "notes": list(written.missing),
        "metric": results.metric,
        "over": results.repeats,
        "results": [
            {
                "partition": setting[0],
                "models": setting[1],
                "methods": {metric: comparison.summary(one) for metric, one in found.items()},
                "tables": [_plain(one) for one in found.values() if _telling(one, results.metric)],
            }
            for setting, found in written.mains.items()
        ],
    }


def _telling(found: comparison.Comparison, metric: str) -> bool:
    """Whether a table is shown at once: it is by the task's own metric, or published figures stand in it."""
    return found.metric == metric or any(row.published for row in found.table.rows)


def _plain(found: comparison.Comparison) -> ReportTable:
    """The main table as it is shown."""
    table = found.table
    return {
        "title": table.title,
        "columns": [f"{column.group}: {column.name}" if column.group else column.name for column in table.columns],
        "rows": [
            {
                "label": row.label,
                "published": row.published,
                "cells": [cell.shown(column.digits) for cell, column in zip(row.cells, table.columns, strict=True)],
                "ranks": [cell.rank for cell in row.cells],
            }
            for row in table.rows
        ],
    }
