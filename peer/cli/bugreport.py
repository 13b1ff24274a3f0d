"""``mhfl-peer bugreport``: one file about a site, for the maintainers of the program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.documents.records import BugReported
from peer.errors import UsageError
from peer.site.config.site_folder import must_be_new, write_atomically

if TYPE_CHECKING:
    from peer.view.preflight.finding import Finding


@site_command()
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The zip file to write.")
@click.option("--yes", is_flag=True, help="Write it without a question.")
@click.option("--with-addresses", is_flag=True, help="Leave addresses and host names in it.")
@click.option("--with-logs", is_flag=True, help="Add lines of the logs, the likeliest place of a name.")
def bugreport(call: SiteCall, out: Path, yes: bool, with_addresses: bool, with_logs: bool) -> None:
    """Write one file for who maintains the program: versions, configuration, status, the newest rows of
    the journal, and the findings of `check --fast`.

    It has no private key, no round key and no data. Paths, names of samples and, without
    --with-addresses, addresses are taken out of every text. The command lists what is in the file, and
    asks before it writes. Read the file before you send it.

    \b
    mhfl-peer bugreport --site europe --out europe.zip
    """
    from peer.view.preflight import bug_report

    must_be_new(out)
    if call.as_json and not yes:
        raise UsageError("--json asks no question", "add --yes")
    folder = call.folder

    def findings() -> Iterable[Finding]:
        from peer.view.preflight.check import check

        return check(folder, train=False)

    members = bug_report.collect(folder, findings, with_addresses=with_addresses, with_logs=with_logs)
    document: BugReported = {
        "site": folder.site,
        "file": str(out),
        "members": [
            {"name": name, "bytes": len(content), "meaning": bug_report.MEANINGS[name]}
            for name, content in members.items()
        ],
    }
    if not call.as_json:
        output.console().print(_render(document))
    if not yes:
        output.confirm(f"Write {out}?", otherwise=f"{out} was not written")
    write_atomically(out, bug_report.pack(members))
    call.emit(document, lambda _: f"{out} is written: read it before you send it")


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    rows = [(member["name"], rendering.size(member["bytes"]), member["meaning"]) for member in document["members"]]
    return output.table(("file", "size", "what it is"), rows)
