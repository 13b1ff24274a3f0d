"""The Prometheus endpoint of a running daemon: HTTP/1.1 in its event loop, one request a connection.

It only shows. Who may ask is a matter of the address (``[metrics]`` in site.toml): there is neither password nor TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import gzip
import http
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector

from peer.config.toml import split_address
from peer.daemon.dispatch import Daemon
from peer.daemon.metrics import Surroundings, families
from peer.errors import PeerError, PortInUse
from peer.identity.certificates import readable_certificate
from peer.records.tally import Tally

log = logging.getLogger(__name__)

HEAD_BYTES_MAX = 16 << 10  # request line and headers; a Prometheus server sends under 1 KiB
HEAD_S = 5.0  # for the whole of it: who sends a byte now and then holds no connection
WRITE_S = 10.0  # for an answer to be taken, which is Prometheus' own limit for a scrape
CONNECTIONS_MAX = 16  # two Prometheus servers and a person with curl; more are hung up on
PAGE = b'<!doctype html><title>mhfl-peer</title><p><a href="/metrics">metrics</a>\n'
UNREADABLE = b"journal or ledger cannot be read; the site's log says why\n"
REMEDY = "change `listen` under [metrics] in site.toml, or stop what uses the port"


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back, beside what every answer has."""

    status: http.HTTPStatus
    body: bytes = b""
    type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()

    def encode(self, *, head_only: bool) -> bytes:
        """The bytes of it; a HEAD request is told the length that the body would have."""
        body = self.body or f"{self.status.phrase}\n".encode()
        headers = (
            ("Date", email.utils.formatdate(usegmt=True)),
            ("Content-Type", self.type),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            *self.headers,
        )
        lines = [f"HTTP/1.1 {self.status.value} {self.status.phrase}", *(f"{name}: {text}" for name, text in headers)]
        return "\r\n".join((*lines, "", "")).encode("latin-1") + (b"" if head_only else body)


class Snapshot(Collector):
    """The daemon's metrics as they were when the scrape began, for a registry to collect from any thread."""

    def __init__(self) -> None:
        self.families: list[Metric] = []

    def collect(self) -> Iterable[Metric]:
        """The metrics."""
        return self.families


class MetricsServer:
    """Serves ``/metrics`` for one daemon. Files are read and texts made in a thread, the daemon's state in its loop.

    Args:
        daemon: is only read.
        head_s: how long a request may take to arrive, in seconds.
        write_s: how long an answer may take to be taken, in seconds.
    """

    def __init__(self, daemon: Daemon, *, head_s: float = HEAD_S, write_s: float = WRITE_S) -> None:
        self._daemon = daemon
        self._head_s, self._write_s = head_s, write_s
        self._tally = Tally(daemon.folder, daemon.federation.roster)
        self._scrape = asyncio.Lock()
        self._snapshot = Snapshot()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._snapshot)
        ProcessCollector(registry=self._registry)
        ProcessCollector(
            namespace="mhfl_worker",
            pid=lambda: pid if (pid := daemon.foreman.pid) is not None else "none",
            registry=self._registry,
        )
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, address: str) -> int:
        """Listen on ``host:port`` and return the port, which port 0 leaves to the system.

        Raises:
            PortInUse: the address cannot be bound; the message says why.
        """
        host, port = split_address(address)
        try:
            self._server = await asyncio.start_server(self._visit, host, port, limit=HEAD_BYTES_MAX)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            raise PortInUse(f"metrics.listen = {address} cannot be bound: {reason}", REMEDY) from None
        self._keep(asyncio.create_task(self._catch_up(), name="metrics catch up"))
        return int(self._server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Take no more requests and break off those under way."""
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _keep(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _catch_up(self) -> None:
        """Read what former runs left, so that the first scrape does not wait for it; years of rows take a second."""
        with contextlib.suppress(PeerError):  # the scrape says it
            async with self._scrape:
                await self._read_on()

    async def _read_on(self) -> None:
        while await asyncio.to_thread(self._tally.read_on):
            pass

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection, whatever comes over it."""
        task = asyncio.current_task()
        assert task is not None
        if len(self._tasks) >= CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._keep(task)
        try:
            await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the other side left, or does not take the answer
        except Exception:
            log.exception("metrics not shown")
        finally:
            writer.transport.abort()  # what was drained is with the system, and nothing else is waited for

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method = ""
        try:
            async with asyncio.timeout(self._head_s):
                head = await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            answer = Answer(http.HTTPStatus.REQUEST_TIMEOUT)
        except asyncio.LimitOverrunError:
            answer = Answer(http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        else:
            method, answer = await self._answer(head)
        async with asyncio.timeout(self._write_s):
            writer.write(answer.encode(head_only=method == "HEAD"))
            await writer.drain()
            writer.write_eof()
            while await reader.read(HEAD_BYTES_MAX):  # until the other side closes: an abort could overtake the answer
                pass

    async def _answer(self, head: bytes) -> tuple[str, Answer]:
        """The method of a request, and what to answer."""
        request, *lines = head.decode("latin-1").split("\r\n")
        words = request.split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
            return "", Answer(http.HTTPStatus.BAD_REQUEST)
        method, path = words[0], words[1].partition("?")[0]
        if path not in ("/", "/metrics"):
            return method, Answer(http.HTTPStatus.NOT_FOUND)
        if method not in ("GET", "HEAD"):
            return method, Answer(http.HTTPStatus.METHOD_NOT_ALLOWED, headers=(("Allow", "GET, HEAD"),))
        if path == "/":
            return method, Answer(http.HTTPStatus.OK, PAGE, "text/html; charset=utf-8")
        headers: dict[str, str] = {}
        for line in lines:
            name, _, text = line.partition(":")
            headers[name.strip().lower()] = ",".join(filter(None, (headers.get(name.strip().lower()), text.strip())))
        try:
            return method, await self.scrape(headers.get("accept", ""), headers.get("accept-encoding", ""))
        except (PeerError, OSError) as error:
            log.error("metrics not shown", extra={"reason": str(error)})
            return method, Answer(http.HTTPStatus.INTERNAL_SERVER_ERROR, UNREADABLE)

    async def scrape(self, accept: str = "", accept_encoding: str = "") -> Answer:
        """Every metric now, in the format that the headers ask for, as ``prometheus_client`` understands them.

        Raises:
            PeerError: journal or ledger cannot be read.
        """
        try:
            encoder, content_type = choose_encoder(accept)
        except (TypeError, ValueError):  # a version that is no number
            encoder, content_type = choose_encoder("")
        compressed = gzip_accepted(accept_encoding)
        async with self._scrape:
            await self._read_on()
            surroundings = await asyncio.to_thread(self._look_around)
            self._snapshot.families = families(self._daemon, self._tally, surroundings, now_s=time.time())
            body = await asyncio.to_thread(_text, lambda: encoder(self._registry), compressed=compressed)
        headers = (("Content-Encoding", "gzip"),) if compressed else ()
        return Answer(http.HTTPStatus.OK, body, content_type, headers)

    def _look_around(self) -> Surroundings:
        """The disk, and the certificate on it, which may have been renewed; if it is not usable, the start's."""
        own, ca = readable_certificate(self._daemon.folder.pki) or self._daemon.own.certificate, self._daemon.own.ca
        disk = shutil.disk_usage(self._daemon.folder.path)
        expiry_s = {"site": own.not_valid_after_utc.timestamp(), "ca": ca.not_valid_after_utc.timestamp()}
        return Surroundings(disk.free, disk.total, expiry_s)


def _text(make: Callable[[], bytes], *, compressed: bool) -> bytes:
    text = make()
    return gzip.compress(text) if compressed else text
