"""Joins two connections and passes on the bytes of each to the other, unread."""

from __future__ import annotations

import asyncio

CHUNK_BYTES = 64 << 10
"""Also the upper bound on the bytes that wait for a slow end, in each direction."""
IDLE_S = 60.0
"""Joined connections are closed after this long without a byte; peers ping every five seconds."""
CLOSE_S = 1.0
"""Time for written bytes and the other end's TLS close_notify to pass before the connection is aborted."""

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def splice(one: Ends, other: Ends) -> int:
    """Carry bytes until an end closes, breaks or is idle; close both and return the number of bytes."""
    loop, carried = asyncio.get_running_loop(), 0

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal carried
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
            carried += len(chunk)
            idle.reschedule(loop.time() + IDLE_S)

    one[1].transport.set_write_buffer_limits(CHUNK_BYTES)
    other[1].transport.set_write_buffer_limits(CHUNK_BYTES)
    tasks = []
    try:
        async with asyncio.timeout(IDLE_S) as idle:
            tasks = [asyncio.ensure_future(carry(one[0], other[1])), asyncio.ensure_future(carry(other[0], one[1]))]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    except TimeoutError:
        pass
    finally:
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, close(one[1]), close(other[1]), return_exceptions=True)
        finally:  # also if this task is cancelled once more
            one[1].transport.abort()
            other[1].transport.abort()
    return carried


async def close(writer: asyncio.StreamWriter) -> None:
    """Close a connection after its written bytes have left; abort it after ``CLOSE_S``."""
    if not writer.is_closing():  # a second close would have TLS forget the connection that is aborted below
        writer.close()
    try:
        async with asyncio.timeout(CLOSE_S):
            await writer.wait_closed()
    except OSError:
        pass
    finally:
        # Otherwise asyncio would watch a descriptor that may soon be another connection's.
        writer.transport.abort()
