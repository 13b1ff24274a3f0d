"""``mhfl-peer report``: write the papers' tables and figures from a folder of finished runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from peer.cli import output, shared_options
from peer.core.metrics import METRICS
from peer.extras import require_extra
from peer.lab.experiments.result_files import SHARE_OF_ROOM

STYLES = {1: "bold", 2: "underline"}
"""Rank -> style: of the best and of the second best value in a column."""
SHOWN = (": Mean", f": {SHARE_OF_ROOM}", ": worst site", ": gap")
"""Suffixes of the grouped columns on the screen; columns without a group are always shown."""


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where to write  [default: DIR/report].")
@click.option(
    "--resamples",
    default=1000,
    show_default=True,
    type=click.IntRange(0),
    help="Resamples of the bootstrap over subjects; 0 leaves the bootstrap out.",
)
@click.option(
    "--ddof",
    default=0,
    show_default=True,
    type=click.IntRange(0, 1),
    help="Of standard deviations: 0 divides by n, 1 by n - 1 (that of a sample).",
)
@click.option(
    "--target",
    "targets",
    metavar="VALUE",
    multiple=True,
    type=float,
    help="A value of the main metric, for the table of rounds and bytes to a target; may be repeated.",
)
@click.option(
    "--row",
    "rows",
    metavar="ROW[=NAME]",
    multiple=True,
    help="Only this row, under this name; may be repeated, in the order of the tables.",
)
@click.option("--latex", is_flag=True, help="Also write every table as .tex, for the package booktabs.")
@click.option("--pdf", is_flag=True, help="Also write every picture as .pdf.")
@output.json_option
@shared_options
def report(
    folder: Path,
    out: Path | None,
    resamples: int,
    ddof: int,
    targets: tuple[float, ...],
    rows: tuple[str, ...],
    latex: bool,
    pdf: bool,
    as_json: bool,
) -> None:
    """Make tables and pictures from the results that `mhfl-peer simulate` left in DIR.

    The command writes index.html, one file that needs nothing else; report.md with its pictures;
    and every table as CSV. On the screen it shows Local and Global Test of every method with the
    worst site and the gap between sites, and the tables that have a paper's figures too.

    \b
    mhfl-peer report digits
    mhfl-peer report digits --out tables
    mhfl-peer report digits --ddof 1 --target 0.9
    mhfl-peer report digits --latex --pdf --row local=Local --row fedskd=FedSKD
    """
    require_extra("research", "`report`")
    from peer.lab.report.write import report as write_report

    out = out or folder / "report"
    names = dict(row.partition("=")[::2] for row in rows)
    options: dict[str, Any] = {
        "resamples": resamples,
        "ddof": ddof,
        "targets": targets,
        "rows": {row: name or row for row, name in names.items()},
        "latex": latex,
        "pdf": pdf,
    }
    if as_json:
        document = write_report(folder, out, **options)
    else:
        with output.console().status("reading") as status:
            document = write_report(folder, out, **options, progress=status.update)
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
    notes = " ".join([f"Mean over {document['over']}.", *_room_sentences(document), *document["notes"]])
    files = f"Everything is in {Path(document['page']).parent}: {Path(document['page']).name} shows it in a browser."
    return Group(*parts, Text(notes, style="dim"), Text(files))


def _room_sentences(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the room of each setting by the main metric, if the experiment has both bounds."""
    metric, several = document["metric"], len(document["results"]) > 1
    unit = METRICS[metric].unit if metric in METRICS else ""
    factor, unit = (1, unit) if unit else (100, "points")
    for result in document["results"]:
        tests = result["room"].get(metric, {})
        rooms = [
            f"{test.title()} Test {factor * values['room']['mean']:.1f} {unit}"
            + ("" if values["has_room"] else " (none)")
            for test, values in tests.items()
            if values["room"]["mean"] is not None
        ]
        if rooms:
            setting = f" in {result['partition']}, {result['models']}" if several else ""
            yield f"Room between training alone and the pooled bound{setting}: {', '.join(rooms)}."


def _render_table(table: Mapping[str, Any], setting: str) -> output.RenderableType:
    """Render the means of both tests and the shares of the room; the written files also have the sites' cells."""
    from rich.text import Text

    title = f"{table['title']}: {setting}" if setting else table["title"]
    shown = [index for index, name in enumerate(table["columns"]) if ":" not in name or name.endswith(SHOWN)]
    grid = output.table(["method", *(table["columns"][index] for index in shown)], (), title=title)
    for row in table["rows"]:
        cells = [Text(row["cells"][index], style=STYLES.get(row["ranks"][index], "")) for index in shown]
        grid.add_row(Text(row["label"]), *cells, style="dim italic" if row["published"] else "")
    return grid
