"""How a relay ends a connection."""

import asyncio
import os
import socket
import ssl

import pytest

from peer.net.relay import splice
from peer.net.transport.tls import stream_context
from peer.site.identity import certificates


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


async def test_a_tls_connection_that_was_closed_before_is_still_broken_off(authority, monkeypatch):
    """The other end answers no goodbye: only the abort frees the descriptor."""
    monkeypatch.setattr(splice, "CLOSE_S", 0.05)
    pki, accepted = authority.admit("gate"), asyncio.Queue()
    files = (pki.folder / certificates.CERTIFICATE_FILE, pki.folder / certificates.KEY_FILE)

    async def ignore(reader, writer):
        writer.transport.pause_reading()
        accepted.put_nowait(writer)

    context = stream_context(ssl.PROTOCOL_TLS_SERVER, pki.ca_certificate, *files)
    async with await asyncio.start_server(ignore, "127.0.0.1", 0, ssl=context) as server:
        port, own = server.sockets[0].getsockname()[1], authority.admit("africa").stream_context()
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=own, server_hostname="gate")
        other, ours = await accepted.get(), writer.get_extra_info("socket")
        writer.close()
        await splice.close(writer)
        await asyncio.sleep(0)  # asyncio closes the descriptor in the next turn of the loop
        assert ours.fileno() == -1
        other.transport.abort()


async def test_who_closes_can_be_cancelled(stuck):
    closing = asyncio.ensure_future(splice.close(stuck[1]))
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_what_was_joined_is_closed_though_its_task_is_cancelled_twice():
    (one, here), (other, there) = socket.socketpair(), socket.socketpair()
    ends = await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)
    joining = asyncio.ensure_future(splice.splice(*ends))
    await asyncio.sleep(0)
    joining.cancel()
    await asyncio.sleep(0)
    joining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await joining
    await asyncio.sleep(0)  # asyncio closes the descriptors in the next turn of the loop
    assert one.fileno() == other.fileno() == -1
    here.close()
    there.close()
