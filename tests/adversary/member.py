"""A member of a federation that keeps no rule, written from ``proto/`` alone.

It holds a real key, certificate and round key. Of the program it uses the generated messages and
nothing else, so that no check of the program's own client or server stands in its way.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import struct
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from peer.pb import peer_pb2 as pb

SERVICE = "mhfl.v1.Exchange"
LABEL = b"mhfl/manifest/v1\x00"
MODEL, HEAD, PROXY, MESSENGER, RETURN = 1, 2, 3, 4, 5
TRAIN, HANDBACK, EVALUATE, COME_HOME = 1, 2, 3, 4
NOT_YET, RETIRED, SKIPPED = 1, 2, 3
CALL_S = 10.0


def canonical(value: Any) -> Any:
    """A parsed ``federation.toml`` without what is no part of its digest."""
    if isinstance(value, Mapping):
        return {key: canonical(inner) for key, inner in value.items() if key not in ("address", "description")}
    return [canonical(inner) for inner in value] if isinstance(value, list) else value


@dataclass
class Artifact:
    """A file and what its manifest says of it; the defaults tell the truth."""

    content: bytes
    spec: str
    tensors: list[tuple[str, str, tuple[int, ...]]]
    claims: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: pb.Manifest, content: bytes) -> Artifact:
        """Another site's artifact but for one bit, to be sent on as one's own: of equal ones, only one counts."""
        first = 8 + int.from_bytes(content[:8], "little")
        content = content[:first] + bytes([content[first] ^ 1]) + content[first + 1 :]
        tensors = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in manifest.tensors]
        return cls(content, manifest.spec, tensors)


def safetensors(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


class Member:
    """Its identity, its calls, and the messages that it writes.

    Args:
        folder: ``pki/`` as enrolment left it, and ``federation.toml`` beside it.
        name: its name in the roster.
        kind: of the artifacts that the method exchanges.
        method: the federation's.
    """

    def __init__(self, pki: Path, federation_toml: Path, name: str, *, kind: int, method: str) -> None:
        self.name, self.kind, self.method = name, kind, method
        document = tomllib.loads(federation_toml.read_text("utf-8"))
        text = json.dumps(canonical(document), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        self.federation = hashlib.sha256(text.encode()).digest()
        self.addresses = {site["name"]: site["address"] for site in document["site"]}
        self.roster = hashlib.sha256("\n".join(sorted(self.addresses)).encode()).digest()
        round_key = bytes.fromhex((pki / "round.key").read_text().strip())
        self.tag = hmac.digest(round_key, b"mhfl/hello/v1" + self.federation, "sha256")
        self.ca, self.certificate, self.key_pem = (
            (pki / file).read_bytes() for file in ("ca.pem", "cert.pem", "site.key")
        )
        key = serialization.load_pem_private_key(self.key_pem, None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key
        self.der = x509.load_pem_x509_certificate(self.certificate).public_bytes(serialization.Encoding.DER)
        self._channels: dict[str, grpc.Channel] = {}

    def channel(self, site: str) -> grpc.Channel:
        if site not in self._channels:
            credentials = grpc.ssl_channel_credentials(self.ca, self.key_pem, self.certificate)
            options = [
                ("grpc.ssl_target_name_override", site),
                ("grpc.max_receive_message_length", -1),
                ("grpc.max_send_message_length", -1),
                ("grpc.enable_http_proxy", 0),
            ]
            self._channels[site] = grpc.secure_channel(self.addresses[site], credentials, options)
        return self._channels[site]

    def call(self, site: str, method: str, request: bytes, *, timeout: float = CALL_S, **options: Any) -> bytes:
        """The bytes of the answer; ``grpc.RpcError`` with the status."""
        unary = self.channel(site).unary_unary(f"/{SERVICE}/{method}")
        answer: bytes = unary(request, timeout=timeout, **options)
        return answer

    def stream(self, site: str, request: bytes, **options: Any) -> Iterator[bytes]:
        """The messages of ``FetchArtifact``, as they come."""
        calls = self.channel(site).unary_stream(f"/{SERVICE}/FetchArtifact")
        yield from calls(request, timeout=CALL_S, **options)

    def status(self, site: str, method: str, request: bytes, **options: Any) -> str:
        """The name of the status that a call ends with."""
        try:
            if method == "FetchArtifact":
                for _ in self.stream(site, request, **options):
                    pass
            else:
                self.call(site, method, request, **options)
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"

    def greeting(self, **claims: Any) -> pb.Greeting:
        fields = {
            "protocol": 1,
            "federation": self.federation,
            "roster": self.roster,
            "generation": 1,
            "clock_s": time.time(),
            "software": "another program",
            "round_key_tag": self.tag,
        }
        return pb.Greeting(**{**fields, **claims})

    def pulse(self, **claims: Any) -> pb.Pulse:
        fields = {"generation": 1, "round": 1, "phase": "train", "progress": 0.5}
        return pb.Pulse(**{**fields, **claims})

    def asks(self, round: int, **claims: Any) -> pb.ManifestRequest:
        fields = {"kind": self.kind, "for_round": round, "purpose": TRAIN, "owner": self.name, "wait_s": 0.0}
        return pb.ManifestRequest(**{**fields, **claims})

    def fetches(self, round: int, sha256: bytes, **claims: Any) -> pb.FetchRequest:
        fields = {"kind": self.kind, "for_round": round, "purpose": TRAIN, "owner": self.name, "sha256": sha256}
        return pb.FetchRequest(**{**fields, **claims})

    def take(self, site: str, round: int) -> tuple[pb.Manifest, bytes]:
        """A site's artifact of a round, as a member in order takes it."""
        reply = pb.ManifestReply.FromString(
            self.call(site, "GetManifest", self.asks(round, owner=site, wait_s=5.0).SerializeToString(), timeout=15)
        )
        manifest = pb.Manifest.FromString(reply.manifest.body)
        request = self.fetches(round, manifest.sha256, owner=site).SerializeToString()
        return manifest, b"".join(pb.Chunk.FromString(message).data for message in self.stream(site, request))

    def signature(self, label: bytes, body: bytes) -> bytes:
        return self.key.sign(label + body, ec.ECDSA(hashes.SHA256()))

    def sign(self, body: bytes, *, label: bytes = LABEL) -> pb.SignedManifest:
        return pb.SignedManifest(body=body, signature=self.signature(label, body), certificate_der=self.der)

    def amendment(self, **claims: Any) -> bytes:
        """The body of a first amendment of the federation."""
        federation = self.federation.hex()
        place = {"federation": federation, "number": 1, "previous": federation, "from_round": 2, "issued": 1}
        fields = {**place, "round_key_tag": hashlib.sha256(b"a key").hexdigest(), **claims}
        return json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()

    def endorsement(self, body: bytes) -> pb.Endorsement:
        """The member's own signature under an amendment."""
        return pb.Endorsement(certificate_der=self.der, signature=self.signature(b"mhfl/amendment/v1\x00", body))

    def notice(self, site: str) -> pb.Notice:
        """A notice that a site leaves, which the member has signed."""
        fields = {"federation": self.federation.hex(), "site": site, "issued": 1}
        body = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
        return pb.Notice(body=body, signature=self.signature(b"mhfl/leave/v1\x00", body), certificate_der=self.der)

    def manifest(self, round: int, artifact: Artifact) -> pb.SignedManifest:
        """The signed manifest of an artifact, with its claims in place of the truth."""
        fields: dict[str, Any] = {
            "federation": self.federation,
            "generation": 1,
            "method": self.method,
            "origin": self.name,
            "round": round,
            "kind": self.kind,
            "owner": self.name,
            "sha256": hashlib.sha256(artifact.content).digest(),
            "bytes": len(artifact.content),
            "steps": 1,
            "spec": artifact.spec,
        }
        fields |= artifact.claims
        tensors = fields.pop("tensors", artifact.tensors)
        listed = [pb.Tensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in tensors]
        return self.sign(pb.Manifest(**fields, tensors=listed).SerializeToString())

    def close(self) -> None:
        for channel in self._channels.values():
            channel.close()


Answer = Callable[[str, bytes, grpc.ServicerContext], Any]
"""Answers a call: who asks, the request's bytes, and gRPC's context. ``FetchArtifact``'s yields."""


class Server(grpc.GenericRpcHandler):
    """The member's own port. Each call is answered by a function that a test may replace.

    Args:
        member: whose certificate is shown.
        answers: by method; a method that is not there is ``UNIMPLEMENTED``.
    """

    def __init__(self, member: Member, answers: dict[str, Answer]) -> None:
        self.answers, self.asked = answers, dict.fromkeys(answers, 0)
        self._lock = threading.Lock()
        self._server = grpc.server(
            futures.ThreadPoolExecutor(32), options=[("grpc.max_send_message_length", -1), ("grpc.so_reuseport", 0)]
        )
        self._server.add_generic_rpc_handlers((self,))
        credentials = grpc.ssl_server_credentials(
            [(member.key_pem, member.certificate)], member.ca, require_client_auth=True
        )
        assert self._server.add_secure_port(member.addresses[member.name], credentials)
        self._server.start()

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name not in self.answers:
            return None

        def answer(request: bytes, context: grpc.ServicerContext) -> Any:
            names = context.auth_context().get("x509_subject_alternative_name") or [b"?"]
            with self._lock:
                self.asked[name] += 1
            return self.answers[name](names[0].decode(), request, context)

        if name == "FetchArtifact":
            return grpc.unary_stream_rpc_method_handler(answer)
        return grpc.unary_unary_rpc_method_handler(answer)

    def stop(self) -> None:
        with contextlib.suppress(Exception):
            self._server.stop(0).wait(5)
