"""What the member of ``member.py`` does wrong: as a caller, and as the server of its artifacts."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from adversary.member import EVALUATE, HANDBACK, HEAD, NOT_YET, SKIPPED, Artifact, Member, safetensors

from peer.pb import peer_pb2 as pb

REFUSED = frozenset({"INVALID_ARGUMENT", "PERMISSION_DENIED", "FAILED_PRECONDITION", "NOT_FOUND", "UNIMPLEMENTED"})
"""Answers that say: do not ask again."""
SHED = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "CANCELLED", "INTERNAL"})
"""Answers of the transport to what it does not carry."""
REQUEST_BYTES_MAX = 256 << 10
"""A server takes no larger request."""
METHODS = tuple(method.name for method in pb.DESCRIPTOR.services_by_name["Exchange"].methods)
"""Every call between peers: ``tests/meta/test_adversary.py`` wants wrong ones of each."""
WRONG = bytes(32)
TEXTS = ("\x1b[2J", "a\x00b", "../../etc/passwd", "x" * (1 << 20), "﷽" * 400)


@dataclass(frozen=True)
class Call:
    """A call that breaks a rule, and the statuses that may answer it."""

    name: str
    method: str
    request: bytes
    allowed: frozenset[str] = REFUSED
    options: Mapping[str, Any] | None = None

    @property
    def answers(self) -> frozenset[str]:
        """The statuses that may end the call; one that is too large ends before it is read."""
        return self.allowed | SHED if len(self.request) > REQUEST_BYTES_MAX else self.allowed


Fields = Sequence[tuple[str, Any]]
GREETINGS: Fields = (
    ("protocol", 0),
    ("federation", WRONG),
    ("federation", b"short"),
    ("roster", WRONG),
    ("round_key_tag", WRONG),
    ("generation", 1 << 63),
    ("clock_s", float("nan")),
    ("clock_s", float("inf")),
    *(("software", text) for text in TEXTS[:2]),
    ("seen", pb.Seen(generation=1 << 63, round=1, sha256=WRONG)),
    ("seen", pb.Seen(generation=1, round=0, sha256=b"x")),
    ("head", pb.Head(number=1 << 63, digest=WRONG)),
    ("head", pb.Head(number=0, digest=WRONG)),
    ("head", pb.Head(number=1, digest=b"short")),
    ("features", ["x" * 33]),
    ("features", [f"feature-{number}" for number in range(65)]),
)
PULSES: Fields = (
    ("round", (1 << 64) - 1),
    ("generation", 1 << 63),
    ("progress", float("nan")),
    ("progress", -1.0),
    ("progress", 1e300),
    *(("phase", text) for text in TEXTS if text != "../../etc/passwd"),
    ("phase", ""),
    ("aggregate", b"x" * 31),
    ("head", pb.Head(number=10_001, digest=WRONG)),
    ("head", pb.Head(number=1, digest=WRONG + b"x")),
    ("notice", pb.Notice(body=b"{}", signature=b"", certificate_der=b"")),
    ("notice", pb.Notice(body=b"x" * (1 << 16), signature=WRONG, certificate_der=WRONG)),
)
REQUESTS: Fields = (
    ("kind", 0),
    ("kind", HEAD),
    ("kind", 77),
    ("purpose", 0),
    ("purpose", HANDBACK),
    ("purpose", EVALUATE),
    ("purpose", 9),
    ("for_round", 0),
    ("for_round", 1 << 63),
    ("wait_s", float("nan")),
    ("wait_s", -1.0),
    ("wait_s", 1e9),
    *(("owner", text) for text in (*TEXTS, "", "nobody")),
    ("epoch", b"x" * 31),
    ("epoch", b"x" * 33),
)
FETCHES: Fields = (
    ("kind", HEAD),
    ("purpose", HANDBACK),
    ("sha256", WRONG),
    ("sha256", b"x" * 33),
    ("offset", (1 << 64) - 1),
    ("for_round", 0),
    *(("owner", text) for text in TEXTS[:3]),
    ("epoch", b"x"),
)
CHAINS: Fields = (("number", 10_001), ("number", (1 << 64) - 1))
SUMS: Fields = (
    ("stage", "commit of nobody"),
    ("stage", ""),
    ("round", 0),
    ("round", 1 << 63),
    ("epoch", b"x" * 31),
    ("known", b"x" * 33),
    ("wait_s", float("nan")),
    ("wait_s", 1e9),
)
UNSIGNED = pb.SignedManifest(body=b"\x0a\x20" + WRONG, signature=WRONG, certificate_der=WRONG)
COMPARISONS: Fields = (
    ("manifests", []),
    ("manifests", [pb.SignedManifest()]),
    ("manifests", [UNSIGNED]),
    ("manifests", [UNSIGNED] * 2),
    ("manifests", [UNSIGNED] * 3),
    ("manifests", [pb.SignedManifest(body=bytes(1 << 17), signature=WRONG, certificate_der=WRONG)]),
)
REPORT = {"generation": 1, "round": 1, "sha256": WRONG, "samples": 3, "values": {"auc": 0.5}}
REPORTS: Mapping[str, Mapping[str, Any]] = {
    "unasked": {},
    "nan": {"values": {"auc": float("nan")}},
    "many": {"values": {f"metric-{number}": 0.5 for number in range(2000)}},
    "withheld": {"withheld": True},
}


def wrong(method: str, fields: Fields, message: Callable[..., Any]) -> Iterator[Call]:
    """A call of the method for each field that is wrong."""
    for name, value in fields:
        request = message(**{name: value})
        yield Call(f"{method} {name} {value!r:.24}", method, request.SerializeToString())


def calls(member: Member, victim: str, round: int) -> Iterator[Call]:
    """Every malformed or unauthorised call of one site."""
    yield from wrong_calls(member, victim, round)
    for method in METHODS:
        yield Call(f"{method} garbage", method, b"\xff" * 100)
        yield Call(f"{method} 20 MiB", method, bytes(20 << 20), REFUSED | SHED)
        bomb = {"compression": grpc.Compression.Gzip}
        yield Call(f"{method} gzip bomb", method, bytes(64 << 20), REFUSED | SHED, bomb)
    metadata = [("x", "y" * 16000)] * 8
    yield Call("headers", "Beat", member.pulse().SerializeToString(), REFUSED | SHED | {"OK"}, {"metadata": metadata})
    yield Call("no such call", "Reboot", b"")


def wrong_calls(member: Member, victim: str, round: int) -> Iterator[Call]:
    """Readable messages that break a rule, of every method."""

    def asks(**claims: Any) -> pb.ManifestRequest:
        return member.asks(round, **{"owner": victim, **claims})

    def fetches(**claims: Any) -> pb.FetchRequest:
        return member.fetches(round, **{"sha256": WRONG, "owner": victim, **claims})

    yield from wrong("Hello", GREETINGS, member.greeting)
    yield from wrong("Beat", PULSES, member.pulse)
    yield from wrong("GetManifest", REQUESTS, asks)
    yield from wrong("FetchArtifact", FETCHES, fetches)
    yield Call("GetManifest early", "GetManifest", asks(for_round=10**6).SerializeToString(), REFUSED | {"OK"})
    yield from wrong("GetAmendments", CHAINS, pb.After)
    yield Call("GetAmendments often", "GetAmendments", b"", REFUSED | {"OK"})
    other_epoch = asks(epoch=WRONG).SerializeToString()
    yield Call("GetManifest of another epoch", "GetManifest", other_epoch, REFUSED | {"OK"})
    other_epoch = fetches(epoch=WRONG).SerializeToString()
    yield Call("FetchArtifact of another epoch", "FetchArtifact", other_epoch, REFUSED | {"ABORTED"})
    forged = member.pulse(notice=member.notice(victim)).SerializeToString()
    yield Call("Beat with a notice of the victim", "Beat", forged, REFUSED | {"OK"})
    for name, change in REPORTS.items():
        yield Call(f"PutMetrics {name}", "PutMetrics", pb.Metrics(**{**REPORT, **change}).SerializeToString())
    yield from wrong("CompareManifests", COMPARISONS, pb.SignedManifests)
    yield from wrong("GetSum", SUMS, lambda **claims: pb.SumRequest(**{"round": round, "stage": "train", **claims}))
    for proof in ([member.sign(b"")], [member.sign(b"\xff")] * 2):
        signed = pb.SignedManifests(manifests=proof).SerializeToString()
        yield Call(f"CompareManifests {len(proof)} signed", "CompareManifests", signed)


def run(member: Member, victim: str, call: Call) -> str:
    """The name of the status with which a call ended."""
    return member.status(victim, call.method, call.request, **(call.options or {}))


@dataclass(frozen=True)
class Lie:
    """How the member serves its artifact in one round.

    Attributes:
        reason: words of the honest sites' refusal; empty where the artifact is only missing, or
            good.
        missing: why the honest sites go on without it; empty where they use it.
        manifest: the answer to ``GetManifest``: bytes, or what is raised.
        chunks: the answer to ``FetchArtifact``; by default the artifact.
    """

    reason: str
    manifest: Callable[[Member, Artifact, int], bytes]
    missing: str = "refused"
    chunks: Callable[[Artifact, int], Iterator[bytes]] | None = None


def honest(member: Member, artifact: Artifact, round: int) -> bytes:
    return pb.ManifestReply(manifest=member.manifest(round, artifact)).SerializeToString()


def claims(**changes: Any) -> Callable[[Member, Artifact, int], bytes]:
    """The true manifest but for these fields."""

    def manifest(member: Member, artifact: Artifact, round: int) -> bytes:
        return honest(member, Artifact(artifact.content, artifact.spec, artifact.tensors, changes), round)

    return manifest


def unavailable(answer: int) -> Callable[[Member, Artifact, int], bytes]:
    def manifest(member: Member, artifact: Artifact, round: int) -> bytes:
        time.sleep(0.2)
        return pb.ManifestReply(unavailable=answer).SerializeToString()

    return manifest


def signed_otherwise(member: Member, artifact: Artifact, round: int) -> bytes:
    body = member.manifest(round, artifact).body
    return pb.ManifestReply(manifest=member.sign(body, label=b"mhfl/bundle/v1\x00")).SerializeToString()


def whole(artifact: Artifact, offset: int) -> Iterator[bytes]:
    for at in range(offset, len(artifact.content), 1 << 18):
        yield pb.Chunk(data=artifact.content[at : at + (1 << 18)]).SerializeToString()


def changed(change: Callable[[bytes], bytes]) -> Callable[[Artifact, int], Iterator[bytes]]:
    return lambda artifact, offset: whole(Artifact(change(artifact.content), "", []), offset)


def oversized(artifact: Artifact, offset: int) -> Iterator[bytes]:
    yield pb.Chunk(data=bytes(2 << 20)).SerializeToString()


def dripped(artifact: Artifact, offset: int) -> Iterator[bytes]:
    for at in range(offset, len(artifact.content)):
        time.sleep(0.1)
        yield pb.Chunk(data=artifact.content[at : at + 1]).SerializeToString()


def empty(artifact: Artifact, offset: int) -> Iterator[bytes]:
    while True:
        time.sleep(0.01)
        yield pb.Chunk(data=b"").SerializeToString()


def garbage(artifact: Artifact, offset: int) -> Iterator[bytes]:
    yield b"\xff" * 1000


def bomb(artifact: Artifact) -> Artifact:
    """A file whose header has four MiB of empty lists, and a manifest that fits its size."""
    header = json.dumps({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "__metadata__": {}})
    filler = "[" + ",".join(["[]"] * ((4 << 20) // 3 - 100)) + "]"
    content = safetensors((header[:-1] + f', "x": {filler}}}').encode(), bytes(4))
    return Artifact(content, artifact.spec, [("t", "F32", (1,))])


LIES: Mapping[str, Lie] = {
    "the truth": Lie("", honest, missing=""),
    "more steps than there are": Lie("manifest.steps", claims(steps=(1 << 40) + 1)),
    "eight GiB": Lie("manifest.bytes", claims(bytes=8 << 30)),
    "no tensor": Lie("manifest.tensors", claims(tensors=[])),
    "a spec that is no JSON": Lie("manifest.spec", claims(spec="{")),
    "a spec that is nested too deep": Lie("manifest.spec", claims(spec='{"a":' * 40 + "1" + "}" * 40)),
    "control characters": Lie("manifest.method", claims(method="\x1b[2J")),
    "another method": Lie("method", claims(method="fedskd")),
    "another federation": Lie("federation", claims(federation=WRONG)),
    "another origin": Lie("origin", claims(origin="europe")),
    "another owner": Lie("owner", claims(owner="europe")),
    "another kind": Lie("kind", claims(kind=HEAD)),
    "the round before": Lie("round", lambda member, artifact, round: honest(member, artifact, round - 1)),
    "another label under the signature": Lie("signature", signed_otherwise),
    "an answer that is no message": Lie("", lambda *_: b"\xff" * 100),
    "another last byte": Lie("digest", honest, chunks=changed(lambda content: content[:-1] + b"\x01")),
    "an early end": Lie("", honest, chunks=changed(lambda content: content[:-8])),
    "one byte too many": Lie("", honest, chunks=changed(lambda content: content + b"\x00")),
    "chunks of two MiB": Lie("", honest, chunks=oversized),
    "chunks that are no messages": Lie("", honest, chunks=garbage),
    "a byte now and then": Lie("", honest, missing="slow", chunks=dripped),
    "empty chunks for ever": Lie("", honest, missing="slow", chunks=empty),
    "never there": Lie("", unavailable(NOT_YET), missing="slow"),
    "never made": Lie("", unavailable(SKIPPED), missing="skipped"),
    "the truth again": Lie("", honest, missing=""),
}
"""One a round, in this order."""


def amendments(member: Member, victim: str) -> Mapping[str, bytes]:
    """What the member answers when it is asked for amendments that nobody made, by the kind of lie."""
    body = member.amendment(expel=victim)
    own = pb.Amendment(body=body, by=[member.endorsement(body)])
    unsigned = pb.Amendment(body=body, by=[pb.Endorsement(certificate_der=b"", signature=bytes(70))] * 1001)
    spaced = body.replace(b":", b": ")
    replies = {
        "none": pb.Amendments(),
        "signed by a member alone": pb.Amendments(amendments=[own]),
        "signed by nobody, a thousand times": pb.Amendments(amendments=[unsigned]),
        "not canonical": pb.Amendments(amendments=[pb.Amendment(body=spaced, by=[member.endorsement(spaced)])]),
        "not next": pb.Amendments(amendments=[pb.Amendment(body=member.amendment(number=7, hold=True), by=own.by)]),
        "no amendment": pb.Amendments(amendments=[pb.Amendment(body=b"[" * 100_000, by=own.by)]),
        "too large": pb.Amendments(amendments=[pb.Amendment(body=bytes(300 << 10), by=own.by)]),
        "replayed": pb.Amendments(amendments=[own] * 1000),
        "foreign keys": pb.Amendments(keys=[pb.SealedKey(number=0, sealed=bytes(113))]),
        "a forged notice": pb.Amendments(amendments=[own], notices=[member.notice(victim)]),
    }
    answers = {name: reply.SerializeToString() for name, reply in replies.items()}
    return answers | {"cut": answers["replayed"][:-9], "eight MiB": bytes(8 << 20), "garbage": b"\xff" * 100}
