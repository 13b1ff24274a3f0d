"""The daemon's side of the control socket: one request a connection, in one line of JSON, and its answers.

``peer.net.transport.control`` is the operator's side; section 7 of ``proto/README.md`` has the lines. A process that
can open the socket may stop the daemon. The limits protect the daemon from accidents of such a process, such as a
script that never reads its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import stat
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from peer.errors import PeerError, StateError
from peer.net.transport.control import ACTIONS, ANSWER_BYTES_MAX, DOCUMENTS

log = logging.getLogger(__name__)

CALLS = ("show", "act", "follow")
END = b'{"end":true}\n'
CONNECTIONS_MAX = 32
"""Terminals with `--watch`, dashboards, probes and scripts of one machine."""
REQUEST_BYTES_MAX = 9 << 20
"""The longest request is an approval, with a proposal's file (`PROPOSAL_BYTES_MAX`) as a text in JSON."""
SHORT_BYTES = 64 << 10
"""One connection at a time may send a longer request: JSON takes up to twenty times its length when it is parsed."""
REQUEST_S = 5.0
"""From the connection to the end of the request; a command sends it at once."""
SEND_S = 30.0
"""For one answer to `show` or `act`. A follower may take its time: its terminal may be stopped."""


class OperatorCalls(Protocol):
    """The daemon's answers to the operator.

    ``PeerError`` and ``ValueError`` become the command's error line.
    """

    async def show(self, topic: str, arguments: Mapping[str, Any]) -> object:
        """Return one of ``DOCUMENTS`` as a JSON document."""

    async def act(self, action: str, arguments: Mapping[str, Any]) -> object:
        """Begin one of ``ACTIONS``; the document states the effect."""

    def follow(self, topic: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        """Yield the document now and after each change; closed when the follower leaves."""


class ControlServer:
    """Serves the operator on one socket."""

    def __init__(self, service: OperatorCalls) -> None:
        self._service = service
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self._long = asyncio.Lock()

    async def start(self, path: Path) -> None:
        """Listen on the socket.

        The caller holds the site's lock, so an old socket has no owner and is replaced.

        Raises:
            StateError: others can enter the socket's folder, or the socket cannot be bound.
        """
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if mode & 0o077:
            raise StateError(f"{path.parent} is open to others (mode {mode:04o})", f"run `chmod 700 {path.parent}`")
        if path.is_socket():
            path.unlink()
        try:
            self._server = await asyncio.start_unix_server(
                self._accept, path, limit=SHORT_BYTES, backlog=CONNECTIONS_MAX
            )
        except OSError as error:
            raise StateError(f"the control socket {path} cannot be bound: {error}") from None
        path.chmod(0o600)
        self._path = path

    async def stop(self, grace_s: float = 0.0) -> None:
        """Stop answering; cancel connections that outlast the grace period."""
        if self._server is None or self._path is None:
            return
        self._server.close()
        self._server = None
        self._path.unlink(missing_ok=True)
        if self._connections:
            _, late = await asyncio.wait(self._connections, timeout=grace_s)
            for connection in late:
                connection.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            busy = StateError(f"{CONNECTIONS_MAX} commands are connected to the daemon", "end some, such as --watch")
            writer.write(_refusal(busy))
            writer.close()
            return
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read a request and answer it; close the connection whatever happens."""
        writer.transport.set_write_buffer_limits(0)  # a drained buffer is empty then
        try:
            async with contextlib.AsyncExitStack() as held:
                async with asyncio.timeout(REQUEST_S):
                    content = await self._read(reader, held)
                await self._answer(content, reader, writer)
        except (TimeoutError, ConnectionError):
            pass  # the caller did not send a whole request, or did not take the answer
        finally:
            writer.transport.abort()

    async def _read(self, reader: asyncio.StreamReader, held: contextlib.AsyncExitStack) -> bytes:
        """Read until the request's line has ended or is too long; enter the lock for long requests into ``held``."""
        content = bytearray()
        while True:
            part = await reader.read(SHORT_BYTES)
            if not part:
                raise ConnectionError("the request has no end")
            if len(content) <= SHORT_BYTES < len(content) + len(part):
                await held.enter_async_context(self._long)
            content += part
            if b"\n" in part or len(content) > REQUEST_BYTES_MAX:
                return bytes(content)

    async def _answer(self, content: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = Request.parse(content)
        except ValueError as error:
            log.warning("control request refused", extra={"peer": "the control socket", "reason": str(error)})
            await _send(writer, _refusal(error), SEND_S)
            return
        if request.call != "follow":
            await _send(writer, await self._ask(request), SEND_S)
            return
        tasks = (asyncio.create_task(self._follow(request, writer)), asyncio.create_task(reader.read(1)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # the follower may hang up
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, request: Request) -> bytes:
        """Return the line that answers the request."""
        try:
            ask = self._service.show if request.call == "show" else self._service.act
            document = await ask(request.name, request.arguments)
            return await asyncio.to_thread(_line, document)
        except Exception as error:
            return _refusal(error)

    async def _follow(self, request: Request, writer: asyncio.StreamWriter) -> None:
        """Send a line for each document, and one for the end."""
        last = END
        try:
            async with contextlib.aclosing(self._service.follow(request.name, request.arguments)) as documents:
                async for document in documents:
                    await _send(writer, await asyncio.to_thread(_line, document), None)
        except ConnectionError:
            return
        except Exception as error:
            last = _refusal(error)
        await _send(writer, last, None)


class Request(NamedTuple):
    """A command's request to the daemon."""

    call: str
    name: str
    arguments: Mapping[str, Any]

    @classmethod
    def parse(cls, content: bytes) -> Request:
        """Parse the first line; raise ``ValueError`` if it is not a request, or too long."""
        line, end, _ = content.partition(b"\n")
        if not end or len(line) > REQUEST_BYTES_MAX:
            raise ValueError(f"the request is over {REQUEST_BYTES_MAX} bytes")
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise ValueError("the request is not a JSON object: is the caller of another release?")
        call, name, arguments = (document.get(key) for key in ("call", "name", "arguments"))
        if call not in CALLS or not isinstance(name, str) or not isinstance(arguments, dict):
            raise ValueError(f"a request has a call ({', '.join(CALLS)}), a name and arguments")
        if call != "act" and name not in DOCUMENTS:
            raise ValueError(f"nothing to show called {name[:100]!r}; there are {', '.join(DOCUMENTS)}")
        if call == "act" and name not in ACTIONS:
            raise ValueError(f"no action {name[:100]!r}; there are {', '.join(ACTIONS)}")
        if call != "act" and len(line) > SHORT_BYTES:
            raise ValueError(f"the request is over {SHORT_BYTES} bytes")
        return cls(call, name, arguments)


async def _send(writer: asyncio.StreamWriter, line: bytes, limit_s: float | None) -> None:
    writer.write(line)
    async with asyncio.timeout(limit_s):
        await writer.drain()


def _line(document: object) -> bytes:
    """Encode an answer; a list record by record, since the encoder holds the interpreter's lock."""
    if isinstance(document, list):
        text = f"[{','.join(map(_encode, document))}]"
    else:
        text = _encode(document)
    line = f'{{"document":{text}}}\n'.encode()
    if len(line) > ANSWER_BYTES_MAX:
        raise ValueError(f"the document has over {ANSWER_BYTES_MAX >> 20} MiB")
    return line


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _refusal(error: Exception) -> bytes:
    """Encode an error so that the command can raise it again; log unexpected ones."""
    if not isinstance(error, PeerError | ValueError):
        log.error("control call failed", exc_info=error)
        error = StateError(f"the daemon failed: {error}")
    elif not isinstance(error, PeerError):
        error = StateError(str(error))
    parts = {"exit_code": error.exit_code, "message": error.message, "remedy": error.remedy}
    return f"{_encode({'error': parts})}\n".encode()
