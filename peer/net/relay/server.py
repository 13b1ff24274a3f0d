"""The relay: sites' parked connections, and callers that it joins to them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import ipaddress
import logging
import resource
import select
import socket
import ssl
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cryptography import x509

from peer.core.roster import Sha256, SiteName
from peer.core.status_document import SiteTraffic
from peer.errors import PeerError
from peer.net.relay import frames
from peer.net.relay.client_hello import (
    RECORD_BYTES_MAX,
    RECORD_HEADER_BYTES,
    ClientHello,
    parse_client_hello,
    record_bytes,
)
from peer.net.relay.frames import Frame
from peer.net.relay.splice import CHUNK_BYTES, Ends, close, splice
from peer.net.transport.connections import Endpoint, network_of, plain_address
from peer.net.transport.rates import TokenBucket
from peer.site.identity.certificates import certificate_key, key_digest

log = logging.getLogger(__name__)

HELLO_S = 10.0
PARKED_PER_SITE_MAX = 64
CARRIED_FROM_ELSEWHERE_MAX = PARKED_PER_SITE_MAX // 2
"""Connections to one site from addresses outside ``networks``, if the relay has such a list."""
UNHEARD_PER_SOURCE_MAX = 8
NEW_PER_SOURCE_PER_SECOND, NEW_PER_SOURCE_BURST = 10.0, 20
SOURCES_KEPT_MAX = 4096
OPEN_TRIES = 3
PARKING_WAIT_S = 3.0
"""A site replaces a parked connection that was taken within a round trip."""
OPEN_S = 4.0
"""For all tries for one caller, so that it gets NOBODY_PARKED before it takes the relay for one without TLS."""
UNKNOWN_NAME = bytes.fromhex("15030300020270")
"""The TLS alert unrecognized_name."""
NOBODY_PARKED = bytes.fromhex("15030300020250")
"""The TLS alert internal_error: the site is listed, but has no parked connection."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(eq=False, slots=True)
class Parked:
    """A parked connection.

    Attributes:
        opened: whether the site was told of a caller: it takes all later bytes for the caller's.
        ready: set once the site has joined it to its own server, or has given it up.
        ended: set once it carries no caller any more.
    """

    ends: Ends
    opened: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class RelayServer:
    """Listens for sites that park, and for callers.

    Args:
        name: the relay's own name, which its certificate bears.
        context: makes the TLS context of a parked connection: mutual, with the federation's CA.
        sites: the names of the sites that may park; they may change.
        networks: the callers' networks; other callers get at most half of a site's connections.
        refused: SHA-256 digests of certificates that may not park.
        pins: by site, the SHA-256 of its pinned key, or None.
        own: host and port of the own server of a member that is a relay; None at any other relay.
        on_caller: as for ``peer.net.relay.parking.Parking``, for callers of the own server.
        connections: the maximum of concurrent connections; None: by the limit of open files.
    """

    name: str
    context: Callable[[], ssl.SSLContext]
    sites: Collection[str]
    networks: Sequence[Network] = ()
    refused: Container[str] = frozenset()
    pins: Mapping[SiteName, Sha256 | None] = field(default_factory=dict)
    own: tuple[str, int] | None = None
    on_caller: Callable[[Endpoint, str | None], None] = lambda end, caller: None
    connections: int | None = None
    refusals: Counter[str] = field(default_factory=Counter)
    _parked: defaultdict[str, deque[Parked]] = field(default_factory=lambda: defaultdict(deque))
    _held: defaultdict[str, dict[asyncio.StreamWriter, Sha256]] = field(default_factory=lambda: defaultdict(dict))
    """By site, its connections, each with the SHA-256 of the key of the certificate that parked it."""
    _carrying: Counter[str] = field(default_factory=Counter)
    _from_elsewhere: Counter[str] = field(default_factory=Counter)
    _carried: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0]))
    _unheard: Counter[str] = field(default_factory=Counter)
    _rates: dict[str, TokenBucket] = field(default_factory=dict)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _listener: socket.socket | None = None
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def start(self, host: str, port: int) -> int:
        """Listen, and return the port."""
        self._listener = bind(host, port)
        self._listener.setblocking(False)
        self._begin(self._accept(self._listener))
        return int(self._listener.getsockname()[1])

    async def stop(self) -> None:
        """Close every connection."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()

    def follow(self, sites: Collection[str]) -> None:
        """Serve these sites from now on; abort connections of other sites, or with another key than the pinned one.

        The traffic on these connections is cut.
        """
        self.sites = sites
        for site, held in self._held.items():
            pinned = self.pins.get(SiteName(site))
            for writer, key in held.items():
                if site not in sites or pinned not in (None, key):
                    writer.transport.abort()  # a site that takes no bytes would delay a close

    def traffic(self) -> dict[str, SiteTraffic]:
        """Return the parked connections and the traffic of each site."""
        return {
            site: {
                "parked": len(self._parked[site]),
                "carrying": self._carrying[site],
                "carried_connections": self._carried[site][0],
                "carried_bytes": self._carried[site][1],
            }
            for site in sorted(self.sites)
        }

    def _begin(self, work: Coroutine[Any, Any, None], end: Callable[[], None] = lambda: None) -> None:
        """Start a task; ``end`` is called after it, even if it is cancelled before its first step."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: end())

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        most = connections_max() if self.connections is None else self.connections
        while True:
            try:
                connection, address = await loop.sock_accept(listener)
            except OSError as error:  # no descriptor is free now
                log.warning("no connection accepted", extra={"reason": error.strerror})
                await asyncio.sleep(1.0)
                continue
            source = network_of((str(plain_address(address[0])), address[1]))
            if len(self._tasks) > most or not self._admits(source):
                self.refusals["too many connections"] += 1
                connection.close()
                continue
            connection.setblocking(False)
            self._begin(self._serve(connection, str(plain_address(address[0])), source), connection.close)

    def _admits(self, source: str) -> bool:
        """Return whether a source may open another connection now; uses up a token of its rate."""
        if len(self._rates) >= SOURCES_KEPT_MAX:
            self._rates.clear()
        rate = self._rates.setdefault(
            source, TokenBucket(NEW_PER_SOURCE_PER_SECOND, NEW_PER_SOURCE_BURST, asyncio.get_running_loop().time)
        )
        return self._unheard[source] < UNHEARD_PER_SOURCE_MAX and rate.take()

    async def _serve(self, connection: socket.socket, address: str, source: str) -> None:
        """Read a connection's ClientHello, then park it, join it, or refuse it."""
        with connection:
            self._unheard[source] += 1
            try:
                async with asyncio.timeout(HELLO_S):
                    hello = await peek_client_hello(connection)
            except (OSError, ValueError, TimeoutError) as error:
                self.refusals[str(error) or "silent"] += 1
                await _refuse(connection, b"")
                return
            finally:
                self._unheard[source] -= 1
                self._unheard += Counter()  # drops what is zero
            try:
                if hello.server_name == self.name and frames.ALPN in hello.protocols:
                    await self._park(connection)
                elif hello.server_name == self.name and self.own is not None and "h2" in hello.protocols:
                    await self._reach_own_server(connection, address)
                elif hello.server_name in self.sites and "h2" in hello.protocols:
                    await self._join(connection, hello.server_name, address)
                else:
                    self.refusals["unknown name"] += 1
                    await _refuse(connection, UNKNOWN_NAME)
            except EOFError:
                log.info("connection ended", extra={"source": source, "reason": "the caller ended it"})
            except (OSError, ValueError, PeerError) as error:
                log.info("connection ended", extra={"source": source, "reason": str(error) or type(error).__name__})

    async def _park(self, connection: socket.socket) -> None:
        """Hold a site's connection until a caller is joined to it and has ended."""
        context = self.context()
        context.set_alpn_protocols([frames.ALPN])
        reader, writer = await _accepted_tls(connection, context)
        try:
            site, key = _certified_name(writer), _key_digest(writer)
            async with asyncio.timeout(HELLO_S):
                kind, payload = await frames.read(reader)
            reason = ""
            if kind is not Frame.PARK or payload != bytes([frames.VERSION]):
                reason = f"this relay speaks version {frames.VERSION} of the parking protocol"
            elif site not in self.sites or _digest(writer) in self.refused:
                reason = f"{site} is not among the sites of {self.name}"
            elif self.pins.get(SiteName(site)) not in (None, key):
                reason = f"the key of {site} is not the one that is pinned"
            elif len(self._parked[site]) + self._carrying[site] >= PARKED_PER_SITE_MAX:
                reason = f"{site} has {PARKED_PER_SITE_MAX} connections here"
            if reason:
                if site != self.name:  # `relay check` offers a connection with the relay's own certificate
                    self.refusals[reason] += 1
                writer.write(frames.encode(Frame.REFUSED, reason.encode()))
                await writer.drain()
                return
            parked = Parked((reader, writer))
            self._held[site][writer] = key
            try:
                writer.write(frames.encode(Frame.PARKED))
                await writer.drain()
                async with self.changed:
                    self._parked[site].append(parked)
                    self.changed.notify_all()
                await self._hold(parked)
                await parked.ended.wait()
            finally:
                parked.ended.set()
                parked.ready.set()
                self._held[site].pop(writer, None)
                with contextlib.suppress(ValueError):
                    self._parked[site].remove(parked)
        finally:
            await close(writer)

    async def _hold(self, parked: Parked) -> None:
        """Answer pings until the site is ready for a caller."""
        reader, writer = parked.ends
        while True:
            async with asyncio.timeout(frames.SILENCE_S):
                kind, _ = await frames.read(reader)
            if kind is Frame.READY:
                parked.ready.set()
                return
            if kind is not Frame.PING:
                raise ValueError(f"{kind.name} on a parked connection")
            if not parked.opened:  # the ping may have crossed OPEN
                writer.write(frames.encode(Frame.PONG))
                await writer.drain()

    async def _reach_own_server(self, connection: socket.socket, address: str) -> None:
        """Join a caller to the member's own server, which attributes the connection to the caller's address."""
        assert self.own is not None
        own = await asyncio.open_connection(*self.own, limit=CHUNK_BYTES)
        host, port = own[1].get_extra_info("sockname")[:2]
        end = str(plain_address(host)), port
        self.on_caller(end, address)
        try:
            await splice(await asyncio.open_connection(sock=connection, limit=CHUNK_BYTES), own)
        finally:
            self.on_caller(end, None)
            await close(own[1])

    async def _join(self, connection: socket.socket, site: str, address: str) -> None:
        """Join a caller to one of the site's parked connections."""
        elsewhere = bool(self.networks) and not any(ipaddress.ip_address(address) in net for net in self.networks)
        if elsewhere and self._from_elsewhere[site] >= CARRIED_FROM_ELSEWHERE_MAX:
            self.refusals["too many callers from elsewhere"] += 1
            await _refuse(connection, NOBODY_PARKED)
            return
        self._from_elsewhere[site] += elsewhere  # before the wait: many callers may wait at once
        try:
            parked = await self._open(site, address)
            if parked is None:
                self.refusals[f"{site} has nothing parked"] += 1
                await _refuse(connection, NOBODY_PARKED)
                return
            self._carrying[site] += 1
            try:
                caller = await asyncio.open_connection(sock=connection, limit=CHUNK_BYTES)
                self._carried[site][0] += 1
                carried = await splice(caller, parked.ends)
                self._carried[site][1] += carried  # read after the wait, in which other callers may have ended
            finally:
                self._carrying[site] -= 1
                parked.ended.set()
        finally:
            self._from_elsewhere[site] -= elsewhere

    async def _open(self, site: str, address: str) -> Parked | None:
        """Take an idle reverse tunnel of the site and wait until the site connects it; None if there is none."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + OPEN_S
        for _ in range(OPEN_TRIES):
            try:
                async with asyncio.timeout_at(min(end_s, loop.time() + PARKING_WAIT_S)), self.changed:
                    await self.changed.wait_for(lambda: self._parked[site])
                    parked = self._parked[site].popleft()
            except TimeoutError:
                return None
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout_at(min(end_s, loop.time() + frames.READY_S)):
                    parked.opened = True
                    parked.ends[1].write(frames.encode(Frame.OPEN, address.encode()))
                    await parked.ready.wait()
                if not parked.ended.is_set():
                    return parked
            parked.ended.set()
            if not parked.ends[1].is_closing():  # a second close would have TLS forget the connection to abort
                parked.ends[1].close()
        return None


def connections_max() -> int:
    """Return how many connections a relay carries at once: each joined connection needs two open files."""
    return (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 64) // 2


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket; raise ``OSError`` if the address cannot be bound."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    every = host == "::" and socket.has_dualstack_ipv6()  # as gRPC does at this address
    return socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=every)


async def _refuse(connection: socket.socket, alert: bytes) -> None:
    """Send an alert; first read what the caller sent, or the kernel would reset the connection instead."""
    with contextlib.suppress(OSError):
        connection.recv(RECORD_HEADER_BYTES + RECORD_BYTES_MAX)
        await asyncio.get_running_loop().sock_sendall(connection, alert)
        connection.shutdown(socket.SHUT_WR)


async def peek_client_hello(connection: socket.socket) -> ClientHello:
    """Parse the first record on a connection without consuming it.

    Raises:
        ValueError: it is not a ClientHello, or spans several records.
        OSError: the connection ended.
    """
    header = await _peek(connection, RECORD_HEADER_BYTES)
    return parse_client_hello(await _peek(connection, record_bytes(header)))


async def _peek(connection: socket.socket, size: int) -> bytes:
    """Wait for ``size`` bytes and return them without consuming them (MSG_PEEK)."""
    loop = asyncio.get_running_loop()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)  # the kernel wakes this process once
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                content = connection.recv(size, socket.MSG_PEEK)
                if len(content) >= size:
                    return content
                if _has_ended(connection):
                    raise ValueError("closed")
            readable = loop.create_future()
            loop.add_reader(connection, _wake, readable)
            try:
                await readable
            finally:
                loop.remove_reader(connection)
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _has_ended(connection: socket.socket) -> bool:
    """Return whether the other end sends no more: the kernel then reports the connection as always readable."""
    poll = select.poll()
    poll.register(connection, select.POLLRDHUP)
    return bool(poll.poll(0))


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _accepted_tls(connection: socket.socket, context: ssl.SSLContext) -> Ends:
    """Perform the server's TLS handshake and return the connection's streams."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=CHUNK_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=HELLO_S
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


def _certified_name(writer: asyncio.StreamWriter) -> str:
    """Return the single name in the other end's certificate; raise ``ValueError`` if there is not exactly one."""
    certificate = writer.get_extra_info("peercert") or {}
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS"]
    if len(names) != 1:
        raise ValueError("a certificate with one name is needed")
    return str(names[0])


def _certificate(writer: asyncio.StreamWriter) -> bytes:
    """Return the other end's certificate, in DER."""
    return bytes(writer.get_extra_info("ssl_object").getpeercert(binary_form=True))


def _digest(writer: asyncio.StreamWriter) -> str:
    """Return the SHA-256 of the other end's certificate."""
    return hashlib.sha256(_certificate(writer)).hexdigest()


def _key_digest(writer: asyncio.StreamWriter) -> Sha256:
    """Return the SHA-256 of the other end's public key."""
    return key_digest(certificate_key(x509.load_der_x509_certificate(_certificate(writer))))
