"""A hospital's HTTP proxy: CONNECT to one port of any machine, and nothing else.

    proxy.py PORT TARGET_PORT

It stands for the squid that a hospital has, and is not for use in one. It prints what it was asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

HEAD_S = 10.0
CHUNK_BYTES = 64 << 10


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on what comes until one end is over; then the other end hears of it."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


async def _answer(writer: asyncio.StreamWriter, status: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
    await writer.drain()


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target_port: int) -> None:
    async with asyncio.timeout(HEAD_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, target, *_ = [*head.split(), "", ""]
    host, _, port = target.rpartition(":")
    if method != "CONNECT" or port != str(target_port):
        print(f"refused: {method} {target!r}", flush=True)
        await _answer(writer, "403 Forbidden")
        return
    try:
        far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), target_port)
    except OSError as error:
        print(f"not reached: {target!r}: {error}", flush=True)
        await _answer(writer, "503 Service Unavailable")
        return
    print(f"joined: {target!r}", flush=True)
    await _answer(writer, "200 Connection established")
    await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def serve(port: int, target_port: int) -> None:
    """Serve until SIGTERM or SIGINT."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await _tunnel(reader, writer, target_port)
        writer.close()

    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = await asyncio.start_server(accept, "0.0.0.0", port)
    print(f"proxy: port {server.sockets[0].getsockname()[1]}", flush=True)
    await ended.wait()
    server.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), int(sys.argv[2])))
