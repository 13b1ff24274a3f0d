"""``mhfl-peer egress``: list and verify the egress ledger, and write files for auditors."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer import __version__
from peer.cli import GIVEN_FILE, output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.cli.watch import show, watch_option
from peer.errors import LedgerBroken, UsageError
from peer.site.config.site_folder import must_be_new, must_be_new_or_page, write_atomically

if TYPE_CHECKING:
    from peer.documents.commands import LedgerExported, WitnessWritten
    from peer.documents.records import EgressReported

PATH = click.Path(path_type=Path, dir_okay=False)
witness_option = click.option(
    "--witness",
    "witnesses",
    type=GIVEN_FILE,
    multiple=True,
    help="A file that another site wrote with `egress witness`; may be repeated.",
)
UNSETTLED = ("open", "unknown")
"""Outcomes of transfers for which the ledger does not know how much was sent."""
PROBLEMS_SHOWN_MAX = 20
"""A ledger that is broken throughout has a problem per row; ``--json`` prints all of them."""

since_option = click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="Only transfers from this time on, in this machine's time zone.",
)


class Rounds(click.ParamType[tuple[int, int]]):
    """A round such as ``3``, or an inclusive range such as ``3-7``."""

    name = "N[-M]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, _, last = str(value).partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            self.fail(f"{value!r} is neither a round nor two as in 3-7", param, ctx)
        return int(first), int(last or first)


@site_command(
    command=click.Group,
    invoke_without_command=True,
)
@click.option("--peer", "peers", multiple=True, metavar="SITE", help="Only transfers to this site; may be repeated.")
@click.option("--round", "rounds", type=Rounds(), help="Only transfers of this round, or of these rounds.")
@since_option
@watch_option
def egress(
    call: SiteCall, peers: tuple[str, ...], rounds: tuple[int, int] | None, since: datetime.datetime | None, watch: bool
) -> None:
    """List the egress ledger: what left this site, to whom, when, how many bytes, and how the
    transfer ended.

    The options of the list stand before a subcommand's name, and its own options after it.

    \b
    mhfl-peer egress --site europe --peer asia --since 2026-11-01
    mhfl-peer egress verify --site europe --witness from-asia.json
    """
    subcommand = click.get_current_context().invoked_subcommand
    if subcommand is not None:
        if peers or rounds or since or watch or call.as_json:
            raise UsageError(f"options stand before {subcommand!r}", "write them after it")
        return
    _check_peers(call, peers)

    def select(document: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [
            record
            for record in document
            if (not peers or record["peer"] in peers)
            and (rounds is None or rounds[0] <= record["round"] <= rounds[1])
            and (since is None or record["time"] >= since.timestamp())
        ]

    show(call, "egress", _render_transfers, {}, watch=watch, select=select)


def _check_peers(call: SiteCall, peers: tuple[str, ...]) -> None:
    """Reject a name that no site has or had: an empty list would claim that nothing was sent to it."""
    if not peers:
        return
    from peer.site.config.schema import FederationConfig
    from peer.site.config.toml import suggestion
    from peer.site.membership.folder import MembershipFolder
    from peer.site.records import folder_documents

    folder = call.folder
    federation, membership = FederationConfig.load(folder.federation_toml), MembershipFolder(folder.membership)
    sites = sorted({*folder_documents.sites(folder), *membership.newcomers(federation, folder.site)})
    for peer in peers:
        if peer not in sites:
            raise UsageError(f"--peer {peer}: not a site of this federation{suggestion(peer, sites)}")


@site_command(group=egress, short_help="Verify that the ledger is whole, and say what cannot be proven.")
@click.option("--file", type=GIVEN_FILE, help="A file that `egress export` wrote, instead of this site's ledger.")
@click.option("--federation", type=GIVEN_FILE, help="With --file: the federation.toml that all sites hold.")
@witness_option
def verify(call: SiteCall, file: Path | None, federation: Path | None, witnesses: tuple[Path, ...]) -> None:
    """Verify that no row of the ledger was changed, removed or moved, and say what cannot be
    proven.

    The ledger alone cannot show that its newest rows were deleted, or that all of it was rewritten.
    Other sites can: ask them to run `mhfl-peer egress witness`, and get the file from them
    directly.

    \b
    mhfl-peer egress verify --site europe --witness from-asia.json
    mhfl-peer egress verify --file europe.json --federation federation.toml --witness from-asia.json
    """
    from peer.audit import verification

    if file is not None:
        document = verification.verify_export(file, federation, witnesses)
    elif federation is not None:
        raise UsageError("--federation goes with --file", "leave it out: the site's folder holds its own")
    else:
        document = verification.verify(call.folder, witnesses)
    call.emit(document, _render_verification)
    _fail_if_broken(document["source"], document["problems"])


@site_command(group=egress, short_help="Write a file that proves how far this site saw another site's ledger.")
@click.option("--of", required=True, metavar="SITE", help="The other site, whose ledger an auditor will verify.")
@click.option("--out", type=PATH, required=True, help="The file to write.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Write every manifest, not only the one of each generation that covers most rows.",
)
def witness(call: SiteCall, of: str, out: Path, everything: bool) -> None:
    """Write a file that proves how far this site saw another site's ledger, for that site's
    auditor.

    The file holds manifests that the other site signed, and of this site nothing but its name.

    \b
    mhfl-peer egress witness --site asia --of europe --out from-asia.json
    """
    from peer.audit import evidence_files, verification

    must_be_new(out)
    evidence = verification.make_witness(call.folder, of, everything=everything)
    write_atomically(out, evidence_files.encode(evidence), 0o644)
    document: WitnessWritten = {
        "of": evidence.of,
        "by": evidence.by,
        "file": str(out),
        "manifests": len(evidence.manifests),
    }
    call.emit(document, _render_witness)


@site_command(group=egress, short_help="Write the ledger to a signed file for an auditor.")
@click.option("--out", type=PATH, required=True, help="The file to write.")
@click.option("--rounds", type=Rounds(), help="Show transfers of these rounds; of all others only their hashes.")
@since_option
def export(call: SiteCall, out: Path, rounds: tuple[int, int] | None, since: datetime.datetime | None) -> None:
    """Write the ledger to a file that this site's key signs, for an auditor; `egress verify --file`
    verifies it.

    \b
    mhfl-peer egress export --site europe --out europe.json --since 2026-01-01
    """
    from peer.audit import evidence_files, verification

    must_be_new(out)
    since_s = since.timestamp() if since is not None else 0.0
    ledger = verification.export(call.folder, since_s=since_s, rounds=rounds)
    write_atomically(out, evidence_files.encode(ledger), 0o600)
    shown = sum(row.body is not None for row in ledger.rows)
    document: LedgerExported = {
        "site": ledger.site,
        "federation": ledger.federation,
        "digest": ledger.federation_digest,
        "file": str(out),
        "rows": shown,
        "left_out": ledger.head.count - shown,
        "head": {"count": ledger.head.count, "hash": ledger.head.hash},
    }
    call.emit(document, _render_export)


@site_command(group=egress, short_help="Write one page about what may leave and what left, to read or to print.")
@click.option("--out", "--html", "page", type=PATH, required=True, help="The page; an older page is replaced.")
@click.option("--dpia", is_flag=True, help="Write the draft of an impact assessment in Markdown instead, a new file.")
@witness_option
def report(call: SiteCall, page: Path, dpia: bool, witnesses: tuple[Path, ...]) -> None:
    """Write one page for a data protection officer: what may leave this site, what left, to whom and
    when, and the proofs.

    The page says the same as site.toml and the ledger, in words, and has no external resource. It
    replaces an older page. With --dpia, it is the draft of an impact assessment, with these figures and
    with blanks. Where the ledger is not whole, it says so, and this command exits with 18.

    \b
    mhfl-peer egress report --site europe --out europe.html --witness from-asia.json
    mhfl-peer egress report --site europe --out europe-dpia.md --dpia
    """
    import time

    from peer.view.dashboard import egress_page

    folder = call.folder
    (must_be_new if dpia else must_be_new_or_page)(page)
    content = egress_page.read_report(folder, witnesses, time_s=time.time())
    write = egress_page.write_assessment if dpia else egress_page.write_report
    write_atomically(page, write(content, version=__version__).encode(), 0o644)
    verified = content.verified
    document: EgressReported = {
        "site": folder.site,
        "federation": folder.federation,
        "file": str(page),
        "transfers": len(content.sent),
        "bytes": sum(transfer.bytes for transfer in content.sent),
        "rows": verified["rows"],
        "head": verified["head"],
        "witnesses": [witness["by"] for witness in verified["witnesses"]],
        "problems": verified["problems"],
    }
    call.emit(document, lambda _: f"{folder.site}: {page} is written")
    _fail_if_broken(str(folder.egress_db), verified["problems"])


def _fail_if_broken(source: str, problems: Sequence[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LedgerBroken(f"{source}: {problems[0]}{more}")


def _render_witness(document: Mapping[str, Any]) -> output.RenderableType:
    count = "one manifest" if document["manifests"] == 1 else f"{document['manifests']} manifests"
    return output.fields(
        (
            ("witness", f"{count} of {document['of']}, as {document['by']} received it"),
            ("next", f"send {document['file']} to the auditor of {document['of']}, not through that site"),
        )
    )


def _render_export(document: Mapping[str, Any]) -> output.RenderableType:
    return output.fields(
        (
            ("exported", f"{document['rows']} rows; {document['left_out']} are left out"),
            ("head", f"row {document['head']['count']}, {document['head']['hash']}"),
            ("next", f"`mhfl-peer egress verify --file {document['file']}` with the federation.toml of all sites"),
        )
    )


def _render_transfers(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    """Render one row per transfer, then the totals of each receiver."""
    from rich.console import Group

    columns = {key: name for key, name in rendering.TRANSFER_COLUMNS.items() if key != "direction"} | {"peer": "to"}
    return Group(rendering.transfers(document, columns), _render_totals(document))


def _render_totals(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    receivers = sorted({record["peer"] for record in document})
    parts = [(name, [record for record in document if record["peer"] == name]) for name in receivers]
    if len(receivers) != 1:
        parts.append(("all together", list(document)))
    rows = []
    for name, records in parts:
        complete = sum(record["outcome"] == "complete" for record in records)
        sent = sum(record["bytes"] for record in records if record["outcome"] not in UNSETTLED)
        at_most = sum(record["bytes"] for record in records if record["outcome"] in UNSETTLED)
        rows.append((name, len(records), complete, rendering.size(sent), rendering.size(at_most) if at_most else None))
    return output.table(("receiver", "transfers", "complete", "sent", "at most, of open and unknown ends"), rows)


def _render_verification(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group
    from rich.text import Text

    problems = document["problems"]
    head = document["head"]
    pairs: list[tuple[str, object]] = [
        ("ledger", f"of {document['site']} in {document['federation']}: {document['source']}"),
        *([("exported", f"on {rendering.clock(document['made'])}")] if document["made"] is not None else []),
        ("rows", f"{document['rows']}, of {document['transfers']} transfers; {len(document['open'])} have no end yet"),
        ("head", f"row {head['count']}, {head['hash']}"),
    ]
    if document["own_manifests"] is not None:
        pairs.append(("own manifests", f"{document['own_manifests']} compared"))
    for witness in document["witnesses"]:
        pairs.append(("witness", f"{witness['by']} has seen {witness['rows']} rows ({witness['file']})"))
    for report in document["restored"]:
        when = rendering.clock(report["time"])
        by_operator = report["reported_by"] == document["site"]
        known = f"{report['reported_by']} reported on {when} that the site runs from an older backup"
        pairs.append(("restored", f"the operator restored a backup on {when}" if by_operator else known))
    pairs += [("problem", problem) for problem in problems[:PROBLEMS_SHOWN_MAX]]
    if len(problems) > PROBLEMS_SHOWN_MAX:
        pairs.append(("problem", f"and {len(problems) - PROBLEMS_SHOWN_MAX} more: see --json"))
    pairs += [("not proven", claim) for claim in document["unproven"]]
    anonymous = any(claim.startswith(f"that {document['site']} signed it") for claim in document["unproven"])
    whole = "The chain is whole, but its owner is not proven." if anonymous else "The ledger is whole."
    verdict = Text("The ledger is not whole.", style="red") if problems else Text(whole, style="green")
    return Group(output.fields(pairs), verdict)
