"""The relay's process: it serves until a signal, and writes its status to a file."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import time
from datetime import UTC, datetime
from typing import Any

from peer.errors import DiskError, PeerError, PortInUse
from peer.net.relay.folder import STATUS_FILE, RelayFolder, RelaySetting
from peer.net.relay.server import RelayServer
from peer.site.config.site_folder import write_atomically
from peer.site.config.toml import split_address
from peer.site.identity import certificates
from peer.stop_signals import stop_signals

log = logging.getLogger(__name__)

STATUS_S = 2.0


def run(folder: RelayFolder) -> None:
    """Relay until a signal asks it to stop; raise ``PeerError`` if the folder or the port does not allow it."""
    with folder.locked():
        asyncio.run(_serve(folder))


async def _serve(folder: RelayFolder) -> None:
    files = FollowedFiles(folder)
    config = files.setting.config
    server = RelayServer(config.name, lambda: files.setting.context, ())
    _follow(server, files.setting)
    stopped = asyncio.Event()
    for number in stop_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    host, port = split_address(config.listen)
    try:
        port = await server.start(host, port)
    except OSError as error:
        raise PortInUse(f"cannot listen on {config.listen}: {error.strerror}", "free it, or name another") from error
    now = datetime.now(UTC)
    days = certificates.certificate_days(files.setting.certificate, now)
    log.info("relaying", extra={"port": port, "sites": sorted(server.sites), "certificate_days": days})
    began_s = time.time()
    try:
        while not stopped.is_set():
            if files.reread():
                _follow(server, files.setting)
                amendment = files.setting.chain.head.number
                log.info("files read again", extra={"amendment": amendment, "sites": sorted(server.sites)})
            document = {
                "name": config.name,
                "port": port,
                "since": began_s,
                "at": time.time(),
                "amendment": files.setting.chain.head.number,
                "sites": server.traffic(),
                "unknown": files.setting.unknown,
                "refused": dict(server.refusals.most_common(20)),
            }
            _write_status(folder, document)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATUS_S):
                    await stopped.wait()
    finally:
        await server.stop()


class FollowedFiles:
    """The files of a running relay; unusable ones change nothing until they are repaired.

    Attributes:
        setting: the newest usable setting.
    """

    def __init__(self, folder: RelayFolder) -> None:
        self._folder, self._stamp, self._problem = folder, folder.stamp(), ""
        self.setting = folder.read(datetime.now(UTC))

    def reread(self) -> bool:
        """Read changed files and return whether a new setting applies; log each problem once per change.

        While the files are unusable, each call tries them again: too few open files pass without a change.
        """
        stamp = self._folder.stamp()
        if stamp == self._stamp and not self._problem:
            return False
        try:
            self.setting = self._folder.read(datetime.now(UTC), former=self.setting.chain)
        except (PeerError, OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
            if (stamp, problem) != (self._stamp, self._problem):
                log.error("files cannot be used; the former ones still count", extra={"reason": problem})
            self._stamp, self._problem = stamp, problem
            return False
        if self._problem:
            log.info("files can be used again")
        self._stamp, self._problem = stamp, ""
        return True


def _follow(server: RelayServer, setting: RelaySetting) -> None:
    """Apply the sites and networks of the files; a new name or address needs a restart."""
    server.pins = setting.sites
    server.networks = [ipaddress.ip_network(network) for network in setting.config.networks]
    server.follow(setting.sites)
    if setting.unknown:
        remedy = "run `mhfl-peer relay amend` once they are members, or correct the names"
        log.warning("sites in relay.toml that are no members yet", extra={"sites": setting.unknown, "remedy": remedy})


def _write_status(folder: RelayFolder, document: dict[str, Any]) -> None:
    """Write the relay's status; a full disk ends no connection."""
    try:
        write_atomically(folder.path / STATUS_FILE, json.dumps(document).encode(), 0o644)
    except DiskError as error:
        log.warning("status not written", extra={"reason": str(error)})
