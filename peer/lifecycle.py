"""From a site's folder to a running daemon, and to its exit: everything that is checked before the first byte moves."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peer import errors, logs
from peer.config import Federation, Site, check_site
from peer.console import Console
from peer.core import commands
from peer.core.roster import SiteName
from peer.daemon import Daemon, now
from peer.home import SiteFolder, make_private
from peer.identity import Identity
from peer.journal import Journal
from peer.transport.control import ControlServer

log = logging.getLogger(__name__)

SAME_ON_RESUME = ("data", "model", "training")
"""Tables of site.toml that a generation keeps: other values would make other bits out of the same rounds."""
MAY_CHANGE = frozenset({"training.checkpoint_s", "data.cache", "data.unreadable_share_max"})
"""Keys in them that change no bit of any weight."""
FAULTS: Mapping[str, type[errors.PeerError]] = {"data": errors.DataError, "configuration": errors.ModelError}
RESUME = ("auto", "fresh", "require")


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line of `start` said."""

    resume: str = "auto"
    accept_change: bool = False
    without: tuple[str, ...] = ()
    stay: bool = False
    debug: bool = False
    quiet: bool = False


def load(folder: SiteFolder) -> tuple[Federation, Site, Identity]:
    """The site's files, each checked by itself and against the others; ``PeerError`` names what is wrong."""
    federation = Federation.load(folder.federation_toml)
    site = Site.load(folder.site_toml)
    check_site(federation, site, folder.site)
    own = Identity.load(folder.pki, name=folder.site, ca_certificate=federation.ca_certificate, now=now())
    return federation, site, own


def run(folder: SiteFolder, options: Options) -> None:
    """Run the daemon of a site until it leaves; ``PeerError`` when it cannot start or cannot go on."""
    federation, site, own = load(folder)
    without = _absent(federation, folder.site, options.without)
    make_private(folder.logs)
    with folder.locked():
        logs.set_up(folder.logs, quiet=options.quiet, debug=options.debug)
        generation = _generation(folder, options)
        _same_configuration(folder, generation, federation, site, accept=options.accept_change)
        asyncio.run(_serve(folder, federation, site, own, generation, without, options))


async def _serve(
    folder: SiteFolder,
    federation: Federation,
    site: Site,
    own: Identity,
    generation: int,
    without: frozenset[SiteName],
    options: Options,
) -> None:
    daemon = Daemon(
        folder=folder,
        federation=federation,
        site=site,
        own=own,
        generation=generation,
        without=without,
        stay=options.stay,
    )
    control = ControlServer(Console(daemon))

    async def ready(port: int) -> None:
        facts = {"site": own.name, "federation": federation.name, "method": federation.method.name, "port": port}
        log.info("serving", extra={**facts, "generation": generation, "committed": daemon.round.memory.committed})
        notify("READY=1")

    await control.start(folder.prepare_control_socket())
    daemon.stop_on_signals()
    try:
        ended: commands.Exit = await daemon.run(ready)
    finally:
        notify("STOPPING=1")
        await control.stop()
    if ended.fault:
        raise FAULTS.get(ended.fault, errors.WorkerFailed)(ended.reason)
    log.info("left", extra={"site": own.name, "committed": daemon.round.memory.committed})


def _absent(federation: Federation, own: SiteName, names: tuple[str, ...]) -> frozenset[SiteName]:
    for name in names:
        if name not in federation.roster or name == own:
            others = ", ".join(federation.roster.others(own))
            raise errors.UsageError(f"--without {name}: not another site of this federation", f"there are {others}")
    return frozenset(SiteName(name) for name in names)


def _generation(folder: SiteFolder, options: Options) -> int:
    newest = max(folder.generations(), default=0)
    if options.resume == "require" and not newest:
        raise errors.StateError(
            f"{folder.path} holds nothing to resume", "start with --resume auto, or restore the backup first"
        )
    if options.resume == "fresh" or not newest:
        return folder.create_generation()
    return newest


def _same_configuration(
    folder: SiteFolder, generation: int, federation: Federation, site: Site, *, accept: bool
) -> None:
    """Refuse to go on with another federation, model or data than the generation began with."""
    journal = Journal(folder.generation(generation) / "journal.db")
    try:
        known = journal.records(("configured",))
        current = {"federation": federation.digest, **_flat(site.model_dump(mode="json"))}
        if not known:
            journal.append("configured", 0, current)
            return
        before = known[-1]["body"]
        if before["federation"] != federation.digest:
            raise errors.StateError(
                f"generation {generation} belongs to federation {before['federation'][:12]}, "
                f"federation.toml is now {federation.digest[:12]}",
                "put the former federation.toml back, or begin anew with --resume fresh",
            )
        changed = [key for key in sorted(before.keys() | current.keys()) if before.get(key) != current.get(key)]
        if not changed:
            return
        if not accept:
            key = changed[0]
            was, is_now = before.get(key), current.get(key)
            raise errors.StateError(
                f"{site.where}: {key} was {was!r} when this generation began and is {is_now!r} now",
                "put it back, start with --accept-change to go on all the same, or --resume fresh to begin anew",
            )
        journal.append("configured", 0, current)
    finally:
        journal.close()


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The keys of site.toml that must not change, as ``table.key``."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        path = f"{prefix}{key}"
        if not prefix and key not in SAME_ON_RESUME:
            continue
        if isinstance(value, Mapping):
            found.update(_flat(value, f"{path}."))
        elif path not in MAY_CHANGE:
            found[path] = value
    return found


def notify(state: str) -> None:
    """Tell systemd, where it asked to be told (sd_notify's protocol: one datagram to a socket)."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.sendto(state.encode(), address)
        except OSError as error:
            log.warning("systemd not told", extra={"reason": str(error)})
