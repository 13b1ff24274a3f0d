"""The Prometheus endpoint of a running daemon: ``prometheus_client``'s server, with limits.

It is read-only. The address decides who can reach it (``[metrics]`` in site.toml): there is neither password nor TLS.
Requests are answered in threads, which ask the event loop only for the values of the daemon's state.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from peer.daemon.dispatch import Daemon
from peer.daemon.metrics import Surroundings, families
from peer.errors import PeerError, PortInUse
from peer.net.transport.http_server import CONNECTION_S, POLL_S, SERVER, SILENCE_S, BoundedServer
from peer.site.config.toml import split_address
from peer.site.identity.certificates import find_certificate
from peer.site.records.counts import Counts

log = logging.getLogger(__name__)

STATE_S = 10.0  # for the event loop to return the daemon's state; it answers within milliseconds
PAGE = b'<!doctype html><title>mhfl-peer</title><p><a href="/metrics">metrics</a>\n'
UNREADABLE = b"journal or ledger cannot be read; the site's log says why\n"
REMEDY = "change `listen` under [metrics] in site.toml, or stop what uses the port"
TEXT = ("Content-Type", "text/plain; charset=utf-8")

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class DaemonCollector(Collector):
    """The daemon's current metrics, for a registry that collects in a thread."""

    def __init__(self, daemon: Daemon, loop: asyncio.AbstractEventLoop) -> None:
        self._daemon, self._loop = daemon, loop
        self._counts = Counts(daemon.folder, daemon.federation.roster)
        self._lock = threading.Lock()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering collects nothing."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics: read files in this thread and state in the event loop, one scrape at a time."""
        with self._lock:
            self._read()
            surroundings = self._look_around()
            values = asyncio.run_coroutine_threadsafe(self._families(surroundings), self._loop)
            metrics = values.result(STATE_S)
        yield from metrics

    def catch_up(self) -> None:
        """Read the rows of former runs, so that the first scrape need not."""
        with contextlib.suppress(PeerError), self._lock:  # the scrape reports it
            self._read()

    def _read(self) -> None:
        self._counts.add_members(self._daemon.chain.names)
        self._counts.read_all()

    async def _families(self, surroundings: Surroundings) -> list[Metric]:
        return families(self._daemon, self._counts, surroundings, now_s=time.time())

    def _look_around(self) -> Surroundings:
        """Read the disk's space, and the expiry of the certificate on it, or else of the one at the start."""
        own, ca = find_certificate(self._daemon.folder.pki) or self._daemon.own.certificate, self._daemon.own.ca
        disk = shutil.disk_usage(self._daemon.folder.path)
        expiry_s = {"site": own.not_valid_after_utc.timestamp(), "ca": ca.not_valid_after_utc.timestamp()}
        return Surroundings(disk.free, disk.total, expiry_s)


class MetricsServer:
    """Serves ``/metrics`` for one daemon; create it in the daemon's event loop."""

    def __init__(self, daemon: Daemon, *, silence_s: float = SILENCE_S, connection_s: float = CONNECTION_S) -> None:
        self._silence_s, self._connection_s = silence_s, connection_s
        self._collector = DaemonCollector(daemon, asyncio.get_running_loop())
        self._registry = CollectorRegistry()
        self._registry.register(self._collector)
        ProcessCollector(registry=self._registry)
        ProcessCollector(
            namespace="mhfl_worker",
            pid=lambda: pid if (pid := daemon.worker_process.pid) is not None else "none",
            registry=self._registry,
        )
        self._servers: list[BoundedServer] = []

    async def start(self, address: str) -> int:
        """Listen on ``host:port`` and return the port; the system chooses one for port 0. Raises ``PortInUse`` with the
        reason if the address cannot be bound.
        """
        try:
            await asyncio.to_thread(self._bind, *split_address(address))
        except OSError as error:
            for server in self._servers:
                server.server_close()
            self._servers = []
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise PortInUse(f"metrics.listen = {address} cannot be bound: {reason}", REMEDY) from None
        threading.Thread(target=self._collector.catch_up, name="metrics catch up", daemon=True).start()
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(POLL_S,), name="metrics", daemon=True).start()
        return int(self._servers[0].server_port)

    @property
    def connections(self) -> int:
        return sum(server.connections for server in self._servers)

    async def stop(self) -> None:
        """Accept no more requests and break off those in progress."""
        servers, self._servers = self._servers, []
        for server in servers:
            await asyncio.to_thread(server.shutdown)
            server.hang_up()
            server.server_close()

    def _bind(self, host: str, port: int) -> None:
        """Start a server for each address of the host's name."""
        for address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE):
            server = BoundedServer(address, silence_s=self._silence_s, connection_s=self._connection_s)
            server.set_app(self._answer)
            self._servers.append(server)

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> list[bytes]:
        """Serve the metrics, and a page that links to them."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path not in ("/", "/metrics"):
            status, headers, body = "404 Not Found", [TEXT], b"Not Found\n"
        elif method not in ("GET", "HEAD"):
            status, headers, body = "405 Method Not Allowed", [TEXT, ("Allow", "GET, HEAD")], b"Method Not Allowed\n"
        elif path == "/":
            status, headers, body = "200 OK", [("Content-Type", "text/html; charset=utf-8")], PAGE
        else:
            status, headers, body = self._scrape(environ)
        start_response(status, [*headers, ("Content-Length", str(len(body))), ("Server", SERVER)])
        return [b"" if method == "HEAD" else body]

    def _scrape(self, environ: dict[str, Any]) -> tuple[str, list[tuple[str, str]], bytes]:
        """Encode every current metric in the format that the headers request."""
        try:
            encoder, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
        except (TypeError, ValueError):  # a version that is not a number
            encoder, content_type = choose_encoder("")
        try:
            body = encoder(self._registry)
        except (PeerError, OSError) as error:
            log.error("metrics not shown", extra={"reason": str(error)})
        except Exception:
            log.exception("metrics not shown")
        else:
            if gzip_accepted(environ.get("HTTP_ACCEPT_ENCODING", "")):
                headers = [("Content-Type", content_type), ("Content-Encoding", "gzip")]
                return "200 OK", headers, gzip.compress(body)
            return "200 OK", [("Content-Type", content_type)], body
        return "500 Internal Server Error", [TEXT], UNREADABLE
