"""One handshake tells apart what gRPC reports as one failure; each fault is provoked for real."""

import asyncio
import contextlib
import datetime

import grpc
import pytest

from peer.errors import CertificateError
from peer.net.relay.server import NOBODY_PARKED, UNKNOWN_NAME
from peer.net.transport.handshake import Fault, diagnose, shown_certificate
from peer.site.identity import certificates


async def diagnosed(pki, port, *, timeout_s=5.0):
    return await asyncio.to_thread(diagnose, "127.0.0.1", port, pki=pki, site="europe", timeout_s=timeout_s)


@contextlib.asynccontextmanager
async def tls_server(folder, *, ca_pem):
    """A gRPC server with these files, which demands clients of this CA."""
    pair = tuple((folder / name).read_bytes() for name in (certificates.KEY_FILE, certificates.CERTIFICATE_FILE))
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair], ca_pem, True))
    await server.start()
    yield port
    await server.stop(None)


@contextlib.asynccontextmanager
async def plain_server(answer):
    """A TCP server that sends this answer and closes; without an answer it stays silent."""

    async def converse(reader, writer):
        if answer is None:
            await reader.read()
        else:
            await reader.read(1)
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def test_a_peer_that_is_well_has_no_fault_and_another_site_at_the_address_is_named(network, europe):
    asia, pki = await network.serve("asia"), network.authority.admit("africa")
    for port, fault, detail in ((europe.port, Fault.NONE, "europe"), (asia.port, Fault.WRONG_NAME, "asia, not europe")):
        diagnosis = await diagnosed(pki, port)
        assert (diagnosis.fault, diagnosis.detail) == (fault, f"127.0.0.1:{port} is {detail}")


async def test_the_certificate_that_a_peer_shows(network):
    """Whoever answers shows a certificate of the CA; what it says, the caller compares."""
    asia = await network.serve("asia")
    pki = network.authority.admit("africa")
    shown = await asyncio.to_thread(shown_certificate, "127.0.0.1", asia.port, pki=pki, site="asia")
    ca = certificates.pinned_authority(pki.ca_certificate)
    assert certificates.certificate_der(certificates.verify_certificate(shown, ca, "asia", None)) == shown


async def test_no_certificate_is_shown_where_nobody_answers_or_a_stranger(authority):
    pki = authority.admit("africa")
    async with plain_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        with pytest.raises(OSError, match=r"(?i)wrong version"):
            await asyncio.to_thread(shown_certificate, "127.0.0.1", port, pki=pki, site="asia")
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(shown_certificate, "127.0.0.1", port, pki=pki, site="asia")


@pytest.mark.parametrize(
    ("alert", "fault", "detail", "remedy"),
    [
        (UNKNOWN_NAME, Fault.RELAY, "does not know europe", "correct the address of europe, or have the relay's"),
        (NOBODY_PARKED, Fault.UNREACHABLE, "has no connection of europe parked", "start europe"),
    ],
)
async def test_a_relay_s_alerts_are_told_apart_from_what_is_no_tls(authority, alert, fault, detail, remedy):
    async with plain_server(alert) as port:
        diagnosis = await diagnosed(authority.admit("africa"), port)
    assert (diagnosis.fault, diagnosis.detail) == (fault, f"the relay at 127.0.0.1:{port} {detail}")
    assert diagnosis.remedy.startswith(remedy)


async def test_nobody_at_the_address_or_a_handshake_that_takes_too_long_is_no_fault_of_the_peer(authority):
    pki = authority.admit("africa")
    async with plain_server(b"") as port:
        pass
    diagnosis = await diagnosed(pki, port)
    assert diagnosis.fault is Fault.UNREACHABLE
    assert "Connection refused" in diagnosis.detail
    async with plain_server(None) as port:
        diagnosis = await diagnosed(pki, port, timeout_s=0.2)
    assert diagnosis.fault is Fault.UNREACHABLE
    assert diagnosis.detail == f"127.0.0.1:{port} did not finish the TLS handshake in 0.2 s"


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_something_else_at_the_address_does_not_speak_tls(authority, answer):
    async with plain_server(answer) as port:
        diagnosis = await diagnosed(authority.admit("africa"), port, timeout_s=0.2)
    assert diagnosis.fault is Fault.NOT_TLS


async def test_a_peer_of_another_federation_has_a_foreign_ca(authority, foreign_authority):
    theirs = foreign_authority.admit("europe")
    async with tls_server(theirs.folder, ca_pem=theirs.ca_certificate.encode()) as port:
        diagnosis = await diagnosed(authority.admit("africa"), port)
    assert diagnosis.fault is Fault.FOREIGN_CA


@pytest.mark.parametrize(("days_ago", "fault"), [(60, Fault.EXPIRED), (-60, Fault.NOT_YET_VALID)])
async def test_a_certificate_out_of_date_is_said_to_be(authority, days_ago, fault):
    issued = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
    theirs = authority.admit("europe", at=issued, days=30)
    async with tls_server(theirs.folder, ca_pem=theirs.ca_certificate.encode()) as port:
        diagnosis = await diagnosed(authority.admit("africa"), port)
    assert diagnosis.fault is fault


async def test_a_peer_that_rejects_this_site_is_said_to(authority, foreign_authority):
    theirs = authority.admit("europe")
    foreign_pem = certificates.certificate_pem(foreign_authority.certificate)
    async with tls_server(theirs.folder, ca_pem=foreign_pem) as port:
        diagnosis = await diagnosed(authority.admit("africa"), port)
    assert diagnosis.fault is Fault.REFUSES_US


async def test_this_site_s_own_fault_is_found_before_dialling(authority):
    pki = authority.admit("africa", at=datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=60), days=30)
    with pytest.raises(CertificateError, match="expired"):
        await diagnosed(pki, 1)
