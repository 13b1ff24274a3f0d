"""``mhfl-peer plan``: who receives from whom, computed by every site from the round key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from peer.cli import output
from peer.cli.site_command import SiteCall, site_command
from peer.core.roster import NO_ROUND_KEY
from peer.errors import CertificateError, DaemonDown
from peer.site.config.site_folder import SiteFolder


@site_command()
@click.option("--rounds", default=10, show_default=True, type=click.IntRange(1), help="How many rounds to show.")
@click.option(
    "--first",
    type=click.IntRange(1),
    help="The first round to show  [default: the site's present or coming one; after the end, the last ones].",
)
def plan(call: SiteCall, rounds: int, first: int | None) -> None:
    """Show who receives from whom; every site computes the same plan from the shared round key.

    The plan follows the amendments that this site has: a later one may change it.

    \b
    mhfl-peer plan --site europe --rounds 10
    mhfl-peer plan --site europe --first 20 --rounds 5
    """
    folder = call.folder
    first = _first_round(folder, rounds) if first is None else first
    document = _plan_of_daemon(folder, rounds=rounds, first=first) or _plan_at_rest(folder, rounds=rounds, first=first)
    call.emit(document, _render)


def _first_round(folder: SiteFolder, shown: int) -> int:
    """Return the round in progress, else the next one, else the first of the last ones that are ``shown``."""
    from peer.cli.watch import read_document

    status = read_document(folder, "status", {})
    if status["committed"] == status["rounds"]:
        return int(max(1, status["rounds"] - shown + 1))
    return int(max(1, min(max(status["round"], status["committed"] + 1), status["rounds"])))


def _plan_of_daemon(folder: SiteFolder, *, rounds: int, first: int) -> Any:
    """Return the plan of the running daemon; ``None`` if none listens."""
    from peer.net.transport.control import ControlClient, DaemonSilent

    try:
        if (socket := folder.control_socket()).exists():
            return ControlClient(socket).show("plan", rounds=rounds, first=first)
    except DaemonSilent:
        raise
    except DaemonDown:
        pass
    return None


def _plan_at_rest(folder: SiteFolder, *, rounds: int, first: int) -> Mapping[str, Any]:
    """Compute the plan by the chain in the folder; raise ``CertificateError`` for a round whose key this site lacks."""
    from peer.core import status
    from peer.daemon import startup
    from peer.daemon.chain_keeper import keeper_at_rest
    from peer.site.config.rules import make_rules

    federation, _, own = startup.load(folder)
    rules = make_rules(federation, own.name, own.round_key or NO_ROUND_KEY, without=frozenset(), stay=False)
    rules = rules.amended(keeper_at_rest(folder, own).epochs())
    try:
        return {"federation": federation.name, **status.plan_of(rules, rounds=rounds, first=first)}
    except ValueError as error:
        raise CertificateError(
            str(error), "a member gives it to this site's daemon; until then, see the plan of another site"
        ) from error


def _render(document: Mapping[str, Any]) -> output.RenderableType:
    from rich.console import Group

    members = dict.fromkeys(name for record in document["rounds"] for name in record["members"])
    names = [*document["sites"], *(name for name in members if name not in document["sites"])]
    rows = []
    for record in document["rounds"]:
        receives, present = record["receives_from"], record["members"]
        sources = (", ".join(receives.get(name, ())) or ("itself" if name in present else "–") for name in names)
        made_in = () if record.get("made_in") is None else (record["made_in"] or "none: initial",)
        rows.append((record["round"], *sources, *made_in))
    if document["artifact"] is None:
        return f"{document['federation']}: with this method nobody sends anything"
    title = f"{document['federation']}: whose {document['artifact']} each site receives ({document['schedule']})"
    older = ("made in round",) if any(record.get("made_in") is not None for record in document["rounds"]) else ()
    return Group(title, output.table(("round", *names, *older), rows))
