"""``mhfl-peer report``: the papers' tables and pictures from a folder of finished runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, shared_options

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLES = {1: "bold", 2: "underline"}
"""Of the best and the second value of a column."""


@click.command(short_help="Tables and pictures from what `simulate` left.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where to write  [default: DIR/report].")
@click.option(
    "--resamples",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Of the bootstrap over subjects; 0 leaves it out.",
)
@output.json_option
@shared_options
def report(folder: Path, out: Path | None, resamples: int, as_json: bool) -> None:
    """Tables and pictures from what `mhfl-peer simulate` left in DIR.

    Writes index.html, one file that needs nothing else; report.md with its pictures; and every table as CSV. Shows the
    main table, Local and Global Test of every method, and those tables in which a paper's figures stand beside them.

    \b
    mhfl-peer report digits
    mhfl-peer report digits --out tables
    """
    from peer.research.report.write import report as write

    where = out or folder / "report"
    if as_json:
        document = write(folder, where, resamples=resamples)
    else:
        with output.console().status("reading") as status:
            document = write(folder, where, resamples=resamples, progress=status.update)
    output.emit(document, as_json=as_json, render=_shown)


def _shown(document: Mapping[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    several = len(document["results"]) > 1
    parts: list[RenderableType] = [
        _table(table, f"{found['partition']}, {found['models']}" if several else "")
        for found in document["results"]
        for table in found["tables"]
    ]
    notes = f"Mean over {document['over']}. " + " ".join(document["notes"])
    files = f"Everything is in {Path(document['page']).parent}: {Path(document['page']).name} shows it in a browser."
    return Group(*parts, Text(notes, style="dim"), Text(files))


def _table(table: Mapping[str, Any], setting: str) -> RenderableType:
    """The means of both tests; the sites' own cells are in the files."""
    from rich.text import Text

    title = f"{table['title']}: {setting}" if setting else table["title"]
    shown = [place for place, name in enumerate(table["columns"]) if name.endswith(": Mean") or ":" not in name]
    drawn = output.table(["method", *(table["columns"][place] for place in shown)], (), title=title)
    for row in table["rows"]:
        cells = [Text(row["cells"][place], style=STYLES.get(row["ranks"][place], "")) for place in shown]
        drawn.add_row(Text(row["label"]), *cells, style="dim italic" if row["published"] else "")
    return drawn
