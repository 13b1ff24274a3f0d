"""Credentials refuse files that do not fit; the caller of each call is checked again."""

import datetime
from dataclasses import replace

import pytest
from cryptography import x509

from peer.core.roster import Roster
from peer.errors import CertificateError
from peer.net.transport import tls
from peer.site.identity import certificates
from peer.site.identity.certificates import encodings

ROSTER = Roster.of(["africa", "asia", "europe"])
NOW = datetime.datetime.now(datetime.UTC)


def shown(pki, *names):
    """gRPC's auth context of a caller."""
    return {
        "x509_pem_cert": [(pki.folder / certificates.CERTIFICATE_FILE).read_bytes()],
        "x509_subject_alternative_name": [name.encode() for name in names or (pki.name,)],
        "transport_security_type": [b"ssl"],
    }


def caller(authority, context, *, now=NOW, roster=ROSTER, refused=frozenset(), pinned=tls.NO_PINS):
    def verify(der, name):
        return certificates.verify_certificate(der, authority.certificate, name, now, pinned=pinned.get(name))

    return tls.caller(context, roster=roster, refused=refused, verify=verify)


@pytest.mark.parametrize(
    ("site", "names", "reason"),
    [
        ("africa", ("africa", "europe"), "2 names instead of one"),
        ("mars", (), "'mars' is not in the roster"),
        ("africa", ("europe",), "europe: the certificate names africa, not europe"),
    ],
)
def test_a_caller_whose_name_is_not_a_peer_s_own_is_refused(authority, site, names, reason):
    with pytest.raises(tls.CallerRefused, match=reason):
        caller(authority, shown(authority.admit(site), *names))


def test_a_caller_without_a_certificate_or_with_one_of_another_ca_is_refused(authority, foreign_authority):
    for context, reason in (
        ({"transport_security_type": [b"ssl"]}, "0 names instead of one"),
        (shown(foreign_authority.admit("africa")), "africa: the certificate is not from this federation's CA"),
    ):
        with pytest.raises(tls.CallerRefused, match=reason):
            caller(authority, context)


def test_a_certificate_that_expires_on_an_open_connection_or_is_of_the_future_is_refused(authority):
    context = shown(authority.admit("africa", days=30))
    assert caller(authority, context, now=NOW + datetime.timedelta(days=29)) == "africa"
    with pytest.raises(tls.CallerRefused, match="africa: the certificate expired on"):
        caller(authority, context, now=NOW + datetime.timedelta(days=31))
    with pytest.raises(tls.CallerRefused, match="africa: the certificate is not valid before"):
        caller(authority, context, now=NOW - datetime.timedelta(days=1))


def test_a_certificate_on_the_refused_list_is_refused(authority):
    pki = authority.admit("africa")
    digest = certificates.certificate_sha256(certificates.certificate_der(pki.load().certificate))
    with pytest.raises(tls.CallerRefused, match=f"africa: its certificate {digest} is refused here"):
        caller(authority, shown(pki), refused={digest})
    assert caller(authority, shown(authority.admit("africa")), refused={digest}) == "africa"


def test_a_caller_with_another_key_than_the_pinned_one_is_refused(authority):
    """The CA issues a second certificate for the name: with a pinned key it makes nobody that site."""
    pki, impostor = authority.admit("africa"), authority.admit("africa", into="impostor")
    pinned = {"africa": certificates.key_digest(pki.load().key.public_key()), "europe": None}
    assert caller(authority, shown(pki), pinned=pinned) == "africa"
    assert caller(authority, shown(impostor)) == "africa"
    with pytest.raises(tls.CallerRefused, match="africa: the federation pins the key"):
        caller(authority, shown(impostor), pinned=pinned)
    assert caller(authority, shown(authority.admit("europe")), pinned=pinned) == "europe"


def test_a_site_with_another_key_than_its_pinned_one_does_not_start(authority):
    pki = replace(authority.admit("africa"), pinned={"africa": "ab" * 32})
    with pytest.raises(CertificateError, match="the federation pins the key abababababab"):
        pki.load()


@pytest.mark.parametrize("name", [certificates.CERTIFICATE_FILE, certificates.KEY_FILE, certificates.CA_FILE])
def test_credentials_refuse_to_exist_without_a_file(authority, name):
    pki = authority.admit("africa")
    (pki.folder / name).unlink()
    with pytest.raises(CertificateError, match=name):
        tls.server_credentials(pki)


def test_credentials_refuse_a_key_of_another_certificate(authority):
    pki, other = authority.admit("africa"), authority.admit("asia")
    (pki.folder / certificates.KEY_FILE).write_bytes((other.folder / certificates.KEY_FILE).read_bytes())
    with pytest.raises(CertificateError, match="does not belong to"):
        tls.server_credentials(pki)


def test_a_certificate_can_be_looked_at_when_it_has_expired(authority):
    pki = authority.admit("europe", at=NOW - datetime.timedelta(days=60), days=30)
    with pytest.raises(CertificateError, match="expired"):
        pki.load()
    assert pki.certificate().not_valid_after_utc < NOW
    (pki.folder / "cert.pem").unlink()
    with pytest.raises(CertificateError, match=r"cert\.pem is missing"):
        pki.certificate()


def test_a_caller_cannot_come_back_with_the_other_form_of_its_signature(authority):
    pki = authority.admit("europe")
    der = certificates.certificate_der(pki.load().certificate)
    other = x509.load_der_x509_certificate(encodings(pki.load().certificate)[1])
    context = {"x509_pem_cert": [certificates.certificate_pem(other)], "x509_subject_alternative_name": [b"europe"]}
    assert caller(authority, context) == "europe"
    with pytest.raises(tls.CallerRefused, match="is refused here"):
        caller(authority, context, refused={certificates.certificate_sha256(der)})


def test_a_stamp_changes_with_the_certificate_only(authority):
    pki = authority.admit("africa")
    before = pki.stamp()
    assert pki.stamp() == before
    authority.admit("africa")
    assert pki.stamp() != before


def test_a_cut_connection_is_noticed_within_a_longer_silence_limit_with_fewer_pings():
    for options in (tls.channel_options("asia", silence_s=120.0), tls.server_options(9, silence_s=120.0)):
        ping_ms, answer_ms = (dict(options)[f"grpc.keepalive_{key}_ms"] for key in ("time", "timeout"))
        assert (ping_ms, answer_ms) == (40_000, 40_000)


def test_dials_and_handshakes_take_as_much_longer_as_the_silence_limit_is():
    for silence_s, dial_ms in ((5.0, 10_000), (15.0, 10_000), (120.0, 80_000)):
        assert dict(tls.channel_options("asia", silence_s=silence_s))["grpc.min_reconnect_backoff_ms"] == dial_ms
        assert dict(tls.server_options(9, silence_s=silence_s))["grpc.server_handshake_timeout_ms"] == dial_ms


def test_pings_are_slower_than_what_a_server_bears():
    assert tls.KEEPALIVE_S > tls.PING_INTERVAL_MIN_S
    for options in (tls.channel_options("asia"), tls.server_options(9)):
        assert dict(options)["grpc.keepalive_time_ms"] == 5000
    assert dict(tls.SERVER_OPTIONS)["grpc.http2.min_recv_ping_interval_without_data_ms"] == 2000
    assert dict(tls.SERVER_OPTIONS)["grpc.http2.max_ping_strikes"] > 0  # 0 would bear every flood of pings
