"""The frames on a parked connection before it carries a caller: type, length, payload."""

from __future__ import annotations

import asyncio
import enum

VERSION = 1
ALPN = "mhfl-park/1"
PAYLOAD_BYTES_MAX = 512
PING_S = 20.0
SILENCE_S = 60.0
"""Either end closes a parked connection after this long without a frame."""
READY_S = 3.0
"""A site must be ready for a caller within this time, or the relay tries another connection."""


class Frame(enum.IntEnum):
    """Frame types. A site sends PARK and READY, a relay PARKED, REFUSED and OPEN, both PING and PONG."""

    PARK = 1
    PARKED = 2
    REFUSED = 3
    PING = 4
    PONG = 5
    OPEN = 6
    READY = 7


def encode(kind: Frame, payload: bytes = b"") -> bytes:
    """Encode a frame: u8 type, u16 length (big endian), payload."""
    return bytes([kind]) + len(payload[:PAYLOAD_BYTES_MAX]).to_bytes(2, "big") + payload[:PAYLOAD_BYTES_MAX]


async def read(reader: asyncio.StreamReader) -> tuple[Frame, bytes]:
    """Read the next frame.

    Raises:
        ValueError: its type is unknown, or it is too long.
        IncompleteReadError: the connection ended.
    """
    header = await reader.readexactly(3)
    length = int.from_bytes(header[1:], "big")
    if length > PAYLOAD_BYTES_MAX:
        raise ValueError(f"a frame of {length} bytes")
    return Frame(header[0]), await reader.readexactly(length)
