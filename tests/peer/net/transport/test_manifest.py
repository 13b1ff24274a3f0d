"""A manifest survives bytes, signature and journal row; a value over a limit is refused by name."""

import datetime
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from peer.core import limits
from peer.core.artifacts import DTYPES, Artifact, TensorSpec
from peer.core.kinds import KINDS
from peer.core.limits import COUNT_MAX, STEPS_MAX
from peer.core.messages import Manifest, SignedManifest
from peer.core.privacy import MU_MAX
from peer.net.transport.bounds import WireError, tensor_bytes
from peer.net.transport.header import check_safetensors_header, read_tensors
from peer.net.transport.manifest import (
    decode_manifest,
    encode_manifest,
    from_base64,
    sign_manifest,
    to_base64,
    verify_manifest,
)
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

VECTOR = json.loads((Path(__file__).parents[4] / "proto" / "vectors" / "manifest.json").read_text())


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
        training_samples=12,
    ),
    tensors=(TensorSpec("conv.weight", "F32", (2, 3)), TensorSpec("count", "I64", ())),
    reexport=True,
    egress_count=2,
    egress_head="cd" * 32,
)

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
    st.none() | counts,
)
flags = st.booleans()
mus = st.none() | st.floats(0, MU_MAX)


@given(
    st.builds(
        Manifest,
        digests,
        rounds,
        texts,
        names,
        rounds,
        artifacts,
        tensors,
        flags,
        counts,
        digests,
        flags,
        st.none(),
        mus,
    )
)
def test_a_manifest_survives_the_wire(manifest):
    size = sum(map(tensor_bytes, manifest.tensors)) + HEADER_BYTES_MAX
    manifest = replace(manifest, artifact=replace(manifest.artifact, bytes=size))
    body = encode_manifest(manifest)
    assert decode_manifest(body) == manifest
    assert encode_manifest(decode_manifest(body)) == body


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
    "mu negative": ({"mu": -0.1}, "manifest.mu = -0.1 is outside 0 to 20"),
    "mu large": ({"mu": 20.1}, "manifest.mu = 20.1 is outside 0 to 20"),
    "mu infinite": ({"mu": float("inf")}, "manifest.mu = inf is outside"),
    "mu no number": ({"mu": float("nan")}, "manifest.mu = nan is outside"),
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
    message = changed(pb.Manifest.FromString(encode_manifest(MANIFEST)), changes)
    with pytest.raises(WireError, match=reason):
        decode_manifest(message.SerializeToString())


def test_a_manifest_at_its_limits_is_taken():
    message = pb.Manifest.FromString(encode_manifest(MANIFEST))
    changed(message, {"spec": nested(6), "bytes": limits.TENSORS_MAX + HEADER_BYTES_MAX, "method": "m" * 1024})
    changed(
        message, {"tensors": [pb.Tensor(name=f"w{i}", dtype="U8", shape=[1] * 8) for i in range(limits.TENSORS_MAX)]}
    )
    assert len(decode_manifest(message.SerializeToString()).tensors) == limits.TENSORS_MAX
    shape = [limits.ARTIFACT_BYTES_MAX]
    largest = changed(
        pb.Manifest.FromString(message.SerializeToString()),
        {"bytes": limits.ARTIFACT_BYTES_MAX, "tensors": [pb.Tensor(name="w", dtype="U8", shape=shape)]},
    )
    assert decode_manifest(largest.SerializeToString()).artifact.bytes == limits.ARTIFACT_BYTES_MAX
    message.tensors.add(name="one more", dtype="U8")
    with pytest.raises(WireError, match=r"manifest\.tensors has 10001 entries, over the limit of 10000"):
        decode_manifest(message.SerializeToString())


def test_a_manifest_over_the_message_limit_is_not_even_parsed():
    with pytest.raises(WireError, match="manifest has 1048577 bytes, over the limit of 1048576"):
        decode_manifest(b"\xff" * (limits.MANIFEST_BYTES_MAX + 1))


@pytest.mark.parametrize("body", [b"\xff\xff", b"\x1a\x02\xff\xfe"], ids=["not protobuf", "not UTF-8"])
def test_a_body_that_is_no_message_is_refused(body):
    with pytest.raises(WireError, match=r"manifest is not a message of mhfl\.v1"):
        decode_manifest(body)


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
        encode_manifest(replace(MANIFEST, **changes))


def test_the_signature_is_over_label_zero_and_body(authority):
    own = authority.admit("europe").load()
    signed = sign_manifest(own, encode_manifest(MANIFEST))
    assert verify_manifest(signed, own.certificate) == MANIFEST
    assert signed.certificate_der == certificates.certificate_der(own.certificate)
    own.key.public_key().verify(signed.signature, b"mhfl/manifest/v1\x00" + signed.body, ec.ECDSA(hashes.SHA256()))
    without_label = replace(signed, signature=certificates.sign(own.key, signed.body))
    with pytest.raises(ValueError, match="does not fit"):
        verify_manifest(without_label, own.certificate)
    with pytest.raises(ValueError, match="does not fit"):
        verify_manifest(signed, own.ca)


def test_a_signed_manifest_survives_its_journal_row():
    signed = SignedManifest(b"body", b"signature", b"certificate")
    row = to_base64(signed)
    assert row == {"body": "Ym9keQ==", "signature": "c2lnbmF0dXJl", "certificate_der": "Y2VydGlmaWNhdGU="}
    assert from_base64({"peer": "europe", **row}) == signed


@pytest.mark.parametrize("change", [{"body": "?"}, {"body": None}, {}], ids=["not base64", "null", "missing"])
def test_a_row_that_holds_no_signed_manifest_is_refused(change):
    with pytest.raises(ValueError, match="it is no signed manifest in base64"):
        from_base64({"signature": "", "certificate_der": "", **change})


def accept(entry) -> Manifest:
    """Verify a vector in the order of the specification."""
    ca = x509.load_pem_x509_certificate(VECTOR["ca_certificate"].encode())
    now = datetime.datetime.fromisoformat(VECTOR["now"])
    signed = SignedManifest(*(bytes.fromhex(entry[name]) for name in ("body", "signature", "certificate_der")))
    certificate = certificates.verify_certificate(signed.certificate_der, ca, VECTOR["dialled"], now)
    return verify_manifest(signed, certificate)


def test_the_known_manifest_is_accepted_and_encodes_to_the_same_bytes():
    manifest, expected = accept(VECTOR["accepted"]), VECTOR["accepted"]["manifest"]
    assert encode_manifest(manifest).hex() == VECTOR["accepted"]["body"]
    artifact = manifest.artifact
    tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape)} for t in manifest.tensors]
    fields = {name: getattr(manifest, name, getattr(artifact, name, None)) for name in expected}
    assert {**fields, "tensors": tensors} == expected
    assert bytes.fromhex(VECTOR["label"]) == b"mhfl/manifest/v1\x00"


def test_the_known_manifest_describes_the_known_file(tmp_path):
    path = tmp_path / "artifact"
    path.write_bytes(bytes.fromhex(VECTOR["artifact"]))
    manifest = accept(VECTOR["accepted"])
    check_safetensors_header(path, manifest)
    assert read_tensors(path) == manifest.tensors
    assert hashlib.sha256(path.read_bytes()).hexdigest() == manifest.artifact.sha256


@pytest.mark.parametrize("entry", VECTOR["refused"], ids=lambda entry: entry["why"])
def test_the_known_forgeries_are_refused(entry):
    with pytest.raises(ValueError, match=r"the signature does not fit|the certificate names asia, not europe"):
        accept(entry)


# --- masked artifacts -------------------------------------------------------------------------------------------------
COMMITMENTS = {"africa": "01" * 32, "europe": "02" * 32}


def masked(commitments):
    return replace(MANIFEST, artifact=replace(MANIFEST.artifact, commitments=commitments))


@given(st.dictionaries(names, digests, max_size=limits.SUM_MEMBERS_MAX - 1))
def test_the_commitments_of_a_masked_artifact_survive_the_wire(others):
    manifest = masked({**others, "europe": "02" * 32})
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert encode_manifest(decode_manifest(encode_manifest(manifest))) == encode_manifest(manifest)


def test_a_plain_artifact_has_no_commitments():
    message = pb.Manifest.FromString(encode_manifest(MANIFEST))
    assert list(message.commitments) == []
    assert decode_manifest(encode_manifest(MANIFEST)).artifact.commitments is None


@pytest.mark.parametrize(
    ("commitments", "reason"),
    [
        ({"africa": "01" * 32}, "manifest.commitments has none of the origin europe"),
        ({}, "manifest.commitments has none of the origin europe"),
        ({"europe": "02"}, r"manifest\.commitments\[europe\]\.digest"),
        ({"europe": "02" * 32, "a b": "01" * 32}, "manifest.commitments: site name 'a b'"),
        (
            {"europe": "02" * 32} | {f"s{index}": "01" * 32 for index in range(limits.SUM_MEMBERS_MAX)},
            "manifest.commitments has 65 entries, over the limit of 64",
        ),
    ],
)
def test_commitments_outside_a_bound_are_not_signed(commitments, reason):
    with pytest.raises(WireError, match=reason):
        encode_manifest(masked(commitments))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ([("africa", 32)], "manifest.commitments has none of the origin europe"),
        ([("europe", 32), ("europe", 32)], "manifest.commitments.site 'europe' stands twice"),
        ([("europe", 32), ("africa", 32)], "manifest.commitments.site 'africa' stands twice, or not in the order"),
        ([("europe", 31)], r"manifest\.commitments\[europe\]\.digest"),
        ([("Europe", 32)], "manifest.commitments.site: site name 'Europe'"),
        ([(f"s{index:03}", 32) for index in range(65)], "manifest.commitments has 65 entries"),
    ],
)
def test_commitments_outside_a_bound_are_refused_by_name(entries, reason):
    message = pb.Manifest.FromString(encode_manifest(MANIFEST))
    message.commitments.extend(pb.SiteDigest(site=name, digest=bytes(size)) for name, size in entries)
    with pytest.raises(WireError, match=reason):
        decode_manifest(message.SerializeToString())
