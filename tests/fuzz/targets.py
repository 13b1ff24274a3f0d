"""Every parser of bytes that another site, a stranger or another disk can choose.

A target takes any bytes. It returns, or raises one of its own refusals: everything else, a hang and
a lack of memory are bugs. Targets of the wire also demand that a message that was accepted is
written and read again without a change.
"""

from __future__ import annotations

import contextlib
import functools
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from models.spec import remote_spec_problem, spec_problem
from peer.audit import evidence_files
from peer.core import worker_protocol
from peer.core.roster import Sha256, SiteName
from peer.core.rows import decode as decode_row
from peer.errors import PeerError
from peer.net.transport import sum_statements, wire
from peer.net.transport.bounds import WireError
from peer.net.transport.discovery import announced
from peer.net.transport.header import check_safetensors_header
from peer.net.transport.manifest import decode_manifest, encode_manifest, from_base64, verify_manifest
from peer.pb import peer_pb2 as pb
from peer.site.config import toml
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.identity import certificates
from peer.site.identity.bundle import Bundle
from peer.site.records.ledger import ChainVerifier

ROOT = Path(__file__).parents[2]
VECTORS = {path.stem: json.loads(path.read_text("utf-8")) for path in (ROOT / "proto" / "vectors").glob("*.json")}
SITE_TOML = (ROOT / "deploy" / "examples" / "site.toml").read_bytes()
FEDERATION_TOML = (ROOT / "deploy" / "examples" / "federation.toml").read_bytes()
DIGEST = "ab" * 32


@dataclass(frozen=True)
class Target:
    """A parser, the errors with which it refuses, and well-formed inputs to begin with."""

    parse: Callable[[bytes], object]
    refusals: tuple[type[Exception], ...]
    seeds: Sequence[bytes]

    def __call__(self, content: bytes) -> None:
        with contextlib.suppress(*self.refusals):
            self.parse(content)


def message(kind: Any, decode: Callable[[Any], Any], encode: Callable[[Any], Any], *seeds: Any) -> Target:
    """The target of a protobuf message; what it accepts must be the same after one more trip."""

    def parse(content: bytes) -> None:
        accepted = decode(kind.FromString(content))
        again = decode(kind.FromString(encode(accepted).SerializeToString()))
        assert again == accepted

    return Target(parse, (DecodeError, WireError), [seed.SerializeToString() for seed in seeds])


def manifest_round_trip(content: bytes) -> None:
    accepted = decode_manifest(content)
    assert decode_manifest(encode_manifest(accepted)) == accepted


def signed_manifest(content: bytes) -> None:
    """The path of a received manifest: reply, certificate, signature, body."""
    vector = VECTORS["manifest"]
    signed = wire.decode_reply(pb.ManifestReply.FromString(content))
    if isinstance(signed, wire.SignedManifest):
        ca = certificates.read_authority(vector["ca_certificate"].encode())
        verify_manifest(signed, certificates.verify_certificate(signed.certificate_der, ca, vector["dialled"], None))


def statements_round_trip(content: bytes) -> None:
    accepted = sum_statements.decode_statements(content)
    assert sum_statements.decode_statements(sum_statements.encode_statements(accepted)) == accepted


@functools.cache
def folder() -> Path:
    """A folder in memory, if there is one: a target that reads a file writes it first."""
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="fuzz-mhfl-", dir=shared if shared.is_dir() else None))


def header(content: bytes) -> None:
    """The file of an artifact against a manifest of the same size."""
    path = folder() / "artifact.safetensors"
    path.write_bytes(content)
    manifest = decode_manifest(accepted_body())
    check_safetensors_header(path, replace(manifest, artifact=replace(manifest.artifact, bytes=len(content))))


def evidence(kind: Any) -> Callable[[bytes], object]:
    def parse(content: bytes) -> None:
        path = folder() / "evidence.json"
        path.write_bytes(content)
        document = evidence_files.read(path, kind)
        if isinstance(document, evidence_files.Export):
            document.verify_chain()
            evidence_files.verify_export(document, "evidence.json", ca=None)

    return parse


def worker_line(content: bytes) -> object:
    return worker_protocol.decode(content, worker_protocol.FROM_WORKER)


def spec(content: bytes) -> None:
    """A network that another site describes: every answer is None or a sentence."""
    document = json.loads(content)
    if isinstance(document, dict):
        for problem in (spec_problem(document), remote_spec_problem(document)):
            assert problem is None or problem.isprintable()


def journal_row(content: bytes) -> object:
    """A row of a damaged journal: kind, round, body."""
    row = json.loads(content)
    match row:
        case [str(kind), int(round), dict(body)]:
            return decode_row(kind, round, body)
    return None


def ledger_rows(content: bytes) -> None:
    """A damaged ledger: a row in each line."""
    verifier = ChainVerifier()
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        verifier.add(number, line, DIGEST)
    assert all(problem.isprintable() for problem in verifier.problems)


def announcement(content: bytes) -> None:
    fields = dict(part.partition(b"=")[::2] for part in content.split(b"\x00"))
    announced(fields, Sha256(DIGEST))


@functools.cache
def accepted_body() -> bytes:
    """The body of the manifest that proto/vectors accepts."""
    return bytes.fromhex(VECTORS["manifest"]["accepted"]["body"])


def signed_reply() -> pb.ManifestReply:
    accepted = VECTORS["manifest"]["accepted"]
    parts = {name: bytes.fromhex(accepted[name]) for name in ("body", "signature", "certificate_der")}
    return pb.ManifestReply(manifest=pb.SignedManifest(**parts))


RAW = bytes.fromhex(DIGEST)
CALL = {"kind": 1, "for_round": 3, "purpose": 1, "owner": "asia"}
RETURN = {"kind": 5, "for_round": 3, "purpose": 4, "owner": "asia"}
GREETING = pb.Greeting(
    protocol=1,
    federation=RAW,
    roster=RAW,
    generation=2,
    clock_s=1.5e9,
    seen=pb.Seen(generation=1, round=2, sha256=RAW),
    software="0.2.0",
    round_key_tag=RAW,
    evaluates=True,
)
PULSE = pb.Pulse(
    generation=1, round=3, phase="train", progress=0.5, published_round=2, committed_round=2, aggregate=RAW
)
REPORT = pb.Metrics(generation=1, round=2, sha256=RAW, samples=100, values={"accuracy": 0.5})
SITE_DIGESTS = pb.Contributions(contributors=[pb.SiteDigest(site="asia", digest=RAW)])
STATEMENTS = pb.SumStatements(
    key=RAW,
    shown=SITE_DIGESTS,
    commit=SITE_DIGESTS,
    opening=pb.SumOpening(own=RAW, shared=[pb.PairSeed(site="europe", seed=RAW)]),
)
NAMES = ("body", "signature", "certificate_der")

TARGETS: Mapping[str, Target] = {
    "greeting": message(pb.Greeting, wire.decode_greeting, wire.encode_greeting, GREETING),
    "pulse": message(pb.Pulse, wire.decode_pulse, wire.encode_pulse, PULSE),
    "metrics": message(pb.Metrics, wire.decode_report, wire.encode_report, REPORT),
    "manifest_request": message(
        pb.ManifestRequest,
        wire.decode_manifest_request,
        lambda accepted: wire.encode_manifest_request(accepted[0], wait_s=accepted[1]),
        pb.ManifestRequest(**CALL, wait_s=2.0),
        pb.ManifestRequest(**RETURN, wait_s=2.0),
    ),
    "fetch_request": message(
        pb.FetchRequest,
        wire.decode_fetch_request,
        lambda accepted: wire.encode_fetch_request(accepted[0], sha256=accepted[1], offset=accepted[2]),
        pb.FetchRequest(**CALL, sha256=RAW, offset=7),
        pb.FetchRequest(**RETURN, sha256=RAW, offset=7),
    ),
    "reply": message(
        pb.ManifestReply, wire.decode_reply, wire.encode_reply, signed_reply(), pb.ManifestReply(unavailable=1)
    ),
    "sum_request": message(
        pb.SumRequest,
        sum_statements.decode_sum_request,
        lambda accepted: sum_statements.encode_sum_request(accepted[0], wait_s=accepted[1]),
        pb.SumRequest(epoch=RAW, round=3, stage="train", known=RAW, wait_s=2.0),
    ),
    "sum_reply": message(
        pb.SumReply,
        sum_statements.decode_sum_reply,
        sum_statements.encode_sum_reply,
        pb.SumReply(statements=b"abc"),
        pb.SumReply(unavailable=2),
    ),
    "statements": Target(statements_round_trip, (WireError,), [STATEMENTS.SerializeToString()]),
    "chunk": Target(wire.decode_chunk, (DecodeError,), [pb.Chunk(data=b"abc").SerializeToString()]),
    "manifest": Target(manifest_round_trip, (WireError,), [accepted_body()]),
    "signed_manifest": Target(signed_manifest, (DecodeError, ValueError), [signed_reply().SerializeToString()]),
    "header": Target(header, (WireError,), [bytes.fromhex(VECTORS["manifest"]["artifact"])]),
    "authority": Target(certificates.read_authority, (ValueError,), [VECTORS["manifest"]["ca_certificate"].encode()]),
    "request": Target(
        certificates.read_request,
        (ValueError,),
        [certificates.signing_request(certificates.new_key(), SiteName("asia"))],
    ),
    "bundle": Target(
        Bundle.decode, (ValueError,), [json.dumps({"version": 1, **dict.fromkeys(Bundle.__slots__, "")}).encode()]
    ),
    "federation": Target(
        lambda content: FederationConfig.parse(content.decode(), "federation.toml"),
        (PeerError, UnicodeDecodeError),
        [FEDERATION_TOML, FEDERATION_TOML.replace(b'"fedskd"', b'"fedvisit"\nvisits = 2')],
    ),
    "site": Target(
        lambda content: toml.validate(SiteConfig, toml.parse(content.decode(), "site.toml"), "site.toml"),
        (PeerError, UnicodeDecodeError),
        [SITE_TOML],
    ),
    "export": Target(
        evidence(evidence_files.Export),
        (PeerError,),
        [json.dumps({"mhfl_egress": 1, "site": "asia", "federation": "f", "rows": []}).encode()],
    ),
    "witness": Target(
        evidence(evidence_files.Witness),
        (PeerError,),
        [
            json.dumps(
                {"mhfl_witness": 1, "of": "asia", "by": "europe", "federation_digest": DIGEST, "manifests": []}
            ).encode()
        ],
    ),
    "journal_manifest": Target(
        lambda content: from_base64(json.loads(content)),
        (ValueError, TypeError, RecursionError),
        [json.dumps(dict.fromkeys(NAMES, "YWJj")).encode()],
    ),
    "worker_line": Target(
        worker_line,
        (ValueError,),
        [
            b'{"type":"Halted","generation":1,"attempt":2}',
            b'{"type":"Initialised"}',
            b'{"type":"Trained","returned":[{}]}',
        ],
    ),
    "spec": Target(
        spec,
        (ValueError, RecursionError),
        [
            json.dumps(
                {"name": "resnet10", "spatial_dims": 3, "in_channels": 1, "classes": 2, "hyper": {"width": 8}}
            ).encode()
        ],
    ),
    "journal_row": Target(journal_row, (ValueError, RecursionError), [b'["opened", 1, {"attempt": 1}]']),
    "ledger": Target(ledger_rows, (), [b'{"type":"intent"}\n{"type":"outcome","intent":1}']),
    "announcement": Target(announcement, (), [f"version=1\x00federation={DIGEST[:16]}\x00site=asia".encode()]),
}
