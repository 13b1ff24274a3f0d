"""The bundle that a founder sends to a site: JSON that the CA signs, safe to send by mail.

It holds the site's name, the federation's digest and file, the site's certificate, and the round
key, sealed with HPKE (RFC 9180, base mode) to the site's key and bound to federation and site. An
eavesdropper learns no secret. A site that an amendment added gets a bundle of version 2: instead of
the round key, which members give it, it holds the number and digest of that amendment.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from peer.core import limits
from peer.core.messages import ChainHead
from peer.core.roster import RoundKey, Sha256, SiteName, round_key, sha256, site_name
from peer.errors import BundleError
from peer.site.identity.certificates import sign, verify_signature

LABEL = b"mhfl/bundle/v1"
LABEL_OF_NEWCOMERS = b"mhfl/bundle/v2"
BUNDLE_BYTES_MAX = 4 << 20  # a federation.toml of 1 MiB, escaped as JSON, and room
SUITE = Suite(KEM.P256, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


COMMON = ("site", "federation_digest", "federation_toml", "certificate")
VERSIONS = {
    1: (*COMMON, "sealed_round_key", "signature"),
    2: (*COMMON, "amendment_number", "amendment_digest", "signature"),
}
"""By version, the keys of a bundle."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """The content of a bundle file: ``decode`` checks its form, ``verify`` the CA's signature.

    ``added`` is the amendment that added the site; ``None`` for a site of federation.toml.
    """

    site: SiteName
    federation_digest: Sha256
    federation_toml: str
    certificate: str
    sealed_round_key: bytes = b""
    added: ChainHead | None = None
    signature: bytes = b""

    @classmethod
    def decode(cls, content: bytes) -> Bundle:
        """Decode a bundle file. Raise ``ValueError`` if the bytes do not have a bundle's form."""
        if len(content) > BUNDLE_BYTES_MAX:
            raise ValueError(f"it is over {BUNDLE_BYTES_MAX} bytes")
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            raise ValueError("it is no JSON text") from None
        version = document.pop("mhfl_bundle", None) if isinstance(document, dict) else None
        if not isinstance(version, int) or version not in VERSIONS:
            raise ValueError(f"it is no bundle of version {' or '.join(map(str, VERSIONS))}")
        if set(document) != set(VERSIONS[version]) or not all(
            isinstance(value, int if name == "amendment_number" else str) for name, value in document.items()
        ):
            raise ValueError(f"it must hold {', '.join(VERSIONS[version])}, each of its type, and nothing else")
        try:
            sealed, signature = (
                base64.b64decode(document.get(name, ""), validate=True) for name in ("sealed_round_key", "signature")
            )
        except binascii.Error:
            raise ValueError("its sealed_round_key or signature is not base64") from None
        return cls(
            site=site_name(document["site"]),
            federation_digest=sha256(document["federation_digest"]),
            federation_toml=document["federation_toml"],
            certificate=document["certificate"],
            sealed_round_key=sealed,
            added=None if version == 1 else _added(document["amendment_number"], document["amendment_digest"]),
            signature=signature,
        )

    def encode(self) -> bytes:
        """Encode the bundle as indented ASCII JSON, which survives mail."""
        return json.dumps({**self._body(), "signature": _base64(self.signature)}, indent=2).encode("ascii") + b"\n"

    def with_signature(self, ca_key: ec.EllipticCurvePrivateKey) -> Bundle:
        return replace(self, signature=sign(ca_key, self._signed_bytes()))

    def verify(self, ca_key: ec.EllipticCurvePublicKey) -> None:
        """Raise ``ValueError`` unless the CA signed exactly these fields."""
        verify_signature(ca_key, self.signature, self._signed_bytes())

    def _body(self) -> dict[str, Any]:
        document = {
            "mhfl_bundle": 1 if self.added is None else 2,
            "site": self.site,
            "federation_digest": self.federation_digest,
            "federation_toml": self.federation_toml,
            "certificate": self.certificate,
        }
        if self.added is None:
            return {**document, "sealed_round_key": _base64(self.sealed_round_key)}
        return {**document, "amendment_number": self.added.number, "amendment_digest": self.added.digest}

    def _signed_bytes(self) -> bytes:
        """Return a label, a zero byte, and all fields but the signature: ASCII JSON with sorted keys, no spaces."""
        label = LABEL if self.added is None else LABEL_OF_NEWCOMERS
        return label + b"\x00" + json.dumps(self._body(), sort_keys=True, separators=(",", ":")).encode("ascii")


def read_received_file(path: Path) -> bytes:
    """Read a request or a bundle from another site, at most one byte over ``BUNDLE_BYTES_MAX``.

    Raise ``BundleError`` if the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(BUNDLE_BYTES_MAX + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}", "name the right file") from error


def seal(key: RoundKey, public_key: ec.EllipticCurvePublicKey, *, digest: Sha256, site: SiteName) -> bytes:
    """Encrypt the round key for one site: HPKE's encapsulated key (65 bytes), then ciphertext and tag (48 bytes)."""
    return SUITE.encrypt(key, public_key, info=_info(digest, site))


def unseal(sealed: bytes, key: ec.EllipticCurvePrivateKey, *, digest: Sha256, site: SiteName) -> RoundKey:
    """Decrypt the round key.

    Raise ``ValueError`` if the bytes were changed, or sealed for another key, federation or site.
    """
    try:
        return round_key(SUITE.decrypt(sealed, key, info=_info(digest, site)))
    except InvalidTag:
        raise ValueError("the round key was not sealed for this site's key in this federation") from None


def _added(number: int, digest: str) -> ChainHead:
    if isinstance(number, bool) or not 1 <= number <= limits.AMENDMENTS_MAX:
        raise ValueError(f"amendment_number is not a whole number from 1 to {limits.AMENDMENTS_MAX}")
    return ChainHead(number, sha256(digest))


def _info(digest: Sha256, site: SiteName) -> bytes:
    return LABEL + bytes.fromhex(digest) + site.encode("ascii")


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
