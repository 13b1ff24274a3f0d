"""The daemon's control socket, with server and client: JSON documents over gRPC on a Unix socket.

The socket has mode 0600 in a folder of mode 0700: a process that can open it acts as the operator.
The network does not reach it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import stat
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self

import grpc
from grpc_health.v1 import health_pb2_grpc

from peer.errors import DaemonDown, PeerError, StateError
from peer.net.transport import health
from peer.pb import control_pb2 as pb
from peer.pb import control_pb2_grpc as rpc

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

DOCUMENTS = ("status", "rounds", "peers", "transfers", "egress", "events", "why", "evaluation", "plan", "membership")
TRAINING = "training"  # name in the health service
MEMBERSHIP_ACTIONS = ("enact", "approve", "leave", "accept", "choose")
ACTIONS = ("pause", "resume", "stop", *MEMBERSHIP_ACTIONS)
ERROR_KEY = "mhfl-error-bin"
"""The trailing metadata with a refusal's parts, from which the command makes the same error."""
ANSWER_S = 5.0  # a daemon that takes longer hangs: training runs in another process
DOCUMENT_BYTES_MAX = 256 << 20  # a million transfers of 250 bytes

_OPTIONS = (
    ("grpc.max_send_message_length", DOCUMENT_BYTES_MAX),
    ("grpc.max_receive_message_length", DOCUMENT_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),
)


class DaemonSilent(DaemonDown):
    """The daemon listens, and did not answer in time: it may have done what was asked, or may do it yet."""


class OperatorCalls(Protocol):
    """The daemon's answers to the operator.

    ``PeerError`` and ``ValueError`` become the command's error line.
    """

    async def show(self, topic: str, arguments: Mapping[str, Any]) -> object:
        """One of ``DOCUMENTS`` as a JSON document."""

    async def act(self, action: str, arguments: Mapping[str, Any]) -> object:
        """Begin one of ``ACTIONS``; the document states the effect."""

    def follow(self, topic: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        """Yield the document now and after each change; closed when the caller cancels."""

    def serves(self) -> bool:
        """Whether peers are served now: the control socket opens earlier and closes later."""

    def trains(self) -> bool:
        """Whether training can go on without the operator."""


class ControlServer:
    """Serves the operator on one socket."""

    def __init__(self, service: OperatorCalls) -> None:
        self._service = service
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Lock()

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
        server = grpc.aio.server(options=_OPTIONS)
        rpc.add_ControlServicer_to_server(Control(self._service), server)
        services = {"": self._service.serves, TRAINING: self._service.trains}
        health_pb2_grpc.add_HealthServicer_to_server(health.Health(services), server)
        try:
            server.add_secure_port(f"unix:{path}", grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        except RuntimeError as error:
            raise StateError(f"the control socket {path} cannot be bound: {error}") from None
        path.chmod(0o600)
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Answer no more; followers are cancelled after the grace."""
        async with self._stopping:  # gRPC crashes where two calls stop one server at a time
            if self._server is not None:
                await self._server.stop(grace_s)
                self._server = None


class Control(rpc.ControlServicer):
    def __init__(self, service: OperatorCalls) -> None:
        self._service = service

    async def Show(self, request: pb.Query, context: Context) -> pb.Document:  # noqa: N802
        try:
            return await asyncio.to_thread(_document, await self._service.show(*_query(request)))
        except Exception as error:
            await _abort(context, error)

    async def Act(self, request: pb.Order, context: Context) -> pb.Document:  # noqa: N802
        try:
            if request.action not in ACTIONS:
                raise ValueError(f"no action {request.action!r}; there are {', '.join(ACTIONS)}")
            return _document(await self._service.act(request.action, _arguments(request)))
        except Exception as error:
            await _abort(context, error)

    async def Follow(self, request: pb.Query, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        try:
            async with contextlib.aclosing(self._service.follow(*_query(request))) as documents:
                async for document in documents:
                    await context.write(await asyncio.to_thread(_document, document))
        except Exception as error:
            await _abort(context, error)


def _query(request: pb.Query) -> tuple[str, dict[str, Any]]:
    if request.what not in DOCUMENTS:
        raise ValueError(f"nothing to show called {request.what!r}; there are {', '.join(DOCUMENTS)}")
    return request.what, _arguments(request)


def _arguments(request: pb.Query | pb.Order) -> dict[str, Any]:
    arguments = json.loads(request.arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("arguments is not a JSON object")
    return arguments


def _document(value: object) -> pb.Document:
    """The value as JSON.

    A list is encoded by record, since the encoder holds the interpreter's lock.
    """
    if isinstance(value, list):
        return pb.Document(json=f"[{','.join(map(_encode, value))}]")
    return pb.Document(json=_encode(value))


def _encode(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End the call with the error's text; log an unexpected error, too."""
    if isinstance(error, PeerError):
        parts = json.dumps([error.exit_code, error.message, error.remedy])
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error), ((ERROR_KEY, parts.encode()),))
    if isinstance(error, ValueError):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    log.exception("control call failed")
    await context.abort(grpc.StatusCode.INTERNAL, f"the daemon failed: {error}")


class ControlClient:
    """Calls the daemon behind a socket, from code without an event loop.

    Use it as a context manager.
    """

    def __init__(self, path: Path) -> None:
        """Prepare to call; only the first call shows whether a daemon listens."""
        self._path = path
        self._channel = grpc.secure_channel(
            f"unix:{path}", grpc.local_channel_credentials(grpc.LocalConnectionType.UDS), options=_OPTIONS
        )
        self._stub = rpc.ControlStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def show(self, topic: str, **arguments: Any) -> Any:
        """A document.

        ``DaemonDown``: no daemon answers. Any other ``PeerError`` is the daemon's refusal.
        """
        query = pb.Query(what=topic, arguments=json.dumps(arguments))
        try:
            return json.loads(self._stub.Show(query, timeout=ANSWER_S).json)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def act(self, action: str, **arguments: Any) -> Any:
        """Begin an action; returns the daemon's document. Errors as for ``show``."""
        order = pb.Order(action=action, arguments=json.dumps(arguments))
        try:
            return json.loads(self._stub.Act(order, timeout=ANSWER_S).json)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def healthy(self, service: str = "") -> bool:
        """Whether the daemon, or its ``TRAINING``, is healthy; ``DaemonDown`` if it does not answer."""
        try:
            return health.serving(self._channel, service, timeout_s=ANSWER_S)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def follow(self, topic: str, *, timeout_s: float | None = None, **arguments: Any) -> Iterator[Any]:
        """Yield the document now and after each change, until the daemon has ended, or ``DaemonSilent``."""
        stream = self._stub.Follow(pb.Query(what=topic, arguments=json.dumps(arguments)), timeout=timeout_s)
        try:
            for document in stream:
                yield json.loads(document.json)
        except grpc.RpcError as error:
            raise self._failure(error) from None
        finally:
            stream.cancel()  # type: ignore[no-untyped-call]  # as grpc-stubs has it

    def _failure(self, error: grpc.RpcError) -> PeerError:
        status = error.code()
        if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            return DaemonDown(f"no daemon answers on {self._path}")
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            reason = f"the daemon behind {self._path} runs, but did not answer within {ANSWER_S:g} s"
            return DaemonSilent(reason, "it is busy, stopped (SIGSTOP) or hung: look again, then see its log")
        return _refusal(error) or StateError(error.details() or status.name)


def _refusal(error: grpc.RpcError) -> PeerError | None:
    """The error that the daemon raised; ``None`` where it was none of ``PeerError``."""
    for entry in error.trailing_metadata() or ():
        if entry.key == ERROR_KEY:
            code, message, remedy = json.loads(entry.value)
            for kind in PeerError.__subclasses__():
                if kind.exit_code == code:
                    return kind(message, remedy)
    return None
