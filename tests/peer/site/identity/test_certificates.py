"""Certificates and signatures: which are accepted and refused, here and by OpenSSL."""

import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.core.limits import CERTIFICATE_BYTES_MAX
from peer.core.roster import SiteName
from peer.errors import CertificateError
from peer.site.identity import certificates
from peer.site.identity.certificates import (
    Identity,
    certificate_days,
    certificate_der,
    certificate_key,
    certificate_pem,
    fingerprint,
    issue,
    key_pem,
    new_authority,
    new_key,
    pinned_authority,
    read_authority,
    read_request,
    sign,
    signing_request,
    verify_certificate,
    verify_signature,
)

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
EUROPE = SiteName("europe")
CA_KEY, CA = new_authority("trial", now=NOW)
KEY = new_key()
CERTIFICATE = issue(CA_KEY, CA, name=EUROPE, public_key=KEY.public_key(), now=NOW)


def craft(
    *,
    names: tuple[x509.GeneralName, ...] = (x509.DNSName("europe"),),
    public_key: Any = None,
    ca: bool = False,
    usages: tuple[x509.ObjectIdentifier, ...] = certificates.USAGES,
) -> bytes:
    """A certificate with the CA's signature that ``issue`` would not make."""
    builder = x509.CertificateBuilder(
        issuer_name=CA.subject,
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "europe")]),
        public_key=public_key or KEY.public_key(),
        serial_number=1,
        not_valid_before=NOW,
        not_valid_after=NOW + timedelta(days=1),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return certificate_der(builder.sign(CA_KEY, hashes.SHA256()))


def test_authority_can_sign_sites_and_no_other_authority() -> None:
    constraints = CA.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.critical, constraints.value.ca, constraints.value.path_length) == (True, True, 0)
    usage = CA.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.key_cert_sign, usage.digital_signature, usage.crl_sign) == (True, False, False)
    assert isinstance(CA.public_key(), ec.EllipticCurvePublicKey)
    assert CA.not_valid_after_utc == NOW + timedelta(days=3650)
    assert read_authority(certificate_pem(CA)) == CA


def test_site_certificate_says_what_the_design_says() -> None:
    extensions = CERTIFICATE.extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("europe")]
    usages = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert set(extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == usages
    usage = extensions.get_extension_for_class(x509.KeyUsage).value
    assert (usage.digital_signature, usage.key_cert_sign) == (True, False)
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert CERTIFICATE.not_valid_before_utc == NOW - timedelta(hours=1)
    assert CERTIFICATE.not_valid_after_utc == NOW + timedelta(days=365)
    again = issue(CA_KEY, CA, name=EUROPE, public_key=KEY.public_key(), now=NOW)
    assert CERTIFICATE.serial_number != again.serial_number


def test_site_certificate_stays_within_the_authoritys_dates() -> None:
    late = NOW + timedelta(days=3600)
    certificate = issue(CA_KEY, CA, name=EUROPE, public_key=KEY.public_key(), now=late)
    assert certificate.not_valid_after_utc == CA.not_valid_after_utc


def test_accepted_by_an_independent_verifier() -> None:
    """The library's own path validation, which follows the rules of the web PKI."""
    verifier = PolicyBuilder().store(Store([CA])).time(NOW).build_server_verifier(x509.DNSName("europe"))
    assert verifier.verify(CERTIFICATE, []) == [CERTIFICATE, CA]


@pytest.mark.parametrize("name", ["europe", "0", "a--b", "a" * 32])
def test_openssl_shakes_hands_over_it(tmp_path: Path, name: str) -> None:
    """Mutual TLS in memory, with Python's ssl module and without a network."""
    now = datetime.now(UTC)
    ca_key, ca = new_authority("trial", now=now)
    contexts = []
    for site, purpose in ((name, ssl.PROTOCOL_TLS_SERVER), ("asia", ssl.PROTOCOL_TLS_CLIENT)):
        key = new_key()
        path = tmp_path / f"{site}-{purpose.name}.pem"
        certificate = issue(ca_key, ca, name=SiteName(site), public_key=key.public_key(), now=now)
        path.write_bytes(key_pem(key) + certificate_pem(certificate))
        context = ssl.SSLContext(purpose)
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
        context.load_cert_chain(path)
        context.load_verify_locations(cadata=certificate_pem(ca).decode())
        contexts.append(context)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = contexts[0].wrap_bio(to_server, to_client, server_side=True)
    client = contexts[1].wrap_bio(to_client, to_server, server_hostname=name)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert waiting == []
    der = server.getpeercert(binary_form=True)
    assert der is not None
    assert verify_certificate(der, ca, "asia", now).subject.rfc4514_string() == "CN=asia"


@pytest.mark.parametrize(
    ("shift", "message"),
    [
        (
            timedelta(hours=-1, seconds=-1),
            "the CA's certificate is not valid before 2026-07-01 11:00 UTC, and this",
        ),
        (
            timedelta(days=365, seconds=1),
            "the certificate expired on 2027-07-01 12:00 UTC, and .* clock says 2027-07-01",
        ),
        (timedelta(days=3650, seconds=1), "the CA's certificate expired on"),
    ],
)
def test_dates_are_checked(shift: timedelta, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify_certificate(certificate_der(CERTIFICATE), CA, "europe", NOW + shift)


def test_not_yet_valid_site_certificate() -> None:
    later = issue(CA_KEY, CA, name=EUROPE, public_key=KEY.public_key(), now=NOW + timedelta(days=2))
    with pytest.raises(ValueError, match="the certificate is not valid before 2026-07-03 11:00 UTC"):
        verify_certificate(certificate_der(later), CA, "europe", NOW)
    at_the_edges = certificate_der(CERTIFICATE)
    for edge in (timedelta(hours=-1), timedelta(days=365)):
        verify_certificate(at_the_edges, CA, "europe", NOW + edge)


def test_foreign_authority_is_refused_even_under_the_same_name_and_a_site_certifies_nobody() -> None:
    _, other = new_authority("trial", now=NOW)
    _, stranger = new_authority("other", now=NOW)
    by_a_site = issue(KEY, CERTIFICATE, name=EUROPE, public_key=new_key().public_key(), now=NOW)
    for certificate, ca in ((CERTIFICATE, other), (CERTIFICATE, stranger), (by_a_site, CA)):
        with pytest.raises(ValueError, match="is not from this federation's CA"):
            verify_certificate(certificate_der(certificate), ca, "europe", NOW)


@pytest.mark.parametrize(
    ("der", "message"),
    [
        (certificate_der(CERTIFICATE)[:-1], "cannot be read"),
        (b"", "cannot be read"),
        (bytes(CERTIFICATE_BYTES_MAX + 1), "8193 bytes is over the limit of 8192"),
        (certificate_der(CA), "the certificate is not a site's"),
        (craft(names=()), "the certificate is not a site's"),
        (craft(ca=True), "not for both sides of a TLS connection"),
        (craft(usages=(ExtendedKeyUsageOID.SERVER_AUTH,)), "not for both sides of a TLS connection"),
        (craft(names=(x509.DNSName("asia"),)), "names asia, not europe"),
        (craft(names=(x509.DNSName("europe"), x509.DNSName("asia"))), "names europe, asia, not europe"),
        (craft(names=(x509.DNSName("*"),)), r"names \*, not europe"),
        (craft(names=(x509.RFC822Name("europe"),)), "names europe, not europe"),
        (craft(public_key=ec.generate_private_key(ec.SECP384R1()).public_key()), "not a P-256 key"),
        (craft(public_key=ed25519.Ed25519PrivateKey.generate().public_key()), "not a P-256 key"),
    ],
)
def test_certificates_that_are_refused(der: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify_certificate(der, CA, "europe", NOW)


@pytest.mark.filterwarnings("ignore")  # the library warns about some malformed numbers
@given(place=st.integers(0, len(certificate_der(CERTIFICATE)) - 1), flip=st.integers(1, 255))
@settings(max_examples=500, deadline=None)
def test_no_changed_byte_survives(place: int, flip: int) -> None:
    der = bytearray(certificate_der(CERTIFICATE))
    der[place] ^= flip
    with pytest.raises(ValueError, match="the certificate "):
        verify_certificate(bytes(der), CA, "europe", NOW)


def test_days_left() -> None:
    assert certificate_days(CERTIFICATE, NOW) == 365
    assert certificate_days(CERTIFICATE, NOW + timedelta(seconds=1)) == 364
    assert certificate_days(CERTIFICATE, NOW + timedelta(days=365, seconds=1)) == -1


def test_request_carries_name_and_key() -> None:
    pem = signing_request(KEY, EUROPE)
    assert read_request(pem) == ("europe", KEY.public_key())
    names = x509.load_pem_x509_csr(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert list(names) == [x509.DNSName("europe")]


def forged_request(key: Any, *names: str) -> bytes:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names])
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder(subject)
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM)


def test_requests_that_are_refused() -> None:
    der = bytearray(x509.load_pem_x509_csr(signing_request(KEY, EUROPE)).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    changed = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    for pem, message in (
        (b"", "no certificate signing request"),
        (certificate_pem(CERTIFICATE), "no certificate signing request"),
        (changed, "not that of its own key"),
        (forged_request(KEY), "0 common names"),
        (forged_request(KEY, "europe", "asia"), "2 common names"),
        (forged_request(ec.generate_private_key(ec.SECP384R1()), "europe"), "not a P-256 key"),
        (forged_request(ed25519.Ed25519PrivateKey.generate(), "europe"), "not a P-256 key"),
    ):
        with pytest.raises(ValueError, match=message):
            read_request(pem)


def test_fingerprint_is_sha256_of_the_key_as_openssl_counts_it() -> None:
    """The value is that of ``openssl ec -pubout -outform DER | sha256sum`` for the private key 1."""
    expected = "5c:d2:52:fb:0c:e8:93:24:36:fa:f8:cc:d1:04:09:81:b8:9e:e4:ad:6b:9f:e9:e2:a2:b7:e7:1a:ac:b2:7c:d3"
    assert fingerprint(ec.derive_private_key(1, ec.SECP256R1()).public_key()) == expected


def test_signatures_are_bound_to_key_and_data() -> None:
    signature = sign(KEY, b"data")
    verify_signature(KEY.public_key(), signature, b"data")
    for key, signed, data in (
        (CA_KEY.public_key(), signature, b"data"),
        (KEY.public_key(), signature, b"datum"),
        (KEY.public_key(), signature[:-1], b"data"),
        (KEY.public_key(), b"", b"data"),
    ):
        with pytest.raises(ValueError, match="the signature does not fit"):
            verify_signature(key, signed, data)


def test_authorities_that_are_refused() -> None:
    for pem, message in (
        (b"", "no self-signed CA certificate"),
        (certificate_pem(CERTIFICATE), "no self-signed CA certificate"),
        (certificate_pem(CA).replace(b"M", b"N"), "no self-signed CA certificate"),
    ):
        with pytest.raises(ValueError, match=message):
            read_authority(pem)
    key = new_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "self")])
    lone = x509.CertificateBuilder(subject, subject, key.public_key(), 1, NOW, NOW + timedelta(days=1))
    lone = lone.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    with pytest.raises(ValueError, match="not a CA's"):
        read_authority(certificate_pem(lone.sign(key, hashes.SHA256())))


def test_pinned_authority_names_the_file() -> None:
    assert pinned_authority(certificate_pem(CA).decode()) == CA
    with pytest.raises(CertificateError, match="has no ca_certificate: it is a draft; use the file"):
        pinned_authority(None)
    with pytest.raises(CertificateError, match=r"ca_certificate in federation.toml: it is no self-signed"):
        pinned_authority("text")


def store(folder: Path) -> Path:
    """Fills the pki folder of a site that has joined."""
    files = {
        "site.key": key_pem(KEY),
        "cert.pem": certificate_pem(CERTIFICATE),
        "ca.pem": certificate_pem(CA),
        "round.key": b"ab" * 32 + b"\n",
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)
    return folder


def load(folder: Path, **changes: Any) -> Identity:
    arguments = {"name": EUROPE, "ca_certificate": certificate_pem(CA).decode(), "now": NOW, **changes}
    return Identity.load(folder, **arguments)


def refused(message: str) -> Any:
    return pytest.raises(CertificateError, match=message)


def test_identity_is_loaded(tmp_path: Path) -> None:
    own = load(store(tmp_path))
    assert (own.name, own.certificate, own.ca, own.round_key) == ("europe", CERTIFICATE, CA, b"\xab" * 32)
    assert key_pem(own.key) == key_pem(KEY)
    verify_signature(certificate_key(own.certificate), sign(own.key, b"data"), b"data")


def test_identity_does_not_show_its_secrets(tmp_path: Path) -> None:
    own = replace(load(store(tmp_path)), certificate=CA)
    assert "\\xab" not in repr(own)
    assert "PrivateKey" not in repr(own)


@pytest.mark.parametrize("name", ["site.key", "cert.pem", "ca.pem", "round.key"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    (store(tmp_path) / name).unlink()
    with refused(f"/{name} is missing; enrol this site"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["site.key", "round.key"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_open_secrets_are_refused(tmp_path: Path, name: str, mode: int) -> None:
    (store(tmp_path) / name).chmod(mode)
    with refused(f"/{name} is a secret that others can read .mode {mode:04o}.; run `chmod 600"):
        load(tmp_path)


def test_identity_of_another_federation_site_or_time_is_refused(tmp_path: Path) -> None:
    store(tmp_path)
    _, other = new_authority("trial", now=NOW)
    with refused(r"ca.pem is not the CA certificate in federation.toml"):
        load(tmp_path, ca_certificate=certificate_pem(other).decode())
    with refused(r"cert.pem: the certificate names europe, not asia; ask the founder for a new bundle"):
        load(tmp_path, name=SiteName("asia"))
    with refused(r"cert.pem: the CA's certificate is not valid before .* says 2026-06-\d\d .*; set the clock right"):
        load(tmp_path, now=NOW - timedelta(days=10))
    with refused(r"cert.pem: the certificate expired on 2027-07-01"):
        load(tmp_path, now=NOW + timedelta(days=366))
    (tmp_path / "ca.pem").write_bytes(certificate_pem(other))
    with refused(r"cert.pem: the certificate is not from this federation's CA"):
        load(tmp_path, ca_certificate=certificate_pem(other).decode())


def test_damaged_files_are_named(tmp_path: Path) -> None:
    for name, content, message in (
        ("ca.pem", b"text", r"ca.pem: it is no self-signed CA"),
        ("cert.pem", b"text", r"cert.pem: "),
        ("site.key", b"text", r"site.key holds no private key in PEM form; restore it"),
        ("site.key", key_pem(new_key()), r"cert.pem does not belong to .*site.key"),
        ("round.key", b"ab" * 31, r"round.key holds no round key of 64 hex digits"),
        ("round.key", b"xy" * 32, r"round.key holds no round key of 64 hex digits"),
        ("round.key", b"\xff" * 64, r"round.key holds no round key of 64 hex digits"),
    ):
        (store(tmp_path) / name).write_bytes(content)
        with refused(message):
            load(tmp_path)
    other = ec.generate_private_key(ec.SECP384R1())
    (store(tmp_path) / "site.key").write_bytes(key_pem(other))
    with refused(r"site.key holds another kind of key than P-256"):
        load(tmp_path)


def test_secret_is_not_in_the_error(tmp_path: Path) -> None:
    (store(tmp_path) / "round.key").write_bytes(b"c0ffee" * 10)
    with pytest.raises(CertificateError) as caught:
        load(tmp_path)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert "c0ffee" not in str(caught.value)


def test_join_that_was_cut_short_is_whole(tmp_path: Path) -> None:
    """The certificate of the renewed key is in place, the key still has its pending name."""
    renewed = new_key()
    store(tmp_path)
    pending = tmp_path / "site.key.new"
    pending.write_bytes(key_pem(renewed))
    pending.chmod(0o600)
    assert key_pem(load(tmp_path).key) == key_pem(KEY)
    certificate = issue(CA_KEY, CA, name=EUROPE, public_key=renewed.public_key(), now=NOW)
    (tmp_path / "cert.pem").write_bytes(certificate_pem(certificate))
    assert key_pem(load(tmp_path).key) == key_pem(renewed)
