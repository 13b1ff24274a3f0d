"""``mhfl-peer leave``, ``federation accept`` and ``federation choose``: a site's decisions about its own membership."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import click

from peer.cli import output
from peer.cli.governance import AT_REST, SiteChain, complete_fork, complete_newcomer
from peer.cli.site_command import SiteCall, site_command
from peer.errors import DaemonDown, MembershipError, UsageError
from peer.site.membership.amendment import notice_to_base64
from peer.site.membership.signatures import sign_notice

ANSWERS_S = 15.0
"""How long ``leave`` waits for the first answer, and again for the last: longer than the leaving daemon stays."""
HANDED_ON = "whoever has the notice tells the others; while nobody has it, the daemon stays and goes on"


@site_command()
@click.option("--yes", is_flag=True, help="Do not ask.")
def leave(call: SiteCall, yes: bool) -> None:
    """Leave the federation for good: sign a notice that the daemon tells every peer.

    At once the others count this site as gone, and wait for it no more. The next amendment takes it
    out, and its name is never used again. The site's folder stays, with its model and its ledger.

    The command waits a while for the peers' answers, and says who was not told yet. A peer that is
    down gets the notice from any other one.

    \b
    mhfl-peer leave --site europe
    """
    site = SiteChain.open(call.folder)
    _check_member(site)
    if not yes:
        click.echo(f"{site.folder.site} leaves {site.genesis.config.name} for good: it cannot come back.", err=True)
        click.echo("To leave, type the site's name: ", nl=False, err=True)
        if sys.stdin.readline().strip() != site.folder.site:
            raise UsageError(f"{site.folder.site} stays", "type the site's name, or give --yes")
    notice = sign_notice(site.own, federation=site.genesis.config.digest, issued=int(time.time()))
    document = site.act("leave", notice=notice_to_base64(notice))
    if AT_REST not in document["notes"]:
        document["unreached"] = _wait_for_peers(site, document["unreached"])
        document["notes"].extend([HANDED_ON] if document["unreached"] else [])
    call.emit(document, _render_left)


def _check_member(site: SiteChain) -> None:
    """Raise ``MembershipError`` unless this site is a member that can leave."""
    name, federation, head = site.folder.site, site.genesis.config.name, site.chain.head
    if name in head.expelled:
        raise MembershipError(
            f"{name} was expelled from {federation}", "nothing is left to do: its peers serve it no more"
        )
    if name in head.left:
        raise MembershipError(f"{name} has left {federation}", "nothing is left to do: an amendment has taken it out")
    if name not in head.keys:
        raise MembershipError(
            f"{name} is no member of {federation}, as far as this site knows",
            "let its daemon run until it has the amendment that adds it; a site that never starts needs no notice",
        )


def _wait_for_peers(site: SiteChain, unreached: list[str]) -> list[str]:
    """Wait until all peers have the notice, the daemon has ended or the time is up; return the peers that may lack it.

    The daemon's last status, sent as it ends, names the peers that have not answered.
    """
    from peer.net.transport.control import ControlClient

    end_s, reached = time.monotonic() + ANSWERS_S, False
    with output.working(f"telling {', '.join(unreached)}") as say, contextlib.suppress(DaemonDown):
        for status in ControlClient(site.folder.control_socket()).follow("status", silence_s=ANSWERS_S):
            lacking = [wait["site"] for wait in status["waiting_for"] if wait["kind"] == "notice"]
            if len(lacking) < len(unreached) and not reached:  # from now on, wait for the remaining peers
                end_s, reached = time.monotonic() + ANSWERS_S, True
            unreached = lacking
            if not unreached or time.monotonic() >= end_s:
                break
            say(f"telling {', '.join(unreached)}")
    return unreached


@site_command(short_help="Let a newcomer receive from this site.")
@click.argument("newcomer", metavar="NAME", shell_complete=complete_newcomer)
def accept(call: SiteCall, newcomer: str) -> None:
    """Let a site that an amendment added receive what this site sends. `receivers` in site.toml
    approved the sites of federation.toml: without this, a newcomer gets nothing from here.

    \b
    mhfl-peer federation accept oslo --site europe
    """
    site = SiteChain.open(call.folder)
    call.emit(site.act("accept", site=newcomer), _render_accepted)


@site_command(short_help="Take the other one of two chains that differ.")
@click.argument("digest", shell_complete=complete_fork)
def choose(call: SiteCall, digest: str) -> None:
    """Take the other one of two amendments of one number, and what follows it. A site that has
    opened rounds since does not switch by itself: its operator decides, once the members agree.

    \b
    mhfl-peer federation show --site europe
    mhfl-peer federation choose 5f0c2d7a91be --site europe
    """
    site = SiteChain.open(call.folder)
    call.emit(site.act("choose", digest=digest), _render_chosen)


def _render_left(document: dict[str, Any]) -> output.RenderableType:
    unreached = [("not told yet", ", ".join(document["unreached"]))] if document["unreached"] else []
    return output.fields((("leaves", document["site"]), *unreached, *_notes(document)))


def _render_accepted(document: dict[str, Any]) -> output.RenderableType:
    return output.fields((("may receive", document["newcomer"]), *_notes(document)))


def _render_chosen(document: dict[str, Any]) -> output.RenderableType:
    head = document["head"]
    return output.fields((("head", f"amendment {head['number']}, {head['digest']}"), *_notes(document)))


def _notes(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [("note", note) for note in document["notes"]]
