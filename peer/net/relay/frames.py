"""The frames on a parked connection, before it carries a caller: type, length, payload."""

from __future__ import annotations

import asyncio
import enum

VERSION = 1
ALPN = "mhfl-park/1"
PAYLOAD_BYTES_MAX = 512
PING_S = 20.0
SILENCE_S = 60.0
"""A parked connection without a frame for so long is closed by either end."""
READY_S = 3.0
"""A site that was told of a caller is ready within so long, or another connection is tried."""


class Frame(enum.IntEnum):
    """The types. A site sends PARK and READY, a relay PARKED, REFUSED and OPEN, both PING and PONG."""

    PARK = 1
    PARKED = 2
    REFUSED = 3
    PING = 4
    PONG = 5
    OPEN = 6
    READY = 7


def encode(kind: Frame, payload: bytes = b"") -> bytes:
    """A frame: u8 type, u16 length (big endian), payload."""
    return bytes([kind]) + len(payload[:PAYLOAD_BYTES_MAX]).to_bytes(2, "big") + payload[:PAYLOAD_BYTES_MAX]


async def read(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    """The next frame.

    Raises:
        ValueError: it is of no known type, or too long.
        IncompleteReadError: the connection ended.
    """
    header = await reader.readexactly(3)
    length = int.from_bytes(header[1:], "big")
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes")
    return Frame(header[0]), await reader.readexactly(length)
