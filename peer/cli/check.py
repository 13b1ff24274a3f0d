"""``mhfl-peer check``: the preflight check of whether this site would run."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import click

from peer.cli import output
from peer.cli.site_command import SiteCall, site_command
from peer.documents.commands import CheckFinding, CheckResult
from peer.errors import CheckFailed

STYLE = {"ok": "green", "warning": "yellow", "failure": "red"}


@site_command()
@click.option("--fast", is_flag=True, help="Start no worker: read no samples, build no model, run no training step.")
def check(call: SiteCall, fast: bool) -> None:
    """Check everything that a start needs; exit 0 only if this site would run.

    The check covers configuration, certificates, ports, data, a training step of each stage in a
    worker, policy, disk and the peers. While no daemon runs, this command listens in its place for
    a few seconds, and names the peers that answer but cannot reach this site. Every line is ok, a
    warning or a failure, and says what to do. Nothing is changed. --json prints site, would_run,
    and findings: a list of subject, verdict, message, remedy. Without --json, standard error says
    what is being checked.

    \b
    mhfl-peer check --site europe
    mhfl-peer check --site europe --fast --json
    """
    from peer.view.preflight.local import check_packages

    folder = call.folder
    with output.stages("checking the installed packages", quiet=call.as_json) as begin:
        findings = list(check_packages())
        if not findings:  # with a wrong package, the other checks cannot be imported or trusted
            from peer.view.preflight.check import check as run_checks

            findings += run_checks(folder, train=not fast, begin=begin)
    failures = [finding for finding in findings if finding.verdict == "failure"]
    document: CheckResult = {
        "site": folder.site,
        "would_run": not failures,
        "findings": [cast(CheckFinding, dataclasses.asdict(finding)) for finding in findings],
    }
    call.emit(document, render_findings)
    if failures:
        raise CheckFailed(f"{failures[0].subject}: {failures[0].message}", failures[0].remedy)


def render_findings(document: Any) -> output.RenderableType:
    from rich.text import Text

    table = output.table(("subject", "verdict", "finding, and what to do"), ())
    for finding in document["findings"]:
        verdict = Text(finding["verdict"], style=STYLE[finding["verdict"]])
        text = Text(finding["message"], overflow="fold")
        if finding["remedy"]:
            text.append(f"\n→ {finding['remedy']}", style="bold")
        table.add_row(Text(finding["subject"]), verdict, text)
    return table
