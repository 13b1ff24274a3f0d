"""Round proofs: a site's signed statement of the newest round that it has published for.

A straggler skips rounds only if its peers have signed which round they are in. A peer whose artifacts it receives has
signed manifests; every other peer sends this statement, which says nothing about an artifact.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from google.protobuf.message import DecodeError

from peer.core import limits
from peer.core.messages import SignedRound
from peer.core.roster import Sha256, SiteName
from peer.net.transport.bounds import WireError, at_most, digest, number, site
from peer.pb import peer_pb2 as pb
from peer.site.identity import certificates

LABEL = b"mhfl/round/v1\x00"
"""Prefix of the signed body: the signature is valid for nothing else that the key signs."""


@dataclass(frozen=True, slots=True)
class RoundClaim:
    """The newest round of a generation for which a site has published an artifact."""

    federation: Sha256
    site: SiteName
    generation: int
    round: int


def sign_round(own: certificates.Identity, claim: RoundClaim) -> SignedRound:
    """Sign the claim and attach the site's certificate; raise ``WireError`` if other sites would refuse it."""
    _check(claim)
    message = pb.RoundClaim(
        federation=bytes.fromhex(claim.federation), site=claim.site, generation=claim.generation, round=claim.round
    )
    body = message.SerializeToString(deterministic=True)
    return SignedRound(body, certificates.sign(own.key, LABEL + body), certificates.certificate_der(own.certificate))


def verify_round(signed: SignedRound, certificate: x509.Certificate) -> RoundClaim:
    """Verify a claim's signature and decode it; the caller has verified the certificate before.

    Raises:
        ValueError: the key did not sign these bytes; the body is not decoded then.
        WireError: the body is outside a limit.
    """
    certificates.verify_signature(certificates.certificate_key(certificate), signed.signature, LABEL + signed.body)
    at_most("round_claim", len(signed.body), limits.ROUND_CLAIM_BYTES_MAX, "bytes")
    try:
        message = pb.RoundClaim.FromString(signed.body)
    except DecodeError as error:
        raise WireError(f"round_claim is not a message of mhfl.v1: {error}") from None
    claim = RoundClaim(Sha256(message.federation.hex()), SiteName(message.site), message.generation, message.round)
    _check(claim)
    return claim


def _check(claim: RoundClaim) -> None:
    digest("round_claim.federation", claim.federation)
    site("round_claim.site", claim.site)
    number("round_claim.generation", claim.generation, minimum=1, maximum=limits.ROUNDS_MAX)
    number("round_claim.round", claim.round, minimum=1, maximum=limits.ROUNDS_MAX)
