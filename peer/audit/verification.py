"""The checks behind `egress verify`, and the documents of `egress export` and `egress witness`.

The ledger's hash chain reveals a change in its middle. It does not reveal a truncated tail or a
rewritten chain. An earlier ledger tip reveals those: in the site's own journal, which the same person
can change, or at another site.
"""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography import x509

from peer.audit import evidence_files
from peer.audit.evidence_files import Export, ReceivedManifest, Restoration, SignedHead, Witness, WitnessEvidence
from peer.core.roster import Sha256
from peer.documents.commands import LedgerExtent, LedgerFindings, LedgerVerified
from peer.errors import FederationMismatch, StateError, UsageError
from peer.net.transport.manifest import decode_manifest, from_base64
from peer.site.config.site_folder import SiteFolder
from peer.site.config.toml import suggestion
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records import history
from peer.site.records.journal import Journal
from peer.site.records.ledger import ChainVerifier, Ledger


def verify(folder: SiteFolder, witnesses: Sequence[Path] = ()) -> LedgerVerified:
    """Verify a site's own ledger; the keys are those of `egress verify --json`.

    Args:
        witnesses: files that ``egress witness`` wrote at other sites.

    Raises:
        PeerError: a witness file cannot be used. The document lists faults of the ledger instead.
    """
    federation, authorities = evidence_files.trust(folder.federation_toml)
    evidence = [
        (path, evidence_files.read_witness(path, of=folder.site, federation=federation.digest, authorities=authorities))
        for path in witnesses
    ]
    # Read the journal before the ledger: the daemon may be appending to it.
    signed_heads, problems, restored = _read_own_heads(folder, federation.digest, authorities)
    chain = _verify_chain(folder.egress_db)
    problems = [*chain.problems, *problems, *_compare(chain, signed_heads, "the site's own journal")]
    return {
        "site": folder.site,
        "federation": federation.name,
        "digest": federation.digest,
        "source": str(folder.egress_db),
        "made": None,
        **_extent(chain),
        "own_manifests": len(signed_heads),
        **_findings(chain, evidence, restored, problems, []),
    }


def _read_own_heads(
    folder: SiteFolder, digest: Sha256, authorities: Sequence[x509.Certificate]
) -> tuple[list[SignedHead], list[str], list[Restoration]]:
    """Read the ledger tips in the site's own manifests, the manifests' faults, and the restorations of backups."""
    signed_heads, problems, restored = [], [], []
    for journal in history.open_journals(folder):
        with contextlib.closing(journal):
            restored += _read_restorations(journal)
            for _, round, body in journal.rows(("manifest",)):
                try:
                    signed = from_base64(body)
                    manifest = decode_manifest(signed.body)
                    if manifest.federation == digest:  # a manifest of a former federation.toml is not verified
                        evidence_files.read_manifest(signed, of=folder.site, federation=digest, authorities=authorities)
                    signed_heads.append(SignedHead.of(manifest))
                except ValueError as error:
                    problems.append(f"{journal.path}: the manifest of round {round} is not this site's: {error}")
    return signed_heads, problems, restored


def _read_restorations(journal: Journal) -> list[Restoration]:
    return [
        Restoration(
            time=int(row["time"]), generation=row["body"]["generation"], reported_by=str(row["body"]["reported_by"])
        )
        for row in journal.records(("regenerated",))
    ]


def _verify_chain(path: Path) -> ChainVerifier:
    if not path.exists():
        return ChainVerifier()
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.verify_chain()


def verify_export(path: Path, federation_toml: Path | None, witnesses: Sequence[Path] = ()) -> LedgerVerified:
    """Verify an exported ledger without its site's folder; the keys are those of ``verify``.

    Args:
        federation_toml: the file with the CA; without it, nobody vouches for the key that signed
            the export.
        witnesses: files that ``egress witness`` wrote at other sites; they need
            ``federation_toml``.

    Raises:
        UsageError: there are witnesses and no federation.toml.
        FederationMismatch: the export is of another federation.
        PeerMisbehaved: the file is not an export, or its signature is not the site's.
    """
    if witnesses and federation_toml is None:
        raise UsageError("--witness needs --federation", "name the federation.toml that all sites hold")
    document = evidence_files.read(path, Export)
    authorities: tuple[x509.Certificate, ...] = ()
    unproven = []
    evidence: list[tuple[Path, WitnessEvidence]] = []
    if federation_toml is None:
        unproven.append(
            f"that {document.site} signed it: without --federation nobody vouches for the certificate in it"
        )
    else:
        federation, authorities = evidence_files.trust(federation_toml)
        if federation.digest != document.federation_digest:
            raise FederationMismatch(
                f"{path} is of federation {document.federation_digest[:12]}, "
                f"{federation_toml} is {federation.digest[:12]}"
            )
        evidence = [
            (
                witness,
                evidence_files.read_witness(
                    witness, of=document.site, federation=federation.digest, authorities=authorities
                ),
            )
            for witness in witnesses
        ]
    certificate = evidence_files.verify_export(document, str(path), authorities=authorities)
    chain = document.verify_chain()
    if chain.before.count:
        unproven.append(f"rows 1 to {chain.before.count}, which are not in this file")
    if chain.left_out:
        unproven.append(f"{len(chain.left_out)} later rows, of which it holds nothing but the hash")
    exported_at = datetime.datetime.fromtimestamp(document.made, datetime.UTC)
    if not certificate.not_valid_before_utc <= exported_at <= certificate.not_valid_after_utc:
        unproven.append(f"when it was made: its certificate was not valid on {exported_at:%Y-%m-%d}")
    return {
        "site": document.site,
        "federation": document.federation,
        "digest": document.federation_digest,
        "source": str(path),
        "made": document.made,
        **_extent(chain),
        "own_manifests": None,
        **_findings(chain, evidence, document.restored, list(chain.problems), unproven),
    }


def _extent(chain: ChainVerifier) -> LedgerExtent:
    head = chain.head
    return {
        "rows": head.count - chain.before.count - len(chain.left_out),
        "head": {"count": head.count, "hash": head.hash},
        "transfers": chain.intents,
        "open": chain.open_intents,
    }


def _findings(
    chain: ChainVerifier,
    evidence: Sequence[tuple[Path, WitnessEvidence]],
    restored: Sequence[Restoration],
    problems: list[str],
    unproven: list[str],
) -> LedgerFindings:
    """Collect the problems, including those that witnesses reveal, and the unproven statements."""
    lost = f"; the journal says that an older backup was restored on {_day(restored[-1])}" if restored else ""
    for path, witness in evidence:
        problems += [f"{problem}{lost}" for problem in _compare(chain, witness.signed_heads, f"{path} of {witness.by}")]
    vouched = max((witness.newest.head.count for _, witness in evidence), default=None)
    if vouched is None:
        unproven.append(
            "that no row was cut off at the end and that the chain was not written anew: for that, another site's "
            "witness is needed (`mhfl-peer egress witness` there, --witness here)"
        )
    elif vouched < chain.head.count:
        unproven.append(f"that rows {vouched + 1} to {chain.head.count} are all: they are newer than every witness")
    return {
        "witnesses": [
            {
                "file": str(path),
                "by": witness.by,
                "manifests": len(witness.signed_heads),
                "rows": witness.newest.head.count,
                "generation": witness.newest.generation,
                "round": witness.newest.round,
            }
            for path, witness in evidence
        ],
        "vouched_rows": vouched,
        "restored": [
            {"time": row.time, "generation": row.generation, "reported_by": row.reported_by} for row in restored
        ],
        "problems": problems,
        "unproven": unproven,
    }


def _compare(chain: ChainVerifier, signed_heads: Iterable[SignedHead], source: str) -> list[str]:
    """Describe, in one line, the newest signed tip that contradicts the chain and count the others; empty if none."""
    problems = [(signed, problem) for signed in signed_heads if (problem := chain.compare(signed.head)) is not None]
    if not problems:
        return []
    signed, problem = max(problems, key=lambda pair: pair[0].head.count)
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    return [f"{problem} ({source}: the manifest of round {signed.round} of generation {signed.generation}{more})"]


def make_witness(folder: SiteFolder, of: str, *, everything: bool = False) -> Witness:
    """Collect the manifests of another site that this site received, each with that site's ledger tip.

    Args:
        of: the site whose ledger an auditor will verify.
        everything: include every manifest, not only each generation's with the most rows. A
            generation that began from a restored backup may cover more rows than the one whose rows
            the backup lacks.

    Raises:
        UsageError: there is no such other site.
        StateError: this site has received no manifest of it.
    """
    federation, authorities = evidence_files.trust(folder.federation_toml)
    newcomers = MembershipFolder(folder.membership).newcomers(federation, folder.site)
    others = sorted({*federation.roster, *newcomers} - {folder.site})
    if of not in others:
        raise UsageError(f"--of {of}: not another site of this federation{suggestion(of, others)}", "name another site")
    received_manifests: list[tuple[SignedHead, ReceivedManifest]] = []
    for journal in history.open_journals(folder):
        with contextlib.closing(journal):
            for row in journal.records(("received",)):
                if row["body"]["peer"] == of:
                    received_manifests += _read_received(row, of, federation.digest, authorities)
    if not received_manifests:
        raise StateError(f"{folder.site} has received no manifest of {of} yet", "try again after the next round")
    if not everything:
        # Sorted by generation, then by rows: keep the last one of each generation.
        ordered = sorted(
            received_manifests, key=lambda pair: (pair[0].generation, pair[0].head.count, pair[1].received)
        )
        received_manifests = list({signed.generation: (signed, manifest) for signed, manifest in ordered}.values())
    return Witness(
        mhfl_witness=evidence_files.VERSION,
        of=of,
        by=folder.site,
        federation_digest=federation.digest,
        manifests=tuple(manifest for _, manifest in received_manifests),
    )


def _read_received(
    row: Mapping[str, Any], of: str, digest: Sha256, authorities: Sequence[x509.Certificate]
) -> list[tuple[SignedHead, ReceivedManifest]]:
    """Read a row's manifest and the ledger tip in it; empty if it cannot be verified."""
    try:
        manifest = evidence_files.read_manifest(
            from_base64(row["body"]), of=of, federation=digest, authorities=authorities
        )
    except ValueError:
        return []
    parts = {name: row["body"][name] for name in ("body", "signature", "certificate_der")}
    return [(SignedHead.of(manifest), ReceivedManifest(received=int(row["time"]), **parts))]


def export(folder: SiteFolder, *, since_s: float = 0.0, rounds: tuple[int, int] | None = None) -> Export:
    """Export and sign a site's ledger for an auditor; the certificate may have expired.

    Args:
        since_s: show the transfers since this Unix time.
        rounds: show the transfers from the first round to the second, both included.
    """
    federation, authorities = evidence_files.trust(folder.federation_toml)
    own = certificates.Identity.load(
        folder.pki,
        name=folder.site,
        ca_certificate=federation.ca_certificate,
        now=None,
        later=authorities[1:],
        joined_later=folder.site not in federation.roster,
    )
    restored = []
    for journal in history.open_journals(folder):
        with contextlib.closing(journal):
            restored += _read_restorations(journal)
    rows: list[tuple[int, str, str]] = []
    if folder.egress_db.exists():
        with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
            rows = ledger.rows()

    def selects(intent: Mapping[str, Any]) -> bool:
        within = rounds is None or rounds[0] <= int(intent["round"]) <= rounds[1]
        return within and float(intent["time"]) >= since_s

    return evidence_files.export(
        rows,
        own,
        federation=federation.name,
        digest=federation.digest,
        time_s=int(time.time()),
        restored=restored,
        selects=selects,
    )


def _day(restored: Restoration) -> str:
    return f"{datetime.datetime.fromtimestamp(restored.time, datetime.UTC):%Y-%m-%d}"
