"""Bundles: the seal against an HPKE of its own, checked by RFC 9180's vector, and no field that can be changed."""

import base64
import hmac
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.core.messages import ChainHead
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.errors import BundleError
from peer.site.identity.bundle import BUNDLE_BYTES_MAX, Bundle, read_received_file, seal, unseal
from peer.site.identity.certificates import new_key

KEY, CA_KEY = new_key(), new_key()
ROUND_KEY = RoundKey(bytes(range(32)))
DIGEST = Sha256("5a" * 32)
EUROPE = SiteName("europe")
INFO = b"mhfl/bundle/v1" + bytes.fromhex(DIGEST) + b"europe"
BUNDLE = Bundle(
    site=EUROPE,
    federation_digest=DIGEST,
    federation_toml='name = "trial"\ntext = "Zürich"\n',
    certificate="-----BEGIN CERTIFICATE-----\n",
    sealed_round_key=seal(ROUND_KEY, KEY.public_key(), digest=DIGEST, site=EUROPE),
).with_signature(CA_KEY)


class ReferenceHpke:
    """RFC 9180, base mode, DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-GCM, one message; written from the RFC."""

    def __init__(self, aead: int, key_bytes: int) -> None:
        self.key_bytes = key_bytes
        self.suite = b"HPKE" + b"\x00\x10" + b"\x00\x01" + aead.to_bytes(2, "big")

    @staticmethod
    def extract(suite: bytes, salt: bytes, label: bytes, material: bytes) -> bytes:
        return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + material, "sha256")

    @staticmethod
    def expand(suite: bytes, secret: bytes, label: bytes, info: bytes, length: int) -> bytes:
        labelled = length.to_bytes(2, "big") + b"HPKE-v1" + suite + label + info
        return hmac.digest(secret, labelled + b"\x01", "sha256")[:length]  # every length here is 32 at most

    def shared_secret(self, dh: bytes, enc: bytes, recipient: bytes) -> bytes:
        suite = b"KEM" + b"\x00\x10"
        return self.expand(suite, self.extract(suite, b"", b"eae_prk", dh), b"shared_secret", enc + recipient, 32)

    def cipher(self, shared: bytes, info: bytes) -> tuple[AESGCM, bytes]:
        context = b"\x00" + self.extract(self.suite, b"", b"psk_id_hash", b"")
        context += self.extract(self.suite, b"", b"info_hash", info)
        secret = self.extract(self.suite, shared, b"secret", b"")
        key = self.expand(self.suite, secret, b"key", context, self.key_bytes)
        return AESGCM(key), self.expand(self.suite, secret, b"base_nonce", context, 12)

    def open(self, enc: bytes, ciphertext: bytes, key: ec.EllipticCurvePrivateKey, info: bytes, aad: bytes) -> bytes:
        dh = key.exchange(ec.ECDH(), ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), enc))
        cipher, nonce = self.cipher(self.shared_secret(dh, enc, point(key.public_key())), info)
        return cipher.decrypt(nonce, ciphertext, aad)

    def seal(self, text: bytes, recipient: ec.EllipticCurvePublicKey, info: bytes) -> bytes:
        ephemeral = new_key()
        enc = point(ephemeral.public_key())
        shared = self.shared_secret(ephemeral.exchange(ec.ECDH(), recipient), enc, point(recipient))
        cipher, nonce = self.cipher(shared, info)
        return enc + cipher.encrypt(nonce, text, b"")


def point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def test_the_reference_gives_the_answer_of_rfc_9180() -> None:
    """Appendix A.3.1: the same KEM and KDF, AES-128-GCM, first encryption."""
    private = int("f3ce7fdae57e1a310d87f1ebbde6f328be0a99cdbcadf4d6589cf29de4b8ffd2", 16)
    enc = (
        "04a92719c6195d5085104f469a8b9814d5838ff72b60501e2c4466e5e67b325ac9"
        "8536d7b61a1af4b78e5b7f951c0900be863c403ce65c9bfcb9382657222d18c4"
    )
    ciphertext = "5ad590bb8baa577f8619db35a36311226a896e7342a6d836d8b7bcd2f20b6c7f9076ac232e3ab2523f39513434"
    text = ReferenceHpke(1, 16).open(
        bytes.fromhex(enc),
        bytes.fromhex(ciphertext),
        ec.derive_private_key(private, ec.SECP256R1()),
        b"Ode on a Grecian Urn",
        b"Count-0",
    )
    assert text == b"Beauty is truth, truth beauty"


def test_seal_is_hpke_with_the_encapsulated_key_in_front() -> None:
    sealed = seal(ROUND_KEY, KEY.public_key(), digest=DIGEST, site=EUROPE)
    assert len(sealed) == 65 + 32 + 16
    assert sealed[0] == 4
    assert ReferenceHpke(2, 32).open(sealed[:65], sealed[65:], KEY, INFO, b"") == ROUND_KEY
    assert ROUND_KEY not in sealed


def test_unseal_opens_what_another_implementation_sealed() -> None:
    sealed = ReferenceHpke(2, 32).seal(ROUND_KEY, KEY.public_key(), INFO)
    assert unseal(sealed, KEY, digest=DIGEST, site=EUROPE) == ROUND_KEY


def test_seal_is_bound_to_key_federation_and_site() -> None:
    sealed = seal(ROUND_KEY, KEY.public_key(), digest=DIGEST, site=EUROPE)
    assert unseal(sealed, KEY, digest=DIGEST, site=EUROPE) == ROUND_KEY
    for key, digest, site in (
        (CA_KEY, DIGEST, EUROPE),
        (KEY, Sha256("5b" * 32), EUROPE),
        (KEY, DIGEST, SiteName("asia")),
    ):
        with pytest.raises(ValueError, match="not sealed for this site's key in this federation"):
            unseal(sealed, key, digest=digest, site=site)
    for wrong in (b"", sealed[:64], sealed[:-1], sealed + b"\0"):
        with pytest.raises(ValueError, match="not sealed for this site's key"):
            unseal(wrong, KEY, digest=DIGEST, site=EUROPE)
    short = ReferenceHpke(2, 32).seal(bytes(31), KEY.public_key(), INFO)
    with pytest.raises(ValueError, match="has 32 bytes, not 31"):
        unseal(short, KEY, digest=DIGEST, site=EUROPE)


def test_file_round_trip() -> None:
    content = BUNDLE.encode()
    assert content.isascii()
    assert Bundle.decode(content) == BUNDLE
    assert Bundle.decode(content.replace(b"\n", b"\r\n")) == BUNDLE, "a mail changes line ends"
    Bundle.decode(content).verify(CA_KEY.public_key())


def test_signature_is_over_label_zero_and_canonical_json() -> None:
    """Recomputed from the file alone, as another implementation would."""
    document = json.loads(BUNDLE.encode())
    signature = base64.b64decode(document.pop("signature"))
    text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    CA_KEY.public_key().verify(signature, b"mhfl/bundle/v1\x00" + text, ec.ECDSA(hashes.SHA256()))
    assert set(document) == {
        *("mhfl_bundle", "site", "federation_digest", "federation_toml", "certificate", "sealed_round_key"),
    }


@pytest.mark.parametrize(
    "change",
    [
        {"site": SiteName("asia")},
        {"federation_digest": Sha256("5b" * 32)},
        {"federation_toml": BUNDLE.federation_toml + " "},
        {"certificate": ""},
        {"sealed_round_key": BUNDLE.sealed_round_key[:-1] + bytes([BUNDLE.sealed_round_key[-1] ^ 1])},
        {"signature": BUNDLE.signature[:-1]},
        {"signature": b""},
    ],
)
def test_no_field_can_be_changed(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the signature does not fit"):
        replace(BUNDLE, **change).verify(CA_KEY.public_key())
    with pytest.raises(ValueError, match="the signature does not fit"):
        BUNDLE.verify(KEY.public_key())


@given(place=st.integers(0, len(BUNDLE.encode()) - 1), flip=st.integers(1, 255))
@settings(max_examples=500, deadline=None)
def test_no_changed_byte_changes_what_is_believed(place: int, flip: int) -> None:
    content = bytearray(BUNDLE.encode())
    content[place] ^= flip
    try:
        changed = Bundle.decode(bytes(content))
        changed.verify(CA_KEY.public_key())
    except ValueError:
        return
    assert replace(changed, signature=b"") == replace(BUNDLE, signature=b"")


def document(**changes: Any) -> bytes:
    return json.dumps({**json.loads(BUNDLE.encode()), **changes}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is no JSON text"),
        (b"\xff", "it is no JSON text"),
        (b"[" * 100_000, "it is no JSON text"),
        (b"[]", "it is no bundle of version 1 or 2"),
        (document(mhfl_bundle=3), "it is no bundle of version 1 or 2"),
        (document(mhfl_bundle=[]), "it is no bundle of version 1 or 2"),
        (document(mhfl_bundle=2), "it must hold site, federation_digest, .*amendment_number"),
        (document(extra="x"), "it must hold site, federation_digest"),
        (document(site=3), "it must hold site, federation_digest"),
        (document(site="../x"), "site name '../x' must be"),
        (document(federation_digest="x"), "'x' is not a SHA-256 digest"),
        (document(sealed_round_key="???"), "sealed_round_key or signature is not base64"),
        (b" " * (BUNDLE_BYTES_MAX + 1), "it is over 4194304 bytes"),
    ],
)
def test_what_is_no_bundle(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bundle.decode(content)


def test_handed_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    assert read_received_file(tmp_path / "file") == b"content"
    with pytest.raises(BundleError, match=r"missing cannot be read: No such file or directory; name the right file"):
        read_received_file(tmp_path / "missing")
    with (tmp_path / "endless").open("wb") as file:
        file.truncate(1 << 40)
    assert len(read_received_file(tmp_path / "endless")) == BUNDLE_BYTES_MAX + 1


def test_a_newcomers_bundle_pins_its_amendment_and_has_no_round_key() -> None:
    pinned = ChainHead(3, Sha256("ab" * 32))
    bundle = replace(BUNDLE, sealed_round_key=b"", added=pinned, signature=b"").with_signature(CA_KEY)
    decoded = Bundle.decode(bundle.encode())
    assert decoded == bundle
    decoded.verify(CA_KEY.public_key())
    document = json.loads(bundle.encode())
    assert (document["mhfl_bundle"], document["amendment_number"], document["amendment_digest"]) == (2, 3, "ab" * 32)
    assert "sealed_round_key" not in document
    for changed in (replace(bundle, added=ChainHead(3, Sha256("ac" * 32))), replace(bundle, added=None)):
        with pytest.raises(ValueError, match="signature"):
            changed.verify(CA_KEY.public_key())


@pytest.mark.parametrize("number", [0, -1, True, "3", 10_001])
def test_a_newcomers_bundle_names_an_amendment_that_can_be(number: Any) -> None:
    document = json.loads(replace(BUNDLE, added=ChainHead(3, Sha256("ab" * 32))).encode())
    with pytest.raises(ValueError, match="amendment_number"):
        Bundle.decode(json.dumps({**document, "amendment_number": number}).encode())
