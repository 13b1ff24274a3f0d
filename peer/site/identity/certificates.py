"""Create, read and check a site's key, its certificate and the federation's CA.

A certificate has two encodings. If (r, s) is an ECDSA signature, so is (r, n - s) (SEC 1, 4.1):
anybody who has a certificate can give it other bytes, and another digest, without the key that
signed it. A list of refused certificates therefore has to cover both. Nothing else in a certificate
can be changed as long as its signature is written in DER.
"""

from __future__ import annotations

import datetime
import functools
import hashlib
import os
import stat
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from peer.core.limits import CERTIFICATE_BYTES_MAX
from peer.core.roster import RoundKey, Sha256, SiteName, round_key
from peer.errors import CertificateError
from peer.site.identity.validity import CERTIFICATE_FILE as CERTIFICATE_FILE

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the curve P-256, from FIPS 186-5."""
ECDSA_WITH_SHA256 = bytes.fromhex("300a06082a8648ce3d040302")
"""The algorithm identifier of RFC 5758, 3.2, which has no parameters."""
SEQUENCE, BIT_STRING = b"\x30", b"\x03"
CERTIFICATES_KEPT_MAX = 1024
"""Size of the cache of examined certificates: a few for each site of a large federation."""


@functools.lru_cache(maxsize=CERTIFICATES_KEPT_MAX)
def encodings(certificate: x509.Certificate) -> tuple[bytes, bytes]:
    """Encode the certificate in DER twice: with its signature's s, and with n - s.

    Raise ``ValueError`` if it has no ECDSA signature.
    """
    r, s = decode_dss_signature(certificate.signature)
    tbs = certificate.tbs_certificate_bytes
    first, second = (
        _element(SEQUENCE, tbs + ECDSA_WITH_SHA256 + _element(BIT_STRING, b"\x00" + encode_dss_signature(r, each)))
        for each in (s, P256_ORDER - s)
    )
    return first, second


def _element(tag: bytes, content: bytes) -> bytes:
    """Encode a DER element: tag, length, content (X.690, 8.1.3)."""
    size = len(content)
    if size < 0x80:
        return tag + bytes([size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return tag + bytes([0x80 | len(length)]) + length + content


KEY_FILE = "site.key"
PENDING_KEY_FILE = "site.key.new"  # a renewed key; in use as soon as cert.pem belongs to it
CA_FILE = "ca.pem"
ROUND_KEY_FILE = "round.key"

CA_DAYS = 3650  # longer than a study; the CA key stays offline
SITE_DAYS = 365  # one renewal a year
BACKDATE = datetime.timedelta(hours=1)  # clocks of hospitals differ
USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""The library's errors for bytes that are not a certificate, or a certificate of an unexpected form."""


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode the private key as unencrypted PKCS #8 PEM, for a file of mode 0600."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def fingerprint(public_key: ec.EllipticCurvePublicKey) -> str:
    """Return the SHA-256 of a public key (SPKI, DER) as colon-separated hex pairs, to compare over the telephone."""
    spki = public_key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(spki).digest().hex(":")


def key_digest(public_key: ec.EllipticCurvePublicKey) -> Sha256:
    """Return the SHA-256 of a public key (SPKI, DER): the ``key`` that a federation pins for a site."""
    return Sha256(fingerprint(public_key).replace(":", ""))


class OtherKey(ValueError):  # noqa: N818 - the name is the fact
    """The federation pins another key of the site than the certificate has.

    It proves nothing against the site: one of two sites may not know yet of an amendment that changes the
    key, and the other key's signatures are not the site's.
    """


def verify_pinned(certificate: x509.Certificate, pinned: str | None) -> None:
    """Raise ``OtherKey`` if the federation pins another key for the site than the certificate has."""
    if pinned is None:
        return
    own = key_digest(certificate_key(certificate))
    if own != pinned:
        raise OtherKey(f"the federation pins the key {pinned[:12]}… for it, and the certificate has {own[:12]}…")


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """Sign the data with ECDSA; the signature is in DER."""
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def verify_signature(public_key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> None:
    """Raise ``ValueError`` unless the key signed exactly this data."""
    try:
        public_key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ValueError("the signature does not fit") from None


def signing_request(key: ec.EllipticCurvePrivateKey, name: SiteName) -> bytes:
    """Create a signing request (PEM) with the site's name as common name and only DNS name."""
    builder = x509.CertificateSigningRequestBuilder(_subject(name))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_request(pem: bytes) -> tuple[str, ec.EllipticCurvePublicKey]:
    """Return common name and key of a certificate signing request (CSR); extensions are ignored.

    Raise ``ValueError`` if the bytes are not a CSR, its key did not sign it or is not a P-256 key, or it
    does not have exactly one common name.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        key, signed = request.public_key(), request.is_signature_valid
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except UNREADABLE as error:
        raise ValueError("it is no certificate signing request in PEM form") from error
    if not signed:
        raise ValueError("its signature is not that of its own key")
    if len(names) != 1:
        raise ValueError(f"it has {len(names)} common names, not one")
    return str(names[0].value), _p256(key)


def new_authority(
    federation: str, *, now: datetime.datetime, days: int = CA_DAYS
) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Create a new CA's key and self-signed certificate, which may sign sites' certificates and no other CA's."""
    key = new_key()
    subject = _subject(f"{federation} federation CA")
    builder = _certificate(subject, subject, key.public_key(), key.public_key(), certifies=True)
    builder = builder.not_valid_before(now - BACKDATE).not_valid_after(now + datetime.timedelta(days=days))
    return key, builder.sign(key, hashes.SHA256())


def issue(
    ca_key: ec.EllipticCurvePrivateKey,
    ca: x509.Certificate,
    *,
    name: SiteName,
    public_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int = SITE_DAYS,
) -> x509.Certificate:
    """Issue a site's certificate, valid from an hour ago, and no longer than the CA's."""
    builder = _certificate(_subject(name), ca.subject, public_key, ca_key.public_key(), certifies=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(USAGES), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    builder = builder.not_valid_before(max(now - BACKDATE, ca.not_valid_before_utc))
    builder = builder.not_valid_after(min(now + datetime.timedelta(days=days), ca.not_valid_after_utc))
    return builder.sign(ca_key, hashes.SHA256())


@functools.lru_cache(maxsize=CERTIFICATES_KEPT_MAX)
def read_authority(pem: bytes) -> x509.Certificate:
    """Read a CA certificate in PEM. Raise ``ValueError`` unless it is a self-signed P-256 CA's."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.verify_directly_issued_by(certificate)
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except (*UNREADABLE, InvalidSignature) as error:
        raise ValueError("it is no self-signed CA certificate in PEM form") from error
    certificate_key(certificate)
    if not constraints.ca:
        raise ValueError("it is a certificate, but not a CA's")
    return certificate


def verify_certificate(
    der: bytes, ca: x509.Certificate, name: str, now: datetime.datetime | None, *, pinned: str | None = None
) -> x509.Certificate:
    """Decode a certificate; check that the CA issued it to this site only and that both certificates are in date.

    Args:
        now: the time, with its zone; ``None`` ignores dates, to check a signature of the past.
        pinned: the SHA-256 of the only key that counts as this site's.

    Raises:
        OtherKey: another key is pinned.
        ValueError: the certificate is refused; the message says why.
    """
    certificate = _verify_undated(der, ca, name)
    verify_pinned(certificate, pinned)
    if now is not None:
        verify_dates(ca, now, "the CA's certificate")
        verify_dates(certificate, now, "the certificate")
    return certificate


def verify_any_certificate(
    der: bytes, authorities: Sequence[x509.Certificate], name: str, now: datetime.datetime | None, *, pinned: str | None
) -> x509.Certificate:
    """Check that one of the federation's CAs issued the certificate.

    The ``ValueError`` raised is about the last CA, or ``OtherKey`` about the issuing one.
    """
    for ca in authorities[:-1]:
        try:
            return verify_certificate(der, ca, name, now, pinned=pinned)
        except OtherKey:
            raise
        except ValueError:
            continue
    return verify_certificate(der, authorities[-1], name, now, pinned=pinned)


@functools.lru_cache(maxsize=CERTIFICATES_KEPT_MAX)
def _verify_undated(der: bytes, ca: x509.Certificate, name: str) -> x509.Certificate:
    """Check everything but dates and pinned key; only accepted certificates are cached."""
    if len(der) > CERTIFICATE_BYTES_MAX:
        raise ValueError(f"a certificate of {len(der)} bytes is over the limit of {CERTIFICATE_BYTES_MAX}")
    try:
        certificate = x509.load_der_x509_certificate(der)
    except UNREADABLE as error:
        raise ValueError("the certificate cannot be read") from error
    try:
        certificate.verify_directly_issued_by(ca)
    except (*UNREADABLE, InvalidSignature) as error:
        raise ValueError("the certificate is not from this federation's CA") from error
    if der not in encodings(certificate):
        raise ValueError("the certificate is not written in DER")
    certificate_key(certificate)
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        names = list(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except UNREADABLE as error:
        raise ValueError(f"the certificate is not a site's ({error})") from error
    if constraints.ca or not set(USAGES) <= set(usages):
        raise ValueError("the certificate is not for both sides of a TLS connection")
    if names != [x509.DNSName(name)]:
        shown = ", ".join(str(getattr(other, "value", other)) for other in names)
        raise ValueError(f"the certificate names {shown or 'nobody'}, not {name}")
    return certificate


class NotYetValid(ValueError):  # noqa: N818 - the name is the fact
    """The certificate is not valid yet: most likely this machine's clock is slow."""


def verify_dates(certificate: x509.Certificate, now: datetime.datetime, subject: str) -> None:
    """Raise ``ValueError`` unless the certificate is in date; ``NotYetValid`` before its first day.

    ``subject`` names the certificate in the message.
    """
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if first <= now <= last:
        return
    here = f"this machine's clock says {now.astimezone(datetime.UTC):%Y-%m-%d %H:%M}"
    if now < first:
        raise NotYetValid(f"{subject} is not valid before {first:%Y-%m-%d %H:%M} UTC, and {here}")
    raise ValueError(f"{subject} expired on {last:%Y-%m-%d %H:%M} UTC, and {here}")


def certificate_days(certificate: x509.Certificate, now: datetime.datetime) -> int:
    """Return the whole days until the certificate expires; negative once it has."""
    return (certificate.not_valid_after_utc - now).days


def read_certificate(path: Path, *, if_missing: str = "") -> x509.Certificate:
    """Read the certificate in a PEM file, unverified.

    Raise ``ValueError`` if it holds none, ``CertificateError`` without a file, with the remedy ``if_missing``.
    """
    try:
        return x509.load_pem_x509_certificate(read_file(path, if_missing=if_missing))
    except UNREADABLE as error:
        raise ValueError("it is no certificate in PEM form") from error


def find_certificate(pki: Path) -> x509.Certificate | None:
    """Read the certificate in a site's ``pki`` folder, unverified; None if it cannot be read."""
    try:
        return read_certificate(pki / CERTIFICATE_FILE)
    except (CertificateError, ValueError):
        return None


def certificate_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the certificate's P-256 key. Raise ``ValueError`` if the key is of another kind."""
    try:
        return _p256(certificate.public_key())
    except UnsupportedAlgorithm as error:
        raise ValueError("the key is not a P-256 key") from error


def certificate_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_der(certificate: x509.Certificate) -> bytes:
    """Encode the certificate in DER, as a site sends it beside a manifest."""
    return certificate.public_bytes(serialization.Encoding.DER)


def certificate_sha256(der: bytes) -> Sha256:
    """Return the SHA-256 of a certificate in DER, which ``refuse_certificates`` in site.toml lists."""
    return Sha256(hashlib.sha256(der).hexdigest())


def is_refused(certificate: x509.Certificate, refused: Container[str]) -> bool:
    """Return whether the list contains the certificate, in either of its two encodings."""
    return any(digest in refused for digest in _digests(certificate))


@functools.lru_cache(maxsize=CERTIFICATES_KEPT_MAX)
def _digests(certificate: x509.Certificate) -> tuple[Sha256, ...]:
    return tuple(map(certificate_sha256, encodings(certificate)))


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    *,
    certifies: bool,
) -> x509.CertificateBuilder:
    """Start a builder with the fields common to a CA's and a site's certificate."""
    usage = x509.KeyUsage(
        digital_signature=not certifies,
        key_cert_sign=certifies,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    builder = builder.serial_number(x509.random_serial_number())
    for extension, critical in (
        (x509.BasicConstraints(ca=certifies, path_length=0 if certifies else None), True),
        (usage, True),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), False),
    ):
        builder = builder.add_extension(extension, critical=critical)
    return builder


def _p256(key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError("the key is not a P-256 key")
    return key


@dataclass(frozen=True, slots=True)
class Identity:
    """A site's name, keys and certificates; ``repr`` does not show the secrets.

    ``round_key`` is that of the genesis; a site that joined later may have none.
    """

    name: SiteName
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    certificate: x509.Certificate
    ca: x509.Certificate
    round_key: RoundKey | None = field(repr=False)

    @classmethod
    def load(
        cls,
        folder: Path,
        *,
        name: SiteName,
        ca_certificate: str | None,
        now: datetime.datetime | None,
        pinned_key: str | None = None,
        later: Sequence[x509.Certificate] = (),
        joined_later: bool = False,
    ) -> Identity:
        """Load the identity in a site's ``pki`` folder.

        Args:
            ca_certificate: the CA's PEM text in ``federation.toml``, with which the files must
                agree.
            now: the time, with its zone; ``None`` accepts a certificate out of date: to sign for an
                auditor.
            pinned_key: the key that the federation pins for the site, if it does.
            later: the CAs that amendments have added, one of which may have issued the certificate.
            joined_later: the site does not belong to the genesis, and needs no round key of it.

        Raises:
            CertificateError: a file is missing, unreadable, open to others, expired or foreign.
        """
        pinned = pinned_authority(ca_certificate)
        ca_file, certificate_file = folder / CA_FILE, folder / CERTIFICATE_FILE
        try:
            ca = read_authority(read_file(ca_file))
        except ValueError as error:
            raise CertificateError(f"{ca_file}: {error}") from error
        if ca != pinned:
            raise CertificateError(f"{ca_file} is not the CA certificate in federation.toml")
        try:
            der = certificate_der(read_certificate(certificate_file))
            certificate = verify_any_certificate(der, (ca, *later), name, now, pinned=pinned_key)
        except NotYetValid as error:
            remedy = "set the clock right (NTP); if it is right, tell the founder, whose clock was ahead"
            raise CertificateError(f"{certificate_file}: {error}", remedy) from error
        except ValueError as error:
            remedy = "ask the founder for a new bundle and run `mhfl-peer site join`, or restore this site's own backup"
            raise CertificateError(f"{certificate_file}: {error}", remedy) from error
        path = folder / ROUND_KEY_FILE
        round_key = None if joined_later and not path.exists() else read_round_key(path)
        return cls(name, _own_key(folder, certificate), certificate, ca, round_key)


def pinned_authority(ca_certificate: str | None) -> x509.Certificate:
    """Read the CA certificate in a ``federation.toml``.

    Raise ``CertificateError`` if it has none, as in a draft.
    """
    if ca_certificate is None:
        raise CertificateError(
            "federation.toml has no ca_certificate: it is a draft", "use the file that `federation create` wrote"
        )
    try:
        return read_authority(ca_certificate.encode())
    except ValueError as error:
        raise CertificateError(
            f"ca_certificate in federation.toml: {error}", "get the founder's file again, unchanged"
        ) from error


def read_file(path: Path, *, secret: bool = False, if_missing: str = "") -> bytes:
    """Read a file.

    Raise ``CertificateError`` if the file is secret and readable by others, or missing; the remedy is
    then ``if_missing``, or the one for a site's own files.
    """
    try:
        with path.open("rb") as file:
            content = file.read()
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        raise CertificateError(f"{path} is missing", if_missing) from None
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}", "let this user read it") from error
    if secret and mode & 0o077:
        raise CertificateError(f"{path} is a secret that others can read (mode {mode:04o})", f"run `chmod 600 {path}`")
    return content


def read_key(path: Path, *, if_missing: str = "") -> ec.EllipticCurvePrivateKey:
    """Read a P-256 key. Raise ``CertificateError`` unless only this user can read the file."""
    content = read_file(path, secret=True, if_missing=if_missing)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{path} holds no private key in PEM form", "restore it from your backup") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CertificateError(f"{path} holds another kind of key than P-256", "restore it from your backup")
    return key


def read_round_key(path: Path) -> RoundKey:
    """Read a round key from a file of 64 hex digits.

    Raise ``CertificateError`` unless only this user can read the file.
    """
    try:
        return round_key(bytes.fromhex(read_file(path, secret=True).decode("ascii")))
    except ValueError:  # without the cause, which could quote the secret
        raise CertificateError(f"{path} holds no round key of 64 hex digits") from None


def _own_key(folder: Path, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    """Return the certificate's private key: the site's, or the renewed one after an interrupted join."""
    for name in (KEY_FILE, PENDING_KEY_FILE):
        if name == KEY_FILE or (folder / name).exists():
            key = read_key(folder / name)
            if key.public_key() == certificate.public_key():
                return key
    raise CertificateError(f"{folder / CERTIFICATE_FILE} does not belong to {folder / KEY_FILE}")
