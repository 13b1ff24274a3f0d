"""Manifests: encoding, signature, and the base64 form in journals and evidence files.

A manifest describes an artifact. Its origin signs the bytes, a receiver verifies the signature before it decodes them,
and the journals of both sites store them with signature and certificate, so that anybody can verify them later.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping

from cryptography import x509
from google.protobuf.message import DecodeError

from peer.core import limits
from peer.core.artifacts import DTYPES, Artifact, TensorSpec
from peer.core.messages import Manifest, SignedManifest
from peer.core.privacy import MU_MAX
from peer.core.roster import Sha256, SiteName
from peer.net.transport.bounds import (
    WireError,
    at_most,
    digest,
    finite,
    json_object,
    known,
    number,
    site,
    specification,
    tensor_bytes,
    text,
)
from peer.net.transport.header import LENGTH_BYTES
from peer.net.transport.sum_statements import check_site_digests, decode_site_digests, encode_site_digests
from peer.net.transport.wire import KIND, KIND_OF, check_head, decode_head, encode_head
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

LABEL = b"mhfl/manifest/v1\x00"
"""Prefix of the signed body: the signature is valid for nothing else that the key signs."""
PARTS = ("body", "signature", "certificate_der")
"""Keys of a signed manifest in a journal row or an evidence file."""


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode a manifest into the bytes to sign; raise ``WireError`` if other sites would refuse it."""
    _check_manifest(manifest)
    artifact = manifest.artifact
    spec = json.dumps(artifact.spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    at_most("manifest.spec", len(spec.encode()), limits.SPEC_BYTES_MAX, "bytes")
    message = pb.Manifest(
        federation=bytes.fromhex(manifest.federation),
        generation=manifest.generation,
        method=manifest.method,
        origin=manifest.origin,
        round=manifest.round,
        kind=KIND[artifact.kind],
        owner=artifact.owner,
        sha256=bytes.fromhex(artifact.sha256),
        bytes=artifact.bytes,
        steps=artifact.steps,
        spec=spec,
        tensors=[pb.Tensor(name=spec.name, dtype=spec.dtype, shape=spec.shape) for spec in manifest.tensors],
        training_samples=artifact.training_samples,
        reexport=manifest.reexport,
        egress_count=manifest.egress_count,
        egress_head=bytes.fromhex(manifest.egress_head),
        evaluation=manifest.evaluation,
        head=encode_head(manifest.head),
        commitments=encode_site_digests(artifact.commitments or {}),
        mu=manifest.mu,
    )
    body = message.SerializeToString(deterministic=True)
    at_most("manifest", len(body), limits.MANIFEST_BYTES_MAX, "bytes")
    return body


def decode_manifest(body: bytes) -> Manifest:
    """Decode and check the body of a manifest whose signature the caller has verified."""
    at_most("manifest", len(body), limits.MANIFEST_BYTES_MAX, "bytes")
    try:
        message = pb.Manifest.FromString(body)
    except DecodeError as error:
        raise WireError(f"manifest is not a message of mhfl.v1: {error}") from None
    at_most("manifest.tensors", len(message.tensors), limits.TENSORS_MAX, "entries")
    at_most("manifest.commitments", len(message.commitments), limits.SUM_MEMBERS_MAX, "entries")
    artifact = Artifact(
        kind=known("manifest.kind", KIND_OF, message.kind),
        owner=SiteName(message.owner),
        sha256=Sha256(message.sha256.hex()),
        bytes=message.bytes,
        steps=message.steps,
        spec=json_object("manifest.spec", message.spec, bytes_max=limits.SPEC_BYTES_MAX),
        training_samples=message.training_samples if message.HasField("training_samples") else None,
        commitments=decode_site_digests("manifest.commitments", message.commitments) or None,
    )
    manifest = Manifest(
        federation=Sha256(message.federation.hex()),
        generation=message.generation,
        method=message.method,
        origin=SiteName(message.origin),
        round=message.round,
        artifact=artifact,
        tensors=tuple(TensorSpec(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in message.tensors),
        reexport=message.reexport,
        egress_count=message.egress_count,
        egress_head=message.egress_head.hex(),
        evaluation=message.evaluation,
        head=decode_head("manifest", message),
        mu=message.mu if message.HasField("mu") else None,
    )
    _check_manifest(manifest)
    return manifest


def sign_manifest(own: certificates.Identity, body: bytes) -> SignedManifest:
    """Sign an encoded manifest with the site's key, and attach the site's certificate."""
    return SignedManifest(body, certificates.sign(own.key, LABEL + body), certificates.certificate_der(own.certificate))


def verify_manifest(signed: SignedManifest, certificate: x509.Certificate) -> Manifest:
    """Verify a manifest's signature and decode it; the caller has verified the certificate before.

    Raises:
        ValueError: the key did not sign these bytes; the body is not decoded then.
        WireError: the body is outside a limit.
    """
    certificates.verify_signature(certificates.certificate_key(certificate), signed.signature, LABEL + signed.body)
    return decode_manifest(signed.body)


def to_base64(signed: SignedManifest) -> dict[str, str]:
    """Encode a signed manifest for a journal or an evidence file."""
    return {name: base64.b64encode(getattr(signed, name)).decode("ascii") for name in PARTS}


def from_base64(parts: Mapping[str, str]) -> SignedManifest:
    """Decode a signed manifest of a journal row or an evidence file; raise ``ValueError`` if it is not base64."""
    try:
        return SignedManifest(*(base64.b64decode(parts[name], validate=True) for name in PARTS))
    except (binascii.Error, KeyError, TypeError) as error:
        raise ValueError("it is no signed manifest in base64") from error


def _check_manifest(manifest: Manifest) -> None:
    artifact = manifest.artifact
    digest("manifest.federation", manifest.federation)
    number("manifest.generation", manifest.generation, minimum=1, maximum=limits.ROUNDS_MAX)
    text("manifest.method", manifest.method)
    site("manifest.origin", manifest.origin)
    number("manifest.round", manifest.round, minimum=1, maximum=limits.ROUNDS_MAX)
    site("manifest.owner", artifact.owner)
    digest("manifest.sha256", artifact.sha256)
    number("manifest.bytes", artifact.bytes, minimum=1, maximum=limits.ARTIFACT_BYTES_MAX)
    number("manifest.steps", artifact.steps, maximum=limits.STEPS_MAX)
    if artifact.training_samples is not None:
        number("manifest.training_samples", artifact.training_samples)
    number("manifest.egress_count", manifest.egress_count)
    if manifest.egress_head or manifest.egress_count:
        digest("manifest.egress_head", manifest.egress_head)
    specification("manifest.spec", artifact.spec)
    check_head("manifest", manifest.head)
    if manifest.mu is not None:
        finite("manifest.mu", manifest.mu, maximum=MU_MAX)
    if artifact.commitments is not None:
        check_site_digests("manifest.commitments", artifact.commitments)
        if manifest.origin not in artifact.commitments:
            raise WireError(f"manifest.commitments has none of the origin {manifest.origin}")
    _check_tensors(manifest)


def _check_tensors(manifest: Manifest) -> None:
    if not manifest.tensors:
        raise WireError("manifest.tensors is empty")
    at_most("manifest.tensors", len(manifest.tensors), limits.TENSORS_MAX, "entries")
    total = 0
    names = set()
    for index, tensor in enumerate(manifest.tensors):
        where = f"manifest.tensors[{index}]"
        text(f"{where}.name", tensor.name, bytes_max=limits.TENSOR_NAME_BYTES_MAX)
        if tensor.name in names:
            raise WireError(f"{where}.name {tensor.name!r} appears twice")
        names.add(tensor.name)
        if tensor.dtype not in DTYPES:
            raise WireError(f"{where}.dtype {tensor.dtype[:16]!r} is none of {', '.join(DTYPES)}")
        at_most(f"{where}.shape", len(tensor.shape), limits.TENSOR_DIMS_MAX, "dimensions")
        for size in tensor.shape:
            number(f"{where}.shape", size)
        total += tensor_bytes(tensor)
    size = manifest.artifact.bytes
    if total > size:
        raise WireError(f"manifest.tensors need {total} bytes, but manifest.bytes is {size}")
    header_bytes_max = LENGTH_BYTES + limits.SAFETENSORS_HEADER_BYTES_MAX
    at_most("manifest.bytes beside its tensors", size - total, header_bytes_max, "bytes")
