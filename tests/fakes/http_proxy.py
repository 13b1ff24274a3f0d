"""An HTTP proxy that knows CONNECT alone, and what it was asked for."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field


@dataclass
class HttpProxy:
    """Opens tunnels for who knows its login; notes the targets of all.

    Attributes:
        answer: instead of a tunnel.
        instead: the port to which every tunnel leads in place of its target.
        hesitates_s: how long it waits before it answers.
    """

    login: str = ""
    answer: bytes = b""
    instead: int = 0
    hesitates_s: float = 0.0
    port: int = 0
    targets: list[str] = field(default_factory=list)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[HttpProxy]:
        server = await asyncio.start_server(self._tunnel, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            target = head.split()[1]
            self.targets.append(target)
            await asyncio.sleep(self.hesitates_s)
            expected = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            if self.login and f"proxy-authorization: {expected}".lower() not in head.lower():
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            elif self.answer:
                writer.write(self.answer)
            else:
                host, _, port = target.rpartition(":")
                far_reader, far_writer = await asyncio.open_connection(host.strip("[]"), self.instead or int(port))
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
            await writer.drain()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while block := await reader.read(65536):
            writer.write(block)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        writer.close()
