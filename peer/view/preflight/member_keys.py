"""The members' present keys, to which a new round key is encrypted: asked of each by a TLS handshake."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec

from peer.core.roster import SiteName
from peer.daemon import proxies
from peer.daemon.addresses import AddressBook
from peer.net.transport import handshake
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.config.toml import split_address
from peer.site.identity import certificates
from peer.site.membership.chain import Membership
from peer.site.membership.signatures import verify_member
from peer.view.preflight.peers import DIALS_MAX, TRIED_MAX, site_pki

Keys = dict[SiteName, ec.EllipticCurvePublicKey]


def member_keys(
    folder: SiteFolder, federation: FederationConfig, membership: Membership, status: Mapping[str, Any]
) -> tuple[Keys, dict[SiteName, str]]:
    """Return the keys of the other members that answer, and the reasons why others do not.

    Args:
        membership: what holds now.
        status: of the site, whose daemon may know where its peers are.
    """
    own, site = folder.site, SiteConfig.load(folder.site_toml)
    book = AddressBook(own=own, federation=federation, site=site)
    others = [name for name in membership.members if name != own]
    book.follow_roster({name: membership.addresses.get(name) for name in others})
    for name in others:
        if address := status["peers"].get(name, {}).get("address"):
            book.discover(name, address)
    pki = site_pki(folder, federation, membership)
    authorities, proxy_for = membership.authorities, proxies.choice(site)

    def ask(name: SiteName) -> ec.EllipticCurvePublicKey | str:
        reasons = ["no address is known"]
        for address in book.known(name)[:TRIED_MAX]:
            host, port = split_address(address)
            try:
                der = handshake.shown_certificate(host, port, pki=pki, site=name, proxy=proxy_for(name, address))
                return _key(der, name, authorities, membership)
            except (OSError, ValueError) as error:
                reasons.append(f"{address}: {error}")
        return reasons[-1]

    with concurrent.futures.ThreadPoolExecutor(DIALS_MAX) as threads:
        answers = dict(zip(others, threads.map(ask, others), strict=True))
    keys = {name: answer for name, answer in answers.items() if not isinstance(answer, str)}
    return keys, {name: answer for name, answer in answers.items() if isinstance(answer, str)}


def _key(der: bytes, name: SiteName, authorities: Sequence[str], membership: Membership) -> ec.EllipticCurvePublicKey:
    """Return the key of a certificate, if it is the member's; ``ValueError`` otherwise."""
    certificate = verify_member(der, name, authorities)
    certificates.verify_pinned(certificate, membership.keys[name])
    return certificates.certificate_key(certificate)
