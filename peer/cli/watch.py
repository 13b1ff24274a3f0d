"""``mhfl-peer status``, ``rounds``, ``peers``, ``transfers`` and ``events``: documents about a site.

The daemon provides the document. While it is down, the command reads the journal and the ledger.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from peer import __version__
from peer.cli import output, rendering
from peer.cli.site_command import SiteCall, site_command
from peer.errors import DaemonDown, StateError, UsageError
from peer.site.config import site_folder
from peer.site.config.site_folder import SiteFolder

POLL_DOWN_S = 2.0
"""Interval at which `--watch` reads the journal of a site whose daemon is down."""
TIMED = ("status", "peers")
"""Documents that change every second. The others change with the journal."""

watch_option = click.option("--watch", is_flag=True, help="Show the document again whenever it changes, until Ctrl-C.")


def read_document(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Any:
    """Return the document, from the daemon or, while it is down, from the disk."""
    try:
        socket = folder.control_socket()
        if not socket.exists():
            return _read_from_disk(folder, name, arguments)
        from peer.net.transport.control import ControlClient

        return ControlClient(socket).show(name, **arguments)
    except DaemonDown:
        return _read_from_disk(folder, name, arguments)


def _read_from_disk(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Any:
    if name == "membership":
        from peer.site.membership.shown import membership_shown

        return membership_shown(folder, {})
    from peer.site.records import folder_documents

    if name in ("status", "peers"):
        status = folder_documents.status_when_down(folder)
        return status if name == "status" else status["peers"]
    return folder_documents.document(folder, name, arguments)


def _follow(folder: SiteFolder, name: str, arguments: Mapping[str, Any], select: Callable[[Any], Any]) -> Iterator[Any]:
    """Yield the document now and whenever it changes, across starts and stops of the daemon."""
    last = object()
    for document in map(select, _poll(folder, name, arguments)):
        if document != last:
            yield document
            last = document


def _poll(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the document repeatedly: from the daemon while it runs, else from the disk."""
    from peer.net.transport.control import ANSWER_S, ControlClient

    silence_s = ANSWER_S if name in TIMED else None
    while True:
        with contextlib.suppress(DaemonDown, StateError):
            yield from ControlClient(folder.control_socket()).follow(name, silence_s=silence_s, **arguments)
        yield _read_from_disk(folder, name, arguments)
        time.sleep(POLL_DOWN_S)


def show(
    call: SiteCall,
    name: str,
    render: Callable[[Any], output.RenderableType],
    arguments: Mapping[str, Any],
    *,
    watch: bool,
    select: Callable[[Any], Any] = lambda document: document,
) -> None:
    """Show a document of the site once, or again whenever it changes.

    Args:
        select: returns the part of the document to show.
    """
    if not watch:
        call.emit(select(read_document(call.folder, name, arguments)), render)
        return
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how a user ends it
        _show_each(_follow(call.folder, name, arguments, select), render, as_json=call.as_json)


def _show_each(documents: Iterable[Any], render: Callable[[Any], output.RenderableType], *, as_json: bool) -> None:
    if as_json:
        for document in documents:
            output.emit_line(document)
        return
    from rich.live import Live

    with Live(console=output.console(), screen=False, auto_refresh=False, vertical_overflow="visible") as live:
        for document in documents:
            live.update(render(document), refresh=True)


@site_command()
@watch_option
@click.option(
    "--out",
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write this to a file instead, as one page for a browser; an older page is replaced.",
)
def status(call: SiteCall, watch: bool, page: Path | None) -> None:
    """Show the current round, which peers it waits for and why, and the state of every peer.

    The page of --out is that of `mhfl-peer dashboard` at this moment, without a script.

    \b
    mhfl-peer status --site europe --watch
    mhfl-peer status --site europe --json
    mhfl-peer status --site europe --out europe.html
    """
    if page is None:
        show(call, "status", rendering.status, {}, watch=watch)
        return
    if watch:
        raise UsageError("--out writes the page once", "leave --watch out, or use `mhfl-peer dashboard`")
    from peer.view.dashboard.collect import FederationReader
    from peer.view.dashboard.page import write_page

    folder = call.folder
    site_folder.must_be_new_or_page(page)
    snapshots = FederationReader([folder]).read()
    site_folder.write_atomically(page, write_page(snapshots, version=__version__).encode())
    call.emit(snapshots[0].sites[0]["status"], lambda _: f"{folder.site}: {page} is written")


@site_command()
@click.option("--last", type=click.IntRange(1), help="How many of the newest rounds to show  [default: all].")
@watch_option
def rounds(call: SiteCall, last: int | None, watch: bool) -> None:
    """List the committed rounds: whose artifacts each used, which sites were missing and why,
    losses and metrics.

    \b
    mhfl-peer rounds --site europe --last 10
    mhfl-peer rounds --site europe --watch
    """

    def newest(document: Any) -> Any:
        return document if last is None else document[-last:]

    show(call, "rounds", rendering.rounds, {}, watch=watch, select=newest)


@site_command()
@watch_option
def peers(call: SiteCall, watch: bool) -> None:
    """Show the other sites as this one sees them: heard or silent, round, phase, last seen.

    While the daemon is down, as after the last round, it shows what the journal has of them.

    \b
    mhfl-peer peers --site europe
    """
    show(call, "peers", functools.partial(_render_peers, call), {}, watch=watch)


def _render_peers(call: SiteCall, document: Mapping[str, Mapping[str, Any]]) -> output.RenderableType:
    """Render the peers; below them, why all are unknown if the daemon does not run."""
    from rich.console import Group
    from rich.text import Text

    from peer.site.records import folder_documents

    if any(peer["spoken"] is not None for peer in document.values()):  # a running daemon has counted its messages
        return rendering.peers(document)
    note = rendering.ended(folder_documents.status_when_down(call.folder), folder_documents.newest_row_s(call.folder))
    return Group(rendering.peers(document), Text(note, style="yellow"))


@site_command()
@watch_option
def transfers(call: SiteCall, watch: bool) -> None:
    """List every artifact that was received or sent, in the order of time.

    \b
    mhfl-peer transfers --site europe --json
    """
    show(call, "transfers", rendering.transfers, {}, watch=watch)


def _check_story(document: Any) -> Any:
    """Return the story of a round; raise ``StateError`` if the journal has no row about the round."""
    if document["state"] == "unknown":
        raise StateError(f"the journal knows nothing of round {document['round']}", "see `rounds` and `status`")
    return document


@site_command()
@click.option(
    "--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest rows to show."
)
@click.option("--all", "everything", is_flag=True, help="Show also ignored events, discarded files and manifests.")
@click.option("--why", metavar="ROUND", type=click.IntRange(1), help="Tell in sentences why this round went as it did.")
@watch_option
def events(call: SiteCall, last: int, everything: bool, why: int | None, watch: bool) -> None:
    """Show the newest rows of the journal, or, with --why, the story of one round in sentences.

    \b
    mhfl-peer events --site europe --last 20
    mhfl-peer events --site europe --why 7
    """
    if why is not None:
        about = {"round": why}
        show(
            call,
            "why",
            rendering.story,
            about,
            watch=watch,
            select=_check_story,
        )
        return
    arguments = {"last": last, "everything": everything}
    show(call, "events", rendering.events, arguments, watch=watch)
