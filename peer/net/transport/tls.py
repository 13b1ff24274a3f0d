"""Mutual TLS: the credentials of both directions, and the name of the authenticated caller.

There is no plaintext mode. ``CertificateError`` reports a missing or unfit file before the site listens or dials.
"""

from __future__ import annotations

import errno
import functools
import logging
import ssl
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import MappingProxyType

import grpc
from cryptography import x509

from peer.core import limits
from peer.core.access import expelled_reason
from peer.core.roster import Sha256, SiteName
from peer.errors import CertificateError
from peer.files import stamp
from peer.net.transport.bounds import SHOWN_CHARACTERS
from peer.site.identity.certificates import (
    CERTIFICATE_FILE,
    CERTIFICATES_KEPT_MAX,
    KEY_FILE,
    PENDING_KEY_FILE,
    Identity,
    certificate_der,
    certificate_pem,
    certificate_sha256,
    is_refused,
    key_pem,
    pinned_authority,
    read_key,
    verify_any_certificate,
)

log = logging.getLogger(__name__)

KEEPALIVE_S = 5.0  # a third of the silence limit: a ping and its answer fit, so both ends notice a cut cable
NO_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})  # the table of descriptors is full for now
PING_INTERVAL_MIN_S = 2.0  # accepted by a server; below KEEPALIVE_S, or it would answer pings with GOAWAY
HANDSHAKE_S = 10.0  # a connection that has not shown its certificate by then is closed
DIAL_S = 2 * limits.HELLO_TIMEOUT_S  # a dial outlives a call that gives up: the next call profits from it
RECONNECT_S = (0.1, 1.0)  # first and longest wait between dials of one channel: finds a restarted peer in a second
STREAMS_PER_CONNECTION_MAX = limits.CALLS_AT_ONCE_MAX  # in flight; the server counts those of all connections again
PENDING_CALLS = 128  # from here to twice as many gRPC drops ever more new calls; each holds its headers, up to 64 KiB
METADATA_BYTES_MAX = 16 << 10  # a refusal's reason is the longest, percent-encoded
PING_STRIKES_MAX = 5  # a site that was suspended reads at once the pings that came meanwhile
READ_BYTES_MAX = 16 << 10  # gRPC reads up to 4 MiB at once by itself, and keeps as much for each connection
RECEIVE_BUFFER_BYTES = 8 << 10  # the kernel doubles it: a long request takes 2 s over 100 ms, a flood gets no start
SETTINGS_S = 5.0  # before a caller acknowledges the settings, gRPC bounds its headers by 16 MiB only

Option = tuple[str, int | str]
NO_PINS: Mapping[SiteName, Sha256 | None] = MappingProxyType({})
NOT_EXPELLED: Mapping[SiteName, int] = MappingProxyType({})

_BOTH: tuple[Option, ...] = (
    ("grpc.max_send_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.enable_http_proxy", 0),  # gRPC would obey `https_proxy`, also for 127.0.0.1, and the proxy see every peer
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.bdp_probe", 0),  # left to itself, gRPC takes 30 MB ahead of a slow disk
)
SERVER_OPTIONS: tuple[Option, ...] = (
    *_BOTH,
    ("grpc.so_reuseport", 0),  # with it two daemons would share a port and each would get half of the calls
    ("grpc.http2.min_recv_ping_interval_without_data_ms", int(PING_INTERVAL_MIN_S * 1000)),
    ("grpc.http2.max_ping_strikes", PING_STRIKES_MAX),
    ("grpc.http2.settings_timeout", int(SETTINGS_S * 1000)),
    ("grpc.http2.lookahead_bytes", limits.REQUEST_BYTES_MAX),
    ("grpc.experimental.tcp_max_read_chunk_size", READ_BYTES_MAX),
    ("grpc.experimental.tcp_max_read_buffer_size", READ_BYTES_MAX),
    ("grpc.tcp_receive_buffer_size", RECEIVE_BUFFER_BYTES),
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", STREAMS_PER_CONNECTION_MAX),
    ("grpc.server.max_pending_requests", PENDING_CALLS),
    ("grpc.server.max_pending_requests_hard_limit", 2 * PENDING_CALLS),
)


def _milliseconds(usual_s: float, silence_s: float) -> int:
    return int(usual_s * limits.patience(silence_s) * 1000)


def keepalive_options(silence_s: float) -> tuple[Option, ...]:
    """Build the options for probes of idle connections; a probe costs each end as much as a small message."""
    keepalive_ms = _milliseconds(KEEPALIVE_S, silence_s)
    return ("grpc.keepalive_time_ms", keepalive_ms), ("grpc.keepalive_timeout_ms", keepalive_ms)


def server_options(connections: int, *, silence_s: float = limits.SILENCE_S) -> tuple[Option, ...]:
    """Build a server's options, with its limit on connections and the federation's silence limit.

    gRPC closes a connection above the limit before TLS begins, so a caller without a certificate exhausts neither
    memory nor descriptors.
    """
    return (
        *SERVER_OPTIONS,
        *keepalive_options(silence_s),
        ("grpc.server_handshake_timeout_ms", _milliseconds(HANDSHAKE_S, silence_s)),
        ("grpc.max_allowed_incoming_connections", connections),
    )


CLIENT_OPTIONS: tuple[Option, ...] = (
    *_BOTH,
    ("grpc.max_receive_message_length", limits.MESSAGE_BYTES_MAX),
    ("grpc.enable_retries", 0),  # the caller decides what to retry
    ("grpc.use_local_subchannel_pool", 1),  # a new channel must not reuse the old one's connection
    ("grpc.initial_reconnect_backoff_ms", int(RECONNECT_S[0] * 1000)),
    ("grpc.max_reconnect_backoff_ms", int(RECONNECT_S[1] * 1000)),
)


NOT_IN_ROSTER = "is not in the roster"
"""Part of the reason for refusing an unknown caller: this site has no amendment that adds it."""


class CallerRefused(Exception):  # noqa: N818 - the name is the fact
    """The caller's certificate is not a peer's; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Pki:
    """A site's ``pki`` folder; its files may be replaced while the daemon runs.

    ``ca_certificate`` is the PEM text in ``federation.toml``; ``clock`` returns the time with its zone. ``pinned`` maps
    a site with a pinned key to that key's SHA-256. ``later_authorities`` returns the CAs, in PEM, that amendments have
    added by now. ``joined_later``: the site is not in the genesis, and may lack its round key.
    """

    folder: Path
    name: SiteName
    ca_certificate: str
    clock: Callable[[], datetime]
    pinned: Mapping[SiteName, Sha256 | None] = field(default_factory=lambda: NO_PINS)
    later_authorities: Callable[[], Sequence[str]] = tuple
    joined_later: bool = False

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Return a value that changes whenever certificate or key is replaced, or a CA is added."""
        files = tuple(stamp(f"{self.folder}/{name}") for name in (CERTIFICATE_FILE, KEY_FILE, PENDING_KEY_FILE))
        return (*files, (len(self.later_authorities()),))

    def later(self) -> tuple[x509.Certificate, ...]:
        """Return the CAs that amendments have added to that of ``federation.toml``."""
        return tuple(_authority(pem) for pem in self.later_authorities())

    def roots(self) -> bytes:
        """Return every CA of the federation, in PEM, for a TLS handshake."""
        return b"".join(map(certificate_pem, (_authority(self.ca_certificate), *self.later())))

    def load(self) -> Identity:
        """Load this site's identity. Raises ``CertificateError`` naming a missing, expired, foreign or unfit file."""
        return self._load(self.clock())

    def stream_context(self, protocol: ssl._SSLMethod = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
        """Build a TLS context outside gRPC: this site's certificate, and only the federation's CAs.

        Raises:
            CertificateError: as for ``load``.
        """
        own = self.load()
        keys = (path for name in (KEY_FILE, PENDING_KEY_FILE) if (path := self.folder / name).exists())
        key = next(path for path in keys if read_key(path).public_key() == own.certificate.public_key())
        return stream_context(protocol, self.roots().decode(), self.folder / CERTIFICATE_FILE, key)

    def certificate(self) -> x509.Certificate:
        """Return this site's certificate, even if expired; ``CertificateError`` as for ``load``."""
        return self._load(None).certificate

    def verify(self, der: bytes, ca: x509.Certificate, name: SiteName, *, pinned: bool = True) -> x509.Certificate:
        """Verify that a certificate is in date and the site's, and return it; ``ValueError`` states the reason if not.

        ``OtherKey`` is raised only if the pinned key is checked (``pinned``).
        """
        key = self.pinned.get(name) if pinned else None
        return verify_any_certificate(der, (ca, *self.later()), name, self.clock(), pinned=key)

    def _load(self, now: datetime | None) -> Identity:
        return Identity.load(
            self.folder,
            name=self.name,
            ca_certificate=self.ca_certificate,
            now=now,
            pinned_key=self.pinned.get(self.name),
            later=self.later(),
            joined_later=self.joined_later,
        )


def stream_context(protocol: ssl._SSLMethod, ca_certificate: str, certificate: Path, key: Path) -> ssl.SSLContext:
    """Build a context for mutual TLS; the caller compares the names, so that it can report a wrong one."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=ca_certificate)
    context.load_cert_chain(certificate, key)
    return context


def server_credentials(pki: Pki) -> grpc.ServerCredentials:
    """Build credentials that demand the caller's certificate and load renewed files without a restart.

    If a renewal is half written or unfit, the site logs that and serves with the former certificate. The next handshake
    tries it again: a clock that was behind may have caught up.
    """
    served, logged = pki.stamp(), ""

    def configuration() -> grpc.ServerCertificateConfiguration:
        own = pki.load()
        pair = (key_pem(own.key), certificate_pem(own.certificate))
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=pki.roots())

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal served, logged
        stamp = pki.stamp()
        if stamp == served:
            return None
        try:
            renewal = configuration()
        except CertificateError as error:
            if str(error) != logged:
                logged = str(error)
                log.warning("renewed certificate not usable", extra={"reason": logged})
            return None
        served, logged = stamp, ""
        return renewal

    return grpc.dynamic_ssl_server_credentials(
        configuration(),
        renewed,  # type: ignore[arg-type]  # None, "as before", is missing in the stubs
        require_client_authentication=True,
    )


def channel_credentials(own: Identity, roots: bytes = b"") -> grpc.ChannelCredentials:
    """Build a site's credentials; ``roots`` are the CAs in PEM, by default its own certificate's."""
    return grpc.ssl_channel_credentials(
        roots or certificate_pem(own.ca), key_pem(own.key), certificate_pem(own.certificate)
    )


@functools.lru_cache(maxsize=16)
def _authority(pem: str) -> x509.Certificate:
    return pinned_authority(pem)


def channel_options(
    site: SiteName, *, window_bytes: int = limits.STREAM_WINDOW_BYTES, silence_s: float = limits.SILENCE_S
) -> tuple[Option, ...]:
    """Build the options of a channel to a site; its certificate must bear that name, whatever the address.

    A stream's sender may be ``window_bytes`` ahead of this site. ``silence_s`` is the federation's silence limit.
    """
    return (
        *CLIENT_OPTIONS,
        *keepalive_options(silence_s),
        ("grpc.min_reconnect_backoff_ms", _milliseconds(DIAL_S, silence_s)),  # despite its name: the time for one dial
        ("grpc.http2.lookahead_bytes", window_bytes),
        ("grpc.experimental.tcp_max_read_chunk_size", window_bytes),
        ("grpc.experimental.tcp_max_read_buffer_size", window_bytes),
        ("grpc.ssl_target_name_override", site),
    )


@functools.lru_cache(maxsize=CERTIFICATES_KEPT_MAX)
def _der(pem: bytes) -> bytes:
    """Convert a certificate from PEM to DER; raise ``ValueError`` if the bytes hold none."""
    return certificate_der(x509.load_pem_x509_certificate(pem))


def caller_certificate(auth_context: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return the certificate, in DER, of a caller that ``caller`` has admitted."""
    return _der(next(iter(auth_context["x509_pem_cert"])))


def caller(
    auth_context: Mapping[str, Iterable[bytes]],
    *,
    roster: Container[SiteName],
    refused: Container[str],
    verify: Callable[[bytes, SiteName], x509.Certificate],
    expelled: Mapping[SiteName, int] = NOT_EXPELLED,
    admits_expelled: bool = False,
) -> SiteName:
    """Return the site of an authenticated connection, checked again for every call.

    The handshake verified the certificate, but a connection may outlive it, and this site may change the roster and its
    refused certificates (SHA-256 of their DER form).

    Args:
        verify: returns the certificate in DER if it is the site's now; raises ``ValueError`` if not.
        expelled: by site, the number of the amendment that expelled it.

    Raises:
        CallerRefused: the reason, with the caller's name if it shows one.
    """
    pems = list(auth_context.get("x509_pem_cert", ()))
    names = [name.decode(errors="replace") for name in auth_context.get("x509_subject_alternative_name", ())]
    if len(pems) != 1 or len(names) != 1:
        raise CallerRefused(f"the client certificate has {len(names)} names instead of one DNS name")
    name = SiteName(names[0])
    if name in expelled and not admits_expelled:
        raise CallerRefused(expelled_reason(name, expelled[name]))
    if name not in roster and name not in expelled:
        raise CallerRefused(f"{name[:SHOWN_CHARACTERS]!r} {NOT_IN_ROSTER}")
    try:
        der = _der(pems[0])
        certificate = verify(der, name)
    except ValueError as error:
        raise CallerRefused(f"{name}: {error}") from error
    if is_refused(certificate, refused):
        raise CallerRefused(f"{name}: its certificate {certificate_sha256(der)} is refused here")
    return name
