"""Why a peer cannot be reached: a TLS handshake tells apart faults that gRPC reports as one."""

from __future__ import annotations

import contextlib
import enum
import socket
import ssl
from dataclasses import dataclass
from typing import cast

from peer.core import limits
from peer.core.roster import SiteName
from peer.identity.certificates import CERTIFICATE_FILE, KEY_FILE, PENDING_KEY_FILE, read_key
from peer.transport.tls import Pki

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


class Fault(enum.StrEnum):
    """Why this site cannot reach a peer."""

    NONE = "none"
    UNREACHABLE = "unreachable"
    NOT_TLS = "not TLS"
    EXPIRED = "expired"
    NOT_YET_VALID = "not yet valid"
    FOREIGN_CA = "foreign CA"
    WRONG_NAME = "wrong name"
    REFUSES_US = "refuses this site's certificate"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The fault, and a sentence for the operator."""

    fault: Fault
    detail: str


def diagnose(host: str, port: int, *, pki: Pki, site: SiteName, timeout_s: float = limits.HELLO_TIMEOUT_S) -> Diagnosis:
    """Dial a peer without sending data, and name the fault; blocks for at most about twice the
    timeout.

    Raises:
        CertificateError: this site's own files are at fault; it did not dial.
    """
    own = pki.load()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the name is compared below, to tell a wrong name from a foreign CA
    context.load_verify_locations(cadata=pki.ca_certificate)
    keys = (path for name in (KEY_FILE, PENDING_KEY_FILE) if (path := pki.folder / name).exists())
    key_path = next(path for path in keys if read_key(path).public_key() == own.certificate.public_key())
    context.load_cert_chain(pki.folder / CERTIFICATE_FILE, key_path)
    context.set_alpn_protocols(["h2"])
    where = f"{host}:{port}"
    try:
        connection = socket.create_connection((host, port), timeout=timeout_s)
    except OSError as error:
        return Diagnosis(Fault.UNREACHABLE, f"nothing answers at {where}: {error.strerror or error}")
    with connection:
        try:
            secured = context.wrap_socket(connection, server_hostname=site)
        except ssl.SSLCertVerificationError as error:
            return _verification_fault(error, where)
        except ssl.SSLError as error:
            return _alert_fault(error, where)
        except OSError as error:
            return Diagnosis(Fault.NOT_TLS, f"{where} accepts connections but does not speak TLS: {error}")
        with secured:
            return _check_answer(secured, where, site)


def _check_answer(secured: ssl.SSLSocket, where: str, site: SiteName) -> Diagnosis:
    certificate = secured.getpeercert() or {}
    entries = cast(tuple[tuple[str, str], ...], certificate.get("subjectAltName", ()))
    names = [value for kind, value in entries if kind == "DNS"]
    if names != [site]:
        return Diagnosis(Fault.WRONG_NAME, f"{where} is {', '.join(names) or 'nameless'}, not {site}")
    try:
        secured.sendall(PREFACE)
        answer = secured.recv(1)
    except ssl.SSLError as error:
        return _alert_fault(error, where)
    except TimeoutError:
        return Diagnosis(Fault.NOT_TLS, f"{where} speaks TLS but does not answer; it may not be a peer")
    except OSError:
        answer = b""
    if not answer:
        return Diagnosis(Fault.REFUSES_US, f"{where} closed the connection after seeing this site's certificate")
    with contextlib.suppress(OSError):
        secured.unwrap()
    return Diagnosis(Fault.NONE, f"{where} is {site}")


def _verification_fault(error: ssl.SSLCertVerificationError, where: str) -> Diagnosis:
    if error.verify_code == EXPIRED:
        return Diagnosis(Fault.EXPIRED, f"the certificate at {where} has expired")
    if error.verify_code == NOT_YET_VALID:
        return Diagnosis(Fault.NOT_YET_VALID, f"the certificate at {where} is not valid yet: compare the clocks")
    return Diagnosis(
        Fault.FOREIGN_CA, f"the certificate at {where} is not from this federation's CA: {error.verify_message}"
    )


def _alert_fault(error: ssl.SSLError, where: str) -> Diagnosis:
    reason = error.reason or str(error)
    if any(rejection in reason for rejection in REJECTIONS):
        return Diagnosis(Fault.REFUSES_US, f"{where} refuses this site's certificate: {reason}")
    return Diagnosis(Fault.NOT_TLS, f"{where} accepts connections but does not speak TLS: {reason}")
