"""The operator's side of the daemon's control socket: a request in one line of JSON, each answer in another.

The socket has mode 0600 in a folder of mode 0700: a process that can open it acts as the operator.
The network does not reach it. This module imports neither gRPC nor asyncio, so that commands start
at once; ``peer.daemon.control_server`` is the other side.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from peer.errors import DaemonDown, PeerError, StateError

DOCUMENTS = (
    "status",
    "rounds",
    "peers",
    "transfers",
    "egress",
    "events",
    "why",
    "evaluation",
    "plan",
    "membership",
    "health",
)
MEMBERSHIP_ACTIONS = ("enact", "approve", "leave", "accept", "choose")
ACTIONS = ("pause", "resume", "stop", *MEMBERSHIP_ACTIONS)
ANSWER_S = 5.0  # a daemon that takes longer hangs: training runs in another process
AMENDING_S = 60.0  # an answer about the chain waits for its files, which a busy disk holds up for many seconds
CONNECT_AGAIN_S = 0.02
ANSWER_BYTES_MAX = 256 << 20  # a million transfers of 250 bytes
READ_BYTES = 1 << 18
_ERRORS = {kind.exit_code: kind for kind in PeerError.__subclasses__()}


class DaemonSilent(DaemonDown):
    """The daemon listens but did not answer in time: it may have executed the request, or may do so yet."""


class ControlClient:
    """Calls the daemon behind a socket; each request has its own connection.

    Every method raises ``DaemonDown`` if no daemon answers, ``DaemonSilent`` if it takes too long, and otherwise the
    ``PeerError`` with which the daemon refused.

    Args:
        path: the socket.
        answer_s: how long an answer to ``show`` or ``act`` may take; by default ``ANSWER_S``.
    """

    def __init__(self, path: Path, *, answer_s: float | None = None) -> None:
        self._path, self._answer_s = path, ANSWER_S if answer_s is None else answer_s

    def show(self, topic: str, **arguments: Any) -> Any:
        """Request one of ``DOCUMENTS``."""
        return self._ask("show", topic, arguments)

    def act(self, action: str, **arguments: Any) -> Any:
        """Start one of ``ACTIONS``; return the daemon's document about its effect."""
        return self._ask("act", action, arguments)

    def follow(self, topic: str, *, silence_s: float | None = None, **arguments: Any) -> Iterator[Any]:
        """Yield the document now and after each change, until the daemon has ended.

        Args:
            silence_s: the longest wait for the next document; without limit by default.
        """
        return self._answers("follow", topic, arguments, silence_s)

    def _ask(self, call: str, name: str, arguments: Mapping[str, Any]) -> Any:
        with contextlib.closing(self._answers(call, name, arguments, self._answer_s)) as answers:
            return next(answers)

    def _answers(
        self, call: str, name: str, arguments: Mapping[str, Any], silence_s: float | None
    ) -> Generator[Any, None, None]:
        request = json.dumps({"call": call, "name": name, "arguments": arguments}, ensure_ascii=False)
        try:
            with self._connect() as connection, connection.makefile("rb", READ_BYTES) as lines:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a refusal may lie there to be read
                    connection.sendall(request.encode() + b"\n")
                connection.settimeout(silence_s)
                while "document" in (answer := self._decode(lines.readline(ANSWER_BYTES_MAX), connection)):
                    yield answer["document"]
        except TimeoutError:
            raise DaemonSilent(
                f"the daemon behind {self._path} runs, but did not answer within {silence_s or self._answer_s:g} s",
                "it is busy, stopped (SIGSTOP) or hung: look again, then see its log",
            ) from None
        except OSError:
            raise self._down() from None

    def _connect(self) -> socket.socket:
        """Connect within the time of an answer; wait while the daemon's queue of connections is full."""
        connection, ends_s = socket.socket(socket.AF_UNIX), time.monotonic() + self._answer_s
        connection.settimeout(self._answer_s)
        try:
            while True:
                try:
                    connection.connect(str(self._path))
                    return connection
                except BlockingIOError:  # a Unix socket's error for a full queue, despite its timeout
                    if time.monotonic() >= ends_s:
                        raise TimeoutError from None
                    time.sleep(CONNECT_AGAIN_S)
        except BaseException:
            connection.close()
            raise

    def _decode(self, line: bytes, connection: socket.socket) -> dict[str, Any]:
        """Decode an answer; raise the error that it contains."""
        if not line or (line.startswith(b"{") and not line.endswith(b"\n")):
            raise self._down()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            process = int.from_bytes(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)
            raise StateError(
                f"the daemon behind {self._path}, process {process}, is of another release",
                f"end it with `kill {process}`, and start it again",
            )
        if "error" in answer:
            error = answer["error"]
            raise _ERRORS.get(error["exit_code"], StateError)(error["message"], error["remedy"])
        return answer

    def _down(self) -> DaemonDown:
        return DaemonDown(f"no daemon answers on {self._path}")
