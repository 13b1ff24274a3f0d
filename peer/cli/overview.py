"""``mhfl-peer overview`` and ``dashboard``: all sites of this machine, in a table or a browser."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from peer.cli import Settings, complete_site, output, pass_settings, rendering, shared_options
from peer.documents.records import DashboardServed
from peer.errors import UsageError, one_line
from peer.quantities import duration
from peer.site.config import site_folder
from peer.site.config.site_folder import SiteFolder

STATE_STYLE = {
    **rendering.STATE_STYLE,
    "running": "green",
    "finished": "dim",
    "new": "yellow",
    "down": "red",
    "unresponsive": "red",
    "unreadable": "red",
}

sites_option = click.option(
    "--site",
    "site_names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_site,
    help="Only this site, or federation/site; may be repeated  [default: all sites of this machine].",
)


def _folders(settings: Settings, names: Sequence[str]) -> list[SiteFolder]:
    """Return the folders of the named sites, or of all sites in the home folder."""
    home = site_folder.home_folder(settings.home)
    if names:
        return [site_folder.find_site(home, name) for name in dict.fromkeys(names)]
    folders = site_folder.sites(home)
    if not folders:
        raise UsageError(f"no site lives under {home}", "run `mhfl-peer site init`, or give --home or MHFL_HOME")
    return list(folders)


@click.command()
@sites_option
@output.json_option
@shared_options
@pass_settings
def overview(settings: Settings, site_names: tuple[str, ...], as_json: bool) -> None:
    """Show every site of a federation in one table: round, phase, whom it waits for, whom it refuses,
    its certificate and its program, and what needs attention.

    The sites of this machine speak for themselves. Of all others, the table shows what a site of this
    machine heard last in their heartbeats; whom they wait for and refuse, only they know.

    \b
    mhfl-peer overview
    mhfl-peer overview --site europe --json
    """
    from peer.view.dashboard.collect import FederationReader

    snapshots = FederationReader(_folders(settings, site_names), records=False).read()
    output.emit([snapshot.overview for snapshot in snapshots], as_json=as_json, render=_render)


@click.command()
@sites_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="The port on loopback; 0 takes any free one.",
)
@output.json_option
@shared_options
@pass_settings
def dashboard(settings: Settings, site_names: tuple[str, ...], port: int, as_json: bool) -> None:
    """Serve a page about the sites of this machine until Ctrl-C: the ring of sites with this round's
    transfers, who waits for whom, learning curves, what left, refusals, and the story of each round.

    The page only shows, and fetches itself again every three seconds. It listens on 127.0.0.1, and
    answers only who has the printed link, whose token is new at each start. From another machine,
    forward the port: `ssh -L 8080:127.0.0.1:8080 HOST`, and `--port 8080` here.

    \b
    mhfl-peer dashboard
    mhfl-peer dashboard --site europe --port 8080
    """
    from peer.view.dashboard.server import DashboardServer

    folders = _folders(settings, site_names)
    server = DashboardServer(folders, port=port)
    document: DashboardServed = {
        "link": server.link,
        "port": server.port,
        "sites": [f"{folder.federation}/{folder.site}" for folder in folders],
    }
    if as_json:
        output.emit_line(document)
    else:
        click.echo(f"Open this link; it holds until Ctrl-C: {server.link}")
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how a user ends it
        server.serve()


def _render(document: Sequence[Mapping[str, Any]]) -> output.RenderableType:
    from rich.console import Group

    return Group(*(part for federation in document for part in _federation(federation)))


def _federation(document: Mapping[str, Any]) -> Iterator[output.RenderableType]:
    from rich.text import Text

    yield Text.assemble(
        (document["federation"], "bold"),
        f" {document['digest'][: rendering.SHORT]}  {document['method']}  {document['verdict']}",
        "" if document["made_in"] is None else f" Artifacts are {rendering.made_in(document)}.",
    )
    elsewhere = any(row["seen_by"] != row["site"] for row in document["sites"])
    has_room = any(row["room"] for row in document["sites"])
    columns = ["site", "state", "round", "phase", "waits for", "refuses", "cert", "program"]
    table = output.table([*columns, *(["of room"] if has_room else []), *(["says"] if elsewhere else [])], ())
    for row in document["sites"]:
        room = [Text(_room(row["room"]))] if has_room else []
        table.add_row(*_cells(row), *room, *([Text(row["seen_by"])] if elsewhere else []))
    yield table
    if has_room:
        note = "Of room: of the way from training alone to all data pooled, by [reference] in site.toml."
        yield Text(note, style="dim")
    for row in document["sites"]:
        if row["losses"]:
            yield Text(f"By refusals, {row['losses']}.", style="dim")
    for item in document["attention"]:
        style = "red" if item["urgent"] else "yellow"
        yield Text(f"{item['site']}: {one_line(item['text'])}.", style=style)


def _cells(row: Mapping[str, Any]) -> list[output.RenderableType]:
    from rich.text import Text

    share = f" {row['progress']:.0%}" if row["progress"] is not None else ""
    ago = f" {duration(row['last_seen_s'])}" if row["state"] == "silent" and row["last_seen_s"] is not None else ""
    values = [
        row["round"],
        f"{row['phase']}{share}" if row["phase"] is not None else None,
        ", ".join(wait["site"] for wait in row["waiting_for"]) or None,
        ", ".join(f"{site} ({times})" for site, times in row["refuses"].items()) or None,
        None if row["certificate_days"] is None else f"{row['certificate_days']} d",
        (row["software"] or "").removeprefix("mhfl-peer ") or None,
    ]
    state = Text(f"{row['state']}{ago}", style=STATE_STYLE.get(row["state"], ""))
    return [Text(row["site"]), state, *(Text("-" if value is None else one_line(str(value))) for value in values)]


def _room(room: Mapping[str, Any] | None) -> str:
    if room is None or room["share"] is None:
        return "-" if room is None else "hardly any"
    return "below alone" if room["share"] < 0 else f"{room['share']:.0%}"
