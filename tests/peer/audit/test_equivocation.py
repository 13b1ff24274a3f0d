"""A proof of equivocation is two valid manifests about one round, and nothing less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peer.audit import evidence_files
from peer.audit.equivocation import EvidenceFile, prove, read_proofs, verify_any
from peer.core.messages import SignedAmendment, SignedManifest
from peer.core.roster import Sha256, SiteName
from peer.daemon.dispatch import now
from peer.errors import FederationMismatch, PeerMisbehaved
from peer.lab.demo.local_federation import LocalFederation
from peer.net.transport.manifest import decode_manifest, encode_manifest, sign_manifest
from peer.site.identity import certificates, enrolment
from peer.site.identity.certificates import Identity
from peer.site.membership.amendment import Amendment
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.site.membership.signatures import endorse_as_founder

ONE, OTHER = Sha256("ab" * 32), Sha256("cd" * 32)
Sign = Callable[..., SignedManifest]


@pytest.fixture
def sign(books: Any) -> Sign:
    """Signs a manifest of asia's for round 5."""
    template = decode_manifest(books.send("asia", "europe", round=5).body)

    def make(sha256: Sha256, *, by: str = "asia", **changes: Any) -> SignedManifest:
        manifest = replace(template, artifact=replace(template.artifact, sha256=sha256), **changes)
        return sign_manifest(books.identity(by), encode_manifest(manifest))

    return make


def checks(loopback: LocalFederation) -> dict[str, Any]:
    federation, authorities = evidence_files.trust(loopback.folder("europe").federation_toml)
    return {"federation": federation.digest, "authorities": authorities}


def test_two_digests_for_one_round_under_one_site_s_signature_are_a_proof(
    enrolled: LocalFederation, sign: Sign
) -> None:
    proof = prove((sign(ONE), sign(OTHER, reexport=True)), **checks(enrolled))
    assert (proof.subject.origin, proof.subject.round, proof.sha256) == ("asia", 5, (ONE, OTHER))


def test_whatever_an_honest_site_signs_twice_is_no_proof(enrolled: LocalFederation, sign: Sign) -> None:
    for other in (sign(ONE), sign(ONE, reexport=True)):
        with pytest.raises(ValueError, match="both manifests have the same artifact"):
            prove((sign(ONE), other), **checks(enrolled))
    for change in ({"generation": 2}, {"round": 6}, {"evaluation": True}):
        with pytest.raises(ValueError, match="not about the same round"):
            prove((sign(ONE), sign(OTHER, **change)), **checks(enrolled))


def test_a_manifest_is_of_the_site_that_its_certificate_names(enrolled: LocalFederation, sign: Sign) -> None:
    with pytest.raises(ValueError, match="its origin is asia, not europe"):
        verify_any(sign(ONE, by="europe"), **checks(enrolled))
    with pytest.raises(ValueError, match="its federation is 00000000"):
        verify_any(sign(ONE, federation=Sha256("00" * 32)), **checks(enrolled))
    with pytest.raises(ValueError, match="the certificate cannot be read"):
        verify_any(replace(sign(ONE), certificate_der=b"no certificate"), **checks(enrolled))
    with pytest.raises(ValueError, match="the signature does not fit"):
        verify_any(replace(sign(ONE), body=sign(OTHER).body), **checks(enrolled))


def test_evidence_counts_under_a_ca_that_an_amendment_added_and_any_key_of_the_site(
    enrolled: LocalFederation, sign: Sign, founders_ca: Path
) -> None:
    folder = enrolled.folder("europe")
    founder = enrolment.Authority.load(founders_ca, now=now())
    later_key, later = certificates.new_authority("later", now=now())
    key = certificates.new_key()
    renewed = certificates.issue(later_key, later, name=SiteName("asia"), public_key=key.public_key(), now=now())
    other = sign_manifest(Identity(SiteName("asia"), key, renewed, later, None), sign(OTHER).body)
    with pytest.raises(ValueError, match="CA"):
        prove((sign(ONE), other), **checks(enrolled))
    body = Amendment(
        federation=enrolled.federation.digest,
        number=1,
        previous=enrolled.federation.digest,
        from_round=1,
        issued=0,
        round_key_tag=Sha256("ab" * 32),
        rekey={SiteName("asia"): certificates.key_digest(certificates.new_key().public_key())},
        authority=certificates.certificate_pem(later).decode(),
    ).encode()
    signed = SignedAmendment(body, (endorse_as_founder(founder.key, body),))
    MembershipFolder(folder.membership).save_chain(Chain.of(enrolled.federation, [signed]))
    proof = prove((sign(ONE), other), **checks(enrolled))
    assert (proof.subject.origin, proof.sha256) == ("asia", (ONE, OTHER))


def test_a_file_of_proofs_is_verified_by_whoever_reads_it(
    enrolled: LocalFederation, sign: Sign, tmp_path: Path
) -> None:
    known = checks(enrolled)
    proof = prove((sign(ONE), sign(OTHER)), **known)
    path = tmp_path / "proofs.json"
    path.write_bytes(evidence_files.encode(EvidenceFile.of(known["federation"], [proof])))
    assert read_proofs(path, **known) == [proof]
    with pytest.raises(FederationMismatch, match="is about federation"):
        read_proofs(path, federation=Sha256("00" * 32), authorities=known["authorities"])
    forged = EvidenceFile.of(known["federation"], [replace(proof, signed=(sign(ONE), sign(ONE)))])
    path.write_bytes(evidence_files.encode(forged))
    with pytest.raises(PeerMisbehaved, match="proves nothing: both manifests have the same artifact"):
        read_proofs(path, **known)
    path.write_text("{}")
    with pytest.raises(PeerMisbehaved, match="is not a file of `evidence --out`"):
        read_proofs(path, **known)
