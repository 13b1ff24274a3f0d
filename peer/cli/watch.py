"""``mhfl-peer status``, ``rounds``, ``peers``, ``transfers`` and ``events``: documents about a
site.

The daemon gives the document. While it is down, the command reads the journal and the ledger
itself.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from peer.cli import Settings, output, pass_settings, rendering, shared_options, site_option
from peer.errors import DaemonDown, StateError, UsageError
from peer.site.config import site_folder
from peer.site.config.site_folder import SiteFolder

POLL_DOWN_S = 2.0
"""Interval in which `--watch` reads the journal of a site whose daemon is down."""

watch_option = click.option("--watch", is_flag=True, help="Show the document again whenever it changes, until Ctrl-C.")


def read_document(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Any:
    """The document, from the daemon or, while it is down, from the disk."""
    try:
        socket = folder.control_socket()
        if not socket.exists():
            return _read_from_disk(folder, name, arguments)
        from peer.net.transport.control import ControlClient

        with ControlClient(socket) as client:
            return client.show(name, **arguments)
    except DaemonDown:
        return _read_from_disk(folder, name, arguments)


def _read_from_disk(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Any:
    if name == "membership":
        from peer.site.membership.documents import membership_shown

        return membership_shown(folder, {})
    from peer.site.records import folder_documents

    if name in ("status", "peers"):
        status = folder_documents.status_when_down(folder)
        return status if name == "status" else status["peers"]
    return folder_documents.document(folder, name, arguments)


def _follow(folder: SiteFolder, name: str, arguments: Mapping[str, Any], select: Callable[[Any], Any]) -> Iterator[Any]:
    """The document now and whenever it changes, across starts and stops of the daemon."""
    last = object()
    for document in map(select, _poll(folder, name, arguments)):
        if document != last:
            yield document
            last = document


def _poll(folder: SiteFolder, name: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
    """The document again and again: from the daemon while it runs, else from the disk."""
    from peer.net.transport.control import ControlClient

    while True:
        try:
            with ControlClient(folder.control_socket()) as client:
                yield from client.follow(name, **arguments)
        except (DaemonDown, StateError):
            pass
        yield _read_from_disk(folder, name, arguments)
        time.sleep(POLL_DOWN_S)


def show(
    settings: Settings,
    site_name: str | None,
    name: str,
    render: Callable[[Any], output.RenderableType],
    arguments: Mapping[str, Any],
    *,
    as_json: bool,
    watch: bool,
    select: Callable[[Any], Any] = lambda document: document,
) -> None:
    """Show a document of the site once, or again whenever it changes.

    Args:
        select: takes the document and returns the part to show.
    """
    folder = site_folder.find_site(site_folder.home_folder(settings.home), site_name)
    if not watch:
        output.emit(select(read_document(folder, name, arguments)), as_json=as_json, render=render)
        return
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C is how a user ends it
        _show_each(_follow(folder, name, arguments, select), render, as_json=as_json)


def _show_each(documents: Iterable[Any], render: Callable[[Any], output.RenderableType], *, as_json: bool) -> None:
    if as_json:
        for document in documents:
            output.emit_line(document)
        return
    from rich.live import Live

    with Live(console=output.console(), screen=False, auto_refresh=False, vertical_overflow="visible") as live:
        for document in documents:
            live.update(render(document), refresh=True)


def _view_command(
    name: str, short_help: str, render: Callable[[Any], output.RenderableType], text: str
) -> click.Command:
    """A command that shows the document of its own name."""

    @click.command(name, short_help=short_help, help=text)
    @site_option
    @watch_option
    @output.json_option
    @shared_options
    @pass_settings
    def view(settings: Settings, site_name: str | None, watch: bool, as_json: bool) -> None:
        show(settings, site_name, name, render, {}, as_json=as_json, watch=watch)

    return view


@click.command(short_help="Show the current round, what it waits for, and every peer.")
@site_option
@watch_option
@click.option(
    "--html",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write this to a file instead, as one page for a browser.",
)
@output.json_option
@shared_options
@pass_settings
def status(settings: Settings, site_name: str | None, watch: bool, page: Path | None, as_json: bool) -> None:
    """Show the current round, which peers it waits for and why, and the state of every peer.

    The page of --html is that of `mhfl-peer dashboard` at this moment, without a script.

    \b
    mhfl-peer status --site europe --watch
    mhfl-peer status --site europe --json
    mhfl-peer status --site europe --html europe.html
    """
    if page is None:
        show(settings, site_name, "status", rendering.status, {}, as_json=as_json, watch=watch)
        return
    if watch:
        raise UsageError("--html writes the page once", "leave --watch out, or use `mhfl-peer dashboard`")
    from peer import __version__
    from peer.view.dashboard.collect import FederationReader
    from peer.view.dashboard.page import write_page

    folder = site_folder.find_site(site_folder.home_folder(settings.home), site_name)
    snapshots = FederationReader([folder]).read()
    site_folder.write_atomically(page, write_page(snapshots, version=__version__).encode())
    output.emit(snapshots[0].sites[0]["status"], as_json=as_json, render=lambda _: f"{folder.site}: {page} is written")


@click.command(short_help="List the committed rounds: sources, contributors, metrics.")
@click.option("--last", type=click.IntRange(1), help="How many of the newest rounds to show  [default: all].")
@site_option
@watch_option
@output.json_option
@shared_options
@pass_settings
def rounds(settings: Settings, site_name: str | None, last: int | None, watch: bool, as_json: bool) -> None:
    """List the committed rounds: whose artifacts each used, which sites were missing and why,
    losses and metrics.

    \b
    mhfl-peer rounds --site europe --last 10
    mhfl-peer rounds --site europe --watch
    """

    def newest(document: Any) -> Any:
        return document if last is None else document[-last:]

    show(settings, site_name, "rounds", rendering.rounds, {}, as_json=as_json, watch=watch, select=newest)


peers = _view_command(
    "peers",
    "Show the other sites as this one sees them.",
    rendering.peers,
    """Show the other sites as this one sees them: heard or silent, round, phase, last seen.

    \b
    mhfl-peer peers --site europe
    """,
)
transfers = _view_command(
    "transfers",
    "List every artifact that was received or sent.",
    rendering.transfers,
    """List every artifact that was received or sent, in the order of time.

    \b
    mhfl-peer transfers --site europe --json
    """,
)


def _check_story(document: Any) -> Any:
    """The story of a round; ``StateError`` where the journal has no row about the round."""
    if document["state"] == "unknown":
        raise StateError(f"the journal knows nothing of round {document['round']}", "see `rounds` and `status`")
    return document


@click.command(short_help="Show the journal's newest rows, or why a round went as it did.")
@site_option
@click.option(
    "--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest rows to show."
)
@click.option("--all", "everything", is_flag=True, help="Show also ignored events, discarded files and manifests.")
@click.option("--why", metavar="ROUND", type=click.IntRange(1), help="Tell in sentences why this round went as it did.")
@watch_option
@output.json_option
@shared_options
@pass_settings
def events(
    settings: Settings,
    site_name: str | None,
    last: int,
    everything: bool,
    why: int | None,
    watch: bool,
    as_json: bool,
) -> None:
    """Show the newest rows of the journal, or, with --why, the story of one round in sentences.

    \b
    mhfl-peer events --site europe --last 20
    mhfl-peer events --site europe --why 7
    """
    if why is not None:
        about = {"round": why}
        show(settings, site_name, "why", rendering.story, about, as_json=as_json, watch=watch, select=_check_story)
        return
    arguments = {"last": last, "everything": everything}
    show(settings, site_name, "events", rendering.events, arguments, as_json=as_json, watch=watch)
