"""Byte streams between processes: what relays, parked connections and callers through a relay run on.

A connection has two ends. Each is an asyncio transport in its own process, so that the program's
own code for relays runs on it. As with TCP, bytes arrive in order or not at all; a line that is
cut holds them back. The end of a process that died resets the connection, unless its machine went
down with it: then the other end hears nothing.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peer.net.relay.client_hello import ClientHello

if TYPE_CHECKING:
    from simulation.loop import Process
    from simulation.network import Network

HELD_S = 0.5
"""Bytes on a line that is cut are tried again so often."""


@dataclass(eq=False)
class TlsSession:
    """What an end knows of the other's certificate, and what both speak inside."""

    protocol: str
    name: str
    pem: bytes

    def selected_alpn_protocol(self) -> str:
        return self.protocol

    def getpeercert(self, binary_form: bool = False) -> Any:
        if binary_form:
            return ssl.PEM_cert_to_DER_cert(self.pem.decode())
        return {"subjectAltName": (("DNS", self.name),)}


class StreamEnd(asyncio.Transport):
    """One end of a connection.

    Args:
        network: has the lines.
        process: whose end it is.
        address: this end's own, as ``getsockname`` tells it.
    """

    other: StreamEnd

    def __init__(self, network: Network, process: Process, address: tuple[str, int]) -> None:
        super().__init__()
        self._network, self.process, self._address = network, process, address
        self.session: TlsSession | None = None
        self._loop = asyncio.get_running_loop()
        self._protocol: Any = None
        self._inbox: deque[bytes] = deque()
        self._under_way: deque[bytes] = deque()
        self._due_s = 0.0
        self.closed = self.silent = False
        process.ends[self] = None

    @classmethod
    def pair(
        cls, network: Network, dialling: tuple[Process, tuple[str, int]], listening: tuple[Process, tuple[str, int]]
    ) -> tuple[StreamEnd, StreamEnd]:
        one, two = cls(network, *dialling), cls(network, *listening)
        one.other, two.other = two, one
        return one, two

    def use(self, protocol: Any) -> None:
        """Hand what arrives to a protocol from now on."""
        self._protocol = protocol
        protocol.connection_made(self)
        while self._inbox and not self.closed:
            self._hand_over(self._inbox.popleft())
        if self.closed:
            protocol.connection_lost(ConnectionResetError("Connection reset by peer"))

    # --- asyncio.Transport ---
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        session = self.session
        known = {
            "sockname": self._address,
            "ssl_object": session,
            "peercert": session and session.getpeercert(),
        }
        return known.get(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        raise NotImplementedError  # the reader then buffers more

    def is_closing(self) -> bool:
        return self.closed

    def write(self, data: Any) -> None:
        if not self.closed and data:
            self._send(bytes(data))

    def close(self) -> None:
        if not self.closed:
            self._send(b"")
            self._end(None)

    abort = close

    # --- the line ---
    def _send(self, data: bytes) -> None:
        if self.silent:
            return
        loop, link = self._loop, self._link()
        if link.loss and data and self._network.rng.random() < link.loss:
            self.reset()
            return
        delay_s = link.delay_s + self._network.rng.random() * link.jitter_s if link.delay_s or link.jitter_s else 0.0
        self._due_s = max(self._due_s, loop.time() + delay_s)
        self._under_way.append(data)
        loop.call_at(self._due_s, self._arrive)

    def _arrive(self) -> None:
        if self._link().cut:
            self._loop.call_later(HELD_S, self._arrive)
            return
        data, other = self._under_way.popleft(), self.other
        if self.silent or other.silent:
            return
        if not other.closed:
            other._hand_over(data)
        elif data and not self.closed:
            self._end(ConnectionResetError("Connection reset by peer"))

    def _link(self) -> Any:
        return self._network.link(self.process.site, self.other.process.site)

    def _hand_over(self, data: bytes) -> None:
        if self._protocol is None:
            self._inbox.append(data)
        elif data:
            self._protocol.data_received(data)
        else:
            self._protocol.eof_received()

    def _end(self, error: Exception | None) -> None:
        if self.closed:
            return
        self.closed = True
        self.process.ends.pop(self, None)
        if self._protocol is not None and not self.process.dead:
            self._loop.call_soon(self._protocol.connection_lost, error)

    def reset(self) -> None:
        """The connection breaks, and both ends learn of it."""
        for end in (self, self.other):
            end._end(ConnectionResetError("Connection reset by peer"))

    def die(self, *, power: bool) -> None:
        """The process is gone: the other end hears of it now, or nothing while the machine is down."""
        if power:
            self.silent = True
            self._end(None)
        else:
            self._end(None)
            self.other._end(ConnectionResetError("Connection reset by peer"))


@dataclass(eq=False)
class AcceptedSocket:
    """A connection before its first bytes were read."""

    end: StreamEnd
    hello: ClientHello
    pem: bytes
    secured: asyncio.Future[None]

    def __enter__(self) -> AcceptedSocket:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def setblocking(self, flag: bool) -> None:
        pass

    def recv(self, size: int) -> bytes:
        return b""

    def shutdown(self, how: int) -> None:
        pass

    def close(self) -> None:
        self.end.close()

    def secure(self, protocol: str) -> None:
        """End the handshake of the TLS connection with the caller."""
        self.end.session = TlsSession(protocol, self.end.other.process.site, self.pem)
        if not self.secured.done():
            self.secured.set_result(None)


@dataclass(eq=False)
class Listener:
    """A process that listens at an address."""

    process: Process
    close: Callable[[], None]
    queue: asyncio.Queue[AcceptedSocket] = field(default_factory=asyncio.Queue)

    def setblocking(self, flag: bool) -> None:
        pass

    def getsockname(self) -> tuple[str, int]:
        return "0.0.0.0", 443


async def stream_pair(end: StreamEnd) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Reader and writer of an end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    end.use(protocol)
    return reader, asyncio.StreamWriter(end, protocol, reader, loop)
