"""What this site asks its peers: greetings, beats, manifests and artifacts, over one channel a peer.

Every call has a deadline. Its failure says what to do: ``Unreachable`` asks again later, ``Refused`` does not,
``Misbehaved`` names a peer that broke the protocol. A manifest is looked into only after its signature holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import grpc
from google.protobuf.message import DecodeError

from peer.core import limits
from peer.core.messages import EvaluationResult, Heartbeat, Hello, Manifest, SignedManifest, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.errors import CertificateError, one_line
from peer.files import artifact_path
from peer.identity.certificates import Identity, is_refused, verify_certificate
from peer.pb import peer_pb2 as pb
from peer.pb import peer_pb2_grpc as rpc
from peer.transport import tls, wire
from peer.transport.bounds import WireError
from peer.transport.header import check_safetensors_header
from peer.transport.manifest import verify_manifest
from peer.transport.transfer import ArtifactWrong, Incoming, holds
from peer.transport.wire import encode_report

if TYPE_CHECKING:
    from peer.pb.peer_pb2_grpc import ExchangeAsyncStub

FETCH = "/mhfl.v1.Exchange/FetchArtifact"  # dialled without the stub, which would copy every chunk twice

# A call that ended like this may succeed later; so does one that this site broke off.
AGAIN = frozenset(
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
        """Name the peer, and cut what it said to a length that can be shown."""
        self.site = site
        self.reason = one_line(reason)[: limits.TEXT_BYTES_MAX]
        super().__init__(f"{site}: {self.reason}")


class Unreachable(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer did not answer, or is busy: ask again later."""


class Refused(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer said no, and will say so again."""


class Misbehaved(ExchangeError):  # noqa: N818 - the name is the fact
    """The peer sent what it must not send."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A verified manifest, with what was asked for and the signed bytes for the journal."""

    request: wire.ArtifactRequest
    signed: SignedManifest
    manifest: Manifest


@dataclass(slots=True)
class PeerChannel:
    """A channel to a peer; a retired one is closed when its last call ends."""

    address: str
    stamp: tuple[tuple[int, ...], ...]
    own: Identity
    channel: grpc.aio.Channel
    stub: ExchangeAsyncStub
    fetch: grpc.aio.UnaryStreamMultiCallable[pb.FetchRequest, memoryview]
    calls: int = 0
    retired: bool = False


class ExchangeClient:
    """Asks one site's peers."""

    def __init__(
        self,
        *,
        pki: tls.Pki,
        federation: Sha256,
        address: Callable[[SiteName], str | None],
        refused: Container[str] = frozenset(),
        stall_s: float = limits.STALL_S,
    ) -> None:
        """Prepare to dial.

        Args:
            pki: this site's certificate and key, which may be renewed meanwhile, and the time for certificates.
            federation: the digest that manifests must name.
            address: where a site is thought to be, as ``host:port``; nothing while that is unknown.
            refused: SHA-256 digests of certificates whose manifests are not taken.
            stall_s: a stream without a byte for so long is broken off.
        """
        self._pki = pki
        self._federation = federation
        self._address = address
        self._refused = refused
        self._stall_s = stall_s
        self._lines: dict[SiteName, PeerChannel] = {}
        self._receiving: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            await line.channel.close(None)

    async def hello(self, peer: SiteName, greeting: Hello) -> Hello:
        """Greet a peer; ``Refused`` says what differs."""
        message = wire.encode_greeting(greeting)
        async with self._line(peer) as line:
            return wire.decode_greeting(await line.stub.Hello(message, timeout=limits.HELLO_TIMEOUT_S))

    async def beat(self, peer: SiteName, pulse: Heartbeat) -> Heartbeat:
        """Tell a peer where this site is, and hear where it is."""
        message = wire.encode_pulse(pulse)
        async with self._line(peer) as line:
            return wire.decode_pulse(await line.stub.Beat(message, timeout=limits.BEAT_TIMEOUT_S))

    async def put_report(self, peer: SiteName, report: EvaluationResult) -> None:
        """Tell a peer how its model did here; it has it in its journal when this returns."""
        message = encode_report(report)
        async with self._line(peer) as line:
            await line.stub.PutMetrics(message, timeout=limits.HELLO_TIMEOUT_S)

    async def get_manifest(
        self, peer: SiteName, request: wire.ArtifactRequest, *, wait_s: float = limits.MANIFEST_WAIT_S
    ) -> Offer | Unavailable:
        """What the peer has for this site, verified; the peer may take ``wait_s`` until it exists.

        Raises:
            Misbehaved: certificate, signature or content are not what was asked for; the reason says which.
        """
        message = wire.encode_manifest_request(request, wait_s=wait_s)
        async with self._line(peer) as line:
            reply = wire.decode_reply(await line.stub.GetManifest(message, timeout=wait_s + limits.HELLO_TIMEOUT_S))
            if isinstance(reply, Unavailable):
                return reply
            try:
                certificate = verify_certificate(reply.certificate_der, line.own.ca, peer, self._pki.clock())
                if is_refused(certificate, self._refused):
                    raise ValueError("the certificate is refused here")
                manifest = verify_manifest(reply, certificate)
                self._compare(manifest, request, peer)
            except ValueError as error:
                raise Misbehaved(peer, f"manifest: {error}") from error
            return Offer(request, reply, manifest)

    def _compare(self, manifest: Manifest, request: wire.ArtifactRequest, peer: SiteName) -> None:
        for name, said, asked in (
            ("federation", manifest.federation, self._federation),
            ("origin", manifest.origin, peer),
            ("kind", manifest.artifact.kind, request.kind),
            ("owner", manifest.artifact.owner, request.owner),
        ):
            if said != asked:
                raise ValueError(f"{name} is {said}, asked for was {asked}")
        if manifest.evaluation != (request.purpose == "evaluate"):
            raise ValueError(f"it is {'' if manifest.evaluation else 'not '}for evaluation")
        if manifest.round != request.for_round and not (request.earlier and manifest.round < request.for_round):
            raise ValueError(f"it is of round {manifest.round}, asked for was {request.for_round}")

    async def fetch(self, offer: Offer, folder: Path, on_bytes: Callable[[int], None] | None = None) -> Path:
        """The artifact of an offer, verified, under its final name in the folder; what is there already is not sent.

        A stream that breaks or stalls is resumed at its offset until nothing came for twice ``stall_s``; then the part
        stays for the next call. ``on_bytes`` hears how many bytes are here, each time some came.

        Raises:
            Unreachable, Refused: as the peer's answer was.
            Misbehaved: what came is not what the manifest promised; nothing of it is left.
            InsufficientSpace: it is larger than the free space here; nothing of it is left.
            DiskError: this site's disk failed.
        """
        artifact = offer.manifest.artifact
        path = artifact_path(folder, artifact.sha256)
        check = functools.partial(check_safetensors_header, artifact=artifact)
        async with self._receiving.setdefault(path, asyncio.Lock()):
            try:
                if await asyncio.to_thread(holds, path, sha256=artifact.sha256, size=artifact.bytes):
                    await asyncio.to_thread(check, path)
                    return path
                while True:
                    incoming = Incoming(folder, sha256=artifact.sha256, size=artifact.bytes)
                    try:
                        async with incoming:
                            await self._receive(offer, incoming, on_bytes or (lambda _: None))
                            return await incoming.finish(check)
                    except ArtifactWrong:
                        if not incoming.resumed:  # else the part on this site's disk may have been wrong
                            raise
            except (ArtifactWrong, WireError) as error:
                raise Misbehaved(offer.manifest.origin, str(error)) from error

    async def _receive(self, offer: Offer, incoming: Incoming, on_bytes: Callable[[int], None]) -> None:
        """Take streams until every byte is here."""
        artifact = offer.manifest.artifact
        loop = asyncio.get_running_loop()
        moved_s, fruitless = loop.time(), 0
        while incoming.received < artifact.bytes:
            held = incoming.received
            try:
                await self._stream(offer, incoming, on_bytes)
                if incoming.received < artifact.bytes:
                    raise ArtifactWrong(f"the stream ended after {incoming.received} of {artifact.bytes} bytes")
            except Misbehaved as error:
                raise ArtifactWrong(error.reason) from error
            except Unreachable:
                if incoming.received > held:
                    moved_s, fruitless = loop.time(), 0
                elif loop.time() - moved_s > 2 * self._stall_s:
                    raise
                await asyncio.sleep(limits.DIAL_BACKOFF_S[min(fruitless, len(limits.DIAL_BACKOFF_S) - 1)])
                fruitless += 1

    async def _stream(self, offer: Offer, incoming: Incoming, on_bytes: Callable[[int], None]) -> None:
        """Take one stream to its end."""
        peer, loop = offer.manifest.origin, asyncio.get_running_loop()
        message = wire.encode_fetch_request(
            offer.request, sha256=offer.manifest.artifact.sha256, offset=incoming.received
        )
        async with self._line(peer) as line:
            call = line.fetch(message, timeout=limits.WAIT_MAX_S)
            try:
                async with asyncio.timeout(self._stall_s) as stall:
                    async for chunk in call:
                        if chunk:
                            await incoming.feed(chunk)
                            on_bytes(incoming.received)
                            stall.reschedule(loop.time() + self._stall_s)
            except TimeoutError:
                raise Unreachable(peer, f"no byte came for {self._stall_s:g} s") from None
            finally:
                call.cancel()

    @contextlib.asynccontextmanager
    async def _line(self, peer: SiteName) -> AsyncIterator[PeerChannel]:
        """A channel to the peer for one call, made anew when its address or this site's certificate changed."""
        address = self._address(peer)
        if address is None:
            raise Unreachable(peer, "its address is not known")
        line = await self._current(peer, address)
        line.calls += 1
        try:
            yield line
        except grpc.aio.AioRpcError as error:
            raise _failure(peer, error) from None
        except (WireError, DecodeError) as error:
            raise Misbehaved(peer, str(error)) from error
        finally:
            line.calls -= 1
            if line.retired:
                await self._retire(line)

    async def _current(self, peer: SiteName, address: str) -> PeerChannel:
        line, stamp = self._lines.get(peer), self._pki.stamp()
        usable = line is not None and self._pki.clock() <= line.own.certificate.not_valid_after_utc
        if line is not None and usable and (line.address, line.stamp) == (address, stamp):
            return line
        try:
            own = self._pki.load()
        except CertificateError:
            if line is None or not usable or line.address != address:
                raise
            return line  # a renewal that is half written: the certificate before it goes on
        channel = grpc.aio.secure_channel(address, tls.channel_credentials(own), options=tls.channel_options(peer))
        fetch = channel.unary_stream(FETCH, pb.FetchRequest.SerializeToString, wire.decode_chunk)
        fresh = self._lines[peer] = PeerChannel(address, stamp, own, channel, rpc.ExchangeStub(channel), fetch)
        if line is not None:
            await self._retire(line)
        return fresh

    async def _retire(self, line: PeerChannel) -> None:
        line.retired = True
        if not line.calls:
            await line.channel.close(None)


def _failure(peer: SiteName, error: grpc.aio.AioRpcError) -> ExchangeError:
    """What a gRPC status means for the caller."""
    code, reason = error.code(), error.details() or error.code().name
    if code in AGAIN:
        return Unreachable(peer, reason)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # what gRPC itself says of a message over MESSAGE_BYTES_MAX
        return Misbehaved(peer, reason)
    return Refused(peer, reason)
