"""How a relay ends a connection."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from peer.relay import splice


@pytest.fixture
async def stuck():
    """A connection that has more to send than its other end takes, which reads nothing."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    writer.write(bytes(8 << 20))
    yield ours, writer
    writer.transport.abort()
    theirs.close()


async def test_a_connection_that_does_not_empty_is_broken_off(stuck, monkeypatch):
    monkeypatch.setattr(splice, "CLOSE_S", 0.05)
    ours, writer = stuck
    descriptor = ours.fileno()
    with ours:  # as the relay does, which has accepted the socket
        await splice.close(writer)
    one, other = socket.socketpair()
    if one.fileno() != descriptor:
        os.dup2(one.fileno(), descriptor)
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, readable.set)  # a new connection with the old one's descriptor
    other.send(b"1")
    async with asyncio.timeout(10):
        await readable.wait()
    loop.remove_reader(descriptor)
    one.close()
    other.close()


async def test_who_closes_can_be_cancelled(stuck):
    closing = asyncio.ensure_future(splice.close(stuck[1]))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
