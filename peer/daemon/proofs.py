"""Proofs of sites' claims: the round that a site is in, and the newest artifact that a peer has of another.

A claim changes a site's state only with a signature by the claim's own subject: a peer signs which round it is in, and
this site has signed the artifact that a peer has of it.
"""

from __future__ import annotations

import functools
from collections.abc import Container
from dataclasses import replace
from typing import Any

from cryptography import x509

from peer.core import limits
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, Manifest, Seen, SignedRound
from peer.core.roster import Sha256, SiteName
from peer.errors import CertificateError
from peer.net.transport.bounds import WireError
from peer.net.transport.manifest import decode_manifest, from_base64, verify_manifest
from peer.net.transport.round_proof import RoundClaim, sign_round, verify_round
from peer.net.transport.tls import Pki
from peer.site.identity.certificates import OtherKey, is_refused, verify_any_certificate
from peer.site.records.journal import Journal


class ClaimProofs:
    """Makes the proofs of one site, and verifies those of its peers.

    Args:
        federation: the digest that signatures must name.
        machine: the state machine; it is only read.
        journal: has the manifests that peers signed.
        pki: the site's key and certificate.
        refused: SHA-256 digests of certificates whose signatures prove nothing.
    """

    def __init__(
        self, *, federation: Sha256, machine: SiteMachine, journal: Journal, pki: Pki, refused: Container[str]
    ) -> None:
        self._federation, self._machine, self._journal = federation, machine, journal
        self._pki, self._refused = pki, refused
        self._own: tuple[tuple[Any, ...], SignedRound] | None = None
        self._seen: dict[SiteName, Seen] = {}
        self._unprocessed: dict[SiteName, Seen | None] = {}

    def attach(self, own: Heartbeat, peer: SiteName) -> Heartbeat:
        """Attach the proof of this site's round to its heartbeat if the peer may be a straggler."""
        theirs = self._machine.peers.pulse(peer)
        if not own.published_round or (
            theirs is not None and own.round <= self._machine.rules.unproven_round_max(theirs.committed_round)
        ):
            return own
        signed = (own.generation, own.published_round, self._pki.stamp())  # a new key signs anew
        if self._own is None or self._own[0] != signed:
            claim = RoundClaim(self._federation, self._machine.rules.site, own.generation, own.published_round)
            try:
                self._own = (signed, sign_round(self._pki.load(), claim))
            except (CertificateError, WireError):  # no certificate is valid now; a renewal may follow
                return own
        return replace(own, proof=self._own[1])

    def proven_round(self, peer: SiteName, pulse: Heartbeat) -> int | None:
        """Return the round that a peer's heartbeat proves; ``None`` if it proves none or needs no proof.

        Raises:
            ValueError: the reason why the proof is invalid.
        """
        proof = pulse.proof
        if proof is None or pulse.round <= self._machine.rules.unproven_round_max(self._machine.memory.committed):
            return None
        try:
            certificate = self._pki.verify(proof.certificate_der, self._ca, peer)
        except OtherKey:  # one of the two sites lacks the amendment that changes the key
            return None
        if is_refused(certificate, self._refused):
            raise ValueError("the certificate is refused here")
        claim = verify_round(proof, certificate)
        if (claim.federation, claim.site) != (self._federation, peer):
            raise ValueError(f"it is of {claim.site} in the federation {claim.federation}")
        return claim.round

    def seen(self, peer: SiteName) -> Seen | None:
        """Return the newest artifact that this site has from a peer, with the peer's signed manifest if it fits."""
        seen, known = self._newest_seen(peer), self._seen.get(peer)
        if seen is None or (known is not None and seen == replace(known, manifest=None)):
            return known if seen is not None else None
        received = self._journal.received_artifact(peer, seen.sha256)
        signed = (from_base64(parts) for parts in received if "signature" in parts)
        fitting = (
            manifest
            for manifest in signed
            if len(manifest.body) <= limits.SHOWN_BYTES_MAX  # else the peer's server would refuse the greeting
            and _purpose(decode_manifest(manifest.body)) == (seen.generation, seen.round, False)
        )
        self._seen[peer] = replace(seen, manifest=next(fitting, None))
        return self._seen[peer]

    def _newest_seen(self, peer: SiteName) -> Seen | None:
        """Return what the state machine has seen, or what arrived last before a crash, which it had not processed."""
        seen = self._machine.seen(peer)
        if peer not in self._unprocessed:
            self._unprocessed[peer] = self._last_received(peer)
        last = self._unprocessed[peer]
        newer = last is not None and (seen is None or (last.generation, last.round) > (seen.generation, seen.round))
        return last if newer else seen

    def _last_received(self, peer: SiteName) -> Seen | None:
        """Return the artifact of the newest row ``received``, if its manifest can be shown."""
        parts = self._journal.newest_received(peer)
        body = b"" if parts is None else from_base64(parts).body
        if not 0 < len(body) <= limits.SHOWN_BYTES_MAX:
            return None
        manifest = decode_manifest(body)
        return Seen(manifest.generation, manifest.round, manifest.artifact.sha256)

    def verify_seen(self, seen: Seen) -> Manifest:
        """Verify that this site's signature proves what a peer has seen of it; return the manifest.

        The dates of the certificate do not matter: it may have been renewed since.

        Raises:
            ValueError: the reason why it is not proven.
        """
        if seen.manifest is None:
            raise ValueError("without this site's signed manifest")
        site = self._machine.rules.site
        authorities = (self._ca, *self._pki.later())
        own = verify_any_certificate(seen.manifest.certificate_der, authorities, site, None, pinned=None)
        manifest = verify_manifest(seen.manifest, own)
        stated = (manifest.federation, manifest.origin, *_purpose(manifest), manifest.artifact.sha256)
        if stated != (self._federation, site, seen.generation, seen.round, False, seen.sha256):
            raise ValueError("the manifest is of another artifact")
        return manifest

    @functools.cached_property
    def _ca(self) -> x509.Certificate:
        return self._pki.load().ca


def _purpose(manifest: Manifest) -> tuple[int, int, bool]:
    """Return for which round and for what a site signed an artifact, since the same bytes may serve several."""
    return manifest.generation, manifest.round, manifest.evaluation
