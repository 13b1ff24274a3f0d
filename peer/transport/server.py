"""The server for peers' calls: authenticates, validates, limits and streams.

``PeerCalls`` decides the answers.

Every call passes ``CallGuard``, which checks the certificate again, then the caller's rate. A
refusal reaches the caller as a gRPC status with a reason. The ledger has an artifact's intent
before its first byte leaves, and its outcome after the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import grpc
from cryptography import x509
from grpc_health.v1 import health_pb2_grpc

from peer.core import limits
from peer.core.messages import EvaluationResult, Heartbeat, Hello, SignedManifest, Unavailable
from peer.core.roster import Roster, Sha256, SiteName
from peer.errors import PortInUse
from peer.pb import peer_pb2 as pb
from peer.pb import peer_pb2_grpc as rpc
from peer.transport import tls, wire
from peer.transport.bounds import WireError
from peer.transport.health import GuardedHealth
from peer.transport.transfer import OutgoingArtifact
from peer.transport.wire import decode_report

log = logging.getLogger(__name__)

SERVICE = "mhfl.v1.Exchange"
REFUSED_CALLS_PER_SECOND = 1.0  # journal rows of refused calls; a broken peer must not fill the disk
REFUSED_CALLS_BURST = 20

Message = TypeVar("Message")
Fact = TypeVar("Fact")
Outcome = Literal["complete", "broken"]
Context = grpc.aio.ServicerContext[Any, Any]


class Status(enum.Enum):
    """Why a call is refused; the caller calls again later only on ``BUSY``."""

    UNKNOWN_CALLER = grpc.StatusCode.UNAUTHENTICATED
    DENIED = grpc.StatusCode.PERMISSION_DENIED
    MISMATCH = grpc.StatusCode.FAILED_PRECONDITION
    MALFORMED = grpc.StatusCode.INVALID_ARGUMENT
    MISSING = grpc.StatusCode.NOT_FOUND
    UNSUPPORTED = grpc.StatusCode.UNIMPLEMENTED
    BUSY = grpc.StatusCode.UNAVAILABLE


class Refusal(Exception):  # noqa: N818 - the name is the fact
    """A call is refused; the caller's site shows the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Grant:
    """A permitted transfer: the file, and the number of its intent in the ledger."""

    path: Path
    intent: int


class PeerCalls(Protocol):
    """The daemon's answers to calls. Each method may raise ``Refusal``."""

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        """Compare greetings, and answer with this site's own."""

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Take the caller's state, and answer with this site's own."""

    async def manifest(
        self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float
    ) -> SignedManifest | Unavailable:
        """The manifest that the caller may have; waits up to ``wait_s`` until it exists."""

    def open_artifact(self, caller: SiteName, request: wire.ArtifactRequest, *, sha256: Sha256, offset: int) -> Grant:
        """Allow a transfer; its intent is on disk when this returns."""

    def record_sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        """Record the end of a granted transfer, exactly once; ``size`` bytes may have left."""

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        """Record a call that the guard refused."""


ReportHandler = Callable[[SiteName, EvaluationResult], Awaitable[None]]
CompareHandler = Callable[[SiteName, list[SignedManifest]], Awaitable[list[SignedManifest]]]


class ExchangeServer:
    """Serves one site's peers on one address."""

    def __init__(
        self,
        service: PeerCalls,
        *,
        pki: tls.Pki,
        roster: Roster,
        refused: Container[str] = frozenset(),
        reports: ReportHandler | None = None,
        compare: CompareHandler | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare to serve.

        Args:
            service: decides every answer.
            pki: this site's certificate and key, which may be renewed meanwhile, and the clock for
                certificates.
            roster: the sites that may call.
            refused: SHA-256 digests of certificates that may not call, whatever their dates.
            reports: takes peers' reports on this site's models; without it the server refuses them.
            compare: compares the manifests that peers show; without it the server refuses them.
            clock: a monotonic clock, in seconds, for rates.
        """
        self._service = service
        self._pki = pki
        self._roster = roster
        self._refused = refused
        self._reports = reports
        self._compare = compare
        self._clock = clock
        self._server: grpc.aio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen on ``host:port``, and return the port, which the system chooses for port 0.

        Raises:
            CertificateError: the site's own files do not allow it to serve.
            PortInUse: the address cannot be bound; the message says why.
        """
        ca = self._pki.load().ca
        guard = CallGuard(self._service, self._pki, ca, roster=self._roster, refused=self._refused, clock=self._clock)
        server = grpc.aio.server(options=tls.server_options())
        servicer = ExchangeServicer(self._service, guard, self._reports, self._compare)
        rpc.add_ExchangeServicer_to_server(servicer, server)
        services = dict.fromkeys(("", SERVICE), lambda: True)  # a peer that gets an answer has reached a serving daemon
        health_pb2_grpc.add_HealthServicer_to_server(GuardedHealth(services, guard), server)
        try:
            port = server.add_secure_port(address, tls.server_credentials(self._pki))
        except RuntimeError:
            raise PortInUse(f"cannot listen on {address}: {_bind_failure(address)}") from None
        await server.start()
        self._server = server
        return port

    async def stop(self, grace_s: float = 0.0) -> None:
        """Take no more calls; cancel those that last longer than the grace and record outcomes."""
        if self._server is not None:
            await self._server.stop(grace_s)
            self._server = None


def _bind_failure(address: str) -> str:
    """The system's reason not to bind the address, which gRPC does not tell."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, name = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(name)
            probe.listen()
    except OSError as error:
        return error.strerror or str(error)
    return "the system gave no reason"


class CallGuard:
    """Admits a call if the caller is a peer and keeps to its rate."""

    def __init__(
        self,
        service: PeerCalls,
        pki: tls.Pki,
        ca: x509.Certificate,
        *,
        roster: Roster,
        refused: Container[str],
        clock: Callable[[], float],
    ) -> None:
        self._service = service
        self._pki = pki
        self._ca = ca
        self._roster = roster
        self._refused = refused
        self._calls = {site: TokenBucket(limits.CALLS_PER_SECOND_MAX, limits.CALLS_BURST, clock) for site in roster}
        self._refused_calls = TokenBucket(REFUSED_CALLS_PER_SECOND, REFUSED_CALLS_BURST, clock)
        self._streams: Counter[SiteName] = Counter()

    @contextlib.asynccontextmanager
    async def admit(
        self, context: Context, call: str, request: Message, decode: Callable[[Message], Fact]
    ) -> AsyncIterator[tuple[SiteName, Fact]]:
        """Yield the caller and the decoded request; the block answers the call.

        A refusal in the block becomes its gRPC status, any other exception INTERNAL without
        details.
        """
        try:
            caller = self._caller(context, call)
            if not self._calls[caller].take():
                raise self._refuse(caller, call, Status.BUSY, f"over {limits.CALLS_PER_SECOND_MAX} calls a second")
            try:
                fact = decode(request)
            except WireError as error:
                raise self._refuse(caller, call, Status.MALFORMED, str(error)) from error
            yield caller, fact
        except Refusal as refusal:
            await context.abort(refusal.status.value, refusal.reason[: limits.TEXT_BYTES_MAX])
        except Exception:
            log.exception("call failed", extra={"peer": context.peer(), "call": call})
            await context.abort(grpc.StatusCode.INTERNAL, "this call failed here; the log at this site says why")

    @contextlib.contextmanager
    def stream(self, caller: SiteName) -> Iterator[None]:
        """Count one of the caller's streams during the block; ``Refusal`` over the limit."""
        if self._streams[caller] >= limits.STREAMS_PER_PEER_MAX:
            reason = f"{limits.STREAMS_PER_PEER_MAX} transfers to {caller} are under way"
            raise self._refuse(caller, "FetchArtifact", Status.BUSY, reason)
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1

    def _caller(self, context: Context, call: str) -> SiteName:
        try:
            return tls.caller(
                context.auth_context(),
                roster=self._roster,
                ca=self._ca,
                refused=self._refused,
                now=self._pki.clock(),
            )
        except tls.CallerRefused as error:
            raise self._refuse("unknown", call, Status.UNKNOWN_CALLER, str(error)) from error

    def _refuse(self, caller: str, call: str, status: Status, reason: str) -> Refusal:
        if self._refused_calls.take():
            self._service.record_refused_call(caller, call, reason)
        return Refusal(status, reason)


class TokenBucket:
    """Allows ``rate`` takes a second on average and ``burst`` at once."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._filled_s = clock()

    def take(self) -> bool:
        """Take a token; returns whether there was one."""
        now_s = self._clock()
        self._tokens = min(self._burst, self._tokens + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class ExchangeServicer(rpc.ExchangeServicer):
    def __init__(
        self, service: PeerCalls, guard: CallGuard, reports: ReportHandler | None, compare: CompareHandler | None
    ) -> None:
        self._service = service
        self._guard = guard
        self._reports = reports
        self._compare = compare

    async def Hello(self, request: pb.Greeting, context: Context) -> pb.Greeting:  # noqa: N802
        async with self._guard.admit(context, "Hello", request, wire.decode_greeting) as (caller, greeting):
            return wire.encode_greeting(await self._service.hello(caller, greeting))

    async def Beat(self, request: pb.Pulse, context: Context) -> pb.Pulse:  # noqa: N802
        async with self._guard.admit(context, "Beat", request, wire.decode_pulse) as (caller, pulse):
            return wire.encode_pulse(await self._service.beat(caller, pulse))

    async def GetManifest(self, request: pb.ManifestRequest, context: Context) -> pb.ManifestReply:  # noqa: N802
        decode = wire.decode_manifest_request
        async with self._guard.admit(context, "GetManifest", request, decode) as (caller, (wanted, wait_s)):
            return wire.encode_reply(await self._service.manifest(caller, wanted, wait_s=wait_s))

    async def FetchArtifact(self, request: pb.FetchRequest, context: Context) -> None:  # type: ignore[override]  # noqa: N802
        """Stream the file from an offset on; only a coroutine that writes sees a cancellation at once."""
        decode = wire.decode_fetch_request
        async with self._guard.admit(context, "FetchArtifact", request, decode) as (caller, (wanted, sha256, offset)):
            with self._guard.stream(caller):
                grant = self._service.open_artifact(caller, wanted, sha256=sha256, offset=offset)
                await self._send(grant, offset, context)

    async def PutMetrics(self, request: pb.Metrics, context: Context) -> pb.MetricsReceipt:  # noqa: N802
        async with self._guard.admit(context, "PutMetrics", request, decode_report) as (caller, report):
            if self._reports is None:
                raise Refusal(Status.UNSUPPORTED, "this site takes no evaluations")
            await self._reports(caller, report)
            return pb.MetricsReceipt()

    async def CompareManifests(self, request: pb.SignedManifests, context: Context) -> pb.SignedManifests:  # noqa: N802
        async with self._guard.admit(context, "CompareManifests", request, wire.decode_manifests) as (caller, shown):
            if self._compare is None:
                raise Refusal(Status.UNSUPPORTED, "this site compares no manifests")
            return wire.encode_manifests(await self._compare(caller, shown))

    async def _send(self, grant: Grant, offset: int, context: Context) -> None:
        """Stream a granted file, and record how it ended even if caller or server goes away."""
        outgoing = OutgoingArtifact(grant.path, offset=offset)
        outcome: Outcome = "broken"
        message = pb.Chunk()

        async def write(chunk: bytes) -> None:
            nonlocal message  # lives until the next one: otherwise glibc returns its pages for each chunk
            message = pb.Chunk(data=chunk)
            try:
                await context.write(message)
            except Exception as error:  # the type is private to gRPC; the connection is gone, and no status can follow
                raise asyncio.CancelledError from error

        try:
            await outgoing.send(write)
            outcome = "complete"
        except TimeoutError:
            raise Refusal(Status.BUSY, f"no byte was taken for {limits.STALL_S:g} s") from None
        except OSError as error:
            if error.errno in tls.NO_DESCRIPTORS:
                raise Refusal(Status.BUSY, "this site has no file descriptor free") from error
            log.error("artifact not readable", extra={"path": str(grant.path), "reason": str(error)})
            raise Refusal(Status.MISSING, "the artifact cannot be read from this site's disk") from error
        except ValueError as error:
            raise Refusal(Status.MALFORMED, str(error)) from error
        finally:
            self._service.record_sent(grant, size=outgoing.sent, outcome=outcome)
