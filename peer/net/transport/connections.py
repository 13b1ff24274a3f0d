"""Limits on the connections that a server has accepted: which it closes, and why.

gRPC reports no connection in an event and offers no call that closes one. The kernel does both: the process lists its
own sockets on the server's port, with the bytes that each has carried, and shuts down those that break a limit. gRPC
then sees the end of the connection. No byte passes through here.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import math
import os
import socket
import stat
import struct
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote

from peer.allocator import release_memory
from peer.core import limits
from peer.core.roster import SiteName
from peer.net.transport.rates import TokenBucket

log = logging.getLogger(__name__)

SCAN_S = 0.05  # a flood of headers makes gRPC take up to 100 MB a second until the connection is closed
SCAN_S_MAX = 0.5
OWN_SHARE = 0.05  # of this process's CPU time: an idle process serves no flood
QUIET_SCAN_S = 2.0  # between two scans of an idle process
FLOOD_SCAN_S = 0.02  # soon after a connection was closed; the next one may have been opened
SCAN_SHARE = 0.01  # of a core: the scans of many connections take turns with the rounds of the site
FLOOD_SCAN_SHARE = 0.05
FLOOD_S = 10.0  # a flood ends after this long without a closed connection
RELEASE_S = 1.0  # between two releases of freed memory during a flood; each takes some milliseconds
CONNECTION_REFUSALS_PER_SECOND = 1.0  # of one connection; a site of another roster greets once in two seconds
CONNECTION_REFUSALS_BURST = 40
DESCRIPTORS = "/proc/self/fd"
TCP_INFO_BYTES = 256
BYTES_ACKED_OFFSET = 120  # of tcpi_bytes_acked in Linux' struct tcp_info; tcpi_bytes_received follows

Endpoint = tuple[str, int]
"""Address and port of the caller's end."""


class Accepted(Protocol):
    """An accepted connection at one moment."""

    @property
    def endpoint(self) -> Endpoint:
        """The caller's end."""

    @property
    def received(self) -> int:
        """Bytes that the caller has sent so far."""

    @property
    def sent(self) -> int:
        """Bytes that the caller has taken so far."""

    def shut_down(self) -> None:
        """End the connection in both directions."""


class AcceptedSocket:
    """A connection by its file descriptor, which gRPC owns and may close at any moment."""

    def __init__(self, descriptor: int, endpoint: Endpoint, info: bytes) -> None:
        self._descriptor = descriptor
        self.endpoint = endpoint
        whole = len(info) >= BYTES_ACKED_OFFSET + 16  # kernels before 4.2 do not count
        self.sent, self.received = struct.unpack_from("QQ", info, BYTES_ACKED_OFFSET) if whole else (0, 0)

    def shut_down(self) -> None:
        with contextlib.suppress(OSError), borrowed_socket(self._descriptor) as connection:
            if caller_of(connection) == self.endpoint:  # the number may stand for another connection now
                connection.shutdown(socket.SHUT_RDWR)


class AcceptedSockets:
    """This process's accepted connections on a port.

    The first scan asks each socket whether it is an accepted connection. Later scans, many in a second, recognise a
    socket by its inode number and ask only the accepted ones for their bytes.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._callers: dict[int, Endpoint | None] = {}
        """By a socket's inode number: the caller's end, or ``None`` if it is not an accepted connection."""

    def scan(self) -> list[AcceptedSocket]:
        """List the open connections; empty if the system does not list descriptors."""
        connections: list[AcceptedSocket] = []
        callers: dict[int, Endpoint | None] = {}
        with contextlib.suppress(OSError):
            for descriptor in map(int, os.listdir(DESCRIPTORS)):
                try:
                    file = os.fstat(descriptor)
                    if not stat.S_ISSOCK(file.st_mode):
                        continue
                    number = file.st_ino
                    caller = self._callers[number] if number in self._callers else self._caller(descriptor)
                    callers[number] = caller
                    if caller is not None:
                        connections.append(AcceptedSocket(descriptor, caller, _tcp_info(descriptor)))
                except OSError:  # gRPC has closed it meanwhile
                    continue
        self._callers = callers
        return connections

    def _caller(self, descriptor: int) -> Endpoint | None:
        with borrowed_socket(descriptor) as connection:
            accepted = connection.type == socket.SOCK_STREAM and connection.getsockname()[1:2] == (self._port,)
            return caller_of(connection) if accepted else None


def _tcp_info(descriptor: int) -> bytes:
    """Read the kernel's ``tcp_info`` of a stream; naming the socket's kind spares Python a question to the system."""
    borrowed = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=descriptor)
    try:
        return borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    finally:
        borrowed.detach()


@contextlib.contextmanager
def borrowed_socket(descriptor: int) -> Iterator[socket.socket]:
    """Yield the socket of a descriptor that gRPC keeps owning; raise ``OSError`` if it is not a socket.

    The descriptor is not duplicated: epoll keeps reporting a connection that gRPC has closed while a duplicate of its
    descriptor is open, and gRPC then uses memory that it has freed.
    """
    borrowed = socket.socket(fileno=descriptor)
    try:
        yield borrowed
    finally:
        borrowed.detach()


def caller_of(connection: socket.socket) -> Endpoint:
    """Return the caller's end of a connection; raise ``OSError`` if there is none."""
    host, port = connection.getpeername()[:2]
    return str(plain_address(host)), port


def plain_address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address without its zone; return an IPv4-mapped IPv6 address as IPv4."""
    address = ipaddress.ip_address(host.partition("%")[0])
    return getattr(address, "ipv4_mapped", None) or address


def endpoint_of(peer: str) -> Endpoint | None:
    """Parse the caller's end in gRPC's notation: ``ipv4:192.0.2.1:4711``, ``ipv6:%5B2001:db8::1%5D:4711``.

    Returns None if the caller has hung up: gRPC then gives an empty text.
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return (str(plain_address(host.strip("[]"))), int(port)) if host else None


def network_of(endpoint: Endpoint) -> str:
    """Return the network whose connections count together: an IPv4 address, or the /64 of an IPv6 host."""
    address = ipaddress.ip_address(endpoint[0])
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


@dataclass(slots=True)
class ConnectionRecord:
    """The state of an open connection."""

    since_s: float
    requests_left: TokenBucket
    refusals_left: TokenBucket
    caller: SiteName | None = None
    received: int = 0
    sent: int = 0
    reason: str = ""


@dataclass(slots=True)
class ConnectionBounds:
    """Limits on the number of connections.

    ``unknown`` limits those that have shown no peer's certificate in a call; the rest up to the server's maximum is
    reserved for peers.
    """

    unknown: int
    unknown_per_address: int
    per_peer: int = limits.CONNECTIONS_PER_PEER_MAX

    @classmethod
    def of(cls, sites: int, connections: int) -> ConnectionBounds:
        """Compute the limits for a federation of ``sites`` sites and a server of ``connections`` connections."""
        unknown = max(connections - limits.CONNECTIONS_PER_PEER_RESERVED * sites, connections // 2, 1)
        return cls(unknown, limits.UNKNOWN_CONNECTIONS_PER_ADDRESS_MAX + sites)


@dataclass
class ConnectionGuard:
    """Closes connections above the limit of a caller or an address, and those that misuse the protocol.

    Args:
        bounds: limits on the number of connections.
        clock: a monotonic clock, in seconds.
        release_memory: called after connections were closed.
        first_call_s: a connection without a peer's call is closed after this long.
        relayed: the caller's network, by this site's end of a connection through a relay.
    """

    bounds: ConnectionBounds
    clock: Callable[[], float] = time.monotonic
    release_memory: Callable[[], None] = release_memory
    relayed: dict[Endpoint, str] = field(default_factory=dict)
    first_call_s: float = limits.FIRST_CALL_S
    _records: dict[Endpoint, ConnectionRecord] = field(default_factory=dict)
    _flood_ends_s: float = -math.inf
    _released_s: float = -math.inf
    _has_reasons: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def admitted(self, peer: str, caller: SiteName) -> None:
        """Record that a peer of the roster made a call on the connection."""
        if (endpoint := endpoint_of(peer)) is not None:
            with self._lock:
                self._record(endpoint).caller = caller

    def refused(self, peer: str) -> None:
        """Record a refused call on the connection; above the rate limit, mark the connection for closing."""
        if (endpoint := endpoint_of(peer)) is None:
            return
        with self._lock:
            record = self._record(endpoint)
            if not record.refusals_left.take():
                record.reason = f"over {CONNECTION_REFUSALS_PER_SECOND:g} refused calls a second"
                self._has_reasons = True

    def dismiss(self, callers: Collection[SiteName]) -> None:
        """Mark the connections of these peers for closing; later connections of theirs are judged anew."""
        with self._lock:
            for record in self._records.values():
                if record.caller in callers:
                    record.reason = "an amendment expelled this site, or changed its key"
                    self._has_reasons = True

    def start(self, port: int) -> None:
        """Enforce the limits on the port until ``stop``, in a thread: a busy event loop would be too late."""
        self._thread = threading.Thread(target=self._watch, args=(port,), name="connections", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, port: int) -> None:
        sockets, times = AcceptedSockets(port), ScanTimes(self.clock)
        scan_s, wait_s = 0.0, SCAN_S
        while not self._stopped.wait(wait_s):
            wait_s = SCAN_S
            if not (times.is_due(scan_s) or self._is_flooded() or self._has_reasons):
                continue
            self._has_reasons = False
            began_s = time.thread_time()
            try:
                self.enforce(sockets.scan())
            except Exception:
                log.exception("connections not bounded")
                self._stopped.wait(FLOOD_S)
            scan_s = time.thread_time() - began_s
            wait_s = pause_s(scan_s, flood=self._is_flooded())

    def _is_flooded(self) -> bool:
        return self.clock() < self._flood_ends_s

    def enforce(self, connections: Sequence[Accepted]) -> None:
        """Close the open connections that break a limit."""
        closed: Counter[tuple[str, str]] = Counter()
        with self._lock:
            now_s = self.clock()
            present = {connection.endpoint: self._present(connection) for connection in connections}
            self._records = present
            for connection in connections:
                self._count_bytes(connection, present[connection.endpoint], now_s)
            self._bound_numbers(present)
            for connection in connections:
                record = present[connection.endpoint]
                if record.reason:
                    connection.shut_down()
                    closed[record.caller or self._network_of(connection.endpoint), record.reason] += 1
        for (peer, reason), count in closed.items():
            log.warning("connections closed", extra={"peer": peer, "reason": reason, "connections": count})
        if closed:
            self._flood_ends_s = now_s + FLOOD_S
        if self._released_s + RELEASE_S <= now_s < self._flood_ends_s:
            self._released_s = now_s
            self.release_memory()

    def _network_of(self, endpoint: Endpoint) -> str:
        """Return the caller's network, also behind a relay."""
        through = self.relayed.get(endpoint)
        return network_of(endpoint) if through is None else f"{through} through a relay"

    def _record(self, endpoint: Endpoint) -> ConnectionRecord:
        record = self._records.get(endpoint)
        if record is None:
            requests = TokenBucket(limits.REQUEST_BYTES_PER_SECOND_MAX, limits.REQUEST_BYTES_BURST, self.clock)
            refusals = TokenBucket(CONNECTION_REFUSALS_PER_SECOND, CONNECTION_REFUSALS_BURST, self.clock)
            record = self._records[endpoint] = ConnectionRecord(self.clock(), requests, refusals)
        return record

    def _present(self, connection: Accepted) -> ConnectionRecord:
        """Return the connection's record; start a new one if the caller's port now serves another connection."""
        if connection.received < self._record(connection.endpoint).received:
            del self._records[connection.endpoint]
        return self._record(connection.endpoint)

    def _count_bytes(self, connection: Accepted, record: ConnectionRecord, now_s: float) -> None:
        """Mark a connection for closing if it sends more than requests need, or no request at all."""
        flow_control = (connection.sent - record.sent) / limits.SENT_BYTES_PER_RECEIVED_BYTE
        received = connection.received - record.received
        record.sent, record.received = connection.sent, connection.received
        if not record.requests_left.take(max(0.0, received - flow_control)):
            record.reason = f"sends over {limits.REQUEST_BYTES_PER_SECOND_MAX} bytes a second"
        elif record.caller is None and record.received > limits.FIRST_CALL_BYTES_MAX:
            record.reason = f"sent {limits.FIRST_CALL_BYTES_MAX} bytes without a call of a peer"
        elif record.caller is None and now_s - record.since_s > self.first_call_s:
            record.reason = f"made no call of a peer within {self.first_call_s:g} s"

    def _bound_numbers(self, present: dict[Endpoint, ConnectionRecord]) -> None:
        """Mark the oldest connections above each limit: a peer that dials again is the newest."""
        per_peer: defaultdict[str, list[ConnectionRecord]] = defaultdict(list)
        per_address: defaultdict[str, list[ConnectionRecord]] = defaultdict(list)
        for endpoint, record in present.items():
            if record.caller is not None:
                per_peer[record.caller].append(record)
            else:
                per_address[self._network_of(endpoint)].append(record)
        for records in per_peer.values():
            mark_oldest(records, self.bounds.per_peer, f"over {self.bounds.per_peer} connections of one site")
        for records in per_address.values():
            bound = self.bounds.unknown_per_address
            mark_oldest(records, bound, f"over {bound} connections of one address without a peer's call")
        unknown = [record for records in per_address.values() for record in records]
        mark_oldest(unknown, self.bounds.unknown, f"over {self.bounds.unknown} connections without a peer's call")


class ScanTimes:
    """Schedule of scans: frequent while this process works, as in a flood, otherwise every ``QUIET_SCAN_S``.

    Args:
        clock: a monotonic clock, in seconds.
        used: returns the CPU time of all threads of this process, in seconds.
    """

    def __init__(self, clock: Callable[[], float], used: Callable[[], float] = time.process_time) -> None:
        self._clock, self._used = clock, used
        self._due_s, self._used_s = -math.inf, 0.0

    def is_due(self, scan_s: float) -> bool:
        """Return whether to scan now; the last scan took ``scan_s`` of CPU time."""
        now_s, used_s = self._clock(), self._used()
        if now_s < self._due_s and used_s - self._used_s < scan_s / OWN_SHARE:
            return False
        self._due_s, self._used_s = now_s + QUIET_SCAN_S, used_s
        return True


def pause_s(cpu_s: float, *, flood: bool) -> float:
    """Return the wait after a scan that took ``cpu_s``, so that all scans together keep to their share of a core."""
    shortest_s, share = (FLOOD_SCAN_S, FLOOD_SCAN_SHARE) if flood else (SCAN_S, SCAN_SHARE)
    return min(max(shortest_s, cpu_s / share), SCAN_S_MAX)


def mark_oldest(records: Iterable[ConnectionRecord], bound: int, reason: str) -> None:
    """Mark the oldest connections above the limit for closing; marked connections do not count."""
    remaining = sorted((record for record in records if not record.reason), key=lambda record: record.since_s)
    for record in remaining[: max(0, len(remaining) - bound)]:
        record.reason = reason
