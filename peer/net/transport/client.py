"""The client for calls to peers.

Each peer gets one channel for greetings, heartbeats and manifests, one for the artifacts of an exchange, and one for
lent models. So no heartbeat waits behind an artifact on a slow line, and no exchange shares its flow-control window
with the models of the Global Test.

Every call has a deadline. After ``Unreachable`` the caller may try again later, after ``Refused`` it need not.
``Misbehaved`` names a peer that broke the protocol. The client decodes a manifest only after it has verified the
signature.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import DecodeError, Message

from peer.core import limits
from peer.core.artifacts import EvaluationResult
from peer.core.messages import AmendmentsReply, Heartbeat, Hello, Manifest, SignedManifest, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.errors import CertificateError, DiskError, one_line
from peer.files import artifact_path
from peer.net.transport import amendments, proxy, sum_statements, tls, wire
from peer.net.transport.bounds import WireError
from peer.net.transport.header import check_safetensors_header
from peer.net.transport.manifest import verify_manifest
from peer.net.transport.transfer import (
    STREAMS_AT_ONCE,
    ArtifactWrong,
    IncomingArtifact,
    PartVanished,
    StreamTurn,
    is_complete,
)
from peer.net.transport.wire import encode_report
from peer.pb import peer_pb2 as pb
from peer.site.identity.certificates import Identity, OtherKey, is_refused

SERVICE = "/mhfl.v1.Exchange/"
Answer = TypeVar("Answer", bound=Message)
Use = Literal["calls", "exchange", "evaluation"]
"""What a channel carries: short calls such as heartbeats, the artifacts of an exchange, or lent models."""
PARTS_VANISHED_MAX = 3
"""Attempts to receive an artifact again after someone deleted its part; then the client blames the disk."""

# A call that failed with one of these may succeed later. CANCELLED: this site cancelled the call.
RETRYABLE = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.DATA_LOSS,
    }
)


class ExchangeError(Exception):
    """A call to a peer failed; the text is the reason, in one printable line."""

    def __init__(self, site: SiteName, reason: str) -> None:
        self.site = site
        self.reason = one_line(reason)[: limits.TEXT_BYTES_MAX]
        super().__init__(f"{site}: {self.reason}")


class Unreachable(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer did not answer, or is busy: a later call may succeed."""


class Refused(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer refused the call, and would refuse it again."""


class NotAdmitted(Refused):
    """The peer does not admit this site: it expelled this site, or does not know yet that it was added."""


class Mismatched(Refused):
    """The two greetings do not match, as between programs without a common version of the protocol."""


class Missing(Refused):
    """The peer does not have the requested data, or has deleted it."""


class Misbehaved(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer broke the protocol."""


REFUSALS: Mapping[grpc.StatusCode, type[Refused]] = {
    grpc.StatusCode.FAILED_PRECONDITION: Mismatched,
    grpc.StatusCode.NOT_FOUND: Missing,
    grpc.StatusCode.UNAUTHENTICATED: NotAdmitted,
}


@dataclass(frozen=True, slots=True)
class Offer:
    """A verified manifest with its request, and the signed bytes for the journal."""

    request: wire.ArtifactRequest
    signed: SignedManifest
    manifest: Manifest


class ReceiveWindow:
    """Splits the HTTP/2 flow-control window among concurrent downloads.

    A single stream gets the whole window, concurrent streams get a share each. A channel keeps the window it was opened
    with, so a stream that needs another window needs a new channel.
    """

    def __init__(self, streams: int) -> None:
        self.share = max(limits.STREAM_WINDOW_BYTES // max(1, streams), limits.STREAM_WINDOW_BYTES_MIN)
        self._under_way = 0

    @contextlib.contextmanager
    def stream(self, size: int) -> Iterator[int]:
        """Yield the window in bytes for a stream of ``size`` bytes; the stream counts as active during the block."""
        alone = not self._under_way
        self._under_way += 1
        try:
            yield limits.STREAM_WINDOW_BYTES if alone and size > self.share else self.share
        finally:
            self._under_way -= 1


@dataclass(slots=True)
class PeerChannel:
    """A channel to a peer; a retired one is closed when its last call ends.

    Answers are parsed here and not by gRPC, which returns ``None`` for one that it cannot parse.
    """

    address: str
    stamp: tuple[tuple[int, ...], ...]
    own: Identity
    channel: grpc.aio.Channel
    window_bytes: int
    calls: int = 0
    retired: bool = False

    async def ask(self, call: str, request: Message, answer: type[Answer], *, timeout_s: float) -> Answer:
        """Make a unary call; raise ``DecodeError`` if the answer is not an ``answer`` message."""
        method: grpc.aio.UnaryUnaryMultiCallable[Message, bytes] = self.channel.unary_unary(
            SERVICE + call, request_serializer=_serialize, response_deserializer=bytes
        )
        return answer.FromString(await method(request, timeout=timeout_s))

    def fetch(self, request: pb.FetchRequest, *, timeout_s: float) -> grpc.aio.UnaryStreamCall[Any, bytes]:
        """Start a stream of encoded chunks."""
        method: grpc.aio.UnaryStreamMultiCallable[Message, bytes] = self.channel.unary_stream(
            SERVICE + "FetchArtifact", request_serializer=_serialize, response_deserializer=bytes
        )
        return method(request, timeout=timeout_s)


class ExchangeClient:
    """Calls one site's peers."""

    def __init__(
        self,
        *,
        pki: tls.Pki,
        federation: Sha256,
        address: Callable[[SiteName], str | None],
        refused: Container[str] = frozenset(),
        stall_s: float = limits.STALL_S,
        beat_s: float = limits.BEAT_S,
        silence_s: float = limits.SILENCE_S,
        proxy_for: proxy.Choose = proxy.direct,
        streams: int = 1,
        evaluations: int = 1,
    ) -> None:
        """Prepare to dial.

        Args:
            pki: this site's certificate and key, which may be renewed meanwhile, and the clock for certificates.
            federation: the digest that manifests must name.
            address: returns a site's presumed address as ``host:port``; ``None`` while it is unknown.
            refused: SHA-256 digests of certificates whose manifests the client refuses.
            stall_s: a stream that brings no byte for this long is cancelled.
            beat_s: the heartbeat interval, of which an answer may take ``BEAT_TIMEOUT_SHARE``.
            silence_s: the silence limit, within which the client notices a broken connection. A long limit extends all
                other timeouts except those of heartbeats (``limits.patience``).
            proxy_for: the proxy through which to dial a peer at an address.
            streams: the maximum of concurrent artifacts of an exchange; they share the flow-control window.
            evaluations: the same maximum for lent models, beside those of the exchange.
        """
        self._windows: Mapping[Use, ReceiveWindow] = {
            "calls": ReceiveWindow(streams),
            "exchange": ReceiveWindow(streams),
            "evaluation": ReceiveWindow(evaluations),
        }
        self._pki = pki
        self._federation = federation
        self._address = address
        self._refused = refused
        self._timeout_s = limits.HELLO_TIMEOUT_S * limits.patience(silence_s)
        self._stall_s = stall_s * limits.patience(silence_s)
        self._beat_timeout_s = beat_s * limits.BEAT_TIMEOUT_SHARE
        self._silence_s = silence_s
        self._proxy_for = proxy_for
        self._turns = asyncio.Semaphore(STREAMS_AT_ONCE)
        self._channels: dict[tuple[SiteName, Use], PeerChannel] = {}
        self._receiving: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        channels, self._channels = list(self._channels.values()), {}
        for peer_channel in channels:
            await peer_channel.channel.close(None)

    async def hello(self, peer: SiteName, greeting: Hello) -> Hello:
        """Greet a peer and return its greeting; ``Refused`` states the difference."""
        message = wire.encode_greeting(greeting)
        async with self._open(peer) as peer_channel:
            answer = await peer_channel.ask("Hello", message, pb.Greeting, timeout_s=self._timeout_s)
            return wire.decode_greeting(answer)

    async def beat(self, peer: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Send this site's heartbeat to a peer and return the peer's."""
        message = wire.encode_pulse(pulse)
        async with self._open(peer) as peer_channel:
            timeout_s = self._beat_timeout_s
            return wire.decode_pulse(await peer_channel.ask("Beat", message, pb.Pulse, timeout_s=timeout_s))

    async def put_report(self, peer: SiteName, report: EvaluationResult) -> None:
        """Send a peer the evaluation of its model; the peer has journalled it when this returns."""
        message = encode_report(report)
        async with self._open(peer) as peer_channel:
            await peer_channel.ask("PutMetrics", message, pb.MetricsReceipt, timeout_s=self._timeout_s)

    async def compare_manifests(self, peer: SiteName, signed: Sequence[SignedManifest]) -> list[SignedManifest]:
        """Show a peer one manifest, or an equivocation proof of two; return the manifests it holds against them."""
        message = wire.encode_manifests(signed)
        async with self._open(peer) as peer_channel:
            answer = await peer_channel.ask("CompareManifests", message, pb.SignedManifests, timeout_s=self._timeout_s)
            return wire.decode_manifests(answer)

    async def get_amendments(self, peer: SiteName, *, after: int) -> AmendmentsReply:
        """Fetch a peer's amendments after a number, with round keys and notices; nothing is verified yet."""
        message = amendments.encode_after(after)
        async with self._open(peer) as peer_channel:
            answer = await peer_channel.ask("GetAmendments", message, pb.Amendments, timeout_s=self._timeout_s)
            return amendments.decode_amendments(answer)

    async def get_manifest(
        self, peer: SiteName, request: wire.ArtifactRequest, *, wait_s: float = limits.MANIFEST_WAIT_S
    ) -> Offer | Unavailable:
        """Fetch and verify the peer's manifest for this request; the peer may wait up to ``wait_s`` until it exists.

        Raises:
            Unreachable: the peer did not answer, or signed with another key than the pinned one.
            Misbehaved: certificate, signature or content do not fit the request; the reason says which.
        """
        message = wire.encode_manifest_request(request, wait_s=wait_s)
        async with self._open(peer) as peer_channel:
            timeout_s = wait_s + self._timeout_s
            answer = await peer_channel.ask("GetManifest", message, pb.ManifestReply, timeout_s=timeout_s)
            reply = wire.decode_reply(answer)
            if isinstance(reply, Unavailable):
                return reply
            try:
                certificate = self._pki.verify(reply.certificate_der, peer_channel.own.ca, peer)
                if is_refused(certificate, self._refused):
                    raise ValueError("the certificate is refused here")
                manifest = verify_manifest(reply, certificate)
                self._compare(manifest, request, peer)
            except OtherKey as error:
                raise Unreachable(peer, f"manifest: {error}") from error
            except ValueError as error:
                raise Misbehaved(peer, f"manifest: {error}") from error
            return Offer(request, reply, manifest)

    async def get_sum(
        self, peer: SiteName, request: sum_statements.SumRequest, *, wait_s: float = limits.MANIFEST_WAIT_S
    ) -> bytes | Unavailable:
        """Fetch a peer's encoded statements on a sum; the peer may wait up to ``wait_s`` until it has others.

        The statements are bounded, and not decoded yet: their digest is the next request's ``known``.
        """
        message = sum_statements.encode_sum_request(request, wait_s=wait_s)
        async with self._open(peer) as peer_channel:
            answer = await peer_channel.ask("GetSum", message, pb.SumReply, timeout_s=wait_s + self._timeout_s)
            return sum_statements.decode_sum_reply(answer)

    def _compare(self, manifest: Manifest, request: wire.ArtifactRequest, peer: SiteName) -> None:
        for name, stated, requested in (
            ("federation", manifest.federation, self._federation),
            ("origin", manifest.origin, peer),
            ("kind", manifest.artifact.kind, request.kind),
            ("owner", manifest.artifact.owner, request.owner),
        ):
            if stated != requested:
                raise ValueError(f"{name} is {stated}, asked for was {requested}")
        if manifest.evaluation != (request.purpose == "evaluate"):
            raise ValueError(f"it is {'' if manifest.evaluation else 'not '}for evaluation")
        if manifest.round != request.for_round and not (request.earlier and manifest.round < request.for_round):
            raise ValueError(f"it is of round {manifest.round}, asked for was {request.for_round}")

    async def fetch(
        self, offer: Offer, folder: Path, on_bytes: Callable[[int], None] | None = None, *, durable: bool = True
    ) -> Path:
        """Fetch and verify an offered artifact, unless the folder has it already; return its path.

        A stream that breaks or stalls is resumed at its offset until no byte has arrived for twice ``stall_s``; then
        the part stays on disk for the next call. ``on_bytes`` gets the number of received bytes after each chunk.
        Without ``durable``, the caller syncs the artifact later with ``sync_artifacts``.

        Raises:
            Unreachable, Refused: the peer's answer.
            Misbehaved: the bytes are not those of the manifest; the part is deleted.
            InsufficientSpace: this site has no space for the artifact; the part is deleted.
            DiskError: this site's disk failed.
        """
        artifact = offer.manifest.artifact
        path = artifact_path(folder, artifact.sha256)
        check = functools.partial(check_safetensors_header, manifest=offer.manifest)
        async with self._receiving.setdefault(path, asyncio.Lock()):
            try:
                is_here = functools.partial(is_complete, path, sha256=artifact.sha256, size=artifact.bytes, check=check)
                if path.exists() and await asyncio.to_thread(is_here):  # rare; only then is there a file to read
                    return path
                vanished = 0
                while True:
                    async with StreamTurn(self._turns) as turn:
                        incoming = IncomingArtifact(
                            folder, sha256=artifact.sha256, size=artifact.bytes, durable=durable
                        )
                        try:
                            async with incoming:
                                await self._receive(offer, incoming, on_bytes or (lambda _: None), turn)
                                return await incoming.finish(check)
                        except ArtifactWrong:
                            if not incoming.resumed:  # else the earlier part may be at fault: fetch all of it again
                                raise
                        except PartVanished:
                            vanished += 1
                            if vanished > PARTS_VANISHED_MAX:
                                raise DiskError(f"something deletes the files of {folder}") from None
            except (ArtifactWrong, WireError) as error:
                raise Misbehaved(offer.manifest.origin, str(error)) from error

    async def _receive(
        self, offer: Offer, incoming: IncomingArtifact, on_bytes: Callable[[int], None], turn: StreamTurn
    ) -> None:
        """Read streams until every byte has arrived; each stream needs a turn."""
        artifact = offer.manifest.artifact
        loop = asyncio.get_running_loop()
        progress_s, failures = loop.time(), 0
        while incoming.received < artifact.bytes:
            received_before = incoming.received
            try:
                await self._stream(offer, incoming, on_bytes, turn)
                if incoming.received < artifact.bytes:
                    raise ArtifactWrong(f"the stream ended after {incoming.received} of {artifact.bytes} bytes")
            except Misbehaved as error:
                raise ArtifactWrong(error.reason) from error
            except Unreachable:
                if incoming.received > received_before:
                    progress_s, failures = loop.time(), 0
                elif loop.time() - progress_s > 2 * self._stall_s:
                    raise
                turn.give_back()
                await asyncio.sleep(limits.DIAL_BACKOFF_S[min(failures, len(limits.DIAL_BACKOFF_S) - 1)])
                failures += 1
                asked_s = loop.time()
                await turn.take()
                progress_s += loop.time() - asked_s  # the peer is not to blame for the wait

    async def _stream(
        self, offer: Offer, incoming: IncomingArtifact, on_bytes: Callable[[int], None], turn: StreamTurn
    ) -> None:
        """Read one stream to its end."""
        peer, loop = offer.manifest.origin, asyncio.get_running_loop()
        message = wire.encode_fetch_request(
            offer.request, sha256=offer.manifest.artifact.sha256, offset=incoming.received
        )
        use: Use = "evaluation" if offer.request.purpose == "evaluate" else "exchange"
        size = offer.manifest.artifact.bytes - incoming.received
        async with contextlib.AsyncExitStack() as stack:
            window_bytes = stack.enter_context(self._windows[use].stream(size))
            peer_channel = await stack.enter_async_context(self._open(peer, use, window_bytes))
            call = peer_channel.fetch(message, timeout_s=limits.WAIT_MAX_S)
            try:
                async with asyncio.timeout(self._stall_s) as stall:
                    async for encoded in call:
                        if chunk := wire.decode_chunk(encoded):
                            await incoming.feed(chunk)
                            on_bytes(incoming.received)
                            turn.moved += len(chunk)
                            stall.reschedule(loop.time() + self._stall_s)
            except TimeoutError:
                raise Unreachable(peer, f"no byte came for {self._stall_s:g} s") from None
            finally:
                call.cancel()

    @contextlib.asynccontextmanager
    async def _open(
        self, peer: SiteName, use: Use = "calls", window_bytes: int | None = None
    ) -> AsyncIterator[PeerChannel]:
        """Open a channel to the peer for one call; a new one if address, certificate or window changed."""
        address = self._address(peer)
        if address is None:
            raise Unreachable(peer, "its address is not known")
        peer_channel, former = self._channel_to(peer, address, use, window_bytes or self._windows[use].share)
        peer_channel.calls += 1  # before anything is awaited: a newer channel would close this one at once
        try:
            if former is not None:
                await self._retire(former)
            yield peer_channel
        except grpc.aio.AioRpcError as error:
            failure = _failure(peer, error)
            if isinstance(failure, NotAdmitted) and self._is_expired(peer_channel):
                raise Unreachable(peer, failure.reason) from None  # a retry with a renewed certificate will be admitted
            raise failure from None
        except DecodeError as error:
            raise Misbehaved(peer, f"its answer is no message of mhfl.v1: {error}") from error
        except WireError as error:
            raise Misbehaved(peer, str(error)) from error
        finally:
            peer_channel.calls -= 1
            if peer_channel.retired:
                await self._retire(peer_channel)

    def _channel_to(
        self, peer: SiteName, address: str, use: Use, window_bytes: int
    ) -> tuple[PeerChannel, PeerChannel | None]:
        """Return the channel for a call, and the former channel if it is to be retired."""
        former, stamp = self._channels.get((peer, use)), self._pki.stamp()
        usable = former is not None and not self._is_expired(former)
        current = (address, stamp, window_bytes)
        if former is not None and usable and (former.address, former.stamp, former.window_bytes) == current:
            return former, None
        try:
            own = self._pki.load()
        except CertificateError:
            if former is None or not usable or former.address != address:
                raise
            return former, None  # a renewal is half written: the former certificate still serves
        through = self._proxy_for(peer, address)
        options = dict(tls.channel_options(peer, window_bytes=window_bytes, silence_s=self._silence_s)) | (
            through.options if through is not None else {}
        )
        channel = grpc.aio.secure_channel(
            address, tls.channel_credentials(own, self._pki.roots()), options=list(options.items())
        )
        peer_channel = self._channels[peer, use] = PeerChannel(address, stamp, own, channel, window_bytes)
        return peer_channel, former

    def _is_expired(self, peer_channel: PeerChannel) -> bool:
        return self._pki.clock() > peer_channel.own.certificate.not_valid_after_utc

    async def _retire(self, peer_channel: PeerChannel) -> None:
        peer_channel.retired = True
        if not peer_channel.calls:
            await peer_channel.channel.close(None)


def _serialize(message: Message) -> bytes:
    return message.SerializeToString()


def _failure(peer: SiteName, error: grpc.aio.AioRpcError) -> ExchangeError:
    code, reason = error.code(), error.details() or error.code().name
    if code in RETRYABLE:
        return Unreachable(peer, reason)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC's own answer to a message over MESSAGE_BYTES_MAX
        return Misbehaved(peer, reason)
    return REFUSALS.get(code, Refused)(peer, reason)
