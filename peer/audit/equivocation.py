"""Proofs of equivocation: two manifests that one site signed, with different artifacts for one round.

Anybody with the federation's CA certificates can verify such a proof. It shows that the site's key
signed both manifests, but not why: restoring a backup while no peer could warn the site also causes one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Self

from cryptography import x509

from peer.audit.evidence_files import EvidenceDocument, read, read_manifest, trust
from peer.core.kinds import Kind
from peer.core.messages import Manifest, SignedManifest
from peer.core.roster import Sha256, SiteName
from peer.errors import FederationMismatch, PeerMisbehaved, StateError
from peer.net.transport.bounds import SHOWN_CHARACTERS
from peer.net.transport.manifest import from_base64, to_base64
from peer.site.config.site_folder import SiteFolder
from peer.site.identity.certificates import UNREADABLE
from peer.site.records.history import open_journals
from peer.site.records.journal import Journal


class ManifestSubject(NamedTuple):
    """The subject of a manifest; an honest site signs one digest for it."""

    origin: SiteName
    generation: int
    round: int
    kind: Kind
    owner: SiteName
    evaluation: bool

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        artifact = manifest.artifact
        about = (manifest.origin, manifest.generation, manifest.round)
        return cls(*about, artifact.kind, artifact.owner, manifest.evaluation)


@dataclass(frozen=True, slots=True)
class EquivocationProof:
    """Two signed manifests of one subject, and the digests of their artifacts."""

    subject: ManifestSubject
    signed: tuple[SignedManifest, SignedManifest]
    sha256: tuple[Sha256, Sha256]


def verify_any(signed: SignedManifest, *, federation: Sha256, authorities: Sequence[x509.Certificate]) -> Manifest:
    """Verify a manifest of the site named in its certificate, ignoring dates; raise ``ValueError`` with the reason."""
    return read_manifest(signed, of=_name(signed.certificate_der), federation=federation, authorities=authorities)


def prove(
    signed: Sequence[SignedManifest], *, federation: Sha256, authorities: Sequence[x509.Certificate]
) -> EquivocationProof:
    """Build an equivocation proof from two signed manifests.

    Raises:
        ValueError: they do not conflict; the message says why.
    """
    if len(signed) != 2:
        raise ValueError(f"a proof has two manifests, not {len(signed)}")
    one, other = (verify_any(each, federation=federation, authorities=authorities) for each in signed)
    if ManifestSubject.of(one) != ManifestSubject.of(other):
        raise ValueError("the manifests are not about the same round, kind and owner")
    if one.artifact.sha256 == other.artifact.sha256:
        raise ValueError("both manifests have the same artifact")
    return EquivocationProof(
        ManifestSubject.of(one), (signed[0], signed[1]), (one.artifact.sha256, other.artifact.sha256)
    )


class ManifestParts(EvidenceDocument):
    """A signed manifest in base64."""

    body: str
    signature: str
    certificate_der: str


class EvidenceFile(EvidenceDocument):
    """The file that ``evidence --out`` writes: each proof has two manifests."""

    mhfl_equivocation: Literal[1]
    federation_digest: str
    proofs: list[list[ManifestParts]]

    @classmethod
    def of(cls, federation: Sha256, proofs: Sequence[EquivocationProof]) -> Self:
        pairs = [[ManifestParts(**to_base64(signed)) for signed in proof.signed] for proof in proofs]
        return cls(mhfl_equivocation=1, federation_digest=federation, proofs=pairs)

    def verify(self, *, federation: Sha256, authorities: Sequence[x509.Certificate]) -> list[EquivocationProof]:
        """Return the proofs. Raise ``ValueError`` at the first invalid one."""
        pairs = ([from_base64(parts.model_dump()) for parts in pair] for pair in self.proofs)
        return [prove(pair, federation=federation, authorities=authorities) for pair in pairs]


def stored_proofs(
    journal: Journal, *, federation: Sha256, authorities: Sequence[x509.Certificate]
) -> list[EquivocationProof]:
    """Return a journal's proofs, each verified again. Raise ``StateError`` if one is no longer valid."""
    pairs = ([from_base64(parts) for parts in body["manifests"]] for _, _, body in journal.rows(("equivocated",)))
    try:
        return [prove(pair, federation=federation, authorities=authorities) for pair in pairs]
    except ValueError as error:
        raise StateError(f"{journal.path} is damaged: a row equivocated: {error}") from error


def proofs_of(folder: SiteFolder) -> list[EquivocationProof]:
    """Return the proofs that a site holds, of all its generations."""
    config, authorities = trust(folder.federation_toml)
    federation = config.digest
    proofs: dict[ManifestSubject, EquivocationProof] = {}
    with contextlib.ExitStack() as stack:
        for journal in [stack.enter_context(contextlib.closing(each)) for each in open_journals(folder)]:
            proofs |= {
                proof.subject: proof for proof in stored_proofs(journal, federation=federation, authorities=authorities)
            }
    return list(proofs.values())


def read_proofs(path: Path, *, federation: Sha256, authorities: Sequence[x509.Certificate]) -> list[EquivocationProof]:
    """Read and verify the proofs in a file that another site wrote.

    Raises:
        FederationMismatch: the file is about another federation.
        PeerMisbehaved: the file is not an evidence file, or a proof in it is invalid.
    """
    file = read(path, EvidenceFile)
    if file.federation_digest != federation:
        raise FederationMismatch(f"{path} is about federation {file.federation_digest[:12]}, not {federation[:12]}")
    try:
        return file.verify(federation=federation, authorities=authorities)
    except ValueError as error:
        raise PeerMisbehaved(f"{path} proves nothing: {error}", "tell the site that wrote it") from error


def _name(der: bytes) -> str:
    try:
        extensions = x509.load_der_x509_certificate(der).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    except UNREADABLE as error:
        raise ValueError("the certificate cannot be read") from error
    return names[0][:SHOWN_CHARACTERS] if len(names) == 1 else ""
