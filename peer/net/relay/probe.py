"""Probe of a relay, shared by ``relay check`` and the site's end of a parked connection."""

from __future__ import annotations

import asyncio
import ssl

from peer.core import limits
from peer.net.relay import frames
from peer.net.relay.frames import Frame
from peer.net.relay.splice import Ends, close


async def offer(ends: Ends, where: str) -> tuple[Frame, str]:
    """Offer a connection, after its TLS handshake, for parking; return PARKED, or REFUSED and the relay's reason.

    Raises:
        ValueError: the other end speaks another protocol.
        IncompleteReadError: the other end closed the connection.
    """
    reader, writer = ends
    if writer.get_extra_info("ssl_object").selected_alpn_protocol() != frames.ALPN:
        raise ValueError(f"{where} is no relay")
    writer.write(frames.encode(Frame.PARK, bytes([frames.VERSION])))
    kind, payload = await frames.read(reader)
    if kind not in (Frame.PARKED, Frame.REFUSED):
        raise ValueError(f"the relay answers {kind.name}")
    return kind, payload.decode("utf-8", "replace")


async def probe(host: str, port: int, relay: str, context: ssl.SSLContext) -> None:
    """Check that a relay answers to its own name; any answer to an offer passes.

    Raises:
        OSError, ValueError, EOFError: it cannot be reached, has another name, or speaks another protocol.
    """
    context.check_hostname = True
    context.set_alpn_protocols([frames.ALPN])
    async with asyncio.timeout(limits.HELLO_TIMEOUT_S * 2):
        ends = await asyncio.open_connection(host, port, ssl=context, server_hostname=relay)
        try:
            await offer(ends, f"{host}:{port}")
        finally:
            await close(ends[1])
