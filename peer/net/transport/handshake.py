"""Diagnosis of unreachable peers: a TLS handshake distinguishes faults that gRPC reports as one."""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
from dataclasses import dataclass
from typing import cast

from cryptography import x509

from peer.core import limits
from peer.core.roster import SiteName
from peer.errors import one_line
from peer.net.transport.proxy import Proxy, ProxyRefused
from peer.net.transport.tls import Pki

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and an empty SETTINGS frame

# OpenSSL's X509_V_ERR_*, as ``SSLCertVerificationError.verify_code`` has them
NOT_YET_VALID, EXPIRED = 9, 10
# TLS alerts of a server that rejects the client's certificate; in TLS 1.3 they arrive after the handshake.
REJECTIONS = (
    "ALERT_CERTIFICATE",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_ACCESS_DENIED",
    "ALERT_HANDSHAKE",
)
# The alerts of a relay, in place of the peer's answer (proto/README.md).
UNKNOWN_NAME, NOBODY_PARKED = "UNRECOGNIZED_NAME", "ALERT_INTERNAL_ERROR"


class Fault(enum.StrEnum):
    """Why this site cannot reach a peer."""

    NONE = "none"
    UNREACHABLE = "unreachable"
    PROXY = "proxy"
    RELAY = "relay"
    NOT_TLS = "not TLS"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    FOREIGN_CA = "foreign CA"
    WRONG_NAME = "wrong name"
    REFUSES_US = "refuses this site's certificate"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fault, a sentence for the operator, and what to do."""

    fault: Fault
    detail: str
    remedy: str = "settle it with that site's operator"


def diagnose(
    host: str,
    port: int,
    *,
    pki: Pki,
    site: SiteName,
    timeout_s: float = limits.HELLO_TIMEOUT_S,
    proxy: Proxy | None = None,
) -> Diagnosis:
    """Dial a peer without sending data, and name the fault; blocks for at most about three times the timeout.

    Raises:
        CertificateError: this site's own files are at fault; it did not dial.
    """
    context = pki.stream_context()  # the name is compared below, to tell a wrong name from a foreign CA
    context.set_alpn_protocols(["h2"])
    where = f"{host}:{port}" if proxy is None else f"{host}:{port}, through the proxy {proxy},"
    try:
        connection = _connect(host, port, proxy, timeout_s)
    except ProxyRefused as error:
        fault = Fault.UNREACHABLE if error.beyond else Fault.PROXY
        return Diagnosis(fault, f"the proxy {proxy} {error}", error.remedy)
    except OSError as error:
        reason = error.strerror or error
        if proxy is None:
            remedy = "start that site, or the relay there; or correct its address or the firewall"
            return Diagnosis(Fault.UNREACHABLE, f"nothing answers at {where}: {reason}", remedy)
        remedy = "correct [connect] proxy, or wait until the proxy is up"
        return Diagnosis(Fault.UNREACHABLE, f"nothing answers at the proxy {proxy}: {reason}", remedy)
    with connection:
        try:
            secured = context.wrap_socket(connection, server_hostname=site)
        except ssl.SSLCertVerificationError as error:
            issuer = "an unknown issuer"
            with contextlib.suppress(OSError, ValueError):
                issuer = _issuer(_connect(host, port, proxy, timeout_s), site)
            return _verification_fault(error, where, issuer, proxy)
        except ssl.SSLError as error:
            return _alert_fault(error, where, site)
        except TimeoutError:
            remedy = "see whether that site, or the relay before it, is overloaded; it is dialled again"
            return Diagnosis(Fault.UNREACHABLE, f"{where} did not finish the TLS handshake in {timeout_s:g} s", remedy)
        except OSError as error:
            return Diagnosis(Fault.NOT_TLS, f"{where} accepts connections but does not speak TLS: {error}")
        with secured:
            return _check_answer(secured, where, site)


def shown_certificate(
    host: str,
    port: int,
    *,
    pki: Pki,
    site: SiteName,
    timeout_s: float = limits.HELLO_TIMEOUT_S,
    proxy: Proxy | None = None,
) -> bytes:
    """Return the certificate that a peer shows, in DER, issued by the federation's CA; its name is not compared.

    Raises ``OSError`` if nothing answers, or the peer shows another CA's certificate.
    """
    context = pki.stream_context()
    context.set_alpn_protocols(["h2"])
    try:
        connection = _connect(host, port, proxy, timeout_s)
    except ProxyRefused as error:
        raise OSError(f"the proxy {error}") from error
    with connection, context.wrap_socket(connection, server_hostname=site) as secured:
        return secured.getpeercert(binary_form=True) or b""


def _connect(host: str, port: int, proxy: Proxy | None, timeout_s: float) -> socket.socket:
    if proxy is not None:
        return proxy.connect(host, port, timeout_s=timeout_s)
    return socket.create_connection((host, port), timeout=timeout_s)


def _issuer(connection: socket.socket, site: SiteName) -> str:
    """Return the unverified issuer of the certificate that the server shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with connection, context.wrap_socket(connection, server_hostname=site) as secured:
        shown = secured.getpeercert(binary_form=True)
    return one_line(x509.load_der_x509_certificate(shown or b"").issuer.rfc4514_string())[:120]


def _check_answer(secured: ssl.SSLSocket, where: str, site: SiteName) -> Diagnosis:
    certificate = secured.getpeercert() or {}
    entries = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName", ()))
    names = [value for kind, value in entries if kind == "DNS"]
    if names != [site]:
        remedy = f"correct the address of {site}; where it is a relay's, tell the relay's operator"
        return Diagnosis(Fault.WRONG_NAME, f"{where} is {', '.join(names) or 'nameless'}, not {site}", remedy)
    try:
        secured.sendall(PREFACE)
        answer = secured.recv(1)
    except ssl.SSLError as error:
        return _alert_fault(error, where, site)
    except TimeoutError:
        return Diagnosis(Fault.NOT_TLS, f"{where} speaks TLS but does not answer; it may not be a peer")
    except OSError:
        answer = b""
    if not answer:
        return Diagnosis(Fault.REFUSES_US, f"{where} closed the connection after seeing this site's certificate")
    with contextlib.suppress(OSError):
        secured.unwrap()
    return Diagnosis(Fault.NONE, f"{where} is {site}")


def _verification_fault(error: ssl.SSLCertVerificationError, where: str, issuer: str, proxy: Proxy | None) -> Diagnosis:
    if error.verify_code == EXPIRED:
        return Diagnosis(Fault.EXPIRED, f"the certificate at {where} has expired")
    if error.verify_code == NOT_YET_VALID:
        return Diagnosis(Fault.NOT_YET_VALID, f"the certificate at {where} is not valid yet: compare the clocks")
    return Diagnosis(
        Fault.FOREIGN_CA,
        f"the certificate at {where} is not from this federation's CA, but from {issuer}: {error.verify_message}; "
        "where that is a proxy of this hospital, it must let this connection through unopened",
        *(() if proxy is None else (f"have the operator of the proxy {proxy} exempt this address from inspection",)),
    )


def _alert_fault(error: ssl.SSLError, where: str, site: SiteName) -> Diagnosis:
    reason = error.reason or str(error)
    if UNKNOWN_NAME in reason:
        remedy = f"correct the address of {site}, or have the relay's operator add it to `sites` in relay.toml"
        return Diagnosis(Fault.RELAY, f"the relay at {where} does not know {site}", remedy)
    if NOBODY_PARKED in reason:
        remedy = f"start {site}; its `status` says why nothing of it is parked"
        return Diagnosis(Fault.UNREACHABLE, f"the relay at {where} has no connection of {site} parked", remedy)
    if any(rejection in reason for rejection in REJECTIONS):
        return Diagnosis(Fault.REFUSES_US, f"{where} refuses this site's certificate: {reason}")
    return Diagnosis(Fault.NOT_TLS, f"{where} accepts connections but does not speak TLS: {reason}")
