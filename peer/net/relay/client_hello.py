"""Parser of TLS ClientHello: the server's name, and the protocols that may run inside.

Source: RFC 8446, 4.1.2, with the extensions of RFC 6066, 3 and RFC 7301, 3.1.
"""

from __future__ import annotations

from dataclasses import dataclass

RECORD_HEADER_BYTES = 5
RECORD_BYTES_MAX = 16 << 10
HANDSHAKE, CLIENT_HELLO = 22, 1
SERVER_NAME, ALPN = 0, 16
HOST_NAME = 0


@dataclass(frozen=True, slots=True)
class ClientHello:
    """The server name that the caller requests, and the protocols that it offers, best first."""

    server_name: str
    protocols: tuple[str, ...]


def record_bytes(header: bytes) -> int:
    """Read a TLS record's whole length from its first five bytes; raise ``ValueError`` if it begins no handshake."""
    kind, major, length = header[0], header[1], int.from_bytes(header[3:5], "big")
    if kind != HANDSHAKE or major != 3 or not 0 < length <= RECORD_BYTES_MAX:
        raise ValueError("no TLS handshake")
    return RECORD_HEADER_BYTES + length


def parse_client_hello(record: bytes) -> ClientHello:
    """Parse a whole record; raise ``ValueError`` if it is not a ClientHello, or names no server."""
    body = _Reader(record[RECORD_HEADER_BYTES : record_bytes(record[:RECORD_HEADER_BYTES])])
    if body.number(1) != CLIENT_HELLO:
        raise ValueError("no ClientHello")
    hello = _Reader(body.vector(3))
    hello.take(2 + 32)  # version and random
    hello.vector(1)  # session
    hello.vector(2)  # cipher suites
    hello.vector(1)  # compression
    extensions = _Reader(hello.vector(2))
    server_name = ""
    protocols: list[str] = []
    while extensions.left:
        kind, content = extensions.number(2), _Reader(extensions.vector(2))
        if kind == SERVER_NAME:
            names = _Reader(content.vector(2))
            while names.left:
                is_host, name = names.number(1) == HOST_NAME, names.vector(2)
                server_name = name.decode("ascii", "replace") if is_host else server_name
        elif kind == ALPN:
            offered = _Reader(content.vector(2))
            while offered.left:
                protocols.append(offered.vector(1).decode("ascii", "replace"))
    if not server_name:
        raise ValueError("no server name")
    return ClientHello(server_name, tuple(protocols))


class _Reader:
    """Reads numbers and vectors from the front of some bytes; raises ``ValueError`` if too few are left."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._offset = 0

    @property
    def left(self) -> int:
        return len(self._content) - self._offset

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise ValueError("cut short")
        self._offset += size
        return self._content[self._offset - size : self._offset]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """Read a vector after its length, which takes ``size`` bytes."""
        return self.take(self.number(size))
