"""A statement of a round is believed under its site's signature only, and within its bounds."""

from dataclasses import replace

import pytest

from peer.core import limits
from peer.core.messages import SignedRound
from peer.core.roster import Sha256, SiteName
from peer.net.transport.bounds import WireError
from peer.net.transport.manifest import sign_manifest
from peer.net.transport.round_proof import LABEL, RoundClaim, sign_round, verify_round
from peer.site.identity import certificates

CLAIM = RoundClaim(Sha256("fe" * 32), SiteName("europe"), 2, 7)


@pytest.fixture
def own(authority):
    """Europe's key and certificate."""
    return authority.admit("europe").load()


def test_a_signed_claim_is_read_as_it_was_made(own):
    assert verify_round(sign_round(own, CLAIM), own.certificate) == CLAIM


def test_another_key_or_another_body_proves_nothing(authority, own):
    other = authority.admit("asia").load()
    signed = sign_round(own, CLAIM)
    with pytest.raises(ValueError, match="the signature does not fit"):
        verify_round(signed, other.certificate)
    later = sign_round(own, replace(CLAIM, round=8))
    with pytest.raises(ValueError, match="the signature does not fit"):
        verify_round(replace(signed, body=later.body), own.certificate)


def test_the_signature_of_a_manifest_s_body_proves_no_round(own):
    body = sign_round(own, CLAIM).body
    signed = sign_manifest(own, body)
    with pytest.raises(ValueError, match="the signature does not fit"):
        verify_round(SignedRound(body, signed.signature, signed.certificate_der), own.certificate)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"round": 0}, "round_claim.round = 0"),
        ({"round": limits.ROUNDS_MAX + 1}, "round_claim.round = 1000001"),
        ({"generation": 0}, "round_claim.generation = 0"),
        ({"site": "no name"}, "round_claim.site"),
    ],
)
def test_a_claim_outside_a_limit_is_not_signed(own, change, reason):
    with pytest.raises(WireError, match=reason):
        sign_round(own, replace(CLAIM, **change))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xff", "not a message"),
        (b"", "round_claim.federation"),
        (b"\x0a" * (limits.ROUND_CLAIM_BYTES_MAX + 1), "has 257 bytes"),
    ],
)
def test_what_a_key_signs_is_checked_all_the_same(own, body, reason):
    signature = certificates.sign(own.key, LABEL + body)
    with pytest.raises(WireError, match=reason):
        verify_round(SignedRound(body, signature, b"certificate"), own.certificate)
