"""The daemon's control socket, and the command line's side of it: JSON documents over gRPC on a Unix socket.

The socket has mode 0600 in a folder of mode 0700: whoever can open it is the operator. Nothing of it is on the network.
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
from peer.pb import control_pb2 as pb
from peer.pb import control_pb2_grpc as rpc
from peer.transport import health

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

SHOWN = ("status", "rounds", "peers", "transfers", "egress", "events", "why", "evaluation", "plan")
TRAINING = "training"  # the name under which the health service tells of it
ACTIONS = ("pause", "resume", "stop")
ANSWER_S = 5.0  # training runs in another process: a daemon that takes longer to show a document hangs
DOCUMENT_BYTES_MAX = 256 << 20  # a million transfers of 250 bytes

_OPTIONS = (
    ("grpc.max_send_message_length", DOCUMENT_BYTES_MAX),
    ("grpc.max_receive_message_length", DOCUMENT_BYTES_MAX),
)


class OperatorCalls(Protocol):
    """Who answers the operator: the daemon. ``PeerError`` and ``ValueError`` become the command's error line."""

    async def show(self, what: str, arguments: Mapping[str, Any]) -> object:
        """One of ``SHOWN`` as a JSON document."""

    async def act(self, action: str) -> object:
        """Begin one of ``ACTIONS``; the document says what will happen."""

    def follow(self, what: str, arguments: Mapping[str, Any]) -> AsyncGenerator[object, None]:
        """The document now, and again each time it changes; closed when the caller hangs up."""

    def serves(self) -> bool:
        """Whether peers are served: this socket is there before they are, and after."""

    def trains(self) -> bool:
        """Whether nothing keeps this site from training that an operator must see to."""


class ControlServer:
    """Serves the operator on one socket."""

    def __init__(self, console: OperatorCalls) -> None:
        self._console = console
        self._server: grpc.aio.Server | None = None

    async def start(self, path: Path) -> None:
        """Listen on the socket; the caller holds the site's lock, so that a socket left behind is nobody's.

        Raises:
            StateError: others can enter the socket's folder, or the socket cannot be bound.
        """
        mode = stat.S_IMODE(path.parent.stat().st_mode)
        if mode & 0o077:
            raise StateError(f"{path.parent} is open to others (mode {mode:04o})", f"run `chmod 700 {path.parent}`")
        if path.is_socket():
            path.unlink()
        server = grpc.aio.server(options=_OPTIONS)
        rpc.add_ControlServicer_to_server(Control(self._console), server)
        well = {"": self._console.serves, TRAINING: self._console.trains}
        health_pb2_grpc.add_HealthServicer_to_server(health.Health(well), server)
        try:
            server.add_secure_port(f"unix:{path}", grpc.local_server_credentials(grpc.LocalConnectionType.UDS))
        except RuntimeError as error:
            raise StateError(f"the control socket {path} cannot be bound: {error}") from None
        path.chmod(0o600)
        await server.start()
        self._server = server

    async def stop(self, grace_s: float = 0.0) -> None:
        """Answer no more; followers are hung up on after the grace."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


class Control(rpc.ControlServicer):
    def __init__(self, console: OperatorCalls) -> None:
        self._console = console

    async def Show(self, request: pb.Query, context: Context) -> pb.Document:  # noqa: N802
        try:
            return await asyncio.to_thread(_document, await self._console.show(*_query(request)))
        except Exception as error:
            await _abort(context, error)

    async def Act(self, request: pb.Order, context: Context) -> pb.Document:  # noqa: N802
        try:
            if request.action not in ACTIONS:
                raise ValueError(f"no action {request.action!r}; there are {', '.join(ACTIONS)}")
            return _document(await self._console.act(request.action))
        except Exception as error:
            await _abort(context, error)

    async def Follow(self, request: pb.Query, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        try:
            async with contextlib.aclosing(self._console.follow(*_query(request))) as documents:
                async for document in documents:
                    await context.write(await asyncio.to_thread(_document, document))
        except Exception as error:
            await _abort(context, error)


def _query(request: pb.Query) -> tuple[str, dict[str, Any]]:
    if request.what not in SHOWN:
        raise ValueError(f"nothing to show called {request.what!r}; there are {', '.join(SHOWN)}")
    arguments = json.loads(request.arguments or "{}")
    if not isinstance(arguments, dict):
        raise ValueError("arguments is not a JSON object")
    return request.what, arguments


def _document(value: object) -> pb.Document:
    """The value as JSON. A list is encoded record by record: the encoder holds the interpreter while it runs."""
    if isinstance(value, list):
        return pb.Document(json=f"[{','.join(map(_encoded, value))}]")
    return pb.Document(json=_encoded(value))


def _encoded(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


async def _abort(context: Context, error: Exception) -> NoReturn:
    """End the call with the error's text; what nobody foresaw goes to the log as well."""
    if isinstance(error, PeerError | ValueError):
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
    log.exception("control call failed")
    await context.abort(grpc.StatusCode.INTERNAL, f"the daemon failed: {error}")


class ControlClient:
    """Asks the daemon behind a socket, from code without an event loop. Use it as a context manager."""

    def __init__(self, path: Path) -> None:
        """Prepare to ask; the first question finds out whether anybody listens."""
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

    def show(self, what: str, **arguments: Any) -> Any:
        """A document; ``DaemonDown`` when nobody answers, ``StateError`` with the daemon's reason when it refuses."""
        query = pb.Query(what=what, arguments=json.dumps(arguments))
        try:
            return json.loads(self._stub.Show(query, timeout=ANSWER_S).json)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def act(self, action: str) -> Any:
        """Begin an action, and what the daemon says to it; errors as for ``show``."""
        try:
            return json.loads(self._stub.Act(pb.Order(action=action), timeout=ANSWER_S).json)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def well(self, service: str = "") -> bool:
        """Whether the daemon, or its ``TRAINING``, is well; ``DaemonDown`` when nobody answers."""
        try:
            return health.serving(self._channel, service, timeout_s=ANSWER_S)
        except grpc.RpcError as error:
            raise self._failure(error) from None

    def follow(self, what: str, **arguments: Any) -> Iterator[Any]:
        """The document now, and each time it changes, until the daemon ends; errors as for ``show``."""
        stream = self._stub.Follow(pb.Query(what=what, arguments=json.dumps(arguments)))
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
            return DaemonDown(f"the daemon behind {self._path} took more than {ANSWER_S:g} s", "see its log")
        return StateError(error.details() or status.name)
