"""``mhfl-peer egress``: what left this site, the proof that the record of it is whole, and files for auditors."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output, pass_settings, rendering, shared_options, site_option
from peer.cli.watch import show, watch_option
from peer.config import site_folder
from peer.config.site_folder import SiteFolder, must_be_new, write_atomically
from peer.documents import LedgerExported, WitnessWritten
from peer.errors import LedgerBroken, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from peer.audit.evidence_files import Export, Witness

PATH = click.Path(path_type=Path, dir_okay=False)
UNSETTLED = ("open", "unknown")
"""Outcomes that leave open how much was sent."""
PROBLEMS_SHOWN = 20
"""Of a ledger that is broken everywhere; ``--json`` has all of them."""

since_option = click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"]),
    help="From this time on, in this machine's zone.",
)


class Rounds(click.ParamType[tuple[int, int]]):
    """A round, or the first and the last of several, as ``3-7``."""

    name = "N[-M]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        first, _, last = str(value).partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) < int(first):
            self.fail(f"{value!r} is neither a round nor two as in 3-7", param, ctx)
        return int(first), int(last or first)


@click.group(invoke_without_command=True, short_help="Every byte that left, to whom, when.")
@site_option
@click.option("--peer", "peers", multiple=True, metavar="SITE", help="Only to this site; may be repeated.")
@click.option("--round", "rounds", type=Rounds(), help="Only of this round, or of these.")
@since_option
@watch_option
@output.json_option
@shared_options
@pass_settings
@click.pass_context
def egress(
    context: click.Context,
    settings: Settings,
    site_name: str | None,
    peers: tuple[str, ...],
    rounds: tuple[int, int] | None,
    since: datetime.datetime | None,
    watch: bool,
    as_json: bool,
) -> None:
    """The egress ledger: what left this site, to whom, when, how much, and how the transfer ended.

    \b
    mhfl-peer egress --site europe --peer asia --since 2026-11-01
    mhfl-peer egress verify --site europe --witness from-asia.json
    """
    if context.invoked_subcommand is not None:
        if peers or rounds or since or watch or as_json:
            raise UsageError(f"options stand before {context.invoked_subcommand!r}", "write them after it")
        return
    _known(settings, site_name, peers)

    def keep(document: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return [
            record
            for record in document
            if (not peers or record["peer"] in peers)
            and (rounds is None or rounds[0] <= record["round"] <= rounds[1])
            and (since is None or record["time"] >= since.timestamp())
        ]

    show(settings, site_name, "egress", _listed, {}, as_json=as_json, watch=watch, keep=keep)


def _known(settings: Settings, site_name: str | None, peers: tuple[str, ...]) -> None:
    """Refuse a name that is nobody's: an empty list would say that nothing left for it."""
    from peer.config.toml import suggestion
    from peer.records import folder_documents

    if peers:
        sites = folder_documents.sites(site_folder.find_site(site_folder.home_folder(settings.home), site_name))
        for peer in peers:
            if peer not in sites:
                raise UsageError(f"--peer {peer}: not a site of this federation{suggestion(peer, sites)}")


@egress.command(short_help="Prove that the ledger is whole, and say what is not proven.")
@site_option
@click.option("--file", type=PATH, help="A file that `egress export` wrote, instead of this site's ledger.")
@click.option("--federation", type=PATH, help="With --file: the federation.toml that all sites hold.")
@click.option(
    "--witness", "witnesses", type=PATH, multiple=True, help="What another site wrote with `egress witness`; repeat it."
)
@output.json_option
@shared_options
@pass_settings
@click.pass_context
def verify(
    context: click.Context,
    settings: Settings,
    site_name: str | None,
    file: Path | None,
    federation: Path | None,
    witnesses: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Prove that no row of the ledger was changed, removed or moved, and say what cannot be proven.

    A tail that was cut off, and a ledger that was written anew as a whole, show only against what other sites have
    seen: have them run `mhfl-peer egress witness`, and get the file from them directly.

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
        document = verification.verify(_folder(context, settings, site_name), witnesses)
    output.emit(document, as_json=as_json, render=_judged)
    if problems := document["problems"]:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise LedgerBroken(f"{document['source']}: {problems[0]}{more}")


@egress.command(short_help="Write down what this site saw of another one's ledger.")
@site_option
@click.option("--of", required=True, metavar="SITE", help="The other site, whose ledger is to be checked.")
@click.option("--out", type=PATH, required=True, help="The file to write.")
@click.option("--all", "everything", is_flag=True, help="Every manifest, not only the one that covers most rows.")
@output.json_option
@shared_options
@pass_settings
@click.pass_context
def witness(
    context: click.Context,
    settings: Settings,
    site_name: str | None,
    of: str,
    out: Path,
    everything: bool,
    as_json: bool,
) -> None:
    """Write down how far this site has seen another one's ledger, for the other one's auditor.

    The file holds manifests that the other site signed; nothing of this site is in it but its name.

    \b
    mhfl-peer egress witness --site asia --of europe --out from-asia.json
    """
    from peer.audit import evidence_files, verification

    must_be_new(out)
    found = verification.make_witness(_folder(context, settings, site_name), of, everything=everything)
    write_atomically(out, evidence_files.encode(found), 0o644)
    output.emit(_witnessed(found, out), as_json=as_json, render=_written)


@egress.command(short_help="Write the ledger into a signed file for an auditor.")
@site_option
@click.option("--out", type=PATH, required=True, help="The file to write.")
@click.option("--rounds", type=Rounds(), help="Show transfers of these rounds; of the others nothing but hashes.")
@since_option
@output.json_option
@shared_options
@pass_settings
@click.pass_context
def export(
    context: click.Context,
    settings: Settings,
    site_name: str | None,
    out: Path,
    rounds: tuple[int, int] | None,
    since: datetime.datetime | None,
    as_json: bool,
) -> None:
    """Write the ledger into a file that this site's key signs, for an auditor; `egress verify --file` checks it.

    \b
    mhfl-peer egress export --site europe --out europe.json --since 2026-01-01
    """
    from peer.audit import evidence_files, verification

    must_be_new(out)
    since_s = since.timestamp() if since is not None else 0.0
    found = verification.export(_folder(context, settings, site_name), since_s=since_s, rounds=rounds)
    write_atomically(out, evidence_files.encode(found), 0o600)
    output.emit(_exported(found, out), as_json=as_json, render=_written)


def _folder(context: click.Context, settings: Settings, site_name: str | None) -> SiteFolder:
    """The site that is meant, whether ``--site`` stands before or after the subcommand's name."""
    before = context.parent.params.get("site_name") if context.parent is not None else None
    return site_folder.find_site(site_folder.home_folder(settings.home), site_name or before)


def _witnessed(found: Witness, out: Path) -> WitnessWritten:
    return {"of": found.of, "by": found.by, "file": str(out), "manifests": len(found.manifests)}


def _exported(found: Export, out: Path) -> LedgerExported:
    shown = sum(row.body is not None for row in found.rows)
    return {
        "site": found.site,
        "federation": found.federation,
        "digest": found.federation_digest,
        "file": str(out),
        "rows": shown,
        "left_out": found.head.count - shown,
        "head": {"count": found.head.count, "hash": found.head.hash},
    }


def _written(document: Mapping[str, Any]) -> RenderableType:
    if "of" in document:
        count = "one manifest" if document["manifests"] == 1 else f"{document['manifests']} manifests"
        return output.fields(
            (
                ("witness", f"{count} of {document['of']}, as {document['by']} received it"),
                ("next", f"send {document['file']} to the auditor of {document['of']}, not through that site"),
            )
        )
    return output.fields(
        (
            ("exported", f"{document['rows']} rows; {document['left_out']} are left out"),
            ("head", f"row {document['head']['count']}, {document['head']['hash']}"),
            ("next", f"`mhfl-peer egress verify --file {document['file']}` with the federation.toml of all sites"),
        )
    )


def _listed(document: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line a transfer, and below them what left for whom altogether."""
    from rich.console import Group

    columns = ("time", "to", "purpose", "kind", "round", "sha256", "size", "outcome")
    rows = [
        (
            rendering.clock(record["time"]),
            record["peer"],
            record["purpose"],
            record["kind"],
            record["round"],
            record["sha256"][: rendering.SHORT],
            rendering.size(record["bytes"]),
            record["outcome"],
        )
        for record in document
    ]
    return Group(output.table(columns, rows), _totals(document))


def _totals(document: Sequence[Mapping[str, Any]]) -> RenderableType:
    receivers = sorted({record["peer"] for record in document})
    parts = [(name, [record for record in document if record["peer"] == name]) for name in receivers]
    if len(receivers) != 1:
        parts.append(("all together", list(document)))
    rows = []
    for name, records in parts:
        complete = sum(record["outcome"] == "complete" for record in records)
        sent = sum(record["bytes"] for record in records if record["outcome"] not in UNSETTLED)
        perhaps = sum(record["bytes"] for record in records if record["outcome"] in UNSETTLED)
        rows.append((name, len(records), complete, rendering.size(sent), rendering.size(perhaps) if perhaps else None))
    return output.table(("receiver", "transfers", "complete", "sent", "at most, of open and unknown ends"), rows)


def _judged(document: Mapping[str, Any]) -> RenderableType:
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
    for one in document["witnesses"]:
        pairs.append(("witness", f"{one['by']} has seen {one['rows']} rows ({one['file']})"))
    for one in document["restored"]:
        when = rendering.clock(one["time"])
        pairs.append(("restored", f"{one['reported_by']} told the site on {when} that it had forgotten: an old backup"))
    pairs += [("problem", problem) for problem in problems[:PROBLEMS_SHOWN]]
    if len(problems) > PROBLEMS_SHOWN:
        pairs.append(("problem", f"and {len(problems) - PROBLEMS_SHOWN} more: see --json"))
    pairs += [("not proven", what) for what in document["unproven"]]
    anonymous = any(what.startswith(f"that {document['site']} signed it") for what in document["unproven"])
    whole = "The chain is whole; whose it is, is not proven." if anonymous else "The ledger is whole."
    verdict = Text("The ledger is not whole.", style="red") if problems else Text(whole, style="green")
    return Group(output.fields(pairs), verdict)
