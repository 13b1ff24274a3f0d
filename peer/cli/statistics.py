"""``mhfl-peer statistics``: what the sites counted together before training."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from peer import __version__
from peer.cli import GIVEN_FILE, output
from peer.cli.site_command import SiteCall, site_command
from peer.errors import StateError, UsageError
from peer.files import STATISTICS_FILE
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, must_be_new_or_page, write_atomically
from peer.view.dashboard.statistics_page import (
    AT_RISK,
    SIDES,
    UNLIKE,
    count_error,
    describe_count,
    describe_missing,
    describe_noise,
    describe_size,
    is_unlike,
    with_error,
    write_page,
)

BARS = "·▁▂▃▄▅▆▇█"
"""Heights of a histogram's bars; a dot where nobody is, or is shown."""


@site_command()
@click.option("--file", "file", type=GIVEN_FILE, help="A statistics.json, such as of a run of `simulate`.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write a page with bars: FILE.html; an older page is replaced.",
)
def statistics(call: SiteCall, file: Path | None, out: Path | None) -> None:
    """Show what the sites of a federation counted together, beside this site's own: how many have
    the label, and whether the sites are alike.

    The federation's method must be "statistics", and its one round over. Counts of few people are
    withheld by each site before anything leaves it: [egress] count_min. In a federation with noise
    nothing is withheld, and each figure of all shows its standard error. The command reads a file
    only, whether or not the daemon runs.

    \b
    mhfl-peer statistics --site europe
    mhfl-peer statistics --site europe --out statistics.html
    mhfl-peer statistics --file runs/RUN/sites/cleveland/statistics.json
    """
    if out is not None:
        if out.suffix != ".html":
            raise UsageError(f"--out {out}: the page is HTML", "name a file that ends with .html")
        must_be_new_or_page(out)
    document = read_statistics(file if file is not None else _find(call.folder))
    if out is not None:
        write_atomically(out, write_page(document, version=__version__).encode())
        document["page"] = str(out)
    call.emit(document, _render)


def _find(folder: SiteFolder) -> Path:
    """Return the file of the newest generation that has one."""
    federation = FederationConfig.load(folder.federation_toml)
    if federation.plan.predicts:
        raise UsageError(
            f"{federation.name} trains with {federation.method.name} and counts nothing",
            'found a federation with [method] name = "statistics": see `mhfl-peer help tables`',
        )
    files = [folder.generation(number) / STATISTICS_FILE for number in sorted(folder.generations(), reverse=True)]
    for path in files:
        if path.exists():
            return path
    raise StateError(
        f"{folder.site} has no statistics yet: the round is not over",
        f"run `mhfl-peer start --site {folder.site}`, or see with `mhfl-peer status` what it waits for",
    )


def read_statistics(path: Path) -> dict[str, Any]:
    """Read a statistics.json, or what `statistics --json` printed. Raise ``StateError`` if the file is neither."""
    try:
        document = json.loads(path.read_text("utf-8"))
        if not isinstance(document, dict) or "variables" not in document:
            raise ValueError("has no variables")
    except (OSError, ValueError) as error:
        raise StateError(f"{path} is no file of statistics: {error}", "name a statistics.json") from error
    return document


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    sizes, noise = {side: describe_size(document, side) for side in SIDES}, describe_noise(document)
    parts: list[output.RenderableType] = [
        output.fields(
            [
                ("federation", document["federation"]),
                (document["site"], sizes["own"]),
                ("all", f"{sizes['all']}: {', '.join(document['members'])}"),
            ]
        ),
        output.table(
            ("variable", "", "known", "missing", "mean ± sd", "distribution", "difference"), _variables(document)
        ),
        output.table(("variable", "value", "own", "all"), _levels(document)),
    ]
    for side, rows in document["survival"].items():
        if rows:
            lost = "lost in noise" if noise else "withheld"
            cells = [
                (
                    row["interval"],
                    *(with_error(row[key], count_error(document, side)) for key in AT_RISK),
                    with_error(_number(row["survival"], lost), row.get("survival_error")),
                )
                for row in rows
            ]
            title = f"survival, {side}"
            parts.append(output.table(("interval", "at risk", "events", "censored", "survival"), cells, title=title))
    parts.append(
        Text(
            f"difference: standardised mean difference of {document['site']} from the others; from {UNLIKE} on (!), "
            + (
                f"and beyond two standard errors of the noise, groups count as unlike. {noise}"
                if noise
                else f"groups count as unlike. Counts of fewer than {document['count_min']} people did not leave "
                f"{document['site']}."
            ),
            style="dim",
        )
    )
    if "page" in document:
        parts.append(Text(f"{document['page']} shows it in a browser."))
    return Group(*parts)


def _variables(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """Yield two rows for each variable: this site's, and all members'."""
    for variable in document["variables"]:
        for side in SIDES:
            figures, first = variable[side], side == "own"
            mean, deviation = (
                with_error(_number(figures[key]), figures.get(f"{key}_error")) for key in ("mean", "deviation")
            )
            yield (
                " ".join(filter(None, (variable["name"], variable["unit"]))) if first else "",
                side,
                with_error(figures["known"], figures.get("known_error")),
                describe_missing(document, variable, side),
                None if figures["mean"] is None else f"{mean} ± {deviation}",
                _bars(figures["counts"]),
                _mark(variable) if first else "",
            )


def _levels(document: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """Yield a row for each value of the variables that are no numbers."""
    for variable in document["variables"]:
        for index, cell in enumerate(variable["cells"]) if variable["kind"] in ("category", "flag") else ():
            counts = [describe_count(document, variable, side, index) for side in SIDES]
            yield variable["name"] if not index else "", cell, *counts


def _bars(counts: Sequence[int]) -> str:
    highest = max(counts, default=0)
    bars = (BARS[-(-max(0, count) * (len(BARS) - 1) // highest)] for count in counts)  # noise may be below 0
    return "".join(bars) if highest > 0 else ""


def _mark(variable: Mapping[str, Any]) -> str | None:
    if variable["difference"] is None:
        return None
    shown = with_error(f"{variable['difference']:.2f}", variable.get("difference_error"))
    return f"{shown}{' !' if is_unlike(variable) else ''}"


def _number(value: float | None, missing: str = "-") -> str:
    return missing if value is None else f"{value:.4g}"
