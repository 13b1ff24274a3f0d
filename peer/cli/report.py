"""``mhfl-peer report``: make the papers' tables and pictures from a folder of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from peer.cli import output, shared_options
from peer.research.result_files import SHARE_OF_ROOM

STYLES = {1: "bold", 2: "underline"}
"""Style of the best and of the second best value of a column, by rank."""
SHOWN = (": Mean", f": {SHARE_OF_ROOM}")
"""Endings of the columns on the screen; others without a group are there too."""


@click.command(short_help="Make tables and pictures from the results of `simulate`.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where to write  [default: DIR/report].")
@click.option(
    "--resamples",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Resamples of the bootstrap over subjects; 0 leaves the bootstrap out.",
)
@output.json_option
@shared_options
def report(folder: Path, out: Path | None, resamples: int, as_json: bool) -> None:
    """Make tables and pictures from the results that `mhfl-peer simulate` left in DIR.

    The command writes index.html, one file that needs nothing else; report.md with its pictures;
    and every table as CSV. On the screen it shows Local and Global Test of every method, and the
    tables that have a paper's figures too.

    \b
    mhfl-peer report digits
    mhfl-peer report digits --out tables
    """
    from peer.research.report.write import report as write_report

    out = out or folder / "report"
    if as_json:
        document = write_report(folder, out, resamples=resamples)
    else:
        with output.console().status("reading") as status:
            document = write_report(folder, out, resamples=resamples, progress=status.update)
    output.emit(document, as_json=as_json, render=_render)


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    several = len(document["results"]) > 1
    parts: list[output.RenderableType] = [
        _render_table(table, f"{result['partition']}, {result['models']}" if several else "")
        for result in document["results"]
        for table in result["tables"]
    ]
    notes = f"Mean over {document['over']}. " + " ".join(document["notes"])
    files = f"Everything is in {Path(document['page']).parent}: {Path(document['page']).name} shows it in a browser."
    return Group(*parts, Text(notes, style="dim"), Text(files))


def _render_table(table: Mapping[str, Any], setting: str) -> output.RenderableType:
    """The means of both tests, and shares of the room; the written files have the sites' cells too."""
    from rich.text import Text

    title = f"{table['title']}: {setting}" if setting else table["title"]
    shown = [index for index, name in enumerate(table["columns"]) if ":" not in name or name.endswith(SHOWN)]
    grid = output.table(["method", *(table["columns"][index] for index in shown)], (), title=title)
    for row in table["rows"]:
        cells = [Text(row["cells"][index], style=STYLES.get(row["ranks"][index], "")) for index in shown]
        grid.add_row(Text(row["label"]), *cells, style="dim italic" if row["published"] else "")
    return grid
