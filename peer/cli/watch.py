"""``mhfl-peer status``, ``rounds``, ``peers``, ``transfers`` and ``events``: what an operator looks at.

With the daemon down, all of them read the journal and the ledger, and say so.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from peer.cli import Settings, output, pass_settings, rendering, shared_options, site_option
from peer.config import site_folder
from peer.config.site_folder import SiteFolder
from peer.errors import DaemonDown, StateError

if TYPE_CHECKING:
    from rich.console import RenderableType

DOWN_EVERY_S = 2.0
"""How often `--watch` looks at the journal of a site whose daemon is down."""

watch_option = click.option("--watch", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")


def _document(folder: SiteFolder, what: str, arguments: Mapping[str, Any]) -> Any:
    """The document, from the daemon or, when it is down, from the disk."""
    try:
        socket = folder.control_socket()
        if not socket.exists():
            return _from_disk(folder, what, arguments)
        from peer.transport.control import ControlClient

        with ControlClient(socket) as client:
            return client.show(what, **arguments)
    except DaemonDown:
        return _from_disk(folder, what, arguments)


def _from_disk(folder: SiteFolder, what: str, arguments: Mapping[str, Any]) -> Any:
    from peer.records import folder_documents

    if what in ("status", "peers"):
        status = folder_documents.status_when_down(folder)
        return status if what == "status" else status["peers"]
    return folder_documents.document(folder, what, arguments)


def _documents(
    folder: SiteFolder, what: str, arguments: Mapping[str, Any], keep: Callable[[Any], Any]
) -> Iterator[Any]:
    """The document now and whenever it differs, across starts and stops of the daemon."""
    shown = object()
    for document in map(keep, _looks(folder, what, arguments)):
        if document != shown:
            yield document
            shown = document


def _looks(folder: SiteFolder, what: str, arguments: Mapping[str, Any]) -> Iterator[Any]:
    from peer.transport.control import ControlClient

    while True:
        try:
            with ControlClient(folder.control_socket()) as client:
                yield from client.follow(what, **arguments)
        except (DaemonDown, StateError):
            pass
        yield _from_disk(folder, what, arguments)
        time.sleep(DOWN_EVERY_S)


def show(
    settings: Settings,
    site_name: str | None,
    what: str,
    render: Callable[[Any], RenderableType],
    arguments: Mapping[str, Any],
    *,
    as_json: bool,
    watch: bool,
    keep: Callable[[Any], Any] = lambda document: document,
) -> None:
    """Show a document of the site once, or again whenever it changes.

    Args:
        settings: of the shared options.
        site_name: which site, if it was said.
        what: the document's name.
        render: draws it for people.
        arguments: go with the question.
        as_json: print it instead.
        watch: again and again.
        keep: the part of it that is to be shown.
    """
    folder = site_folder.find_site(site_folder.home_folder(settings.home), site_name)
    if not watch:
        output.emit(keep(_document(folder, what, arguments)), as_json=as_json, render=render)
        return
    with contextlib.suppress(KeyboardInterrupt):  # the way to end it
        _follow(_documents(folder, what, arguments, keep), render, as_json=as_json)


def _follow(documents: Iterable[Any], render: Callable[[Any], RenderableType], *, as_json: bool) -> None:
    if as_json:
        for document in documents:
            output.emit_line(document)
        return
    from rich.live import Live

    with Live(console=output.console(), screen=False, auto_refresh=False, vertical_overflow="visible") as live:
        for document in documents:
            live.update(render(document), refresh=True)


def _view(what: str, short_help: str, render: Callable[[Any], RenderableType], text: str) -> click.Command:
    @click.command(what, short_help=short_help, help=text)
    @site_option
    @watch_option
    @output.json_option
    @shared_options
    @pass_settings
    def view(settings: Settings, site_name: str | None, watch: bool, as_json: bool) -> None:
        show(settings, site_name, what, render, {}, as_json=as_json, watch=watch)

    return view


status = _view(
    "status",
    "Where the round is, what it waits for, who is there.",
    rendering.status,
    """Where the round is, whom it waits for and why, what every peer does.

    \b
    mhfl-peer status --site europe --watch
    mhfl-peer status --site europe --json
    """,
)
rounds = _view(
    "rounds",
    "Every round so far: sources, contributors, metrics.",
    rendering.rounds,
    """Every committed round: whose artifacts it used, who was missing and why, losses and metrics.

    \b
    mhfl-peer rounds --site europe --watch
    """,
)
peers = _view(
    "peers",
    "The other sites as this one sees them.",
    rendering.peers,
    """The other sites as this one sees them: heard or silent, round, phase, last seen.

    \b
    mhfl-peer peers --site europe
    """,
)
transfers = _view(
    "transfers",
    "Every artifact that came or went.",
    rendering.transfers,
    """Every artifact that came or went, by time.

    \b
    mhfl-peer transfers --site europe --json
    """,
)


def _known(document: Any) -> Any:
    """The story of a round, if the journal knows of it."""
    if document["state"] == "unknown":
        raise StateError(f"the journal knows nothing of round {document['round']}", "see `rounds` and `status`")
    return document


@click.command(short_help="The journal, line by line.")
@site_option
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest rows.")
@click.option("--all", "everything", is_flag=True, help="Also ignored events, discarded files and manifests.")
@click.option("--why", metavar="ROUND", type=click.IntRange(1), help="Tell why this round went as it went.")
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
    """The newest rows of the journal; or, with --why, the story of one round in sentences.

    \b
    mhfl-peer events --site europe --last 20
    mhfl-peer events --site europe --why 7
    """
    if why is not None:
        about = {"round": why}
        show(settings, site_name, "why", rendering.story, about, as_json=as_json, watch=watch, keep=_known)
        return
    shown = {"last": last, "everything": everything}
    show(settings, site_name, "events", rendering.events, shown, as_json=as_json, watch=watch)
