"""The server for peers' calls: authenticates, validates, limits and streams.

``PeerCalls`` decides the answers.

Every call passes ``CallGuard``, which checks the certificate again, then the caller's rate, and only then reads and
parses the request. A refusal reaches the caller as a gRPC status with a reason. The ledger records an artifact's intent
before its first byte leaves, and its outcome after the last.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import functools
import logging
import socket
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import grpc
from cryptography import x509
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckResponse

from peer.core import limits
from peer.core.artifacts import EvaluationResult
from peer.core.messages import AmendmentsReply, Heartbeat, Hello, SignedManifest, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.errors import PortInUse
from peer.net.transport import amendments, descriptors, sum_statements, tls, wire
from peer.net.transport.bounds import WireError
from peer.net.transport.connections import ConnectionBounds, ConnectionGuard, Endpoint, endpoint_of, network_of
from peer.net.transport.rates import TokenBucket
from peer.net.transport.transfer import OutgoingArtifact
from peer.pb import peer_pb2 as pb
from peer.site.identity.certificates import OtherKey, certificate_key, key_digest

log = logging.getLogger(__name__)

SERVICE = "mhfl.v1.Exchange"
REFUSED_CALLS_PER_SECOND = 1.0  # journal rows of refused calls; a broken peer must not fill the disk
REFUSED_CALLS_BURST = 20
READMIT_S = 0.05  # interval of the checks that a stream's receiver has not been expelled meanwhile

UNKNOWN = "unknown"  # stands for a caller whose certificate is not a peer's
HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Message = TypeVar("Message", covariant=True)
Fact = TypeVar("Fact")
Outcome = Literal["complete", "broken"]
Context = grpc.aio.ServicerContext[Any, Any]
Requests = AsyncIterator[bytes]
"""The request stream: one message, unless the caller breaks the protocol."""


class Status(enum.Enum):
    """The kinds of refusals; the caller retries only after ``BUSY`` and ``EPOCH``."""

    UNKNOWN_CALLER = grpc.StatusCode.UNAUTHENTICATED
    DENIED = grpc.StatusCode.PERMISSION_DENIED
    MISMATCH = grpc.StatusCode.FAILED_PRECONDITION
    MALFORMED = grpc.StatusCode.INVALID_ARGUMENT
    MISSING = grpc.StatusCode.NOT_FOUND
    EPOCH = grpc.StatusCode.ABORTED
    UNSUPPORTED = grpc.StatusCode.UNIMPLEMENTED
    BUSY = grpc.StatusCode.UNAVAILABLE


class Refusal(Exception):  # noqa: N818 - the name is the fact
    """This site refuses the call; the caller's site shows the reason."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Grant:
    """A permitted transfer: the file, and the number of its intent in the ledger.

    A transfer of zero bytes has no intent.
    """

    path: Path
    intent: int | None


class PeerCalls(Protocol):
    """The daemon's answers to calls. Each method may raise ``Refusal``."""

    async def hello(self, caller: SiteName, greeting: Hello) -> Hello:
        """Compare greetings, and answer with this site's own."""

    async def beat(self, caller: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Process the caller's heartbeat, and answer with this site's own."""

    async def manifest(
        self, caller: SiteName, request: wire.ArtifactRequest, *, wait_s: float
    ) -> SignedManifest | Unavailable:
        """Return the manifest, if the caller may have it; wait up to ``wait_s`` until it exists."""

    def open_artifact(
        self, caller: SiteName, request: wire.ArtifactRequest, *, sha256: Sha256, offset: int, relayed: bool
    ) -> Grant:
        """Allow a transfer; its intent is on disk when this returns."""

    def record_sent(self, grant: Grant, *, size: int, outcome: Outcome) -> None:
        """Record the end of a granted transfer, exactly once; ``size`` bytes may have left."""

    def record_refused_call(self, caller: str, call: str, reason: str) -> None:
        """Record a call that the guard refused."""


ReportHandler = Callable[[SiteName, EvaluationResult], Awaitable[None]]
AmendmentsHandler = Callable[[SiteName, bytes, int], AmendmentsReply]
"""Takes the caller, its certificate (DER) and a number; returns the amendments after that number."""
CompareHandler = Callable[[SiteName, list[SignedManifest]], Awaitable[list[SignedManifest]]]
SumHandler = Callable[[SiteName, sum_statements.SumRequest, float], Awaitable[bytes | Unavailable]]
"""Takes the caller, its request and a wait in seconds; returns encoded statements, or why there is no sum."""


class ExchangeServer:
    """Serves one site's peers on one address."""

    def __init__(
        self,
        service: PeerCalls,
        *,
        pki: tls.Pki,
        roster: Collection[SiteName],
        refused: Container[str] = frozenset(),
        reports: ReportHandler | None = None,
        compare: CompareHandler | None = None,
        chain: AmendmentsHandler | None = None,
        sums: SumHandler | None = None,
        expelled: Mapping[SiteName, int] = tls.NOT_EXPELLED,
        had_key: Callable[[SiteName, Sha256], bool] = lambda site, key: False,
        clock: Callable[[], float] = time.monotonic,
        connections_max: int | None = None,
        silence_s: float = limits.SILENCE_S,
    ) -> None:
        """Prepare to serve.

        Args:
            service: decides every answer.
            pki: this site's certificate and key, which may be renewed meanwhile, and the clock for certificates.
            roster: the sites that may call; it may change (see ``follow_roster``).
            refused: SHA-256 digests of certificates that may not call, whatever their dates.
            reports: stores peers' evaluations of this site's models; without it the server refuses them.
            compare: compares the manifests that peers show; without it the server refuses them.
            chain: returns the chain of amendments; without it the server refuses the call.
            sums: returns the statements on a secure sum; without it the server refuses the call.
            expelled: by expelled site, the number of the amendment that expelled it; such a site may only ask for
                amendments.
            had_key: whether an amendment, or the genesis, pinned a key for a site. With a key that has been replaced
                since, the site may only ask for amendments.
            clock: a monotonic clock, in seconds, for rates.
            connections_max: how many connections to accept; None: derived from the present roster.
            silence_s: the silence limit, within which the server notices a broken connection.
        """
        self._chain, self._sums = chain, sums
        self._service = service
        self._pki = pki
        self._roster = roster
        self._refused = refused
        self._reports = reports
        self._compare = compare
        self._expelled, self._had_key = expelled, had_key
        self._clock = clock
        self._server: grpc.aio.Server | None = None
        self._stopping = asyncio.Lock()
        self._connections: ConnectionGuard | None = None
        self._relayed: dict[Endpoint, str] = {}
        self._connections_max = descriptors.connections_max(connections_max, sites=len(roster))
        self._silence_s = silence_s

    def follow_roster(self, dismissed: Collection[SiteName] = ()) -> None:
        """Adjust the limits on connections to the present roster, and close the connections of dismissed peers.

        Each call is checked against the roster anyway; a closed connection takes no place and carries no stream.
        """
        if self._connections is not None:
            self._connections.dismiss(dismissed)
            self._connections.bounds = ConnectionBounds.of(len(self._roster), self._connections_max)

    def is_relayed(self, peer: str) -> bool:
        """Return whether a caller, in gRPC's notation of its end, comes through a relay."""
        return endpoint_of(peer) in self._relayed

    def note_relayed(self, end: Endpoint, caller: str | None) -> None:
        """Attribute a connection from this end, which is this site's own, to the caller's address that a relay states.

        None: the connection has ended.
        """
        self._relayed.pop(end, None)
        if caller is not None:
            try:
                self._relayed[end] = network_of((caller, 0))
            except ValueError:
                self._relayed[end] = "an address that is none"

    async def start(self, address: str) -> int:
        """Listen on ``host:port``, and return the port; the system chooses one for port 0.

        Raises:
            CertificateError: the site's own files do not allow it to serve.
            PortInUse: the address cannot be bound; the message says why.
        """
        ca = self._pki.load().ca
        bounds = ConnectionBounds.of(len(self._roster), self._connections_max)
        first_call_s = limits.FIRST_CALL_S * limits.patience(self._silence_s)
        # Without this clock: the guard runs in a thread, which has no event loop to ask for the time.
        connections = ConnectionGuard(bounds, relayed=self._relayed, first_call_s=first_call_s)
        guard = CallGuard(
            self._service,
            self._pki,
            ca,
            connections,
            roster=self._roster,
            expelled=self._expelled,
            had_key=self._had_key,
            refused=self._refused,
            clock=self._clock,
        )
        server = grpc.aio.server(options=tls.server_options(self._connections_max, silence_s=self._silence_s))
        handlers = ExchangeHandlers(
            self._service,
            guard,
            self._reports,
            self._compare,
            self._chain,
            self._sums,
            is_relayed=self.is_relayed,
        )
        server.add_generic_rpc_handlers((handlers,))
        try:
            port = server.add_secure_port(address, tls.server_credentials(self._pki))
        except RuntimeError:
            raise PortInUse(f"cannot listen on {address}: {_bind_failure(address)}") from None
        await server.start()
        self._server = server
        connections.start(port)
        self._connections = connections
        return port

    async def stop(self, grace_s: float = 0.0) -> None:
        """Accept no more calls; cancel those that outlast the grace period, and record outcomes."""
        if self._connections is not None:
            await asyncio.to_thread(self._connections.stop)
            self._connections = None
        async with self._stopping:  # gRPC crashes if two calls stop one server concurrently
            if self._server is not None:
                await self._server.stop(grace_s)
                self._server = None


def _bind_failure(address: str) -> str:
    """Find the system's reason not to bind the address, which gRPC does not report."""
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
    """Reads a request only after it has admitted the call: the caller is a peer and keeps to its rate."""

    def __init__(
        self,
        service: PeerCalls,
        pki: tls.Pki,
        ca: x509.Certificate,
        connections: ConnectionGuard,
        *,
        roster: Container[SiteName],
        expelled: Mapping[SiteName, int],
        had_key: Callable[[SiteName, Sha256], bool],
        refused: Container[str],
        clock: Callable[[], float],
    ) -> None:
        self._service = service
        self._expelled, self._had_key = expelled, had_key
        self._pki = pki
        self._ca = ca
        self._connections = connections
        self._roster = roster
        self._refused = refused
        self._rates: defaultdict[SiteName, TokenBucket] = defaultdict(  # of admitted callers only
            lambda: TokenBucket(limits.CALLS_PER_SECOND_MAX, limits.CALLS_BURST, clock)
        )
        self._refused_calls: defaultdict[str, TokenBucket] = defaultdict(
            lambda: TokenBucket(REFUSED_CALLS_PER_SECOND, REFUSED_CALLS_BURST, clock)
        )
        self._calls: Counter[SiteName] = Counter()
        self._streams: Counter[SiteName] = Counter()

    @contextlib.asynccontextmanager
    async def admit(
        self, context: Context, call: str, requests: Requests, parse: Callable[[bytes], Fact]
    ) -> AsyncIterator[tuple[SiteName, Fact]]:
        """Yield the caller and the parsed request; the block answers the call.

        A refusal in the block becomes its gRPC status, any other exception INTERNAL without
        details.
        """
        peer = UNKNOWN
        try:
            peer = caller = self.caller(context, call)
            self._connections.admitted(context.peer(), caller)
            if not self._rates[caller].take():
                reason = f"over {limits.CALLS_PER_SECOND_MAX} calls a second"
                raise self._refuse(context, caller, call, Status.BUSY, reason)
            with self._count(self._calls, context, caller, call, limits.CALLS_AT_ONCE_MAX, "calls from"):
                try:
                    fact = await _read(requests, parse)
                except WireError as error:
                    raise self._refuse(context, caller, call, Status.MALFORMED, str(error)) from error
                yield caller, fact
        except Refusal as refusal:
            await context.abort(refusal.status.value, refusal.reason[: limits.TEXT_BYTES_MAX])
        except Exception:
            log.exception("call failed", extra={"peer": peer, "call": call})
            await context.abort(grpc.StatusCode.INTERNAL, "this call failed here; the log at this site says why")

    def stream(self, context: Context, caller: SiteName) -> contextlib.AbstractContextManager[None]:
        """Count one of the caller's streams during the block; ``Refusal`` over the limit."""
        maximum = limits.STREAMS_PER_PEER_MAX
        return self._count(self._streams, context, caller, "FetchArtifact", maximum, "transfers to")

    @contextlib.contextmanager
    def _count(
        self, counter: Counter[SiteName], context: Context, caller: SiteName, call: str, maximum: int, noun: str
    ) -> Iterator[None]:
        if counter[caller] >= maximum:
            raise self._refuse(context, caller, call, Status.BUSY, f"{maximum} {noun} {caller} are under way")
        counter[caller] += 1
        try:
            yield
        finally:
            counter[caller] -= 1

    def caller(self, context: Context, call: str) -> SiteName:
        """Authenticate the caller by roster, pinned keys and dates as of now; raise ``Refusal`` if it is no peer."""
        try:
            return tls.caller(
                context.auth_context(),
                roster=self._roster,
                refused=self._refused,
                expelled=self._expelled,
                admits_expelled=call == "GetAmendments",
                verify=functools.partial(self._verify, call),
            )
        except tls.CallerRefused as error:
            raise self._refuse(context, UNKNOWN, call, Status.UNKNOWN_CALLER, str(error)) from error

    def _verify(self, call: str, der: bytes, name: SiteName) -> x509.Certificate:
        """Verify the caller's certificate; a site with a replaced key may only ask for amendments, to learn the new
        key.
        """
        try:
            return self._pki.verify(der, self._ca, name)
        except OtherKey:
            certificate = self._pki.verify(der, self._ca, name, pinned=False)
            if call == "GetAmendments" and self._had_key(name, key_digest(certificate_key(certificate))):
                return certificate
            raise

    def _refuse(self, context: Context, caller: str, call: str, status: Status, reason: str) -> Refusal:
        self._connections.refused(context.peer())
        if self._refused_calls[caller].take():
            self._service.record_refused_call(caller, call, reason)
        return Refusal(status, reason)


async def _read(requests: Requests, parse: Callable[[bytes], Fact]) -> Fact:
    """Read and parse the request; raise ``WireError`` if none arrives in time, or it is invalid."""
    try:
        async with asyncio.timeout(limits.REQUEST_WAIT_S):
            return parse(await anext(requests))
    except StopAsyncIteration:
        raise WireError("the call has no request") from None
    except TimeoutError:
        raise WireError(f"the request did not arrive within {limits.REQUEST_WAIT_S:g} s") from None


class MessageType(Protocol[Message]):
    """A generated class of messages."""

    def FromString(self, serialized: bytes, /) -> Message:  # noqa: N802 - protobuf's name
        """Parse the bytes; raise ``DecodeError`` if they are not such a message."""


def parser(kind: MessageType[Message], decode: Callable[[Message], Fact]) -> Callable[[bytes], Fact]:
    """Build a function that parses and validates a request's bytes; it raises ``WireError``."""

    def parse(content: bytes) -> Fact:
        try:
            message = kind.FromString(content)
        except DecodeError:
            raise WireError("the request's bytes are no message of this call") from None
        return decode(message)

    return parse


GREETING = parser(pb.Greeting, wire.decode_greeting)
PULSE = parser(pb.Pulse, wire.decode_pulse)
MANIFEST_REQUEST = parser(pb.ManifestRequest, wire.decode_manifest_request)
FETCH_REQUEST = parser(pb.FetchRequest, wire.decode_fetch_request)
REPORT = parser(pb.Metrics, wire.decode_report)
SIGNED_MANIFESTS = parser(pb.SignedManifests, wire.decode_manifests)
AFTER = parser(pb.After, amendments.decode_after)
SUM_REQUEST = parser(pb.SumRequest, sum_statements.decode_sum_request)
HEALTH_REQUEST = parser(health_pb2.HealthCheckRequest, lambda message: str(message.service))


class ExchangeHandlers(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # it takes none when the program runs
    """Handlers of all methods, each behind the guard.

    gRPC passes on a request's bytes only when a handler reads them, and never parses them.
    """

    def __init__(
        self,
        service: PeerCalls,
        guard: CallGuard,
        reports: ReportHandler | None,
        compare: CompareHandler | None,
        chain: AmendmentsHandler | None,
        sums: SumHandler | None,
        *,
        is_relayed: Callable[[str], bool],
    ) -> None:
        self._chain, self._sums, self._is_relayed = chain, sums, is_relayed
        self._service = service
        self._guard = guard
        self._reports = reports
        self._compare = compare
        unary = grpc.stream_unary_rpc_method_handler
        self._handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = {
            f"/{SERVICE}/Hello": unary(self._hello),
            f"/{SERVICE}/Beat": unary(self._beat),
            f"/{SERVICE}/GetManifest": unary(self._get_manifest),
            f"/{SERVICE}/FetchArtifact": grpc.stream_stream_rpc_method_handler(self._fetch_artifact),
            f"/{SERVICE}/PutMetrics": unary(self._put_metrics),
            f"/{SERVICE}/CompareManifests": unary(self._compare_manifests),
            f"/{SERVICE}/GetAmendments": unary(self._get_amendments),
            f"/{SERVICE}/GetSum": unary(self._get_sum),
            HEALTH_CHECK: unary(self._check_health),
        }
        self._unsupported = unary(self._refuse_method)

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return self._handlers.get(details.method, self._unsupported)

    async def _hello(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "Hello", requests, GREETING) as (caller, greeting):
            return wire.encode_greeting(await self._service.hello(caller, greeting)).SerializeToString()

    async def _beat(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "Beat", requests, PULSE) as (caller, pulse):
            return wire.encode_pulse(await self._service.beat(caller, pulse)).SerializeToString()

    async def _get_manifest(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "GetManifest", requests, MANIFEST_REQUEST) as (caller, (wanted, wait_s)):
            reply = await self._service.manifest(caller, wanted, wait_s=wait_s)
            return wire.encode_reply(reply).SerializeToString()

    async def _fetch_artifact(self, requests: Requests, context: Context) -> None:
        """Stream the file from an offset; only a coroutine that writes notices a cancellation at once."""
        async with self._guard.admit(context, "FetchArtifact", requests, FETCH_REQUEST) as (caller, request):
            wanted, sha256, offset = request
            with self._guard.stream(context, caller):
                relayed = self._is_relayed(context.peer())
                grant = self._service.open_artifact(caller, wanted, sha256=sha256, offset=offset, relayed=relayed)
                await self._send(caller, grant, offset, context)

    async def _put_metrics(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "PutMetrics", requests, REPORT) as (caller, report):
            if self._reports is None:
                raise Refusal(Status.UNSUPPORTED, "this site takes no evaluations")
            await self._reports(caller, report)
            return pb.MetricsReceipt().SerializeToString()

    async def _compare_manifests(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "CompareManifests", requests, SIGNED_MANIFESTS) as (caller, shown):
            if self._compare is None:
                raise Refusal(Status.UNSUPPORTED, "this site compares no manifests")
            return wire.encode_manifests(await self._compare(caller, shown)).SerializeToString()

    async def _get_amendments(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "GetAmendments", requests, AFTER) as (caller, after):
            if self._chain is None:
                raise Refusal(Status.UNSUPPORTED, "this site has no chain of amendments")
            reply = self._chain(caller, tls.caller_certificate(context.auth_context()), after)
            return amendments.encode_amendments(reply).SerializeToString()

    async def _get_sum(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "GetSum", requests, SUM_REQUEST) as (caller, (request, wait_s)):
            if self._sums is None:
                raise Refusal(Status.UNSUPPORTED, "this site takes part in no secure sums")
            reply = await self._sums(caller, request, wait_s)
            return sum_statements.encode_sum_reply(reply).SerializeToString()

    async def _check_health(self, requests: Requests, context: Context) -> bytes:
        """Answer a health check: a peer that gets the answer has reached a serving daemon."""
        async with self._guard.admit(context, "health Check", requests, HEALTH_REQUEST) as (_, service):
            if service not in ("", SERVICE):
                raise Refusal(Status.MISSING, "there is no such service")
            return bytes(HealthCheckResponse(status=HealthCheckResponse.SERVING).SerializeToString())

    async def _refuse_method(self, requests: Requests, context: Context) -> bytes:
        async with self._guard.admit(context, "unknown method", requests, bytes):
            raise Refusal(Status.UNSUPPORTED, "this site does not answer this method")

    async def _send(self, caller: SiteName, grant: Grant, offset: int, context: Context) -> None:
        """Stream a granted file, and record its outcome even if caller or server goes away."""
        outgoing = OutgoingArtifact(grant.path, offset=offset)
        outcome: Outcome = "broken"
        message, clock = b"", asyncio.get_running_loop().time
        admitted_s = clock()

        async def write(chunk: bytes) -> None:
            nonlocal message, admitted_s  # the message lives until the next one: else glibc returns its pages
            if clock() - admitted_s >= READMIT_S:
                self._guard.caller(context, "FetchArtifact")
                admitted_s = clock()
            message = wire.encode_chunk(chunk)
            try:
                await context.write(message)
            except Exception as error:  # its type is private to gRPC; the connection is gone, so no status can follow
                raise asyncio.CancelledError from error

        try:
            await outgoing.send(write)
            outcome = "complete"
        except TimeoutError:
            raise Refusal(Status.BUSY, f"no byte was taken for {limits.STALL_S:g} s") from None
        except OSError as error:
            if error.errno in tls.NO_DESCRIPTORS:
                raise Refusal(Status.BUSY, "this site has no file descriptor free") from error
            log.error("artifact not readable", extra={"peer": caller, "path": str(grant.path), "reason": str(error)})
            raise Refusal(Status.MISSING, "the artifact cannot be read from this site's disk") from error
        except ValueError as error:
            raise Refusal(Status.MALFORMED, str(error)) from error
        finally:
            self._service.record_sent(grant, size=outgoing.sent, outcome=outcome)
