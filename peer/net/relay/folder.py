"""A relay's folder: relay.toml, federation.toml, its key and its certificate."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from cryptography import x509
from pydantic import AfterValidator

from peer.core.roster import Sha256, SiteName
from peer.errors import BundleError, CertificateError, ConfigError, LockedError, MembershipError, StateError
from peer.files import stamp
from peer.net.transport.tls import stream_context
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import make_private, write_atomically
from peer.site.config.toml import Listen, Loose, StrictTable
from peer.site.config.value_types import Name
from peer.site.identity import certificates
from peer.site.membership.amendment import AmendmentRefused
from peer.site.membership.chain import Chain
from peer.site.membership.folder import CHAIN_FILE, MembershipFolder, decode_chain
from peer.site.membership.forks import Choice, compare

TEMPLATE = """# A relay: it joins callers to sites that nobody can dial, and reads nothing of what they say.
name = "{name}"
# Where sites and callers reach it; port 443 passes most firewalls.
listen = "0.0.0.0:443"
# The sites that may park connections here; left out: every site of the federation (an example).
#sites = ["europe"]
# Where the sites' connections come from; callers from elsewhere get at most half of a site's connections (an example).
#networks = ["192.0.2.0/24"]
"""
NO_CERTIFICATE = (
    "send the request that `relay init` wrote to the founder, who runs `federation admit --relay`, and run `relay join`"
)
NO_KEY = "restore the relay's folder, or begin again with `relay init`"
STATUS_FILE = "status.json"


def _network(text: str) -> str:
    ipaddress.ip_network(text)
    return text


class RelayConfig(StrictTable):
    """``relay.toml``."""

    name: Name
    listen: Listen = "0.0.0.0:443"
    sites: Annotated[tuple[Name, ...], Loose] = ()
    networks: Annotated[tuple[Annotated[str, AfterValidator(_network)], ...], Loose] = ()


@dataclass(frozen=True, slots=True)
class RelaySetting:
    """The parts of its folder that a running relay applies.

    Attributes:
        sites, unknown: as returned by ``RelayFolder``.
        context: for parked connections.
    """

    config: RelayConfig
    chain: Chain
    sites: Mapping[SiteName, Sha256 | None]
    unknown: list[str]
    certificate: x509.Certificate
    context: ssl.SSLContext


@dataclass(frozen=True, slots=True)
class RelayFolder:
    """The files of a relay; ``make`` creates the folder."""

    path: Path

    @property
    def relay_toml(self) -> Path:
        return self.path / "relay.toml"

    @property
    def federation_toml(self) -> Path:
        return self.path / "federation.toml"

    @property
    def key(self) -> Path:
        return self.path / certificates.KEY_FILE

    @property
    def certificate(self) -> Path:
        return self.path / certificates.CERTIFICATE_FILE

    def make(self, federation_toml: str, where: str, name: SiteName) -> tuple[bytes, str]:
        """Create the folder and return a signing request and the key's fingerprint; an existing key is kept.

        Raises:
            ConfigError: a site of the federation has that name.
        """
        federation = FederationConfig.parse(federation_toml, where)
        if name in federation.roster:
            raise ConfigError(f"{where}: {name} is a site", "give the relay a name that no site has")
        certificates.pinned_authority(federation.ca_certificate)
        make_private(self.path)
        write_atomically(self.federation_toml, federation_toml.encode(), 0o644)
        if not self.relay_toml.exists():
            write_atomically(self.relay_toml, TEMPLATE.format(name=name).encode(), 0o644)
        if not self.key.exists():
            write_atomically(self.key, certificates.key_pem(certificates.new_key()))
        key = certificates.read_key(self.key)
        return certificates.signing_request(key, name), certificates.fingerprint(key.public_key())

    @property
    def _membership(self) -> MembershipFolder:
        return MembershipFolder(self.path / "membership")

    def chain(self) -> Chain:
        """Load and verify the relay's amendments; raise ``StateError`` if its files are broken."""
        return self._membership.chain(FederationConfig.load(self.federation_toml))

    def stamp(self) -> tuple[object, ...]:
        """Return a value that changes with each file that a running relay follows."""
        chain = self.path / "membership" / CHAIN_FILE
        return tuple(map(stamp, (self.relay_toml, self.federation_toml, self.key, self.certificate, chain)))

    def read(self, now: datetime, *, former: Chain | None = None) -> RelaySetting:
        """Read the files that a running relay follows.

        Args:
            former: the chain that it has followed so far.

        Raises:
            PeerError, OSError, ValueError: a file is missing, broken or unreadable, or the files do not fit.
        """
        (config, _), chain, certificate = self.load(), self.chain(), self.verify(now)
        if former is not None and chain.head.federation != former.head.federation:
            raise ConfigError(f"{self.federation_toml} is of another federation", "restore it, or stop the relay first")
        if former is not None and chain.head.number < former.head.number:
            raise StateError(
                f"{self.path}: the chain has no amendment {former.head.number}, which the relay follows",
                "run `mhfl-peer relay amend` with the chain of a member",
            )
        sites, unknown = self.sites(chain), self.unknown(chain)
        return RelaySetting(config, chain, sites, unknown, certificate, self.context(chain))

    def amend(self, content: bytes) -> Chain:
        """Save the chain that a member's operator supplied; it must extend the relay's own.

        Raises ``MembershipError`` if it is invalid, older than the relay's own, or forks from it.
        """
        own = self.chain()
        try:
            chain = decode_chain(content, FederationConfig.load(self.federation_toml))
        except AmendmentRefused as error:
            raise MembershipError(error.message, error.remedy) from error
        choice, _ = compare(own, chain, opened_round=0)
        if choice == Choice.BEHIND:
            raise MembershipError(
                f"the file ends with amendment {chain.head.number}, and this relay has {own.head.number}",
                "have a member that has the newest one write the file",
            )
        if choice == Choice.KEPT:
            raise MembershipError(
                f"the file has another amendment than this relay, {own.head.digest[:12]}…, which the sites prefer, too",
                "ask the members for the chain that they follow",
            )
        self._membership.save_chain(chain)
        return chain

    def sites(self, chain: Chain) -> Mapping[SiteName, Sha256 | None]:
        """Return the members that may park now, with their pinned keys: those in relay.toml, or all."""
        config, _ = self.load()
        return {name: key for name, key in chain.head.keys.items() if not config.sites or name in config.sites}

    def unknown(self, chain: Chain) -> list[str]:
        """Return the sites in relay.toml that the chain lacks: newcomers without an amendment, or misspelt names."""
        config, _ = self.load()
        return sorted(set(config.sites) - chain.head.used_names)

    def load(self) -> tuple[RelayConfig, FederationConfig]:
        """Load relay.toml and federation.toml; raise ``ConfigError`` if one is wrong or they do not fit."""
        where = str(self.relay_toml)
        if not self.relay_toml.exists():
            raise ConfigError(f"{where} is missing", "name the relay's folder with --folder, or run `relay init`")
        config = toml.validate(RelayConfig, toml.parse(toml.read(self.relay_toml), where), where)
        federation = FederationConfig.load(self.federation_toml)
        if config.name in federation.roster:
            raise ConfigError(f"{where}: name: {config.name} is a site of the federation", "give the relay another")
        return config, federation

    def join(self, pem: bytes, now: datetime) -> x509.Certificate:
        """Verify and save the certificate that the founder issued; raise ``BundleError`` if it is refused."""
        try:
            certificate = x509.load_pem_x509_certificate(pem)
        except ValueError as error:
            raise BundleError("it is no certificate", "name the file that `federation admit --relay` wrote") from error
        try:
            certificate = self._verify(certificate, now)
        except ValueError as error:
            raise BundleError(f"the certificate is refused: {error}", "ask the founder for another") from error
        write_atomically(self.certificate, certificates.certificate_pem(certificate), 0o644)
        return certificate

    def verify(self, now: datetime) -> x509.Certificate:
        """Return the relay's verified certificate. Raises ``CertificateError`` if it is missing, expired or foreign."""
        try:
            return self._verify(certificates.read_certificate(self.certificate, if_missing=NO_CERTIFICATE), now)
        except ValueError as error:
            raise CertificateError(f"{self.certificate}: {error}", "ask the founder, and run `relay join`") from error

    def _verify(self, certificate: x509.Certificate, now: datetime) -> x509.Certificate:
        config, federation = self.load()
        certificates.pinned_authority(federation.ca_certificate)
        authorities = [certificates.read_authority(pem.encode()) for pem in self.chain().head.authorities]
        der = certificates.certificate_der(certificate)
        verified = certificates.verify_any_certificate(der, authorities, config.name, now, pinned=None)
        if certificates.certificate_key(verified) != certificates.read_key(self.key, if_missing=NO_KEY).public_key():
            raise ValueError("it is for another key")
        return verified

    def context(self, chain: Chain, protocol: ssl._SSLMethod = ssl.PROTOCOL_TLS_SERVER) -> ssl.SSLContext:
        """Build a context for mutual TLS; sessions are never resumed, so each connection shows its certificate."""
        context = stream_context(protocol, "".join(chain.head.authorities), self.certificate, self.key)
        context.options |= ssl.OP_NO_TICKET
        if protocol is ssl.PROTOCOL_TLS_SERVER:
            context.num_tickets = 0
        return context

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second process; raise ``LockedError`` if there is one."""
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(f"a relay runs in {self.path}", "stop it first") from None
            yield

    def is_running(self) -> bool:
        """Return whether a process holds the folder's lock."""
        try:
            with self.locked():
                return False
        except LockedError:
            return True

    def status(self) -> dict[str, Any]:
        """Read the status that the running relay wrote last; empty if there is none."""
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads((self.path / STATUS_FILE).read_text()))
        return {}
