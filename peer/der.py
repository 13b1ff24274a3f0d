"""The two encodings of a certificate that anybody can make, so that a refused one does not come back under the other.

With an ECDSA signature (r, s), (r, n - s) is one as well (SEC 1, 4.1): whoever holds a certificate can give it other
bytes, and other digests, without the key that signed it. Nothing else in a certificate can be changed, as long as its
signature is written in DER as it should be.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""FIPS 186-5, of the curve P-256."""
ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
"""RFC 5758, 3.2: the algorithm's identifier, which has no parameters."""
SEQUENCE, BIT_STRING = b"\x30", b"\x03"


def encodings(certificate: x509.Certificate) -> tuple[bytes, bytes]:
    """The certificate with its signature's s, and with n - s, in DER; ``ValueError`` when it has no ECDSA signature."""
    r, s = decode_dss_signature(certificate.signature)
    tbs = certificate.tbs_certificate_bytes
    first, second = (
        _element(SEQUENCE, tbs + ECDSA_WITH_SHA256 + _element(BIT_STRING, b"\x00" + encode_dss_signature(r, each)))
        for each in (s, P256_ORDER - s)
    )
    return first, second


def _element(tag: bytes, content: bytes) -> bytes:
    """Tag, length, content (X.690, 8.1.3)."""
    size = len(content)
    if size < 0x80:
        return tag + bytes([size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return tag + bytes([0x80 | len(length)]) + length + content
