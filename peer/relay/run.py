"""The relay's process: it serves until a signal, and writes down what it holds."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import logging
import signal
import time
from datetime import UTC, datetime
from typing import Any

from peer.config.site_folder import write_atomically
from peer.config.toml import split_address
from peer.errors import DiskError, PeerError, PortInUse
from peer.identity import certificates
from peer.membership.chain import Chain
from peer.relay.folder import STATUS_FILE, RelayFolder
from peer.relay.server import RelayServer

log = logging.getLogger(__name__)

STATUS_S = 2.0


def run(folder: RelayFolder) -> None:
    """Relay until SIGINT or SIGTERM; ``PeerError`` where the folder or the port does not allow it."""
    with folder.locked():
        asyncio.run(_serve(folder))


async def _serve(folder: RelayFolder) -> None:
    stamp = folder.stamp()
    (config, _), chain = folder.load(), folder.chain()
    certificate = folder.verify(datetime.now(UTC))
    networks = [ipaddress.ip_network(network) for network in config.networks]
    sites = folder.sites(chain)
    server = RelayServer(config.name, lambda: folder.context(chain), sites, networks, pins=sites)
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    host, port = split_address(config.listen)
    try:
        port = await server.start(host, port)
    except OSError as error:
        raise PortInUse(f"cannot listen on {config.listen}: {error.strerror}", "free it, or name another") from error
    now = datetime.now(UTC)
    days = certificates.certificate_days(certificate, now)
    log.info("relaying", extra={"port": port, "sites": sorted(sites), "certificate_days": days})
    began_s = time.time()
    try:
        while not stopped.is_set():
            if stamp != (stamp := folder.stamp()):
                chain = _read_chain(folder, chain)
                server.pins = sites = folder.sites(chain)
                server.follow(sites)
                log.info("amended", extra={"number": chain.head.number, "sites": sorted(sites)})
            document = {
                "name": config.name,
                "port": port,
                "since": began_s,
                "at": time.time(),
                "amendment": chain.head.number,
                "sites": server.traffic(),
                "refused": dict(server.refusals.most_common(20)),
            }
            _write_status(folder, document)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STATUS_S):
                    await stopped.wait()
    finally:
        await server.stop()


def _read_chain(folder: RelayFolder, former: Chain) -> Chain:
    """The chain that `relay amend` has written; with a broken file, the former one."""
    try:
        return folder.chain()
    except PeerError as error:
        log.error("amendments cannot be read", extra={"reason": str(error)})
        return former


def _write_status(folder: RelayFolder, document: dict[str, Any]) -> None:
    """Write down what the relay holds; a disk that is full ends no connection."""
    try:
        write_atomically(folder.path / STATUS_FILE, json.dumps(document).encode(), 0o644)
    except DiskError as error:
        log.warning("status not written", extra={"reason": str(error)})
