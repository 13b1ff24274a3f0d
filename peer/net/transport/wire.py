"""Conversion between domain types and protobuf types; every field is checked in both directions.

The body of a manifest is in ``peer.net.transport.manifest``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from peer.core import limits
from peer.core.artifacts import PURPOSES, UNMEASURED, EvaluationResult, Purpose, Unmeasured
from peer.core.class_numbering import DIGEST_BYTES
from peer.core.kinds import KINDS, Kind
from peer.core.messages import ChainHead, Heartbeat, Hello, Seen, SignedManifest, SignedRound, Unavailable
from peer.core.roster import Sha256, SiteName
from peer.net.transport import amendments
from peer.net.transport.bounds import (
    SHOWN_CHARACTERS,
    WireError,
    at_most,
    digest,
    finite,
    known,
    number,
    site,
    text,
)
from peer.pb import peer_pb2 as pb

REASON_OF: dict[pb.Unmeasured.ValueType, Unmeasured] = {
    pb.Unmeasured.Value(f"UNMEASURED_{reason.upper()}"): reason for reason in UNMEASURED if reason != "withheld"
}
CODE = {reason: code for code, reason in REASON_OF.items()}


def encode_report(report: EvaluationResult) -> pb.Metrics:
    """Encode an evaluation for ``PutMetrics``; raise ``WireError`` if other sites would refuse it."""
    _check(report)
    message = pb.Metrics(
        generation=report.generation,
        round=report.round,
        sha256=bytes.fromhex(report.sha256 or ""),
        withheld=report.unmeasured == "withheld",
        samples=report.samples,
        values=report.metrics,
        unmeasured=CODE.get(report.unmeasured, pb.UNMEASURED_UNSPECIFIED),
    )
    at_most("metrics", message.ByteSize(), limits.REQUEST_BYTES_MAX, "bytes")
    return message


def decode_report(message: pb.Metrics) -> EvaluationResult:
    """Decode and check an evaluation from ``PutMetrics``. Raises ``WireError`` naming the field and the limit."""
    unmeasured: Unmeasured = ""
    if message.unmeasured:
        unmeasured = known("metrics.unmeasured", REASON_OF, message.unmeasured)
    if message.withheld:
        if unmeasured:
            raise WireError("metrics.withheld and metrics.unmeasured are both set")
        unmeasured = "withheld"
    report = EvaluationResult(
        generation=message.generation,
        round=message.round,
        sha256=Sha256(message.sha256.hex()) if message.sha256 else None,
        samples=message.samples,
        metrics=dict(message.values),
        unmeasured=unmeasured,
    )
    _check(report)
    return report


def _check(report: EvaluationResult) -> None:
    number("metrics.generation", report.generation, minimum=1, maximum=limits.ROUNDS_MAX)
    number("metrics.round", report.round, minimum=1, maximum=limits.ROUNDS_MAX)
    if report.sha256 is not None or report.unmeasured != "not_received":
        digest("metrics.sha256", report.sha256 or "")
    number("metrics.samples", report.samples)
    at_most("metrics.values", len(report.metrics), limits.METRICS_MAX, "entries")
    if report.unmeasured and (report.metrics or report.samples):
        field = "withheld" if report.unmeasured == "withheld" else "unmeasured"
        raise WireError(f"metrics.values and metrics.samples must be empty where metrics.{field} is set")
    for name, value in report.metrics.items():
        text("metrics.values", name)
        finite(f"metrics.values[{name}]", value, minimum=-float(limits.COUNT_MAX), maximum=float(limits.COUNT_MAX))


VERSION_MAX = (1 << 32) - 1
FEATURE = re.compile(rf"[a-z0-9-]{{1,{limits.FEATURE_BYTES_MAX}}}")
CHUNK_TAG = pb.Chunk.DATA_FIELD_NUMBER << 3 | 2  # protobuf: length-delimited
CHUNK_HEADER_BYTES = 6  # the tag, and a length of at most five bytes

KIND = {kind: pb.Kind.Value(f"KIND_{kind.upper()}") for kind in KINDS}
PURPOSE = {purpose: pb.Purpose.Value(f"PURPOSE_{purpose.upper()}") for purpose in PURPOSES}
UNAVAILABLE = {answer: pb.Unavailable.Value(f"UNAVAILABLE_{answer.name}") for answer in Unavailable}
KIND_OF = {code: kind for kind, code in KIND.items()}
PURPOSE_OF = {code: purpose for purpose, code in PURPOSE.items()}
UNAVAILABLE_OF = {code: answer for answer, code in UNAVAILABLE.items()}


@dataclass(frozen=True, slots=True)
class ArtifactRequest:
    """The artifact that a receiver requests, and its purpose.

    ``for_round`` is the round that consumes it. ``earlier`` accepts the newest one published before that round; only
    ``GetManifest`` uses it. ``epoch`` is the digest of the epoch of ``for_round``; ``None`` is the genesis.
    """

    kind: Kind
    for_round: int
    purpose: Purpose
    owner: SiteName
    earlier: bool = False
    epoch: Sha256 | None = None


def encode_reply(reply: SignedManifest | Unavailable) -> pb.ManifestReply:
    if isinstance(reply, Unavailable):
        return pb.ManifestReply(unavailable=UNAVAILABLE[reply])
    return pb.ManifestReply(manifest=_encode_signed(reply))


def decode_reply(message: pb.ManifestReply) -> SignedManifest | Unavailable:
    """Decode an answer to ``GetManifest``, but not the manifest's body."""
    answer = message.WhichOneof("reply")
    if answer == "unavailable":
        return known("reply.unavailable", UNAVAILABLE_OF, message.unavailable)
    if answer is None:
        raise WireError("reply has neither a manifest nor a reason why there is none")
    return _decode_signed(message.manifest)


def encode_manifests(signed: Sequence[SignedManifest]) -> pb.SignedManifests:
    """Encode signed manifests for ``CompareManifests``; raise ``WireError`` if they do not fit into a message."""
    message = pb.SignedManifests(manifests=[_encode_signed(each) for each in signed])
    at_most("manifests", message.ByteSize(), limits.MESSAGE_BYTES_MAX, "bytes")
    return message


def decode_manifests(message: pb.SignedManifests) -> list[SignedManifest]:
    """Decode the signed manifests of ``CompareManifests``, but not their bodies."""
    at_most("manifests", len(message.manifests), 2, "entries")
    return [_decode_signed(each) for each in message.manifests]


def _encode_signed(signed: SignedManifest) -> pb.SignedManifest:
    return pb.SignedManifest(body=signed.body, signature=signed.signature, certificate_der=signed.certificate_der)


def _decode_signed(message: pb.SignedManifest) -> SignedManifest:
    _check_signed("signed_manifest", message, body_bytes_max=limits.MANIFEST_BYTES_MAX)
    return SignedManifest(message.body, message.signature, message.certificate_der)


def _check_signed(field: str, signed: pb.SignedManifest | pb.SignedRound, *, body_bytes_max: int) -> None:
    for name, value, bytes_max in (
        ("body", signed.body, body_bytes_max),
        ("signature", signed.signature, limits.SIGNATURE_BYTES_MAX),
        ("certificate_der", signed.certificate_der, limits.CERTIFICATE_BYTES_MAX),
    ):
        if not value:
            raise WireError(f"{field}.{name} is empty")
        at_most(f"{field}.{name}", len(value), bytes_max, "bytes")


def encode_greeting(greeting: Hello) -> pb.Greeting:
    _check_greeting(greeting)
    return pb.Greeting(
        protocol=greeting.protocol,
        federation=bytes.fromhex(greeting.federation),
        roster=bytes.fromhex(greeting.roster),
        generation=greeting.generation,
        clock_s=greeting.clock_s,
        seen=_encode_seen(greeting.seen) if greeting.seen is not None else None,
        software=greeting.software,
        round_key_tag=bytes.fromhex(greeting.round_key_tag),
        evaluates=greeting.evaluates,
        protocol_max=greeting.protocol_max,
        features=greeting.features,
        head=encode_head(greeting.head),
        class_names=[bytes.fromhex(digest) for digest in greeting.class_names],
    )


def encode_head(head: ChainHead | None) -> pb.Head | None:
    return None if head is None else pb.Head(number=head.number, digest=bytes.fromhex(head.digest))


def decode_head(field: str, message: pb.Greeting | pb.Pulse | pb.Manifest) -> ChainHead | None:
    """Decode the chain tip that a message states; ``None``, the genesis, if it states none."""
    if not message.HasField("head"):
        return None
    head = ChainHead(message.head.number, Sha256(message.head.digest.hex()))
    check_head(field, head)
    return head


def check_head(field: str, head: ChainHead | None) -> None:
    if head is not None:
        number(f"{field}.head.number", head.number, minimum=1, maximum=limits.AMENDMENTS_MAX)
        digest(f"{field}.head.digest", head.digest)


def _encode_seen(seen: Seen) -> pb.Seen:
    manifest = _encode_signed(seen.manifest) if seen.manifest is not None else None
    digest = bytes.fromhex(seen.sha256)
    return pb.Seen(generation=seen.generation, round=seen.round, sha256=digest, manifest=manifest)


def _decode_seen(message: pb.Seen) -> Seen:
    manifest = _decode_signed(message.manifest) if message.HasField("manifest") else None
    return Seen(message.generation, message.round, message.sha256.hex(), manifest)


def decode_greeting(message: pb.Greeting) -> Hello:
    greeting = Hello(
        protocol=message.protocol,
        federation=Sha256(message.federation.hex()),
        roster=Sha256(message.roster.hex()),
        generation=message.generation,
        clock_s=message.clock_s,
        seen=_decode_seen(message.seen) if message.HasField("seen") else None,
        software=message.software,
        round_key_tag=Sha256(message.round_key_tag.hex()),
        evaluates=message.evaluates if message.HasField("evaluates") else None,
        protocol_max=message.protocol_max,
        features=tuple(message.features),
        class_names=tuple(digest.hex() for digest in message.class_names),
        head=decode_head("greeting", message),
    )
    _check_greeting(greeting)
    return greeting


def _check_greeting(greeting: Hello) -> None:
    check_head("greeting", greeting.head)
    number("greeting.protocol", greeting.protocol, minimum=1, maximum=VERSION_MAX)
    if greeting.protocol_max:
        number("greeting.protocol_max", greeting.protocol_max, minimum=greeting.protocol, maximum=VERSION_MAX)
    at_most("greeting.features", len(greeting.features), limits.FEATURES_MAX, "entries")
    for feature in greeting.features:
        if not FEATURE.fullmatch(feature):
            shown = feature[:SHOWN_CHARACTERS]
            raise WireError(f"greeting.features {shown!r} is not 1 to {limits.FEATURE_BYTES_MAX} of a-z, 0-9 and -")
    at_most("greeting.class_names", len(greeting.class_names), limits.CLASS_NAMES_MAX, "entries")
    for name in greeting.class_names:
        if len(name) not in (0, 2 * DIGEST_BYTES):
            raise WireError(f"greeting.class_names has a digest of {len(name) // 2} bytes, not {DIGEST_BYTES}")
    digest("greeting.federation", greeting.federation)
    digest("greeting.roster", greeting.roster)
    digest("greeting.round_key_tag", greeting.round_key_tag)
    number("greeting.generation", greeting.generation, maximum=limits.ROUNDS_MAX)
    finite("greeting.clock_s", greeting.clock_s, maximum=float(limits.COUNT_MAX))
    text("greeting.software", greeting.software, empty=True)
    if greeting.seen is not None:
        number("greeting.seen.generation", greeting.seen.generation, minimum=1, maximum=limits.ROUNDS_MAX)
        number("greeting.seen.round", greeting.seen.round, minimum=1, maximum=limits.ROUNDS_MAX)
        digest("greeting.seen.sha256", greeting.seen.sha256)


def encode_pulse(pulse: Heartbeat) -> pb.Pulse:
    _check_pulse(pulse)
    proof = pulse.proof
    return pb.Pulse(
        generation=pulse.generation,
        round=pulse.round,
        phase=pulse.phase,
        progress=pulse.progress,
        published_round=pulse.published_round,
        committed_round=pulse.committed_round,
        aggregate=bytes.fromhex(pulse.aggregate) if pulse.aggregate is not None else b"",
        proof=pb.SignedRound(body=proof.body, signature=proof.signature, certificate_der=proof.certificate_der)
        if proof is not None
        else None,
        head=encode_head(pulse.head),
        notice=None if pulse.notice is None else amendments.encode_notice(pulse.notice),
    )


def decode_pulse(message: pb.Pulse) -> Heartbeat:
    rounds = message.published_round, message.committed_round
    mean = Sha256(message.aggregate.hex()) if message.aggregate else None
    proof = _decode_proof(message.proof) if message.HasField("proof") else None
    pulse = Heartbeat(message.generation, message.round, message.phase, message.progress, *rounds, mean, proof)
    notice = amendments.decode_notice("pulse.notice", message.notice) if message.HasField("notice") else None
    pulse = replace(pulse, head=decode_head("pulse", message), notice=notice)
    _check_pulse(pulse)
    return pulse


def _decode_proof(message: pb.SignedRound) -> SignedRound:
    _check_signed("pulse.proof", message, body_bytes_max=limits.ROUND_CLAIM_BYTES_MAX)
    return SignedRound(message.body, message.signature, message.certificate_der)


def _check_pulse(pulse: Heartbeat) -> None:
    check_head("pulse", pulse.head)
    for name in ("generation", "round", "published_round", "committed_round"):
        number(f"pulse.{name}", getattr(pulse, name), maximum=limits.ROUNDS_MAX)
    text("pulse.phase", pulse.phase)
    if pulse.aggregate is not None:
        digest("pulse.aggregate", pulse.aggregate)
    finite("pulse.progress", pulse.progress, maximum=1.0)


def encode_manifest_request(request: ArtifactRequest, *, wait_s: float) -> pb.ManifestRequest:
    _check_request(request)
    return pb.ManifestRequest(
        kind=KIND[request.kind],
        for_round=request.for_round,
        purpose=PURPOSE[request.purpose],
        owner=request.owner,
        earlier=request.earlier,
        wait_s=finite("request.wait_s", wait_s, maximum=limits.MANIFEST_WAIT_S),
        epoch=bytes.fromhex(request.epoch or ""),
    )


def decode_manifest_request(message: pb.ManifestRequest) -> tuple[ArtifactRequest, float]:
    """Decode a request for ``GetManifest``, and the wait for the answer in seconds."""
    wait_s = finite("request.wait_s", message.wait_s, maximum=limits.MANIFEST_WAIT_S)
    return _request(message, earlier=message.earlier), wait_s


def encode_fetch_request(request: ArtifactRequest, *, sha256: Sha256, offset: int) -> pb.FetchRequest:
    _check_request(request)
    return pb.FetchRequest(
        kind=KIND[request.kind],
        for_round=request.for_round,
        purpose=PURPOSE[request.purpose],
        owner=request.owner,
        sha256=bytes.fromhex(sha256),
        offset=number("request.offset", offset, maximum=limits.ARTIFACT_BYTES_MAX),
        epoch=bytes.fromhex(request.epoch or ""),
    )


def decode_fetch_request(message: pb.FetchRequest) -> tuple[ArtifactRequest, Sha256, int]:
    """Decode a request for ``FetchArtifact``: the artifact, its digest, and the offset of the first byte."""
    offset = number("request.offset", message.offset, maximum=limits.ARTIFACT_BYTES_MAX)
    return _request(message, earlier=False), digest("request.sha256", message.sha256.hex()), offset


def _request(message: pb.ManifestRequest | pb.FetchRequest, *, earlier: bool) -> ArtifactRequest:
    request = ArtifactRequest(
        kind=known("request.kind", KIND_OF, message.kind),
        for_round=message.for_round,
        purpose=known("request.purpose", PURPOSE_OF, message.purpose),
        owner=SiteName(message.owner),
        earlier=earlier,
        epoch=Sha256(message.epoch.hex()) if message.epoch else None,
    )
    _check_request(request)
    return request


def _check_request(request: ArtifactRequest) -> None:
    number("request.for_round", request.for_round, minimum=1, maximum=limits.ROUNDS_MAX)
    site("request.owner", request.owner)
    if request.epoch is not None:
        digest("request.epoch", request.epoch)


def encode_chunk(content: bytes) -> bytes:
    """Encode a chunk as protobuf does, with one copy of the content where protobuf makes two."""
    if not content:
        return b""
    header, length = bytearray([CHUNK_TAG]), len(content)
    while length > 0x7F:
        header.append(length & 0x7F | 0x80)
        length >>= 7
    header.append(length)
    return b"".join((header, content))


def decode_chunk(message: bytes) -> memoryview:
    """Return the bytes of a chunk; without a copy if it has the usual encoding: one tag, one length, the data."""
    length = shift = 0
    for index, byte in enumerate(message[1:CHUNK_HEADER_BYTES], start=1):
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            if message[0] == CHUNK_TAG and index + 1 + length == len(message):
                return memoryview(message)[index + 1 :]
            break
    return memoryview(pb.Chunk.FromString(message).data)
