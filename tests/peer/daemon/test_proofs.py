"""What a site proves to peers that are far behind or were restored, and which proofs it believes itself."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core import limits, rows
from peer.core.artifacts import Artifact, TensorSpec
from peer.core.epochs import PaceRules
from peer.core.machine import SiteMachine
from peer.core.messages import Heartbeat, Manifest, Seen, SignedManifest, SignedRound
from peer.core.roster import Roster, RoundKey, Sha256, SiteName
from peer.core.rules import Rules
from peer.daemon.proofs import ClaimProofs
from peer.errors import CertificateError
from peer.methods.registry import PLANS
from peer.net.transport.manifest import encode_manifest, sign_manifest, to_base64
from peer.net.transport.round_proof import RoundClaim, sign_round
from peer.site.identity import certificates
from peer.site.records.journal import Journal

FEDERATION = Sha256("fe" * 32)
ASIA, EUROPE = SiteName("asia"), SiteName("europe")
KEY = RoundKey(b"\x07" * 32)
NOW = datetime(2026, 11, 22, tzinfo=UTC)
ARTIFACT = Artifact("model", EUROPE, Sha256("ab" * 32), 1000, 20, {"name": "resnet10"})
FAR = Heartbeat(1, 40, "train", 0.5, 40, 39)


class Authority:
    """A CA in memory."""

    def __init__(self) -> None:
        self.key, self.certificate = certificates.new_authority("trial", now=NOW - timedelta(days=400))

    def admit(self, name: str, *, at: datetime = NOW - timedelta(days=1)) -> certificates.Identity:
        key: ec.EllipticCurvePrivateKey = certificates.new_key()
        site = SiteName(name)
        certificate = certificates.issue(
            self.key, self.certificate, name=site, public_key=key.public_key(), now=at, days=30
        )
        return certificates.Identity(site, key, certificate, self.certificate, KEY)


class FakePki:
    """A site's key and certificate without files; ``None`` while none is valid."""

    def __init__(self, identity: certificates.Identity) -> None:
        self.identity: certificates.Identity | None = identity
        self.now = NOW
        self.pinned: dict[SiteName, Sha256] = {}

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        return () if self.identity is None else ((self.identity.certificate.serial_number,),)

    def load(self) -> certificates.Identity:
        if self.identity is None:
            raise CertificateError("expired")
        return self.identity

    def clock(self) -> datetime:
        return self.now

    def verify(self, der: bytes, ca: x509.Certificate, name: SiteName) -> x509.Certificate:
        return certificates.verify_certificate(der, ca, name, self.now, pinned=self.pinned.get(name))

    def later(self) -> tuple[x509.Certificate, ...]:
        return ()


@dataclass
class ProvingSite:
    """One site's proofs on a real journal."""

    machine: SiteMachine
    journal: Journal
    pki: FakePki
    proofs: ClaimProofs


@pytest.fixture
def authority() -> Authority:
    return Authority()


@pytest.fixture
def site(authority: Authority, tmp_path: Path) -> Iterator[Callable[..., ProvingSite]]:
    journals = []

    def make(name: str, *, refused: frozenset[str] = frozenset()) -> ProvingSite:
        rules = Rules(
            SiteName(name), Roster.of(["asia", "europe"]), FEDERATION, KEY, "fedskd", PLANS["fedskd"], 50, pace=PACE
        )
        machine, journal = SiteMachine(rules), Journal(tmp_path / f"{name}.db")
        journals.append(journal)
        pki = FakePki(authority.admit(name))
        proofs = ClaimProofs(
            federation=FEDERATION,
            machine=machine,
            journal=journal,
            pki=pki,  # type: ignore[arg-type]
            refused=refused,
        )
        return ProvingSite(machine, journal, pki, proofs)

    yield make
    for journal in journals:
        journal.close()


PACE = PaceRules(lag_rounds_max=2)


def signed_manifest(own: certificates.Identity, **changes: Any) -> SignedManifest:
    manifest = Manifest(FEDERATION, 1, "fedskd", EUROPE, 9, ARTIFACT, (TensorSpec("w", "F32", (2,)),))
    return sign_manifest(own, encode_manifest(replace(manifest, **changes)))


# The round that a peer is in.


@pytest.mark.parametrize(("committed", "proved"), [(None, True), (0, True), (36, True), (37, False), (39, False)])
def test_only_a_peer_that_is_far_behind_gets_a_proof(site: Any, committed: int | None, proved: bool) -> None:
    europe = site("europe")
    if committed is not None:
        europe.machine.peers.hear(ASIA, Heartbeat(1, committed, "train", committed_round=committed), 0.0)
    attached = europe.proofs.attach(FAR, ASIA)
    assert (attached.proof is not None) == proved
    assert replace(attached, proof=None) == FAR


def test_a_proof_under_another_key_than_the_pinned_one_is_ignored_and_a_new_key_signs_anew(
    site: Any, authority: Authority
) -> None:
    """One of the two has not heard yet of the amendment that changes the key: nobody is at fault."""
    europe, asia = site("europe"), site("asia")
    renewed = authority.admit("europe")
    asia.pki.pinned = {EUROPE: certificates.key_digest(renewed.key.public_key())}
    assert asia.proofs.proven_round(EUROPE, europe.proofs.attach(FAR, ASIA)) is None
    europe.pki.identity = renewed
    assert asia.proofs.proven_round(EUROPE, europe.proofs.attach(FAR, ASIA)) == 40


def test_a_proof_is_believed_by_the_peer_that_needs_it(site: Any) -> None:
    europe, asia = site("europe"), site("asia")
    assert asia.proofs.proven_round(EUROPE, europe.proofs.attach(FAR, ASIA)) == 40
    asia.machine.memory.committed = 37
    assert asia.proofs.proven_round(EUROPE, europe.proofs.attach(FAR, ASIA)) is None, "the claim needs no proof"
    assert asia.proofs.proven_round(EUROPE, FAR) is None, "there is none"


def test_a_site_without_a_valid_certificate_proves_nothing_and_beats_on(site: Any) -> None:
    europe = site("europe")
    europe.pki.identity = None
    assert europe.proofs.attach(FAR, ASIA) == FAR


def test_a_proof_by_another_site_of_another_federation_or_with_a_refused_certificate_is_none(
    site: Any, authority: Authority
) -> None:
    asia, own = site("asia"), authority.admit("europe")
    claim = RoundClaim(FEDERATION, EUROPE, 1, 40)
    cases = {
        "the certificate names asia, not europe": sign_round(authority.admit("asia"), claim),
        "it is of asia in the federation fefe": sign_round(own, replace(claim, site=ASIA)),
        "it is of europe in the federation abab": sign_round(own, replace(claim, federation=Sha256("ab" * 32))),
        "not from this federation's CA": sign_round(Authority().admit("europe"), claim),
        "expired": sign_round(authority.admit("europe", at=NOW - timedelta(days=60)), claim),
    }
    for reason, proof in cases.items():
        with pytest.raises(ValueError, match=reason):
            asia.proofs.proven_round(EUROPE, replace(FAR, proof=proof))
    digest = certificates.certificate_sha256(certificates.certificate_der(own.certificate))
    strict = site("asia", refused=frozenset({digest}))
    with pytest.raises(ValueError, match="the certificate is refused here"):
        strict.proofs.proven_round(EUROPE, replace(FAR, proof=sign_round(own, claim)))


VECTORS = json.loads((Path(__file__).parents[3] / "proto" / "vectors" / "round.json").read_text())


def vector(signed: dict[str, str]) -> Heartbeat:
    parts = [bytes.fromhex(signed[name]) for name in ("body", "signature", "certificate_der")]
    return replace(FAR, proof=SignedRound(*parts))


def test_the_known_answers_hold(site: Any) -> None:
    asia, now = site("asia"), datetime.fromisoformat(VECTORS["now"])
    ca = certificates.pinned_authority(VECTORS["ca_certificate"])
    asia.pki.identity, asia.pki.now = replace(asia.pki.identity, ca=ca), now
    proofs = ClaimProofs(
        federation=VECTORS["federation"],
        machine=asia.machine,
        journal=asia.journal,
        pki=asia.pki,
        refused=frozenset(),
    )
    sender = SiteName(VECTORS["sender"])
    assert proofs.proven_round(sender, vector(VECTORS["accepted"])) == VECTORS["accepted"]["claim"]["round"]
    for refused in VECTORS["refused"]:
        with pytest.raises(ValueError, match=r".+"):
            proofs.proven_round(sender, vector(refused))


# What a peer has of this site.


def seen_by(asia: ProvingSite, signed: SignedManifest) -> Seen | None:
    """What asia tells of europe's artifact of round 9, which it received."""
    digests = asia.machine.memory.first_digests.setdefault(EUROPE, {})
    digests[(1, 9, EUROPE)] = ARTIFACT.sha256
    journal_received(asia, signed)
    return asia.proofs.seen(EUROPE)


def journal_received(asia: ProvingSite, signed: SignedManifest, *, round: int = 9) -> None:
    parts = to_base64(signed)
    row = rows.ReceivedRow(
        round,
        peer=EUROPE,
        purpose="train",
        kind_of_artifact="model",
        sha256=ARTIFACT.sha256,
        bytes=1000,
        outcome="complete",
        signed_body=parts["body"],
        signature=parts["signature"],
        certificate_der=parts["certificate_der"],
    )
    asia.journal.write(row)


def test_what_arrived_last_before_a_crash_was_seen(site: Any, authority: Authority) -> None:
    """The state machine had not processed it, but its origin must not sign another one after a restored backup."""
    asia, europe = site("asia"), site("europe")
    signed = signed_manifest(authority.admit("europe"))
    journal_received(asia, signed)
    seen = asia.proofs.seen(EUROPE)
    assert seen == Seen(1, 9, ARTIFACT.sha256, signed)
    europe.proofs.verify_seen(seen)
    later = Sha256("cd" * 32)
    asia.machine.memory.first_digests[EUROPE] = {(1, 10, EUROPE): later}
    assert asia.proofs.seen(EUROPE) == Seen(1, 10, later)


def test_what_was_seen_comes_with_the_manifest_from_the_journal(site: Any, authority: Authority) -> None:
    asia, europe = site("asia"), site("europe")
    assert asia.proofs.seen(EUROPE) is None
    signed = signed_manifest(authority.admit("europe"))
    seen = seen_by(asia, signed)
    assert seen == Seen(1, 9, ARTIFACT.sha256, signed)
    assert asia.proofs.seen(EUROPE) is seen, "a greeting does not read the journal again"
    europe.proofs.verify_seen(seen)


@pytest.mark.parametrize("other", [{"round": 10}, {"evaluation": True}])
def test_of_an_artifact_that_serves_two_purposes_the_manifest_of_the_seen_one_is_shown(
    site: Any, authority: Authority, other: dict[str, Any]
) -> None:
    """A model that distillation did not change is lent for evaluation in the round for which it was published.

    A later one was received, and the site was killed before the state machine knew of it.
    """
    asia, identity = site("asia"), authority.admit("europe")
    journal_received(asia, signed_manifest(identity, **other), round=other.get("round", 9))
    signed = signed_manifest(identity)
    seen = seen_by(asia, signed)
    journal_received(asia, signed_manifest(identity, **other), round=other.get("round", 9))
    asia.proofs._seen.clear()
    assert asia.proofs.seen(EUROPE) == seen == Seen(1, 9, ARTIFACT.sha256, signed)
    site("europe").proofs.verify_seen(seen)


def test_a_manifest_that_the_peer_s_server_would_refuse_is_left_out(site: Any, authority: Authority) -> None:
    signed = replace(signed_manifest(authority.admit("europe")), body=bytes(limits.SHOWN_BYTES_MAX + 1))
    assert seen_by(site("asia"), signed) == Seen(1, 9, ARTIFACT.sha256)


def test_what_the_simulator_or_an_older_program_journalled_has_no_manifest(site: Any) -> None:
    asia = site("asia")
    asia.machine.memory.first_digests[EUROPE] = {(1, 9, EUROPE): ARTIFACT.sha256}
    assert asia.proofs.seen(EUROPE) == Seen(1, 9, ARTIFACT.sha256)


def test_a_former_certificate_of_this_site_still_proves(site: Any, authority: Authority) -> None:
    former = authority.admit("europe", at=NOW - timedelta(days=90))
    site("europe").proofs.verify_seen(Seen(1, 9, ARTIFACT.sha256, signed_manifest(former)))


def test_a_lie_about_what_was_seen_is_told_by_its_reason(site: Any, authority: Authority) -> None:
    europe, own = site("europe"), authority.admit("europe")
    told = Seen(1, 9, ARTIFACT.sha256, signed_manifest(own))
    forged = dataclasses.replace(signed_manifest(own), body=signed_manifest(own, generation=700).body)
    cases = {
        "another artifact": replace(told, generation=700),
        "manifest is of another artifact": replace(told, round=10),
        "is of another": replace(told, sha256="cd" * 32),
        "signature does not fit": replace(told, generation=700, manifest=forged),
        "names asia, not europe": replace(told, manifest=signed_manifest(authority.admit("asia"))),
        "without this site's signed manifest": replace(told, manifest=None),
    }
    for reason, lie in cases.items():
        with pytest.raises(ValueError, match=reason):
            europe.proofs.verify_seen(lie)
