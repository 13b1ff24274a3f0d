"""One certificate has two encodings that verify, and no more."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from peer.core.roster import SiteName
from peer.site.identity import certificates
from peer.site.identity.certificates import P256_ORDER, encodings

NOW = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
EUROPE = SiteName("europe")
Authority = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


@pytest.fixture(scope="module")
def authority() -> Authority:
    return certificates.new_authority("trial", now=NOW)


def issue_new(authority: Authority) -> x509.Certificate:
    key = certificates.new_key().public_key()
    return certificates.issue(*authority, name=EUROPE, public_key=key, now=NOW)


@pytest.mark.parametrize("number", range(20))
def test_a_certificate_is_one_of_its_encodings(authority: Authority, number: int) -> None:
    """Twenty random signatures: numbers with and without a leading zero byte, small and large s."""
    certificate = issue_new(authority)
    der = certificates.certificate_der(certificate)
    same, other = encodings(certificate)
    assert same == der
    assert other != der
    verified = certificates.verify_certificate(other, authority[1], EUROPE, NOW)
    assert set(encodings(verified)) == {same, other}
    assert verified.tbs_certificate_bytes == certificate.tbs_certificate_bytes


def test_the_order_is_the_curve_s() -> None:
    with pytest.raises(ValueError, match="out of range"):
        ec.derive_private_key(P256_ORDER, ec.SECP256R1())
    ec.derive_private_key(P256_ORDER - 1, ec.SECP256R1())


def test_a_refused_certificate_is_refused_in_both_encodings(authority: Authority) -> None:
    certificate = issue_new(authority)
    listed = {certificates.certificate_sha256(certificates.certificate_der(certificate))}
    disguised = x509.load_der_x509_certificate(encodings(certificate)[1])
    assert certificates.certificate_sha256(certificates.certificate_der(disguised)) not in listed
    assert certificates.is_refused(certificate, listed)
    assert certificates.is_refused(disguised, listed)
    assert not certificates.is_refused(authority[1], listed)


def test_a_signature_with_a_loose_end_is_no_der(authority: Authority) -> None:
    """The byte before a signature counts its unused bits; where the last bit is 0 some libraries read 1 as well."""
    while True:
        certificate = issue_new(authority)
        if not certificate.signature[-1] & 1:
            break
    der = bytearray(certificates.certificate_der(certificate))
    der[-len(certificate.signature) - 1] = 1
    with pytest.raises(ValueError, match="the certificate "):
        certificates.verify_certificate(bytes(der), authority[1], EUROPE, NOW)


def test_another_kind_of_signature_has_no_second_form() -> None:
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(NOW + datetime.timedelta(days=1))
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own words
        encodings(builder.sign(key, hashes.SHA256()))
