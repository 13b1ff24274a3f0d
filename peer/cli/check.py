"""``mhfl-peer check``: would this site run?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from peer import home
from peer.cli import Settings, output, pass_settings, shared_options, site_option
from peer.errors import CheckFailed

if TYPE_CHECKING:
    from rich.console import RenderableType

STYLE = {"ok": "green", "warning": "yellow", "failure": "red"}


@click.command(short_help="Preflight: say whether this site would run, and if not, why.")
@site_option
@click.option("--fast", is_flag=True, help="Do not start a worker: leave out loading the data and building the model.")
@output.json_option
@shared_options
@pass_settings
def check(settings: Settings, site_name: str | None, fast: bool, as_json: bool) -> None:
    """Look at configuration, certificates, disk, port, data, model and peers; exit 0 only if this site would run.

    \b
    mhfl-peer check --site europe
    """
    from peer import preflight

    folder = home.find_site(home.home_folder(settings.home), site_name)
    findings = list(preflight.check(folder, train=not fast))
    failures = [finding for finding in findings if finding.verdict == "failure"]
    document = {"site": folder.site, "would_run": not failures, "findings": [dataclasses.asdict(f) for f in findings]}
    output.emit(document, as_json=as_json, render=_picture)
    if failures:
        raise CheckFailed(f"{failures[0].subject}: {failures[0].message}", failures[0].remedy)


def _picture(document: Any) -> RenderableType:
    from rich.text import Text

    drawn = output.table(("what", "verdict", "finding", "what to do"), ())
    for finding in document["findings"]:
        verdict = Text(finding["verdict"], style=STYLE[finding["verdict"]])
        drawn.add_row(Text(finding["subject"]), verdict, Text(finding["message"]), Text(finding["remedy"]))
    return drawn
