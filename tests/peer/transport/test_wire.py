"""Facts survive the wire bit for bit, and every limit refuses what is over it by name, in both directions."""

from __future__ import annotations

import datetime
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from peer.core import limits
from peer.core.limits import COUNT_MAX, STEPS_MAX
from peer.core.messages import (
    DTYPES,
    PURPOSES,
    Artifact,
    Heartbeat,
    Hello,
    Manifest,
    Seen,
    SignedManifest,
    TensorSpec,
    Unavailable,
)
from peer.core.plan import KINDS
from peer.identity import certificates
from peer.pb import peer_pb2 as pb
from peer.transport import wire
from peer.transport.bounds import WireError, tensor_bytes
from peer.transport.header import check_safetensors_header

VECTOR = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "manifest.json").read_text())

MANIFEST = Manifest(
    federation="fe" * 32,
    generation=1,
    method="fedskd",
    origin="europe",
    round=3,
    artifact=Artifact(
        kind="model",
        owner="europe",
        sha256="ab" * 32,
        bytes=1000,
        steps=40,
        spec={"name": "resnet10", "hyper": {"classes": 2, "rate": 0.5, "widths": [8, 16], "note": None, "bias": True}},
        tensors=(TensorSpec("conv.weight", "F32", (2, 3)), TensorSpec("count", "I64", ())),
        training_samples=12,
    ),
    reexport=True,
    egress_count=2,
    egress_head="cd" * 32,
)
GREETING = Hello(1, "fe" * 32, "0a" * 32, 2, 1_700_000_000.25, Seen(1, 9, "0b" * 32), "mhfl-peer 0.1.0")
PULSE = Heartbeat(2, 7, "train", 0.5, 7, 6)

HEADER_BYTES_MAX = 8 + limits.SAFETENSORS_HEADER_BYTES_MAX

names = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
rounds = st.integers(1, limits.ROUNDS_MAX)
counts = st.integers(0, COUNT_MAX)
texts = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=40)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-COUNT_MAX, COUNT_MAX)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
tensors = st.lists(
    st.builds(TensorSpec, texts, st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 9), max_size=8).map(tuple)),
    min_size=1,
    max_size=5,
    unique_by=lambda tensor: tensor.name,
).map(tuple)


def depth(value: object) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0) if isinstance(value, dict | list) else 0


artifacts = st.builds(
    Artifact,
    st.sampled_from(KINDS),
    names,
    digests,
    st.just(1),
    st.integers(0, STEPS_MAX),
    st.dictionaries(texts, values, max_size=3).filter(lambda spec: depth(spec) <= 6),
    tensors,
    st.none() | counts,
).map(lambda artifact: replace(artifact, bytes=sum(map(tensor_bytes, artifact.tensors)) + HEADER_BYTES_MAX))


@given(
    st.builds(Manifest, digests, rounds, texts, names, rounds, artifacts, st.booleans(), counts, digests, st.booleans())
)
def test_a_manifest_survives_the_wire(manifest):
    body = wire.encode_manifest(manifest)
    assert wire.decode_manifest(body) == manifest
    assert wire.encode_manifest(wire.decode_manifest(body)) == body


@given(
    st.builds(
        Hello,
        st.integers(1, 9),
        digests,
        digests,
        st.integers(0, 99),
        st.floats(0, 1e10),
        st.none() | st.builds(Seen, rounds, rounds, digests),
        st.just("") | texts,
        digests,
        st.none() | st.booleans(),
    )
)
def test_a_greeting_survives_the_wire(greeting):
    assert wire.decode_greeting(wire.encode_greeting(greeting)) == greeting


@given(
    st.builds(
        Heartbeat, *[st.integers(0, 99)] * 2, texts, st.floats(0, 1), *[st.integers(0, 99)] * 2, st.none() | digests
    )
)
def test_a_pulse_survives_the_wire(pulse):
    assert wire.decode_pulse(wire.encode_pulse(pulse)) == pulse


@given(st.builds(wire.ArtifactRequest, st.sampled_from(KINDS), rounds, st.sampled_from(PURPOSES), names, st.booleans()))
def test_requests_survive_the_wire(request):
    message = wire.encode_manifest_request(request, wait_s=1.5)
    assert wire.decode_manifest_request(message) == (request, 1.5)
    fetch = wire.encode_fetch_request(request, sha256="0c" * 32, offset=7)
    assert wire.decode_fetch_request(fetch) == (replace(request, earlier=False), "0c" * 32, 7)


@pytest.mark.parametrize("reply", [*Unavailable, SignedManifest(b"body", b"signature", b"certificate")])
def test_replies_survive_the_wire(reply):
    assert wire.decode_reply(wire.encode_reply(reply)) == reply


@given(st.binary(max_size=40_000))
def test_a_chunk_is_read_as_protobuf_reads_it(data):
    assert bytes(wire.decode_chunk(pb.Chunk(data=data).SerializeToString())) == data


@given(st.binary(max_size=300))
def test_a_chunk_in_any_other_encoding_is_left_to_protobuf(message):
    try:
        expected = pb.Chunk.FromString(message).data
    except Exception as error:
        with pytest.raises(type(error)):
            wire.decode_chunk(message)
    else:
        assert bytes(wire.decode_chunk(message)) == expected


def nested(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


MANIFEST_FAULTS = {
    "federation": ({"federation": b"short"}, "manifest.federation.*not a SHA-256"),
    "generation zero": ({"generation": 0}, r"manifest.generation = 0 is outside 1 to 1000000"),
    "generation": ({"generation": limits.ROUNDS_MAX + 1}, r"manifest.generation = 1000001 is outside"),
    "method empty": ({"method": ""}, "manifest.method is empty"),
    "method": ({"method": "m" * 1025}, "manifest.method has 1025 bytes, over the limit of 1024"),
    "method escape": ({"method": "fed\x1b[31m"}, "manifest.method .* cannot be printed"),
    "origin": ({"origin": "Europe"}, "manifest.origin: site name 'Europe'"),
    "origin long": ({"origin": "e" * 5000}, "manifest.origin: site name 'e{40}' must"),
    "owner": ({"owner": ""}, "manifest.owner: site name ''"),
    "round": ({"round": 0}, "manifest.round = 0"),
    "round over": ({"round": 1 << 63}, "manifest.round = 9223372036854775808 is outside 1 to 1000000"),
    "kind": ({"kind": 0}, "manifest.kind = 0 means nothing"),
    "kind unknown": ({"kind": 99}, "manifest.kind = 99 means nothing"),
    "sha256": ({"sha256": b""}, "manifest.sha256"),
    "bytes none": ({"bytes": 0}, "manifest.bytes = 0"),
    "bytes": ({"bytes": limits.ARTIFACT_BYTES_MAX + 1}, "manifest.bytes = 8589934593 is outside"),
    "bytes beside the tensors": (
        {"bytes": 32 + HEADER_BYTES_MAX + 1},
        "manifest.bytes beside its tensors has 4194313 bytes, over the limit of 4194312",
    ),
    "steps": ({"steps": STEPS_MAX + 1}, "manifest.steps"),
    "samples": ({"training_samples": COUNT_MAX + 1}, "manifest.training_samples"),
    "egress count": ({"egress_count": COUNT_MAX + 1}, "manifest.egress_count"),
    "egress head": ({"egress_head": b"x"}, "manifest.egress_head"),
    "egress head missing": ({"egress_head": b""}, "manifest.egress_head"),
    "spec size": ({"spec": json.dumps({"a": "x" * limits.SPEC_BYTES_MAX})}, "manifest.spec has 65545 bytes"),
    "spec depth": ({"spec": nested(7)}, "nested deeper than 6 levels"),
    "spec far too deep": ({"spec": nested(9000)}, "manifest.spec is nested too deep"),
    "spec no json": ({"spec": "{"}, "manifest.spec is not JSON"),
    "spec empty": ({"spec": ""}, "manifest.spec is not JSON"),
    "spec list": ({"spec": "[]"}, "manifest.spec is not a JSON object"),
    "spec nan": ({"spec": '{"a":NaN}'}, "manifest.spec has the number NaN"),
    "spec overflow": ({"spec": '{"a":1e999}'}, "manifest.spec.a = inf is not finite"),
    "spec integer": ({"spec": '{"a":-9007199254740993}'}, "manifest.spec.a = -9007199254740993 is outside"),
    "spec digits": ({"spec": '{"a":' + "9" * 5000 + "}"}, "manifest.spec is not JSON"),
    "spec twice": ({"spec": '{"a":1,"a":2}'}, "the same key twice"),
    "spec surrogate": ({"spec": '{"a":"\\ud800"}'}, "manifest.spec.a .* cannot be printed"),
    "spec key": ({"spec": '{"a\\n":1}'}, "manifest.spec key"),
    "no tensors": ({"tensors": []}, "manifest.tensors is empty"),
    "tensor name": ({"tensors": [pb.Tensor(name="", dtype="F32")]}, r"manifest.tensors\[0\].name is empty"),
    "tensor name long": (
        {"tensors": [pb.Tensor(name="ü" * 129, dtype="F32")]},
        r"manifest.tensors\[0\].name has 258 bytes, over the limit of 256",
    ),
    "tensor twice": ({"tensors": [pb.Tensor(name="w", dtype="U8")] * 2}, r"tensors\[1\].name 'w' appears twice"),
    "tensor dtype": (
        {"tensors": [pb.Tensor(name="w", dtype="F8")]},
        r"manifest.tensors\[0\].dtype 'F8' is none of F64",
    ),
    "tensor shape": (
        {"tensors": [pb.Tensor(name="w", dtype="U8", shape=[1] * 9)]},
        r"manifest.tensors\[0\].shape has 9 dimensions, over the limit of 8",
    ),
    "tensor size": (
        {"tensors": [pb.Tensor(name="w", dtype="U8", shape=[1 << 60])]},
        r"manifest.tensors\[0\].shape = 1152921504606846976",
    ),
    "tensor bytes": (
        {"tensors": [pb.Tensor(name="w", dtype="F32", shape=[251])]},
        "manifest.tensors need 1004 bytes, but manifest.bytes is 1000",
    ),
    "tensor bytes together": (
        {"tensors": [pb.Tensor(name=n, dtype="F64", shape=[63]) for n in "ab"]},
        "manifest.tensors need 1008 bytes",
    ),
}


def changed(message, changes):
    for name, value in changes.items():
        if isinstance(value, list):
            del getattr(message, name)[:]
            getattr(message, name).extend(value)
        else:
            setattr(message, name, value)
    return message


@pytest.mark.parametrize("fault", MANIFEST_FAULTS)
def test_a_manifest_outside_a_limit_is_refused_by_name(fault):
    changes, reason = MANIFEST_FAULTS[fault]
    message = changed(pb.Manifest.FromString(wire.encode_manifest(MANIFEST)), changes)
    with pytest.raises(WireError, match=reason):
        wire.decode_manifest(message.SerializeToString())


def test_a_manifest_at_its_limits_is_taken():
    message = pb.Manifest.FromString(wire.encode_manifest(MANIFEST))
    changed(message, {"spec": nested(6), "bytes": limits.TENSORS_MAX + HEADER_BYTES_MAX, "method": "m" * 1024})
    changed(
        message, {"tensors": [pb.Tensor(name=f"w{i}", dtype="U8", shape=[1] * 8) for i in range(limits.TENSORS_MAX)]}
    )
    assert len(wire.decode_manifest(message.SerializeToString()).artifact.tensors) == limits.TENSORS_MAX
    shape = [limits.ARTIFACT_BYTES_MAX]
    largest = changed(
        pb.Manifest.FromString(message.SerializeToString()),
        {"bytes": limits.ARTIFACT_BYTES_MAX, "tensors": [pb.Tensor(name="w", dtype="U8", shape=shape)]},
    )
    assert wire.decode_manifest(largest.SerializeToString()).artifact.bytes == limits.ARTIFACT_BYTES_MAX
    message.tensors.add(name="one more", dtype="U8")
    with pytest.raises(WireError, match=r"manifest\.tensors has 10001 entries, over the limit of 10000"):
        wire.decode_manifest(message.SerializeToString())


def test_a_manifest_over_the_message_limit_is_not_even_parsed():
    with pytest.raises(WireError, match="manifest has 1048577 bytes, over the limit of 1048576"):
        wire.decode_manifest(b"\xff" * (limits.MANIFEST_BYTES_MAX + 1))


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x1a\x02\xff\xfe"], ids=["not protobuf", "not UTF-8"])
def test_a_body_that_is_no_message_is_refused(body):
    with pytest.raises(WireError, match=r"manifest is not a message of mhfl\.v1"):
        wire.decode_manifest(body)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"round": 0}, "manifest.round"),
        ({"origin": "Nowhere"}, "manifest.origin"),
        ({"egress_head": "zz"}, "manifest.egress_head"),
        ({"artifact": replace(MANIFEST.artifact, spec={1: 2})}, "manifest.spec has the key 1"),
        ({"artifact": replace(MANIFEST.artifact, spec={"a": {1, 2}})}, "manifest.spec.a is a set"),
        ({"artifact": replace(MANIFEST.artifact, spec={"a": float("nan")})}, "manifest.spec.a = nan"),
        ({"artifact": replace(MANIFEST.artifact, spec={"a": ["ü" * 40] * 2000})}, "manifest.spec has 166007 bytes"),
        ({"artifact": replace(MANIFEST.artifact, bytes=31)}, "manifest.tensors need 32 bytes"),
        (
            {"artifact": replace(MANIFEST.artifact, bytes=8 << 30)},
            "manifest.bytes beside its tensors has 8589934560 bytes",
        ),
    ],
)
def test_a_site_cannot_sign_what_others_would_refuse(changes, reason):
    with pytest.raises(WireError, match=reason):
        wire.encode_manifest(replace(MANIFEST, **changes))


@pytest.mark.parametrize(
    ("encode", "decode", "fact", "changes", "reason"),
    [
        (wire.encode_greeting, wire.decode_greeting, GREETING, changes, reason)
        for changes, reason in [
            ({"protocol": 0}, "greeting.protocol = 0"),
            ({"federation": b"f"}, "greeting.federation"),
            ({"roster": b""}, "greeting.roster"),
            ({"generation": limits.ROUNDS_MAX + 1}, "greeting.generation"),
            ({"clock_s": float("nan")}, "greeting.clock_s = nan"),
            ({"clock_s": float("inf")}, "greeting.clock_s = inf"),
            ({"clock_s": -1.0}, "greeting.clock_s = -1.0 is outside 0"),
            ({"software": "x" * 1025}, "greeting.software has 1025 bytes"),
        ]
    ]
    + [
        (wire.encode_pulse, wire.decode_pulse, PULSE, changes, reason)
        for changes, reason in [
            ({"generation": limits.ROUNDS_MAX + 1}, "pulse.generation"),
            ({"round": limits.ROUNDS_MAX + 1}, "pulse.round"),
            ({"published_round": limits.ROUNDS_MAX + 1}, "pulse.published_round"),
            ({"committed_round": limits.ROUNDS_MAX + 1}, "pulse.committed_round"),
            ({"phase": ""}, "pulse.phase is empty"),
            ({"phase": "a\nb"}, "pulse.phase .* cannot be printed"),
            ({"progress": 1.01}, "pulse.progress = 1.01 is outside 0 to 1"),
            ({"progress": float("nan")}, "pulse.progress = nan"),
            ({"aggregate": b"ab"}, "pulse.aggregate"),
        ]
    ],
)
def test_a_greeting_or_pulse_outside_a_limit_is_refused_by_name(encode, decode, fact, changes, reason):
    message = changed(encode(fact), changes)
    with pytest.raises(WireError, match=reason):
        decode(message)


def test_what_a_greeting_saw_is_checked():
    for changes, reason in [
        ({"generation": 0}, "seen.generation"),
        ({"round": 0}, "seen.round"),
        ({"sha256": b""}, "seen.sha256"),
    ]:
        message = wire.encode_greeting(GREETING)
        changed(message.seen, changes)
        with pytest.raises(WireError, match=f"greeting.{reason}"):
            wire.decode_greeting(message)


REQUEST = wire.ArtifactRequest("head", 3, "handback", "asia")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": 0}, "request.kind = 0"),
        ({"purpose": 7}, "request.purpose = 7"),
        ({"for_round": 0}, "request.for_round = 0"),
        ({"owner": "a b"}, "request.owner"),
        ({"wait_s": 20.5}, "request.wait_s = 20.5 is outside 0 to 20"),
        ({"wait_s": float("nan")}, "request.wait_s = nan"),
    ],
)
def test_a_manifest_request_outside_a_limit_is_refused_by_name(changes, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_manifest_request(changed(wire.encode_manifest_request(REQUEST, wait_s=1.0), changes))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"sha256": b"x" * 31}, "request.sha256"),
        ({"offset": limits.ARTIFACT_BYTES_MAX + 1}, "request.offset"),
        ({"kind": 5}, "request.kind = 5"),
        ({"for_round": limits.ROUNDS_MAX + 1}, "request.for_round"),
    ],
)
def test_a_fetch_request_outside_a_limit_is_refused_by_name(changes, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_fetch_request(changed(wire.encode_fetch_request(REQUEST, sha256="0c" * 32, offset=0), changes))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ManifestReply(), "neither a manifest nor a reason"),
        (pb.ManifestReply(unavailable=0), "reply.unavailable = 0"),
        (pb.ManifestReply(unavailable=9), "reply.unavailable = 9"),
        (pb.ManifestReply(manifest=pb.SignedManifest()), "signed_manifest.body is empty"),
        (pb.ManifestReply(manifest=pb.SignedManifest(body=b"b")), "signed_manifest.signature is empty"),
        (
            pb.ManifestReply(manifest=pb.SignedManifest(body=b"b", signature=b"s" * 81, certificate_der=b"c")),
            "signed_manifest.signature has 81 bytes, over the limit of 80",
        ),
        (
            pb.ManifestReply(manifest=pb.SignedManifest(body=b"b", signature=b"s", certificate_der=b"c" * 8193)),
            "signed_manifest.certificate_der has 8193 bytes",
        ),
        (
            pb.ManifestReply(
                manifest=pb.SignedManifest(
                    body=b"b" * (limits.MANIFEST_BYTES_MAX + 1), signature=b"s", certificate_der=b"c"
                )
            ),
            "signed_manifest.body has 1048577 bytes",
        ),
    ],
)
def test_a_reply_outside_a_limit_is_refused_by_name(message, reason):
    with pytest.raises(WireError, match=reason):
        wire.decode_reply(message)


def accept(entry) -> Manifest:
    """What the specification tells a receiver to do, in its order."""
    ca = x509.load_pem_x509_certificate(VECTOR["ca_certificate"].encode())
    now = datetime.datetime.fromisoformat(VECTOR["now"])
    body, signature, der = (bytes.fromhex(entry[name]) for name in ("body", "signature", "certificate_der"))
    certificate = certificates.verify_certificate(der, ca, VECTOR["dialled"], now)
    certificates.verify_manifest(certificate, signature, body)
    return wire.decode_manifest(body)


def test_the_known_manifest_is_accepted_and_encodes_to_the_same_bytes():
    manifest, expected = accept(VECTOR["accepted"]), VECTOR["accepted"]["manifest"]
    assert wire.encode_manifest(manifest).hex() == VECTOR["accepted"]["body"]
    artifact = manifest.artifact
    tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in artifact.tensors]
    found = {name: getattr(manifest, name, getattr(artifact, name, None)) for name in expected}
    assert {**found, "tensors": tensors} == expected
    assert bytes.fromhex(VECTOR["label"]) == b"mhfl/manifest/v1\x00"


def test_the_known_manifest_describes_the_known_file(tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(bytes.fromhex(VECTOR["artifact"]))
    artifact = accept(VECTOR["accepted"]).artifact
    check_safetensors_header(path, artifact)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == artifact.sha256


@pytest.mark.parametrize("entry", VECTOR["refused"], ids=lambda entry: entry["why"])
def test_the_known_forgeries_are_refused(entry):
    with pytest.raises(ValueError, match=r"the signature does not fit|the certificate names asia, not europe"):
        accept(entry)
