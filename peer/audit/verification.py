"""Whether a site's egress ledger is all that it was: the checks behind `egress verify`, and what auditors are handed.

The ledger proves itself against changes in its middle. Against a cut tail and a chain that was written anew it needs
somebody who remembers its end: the site's own journal, which the same hands can change, or another site.
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
from peer.audit.evidence_files import Export, ReceivedManifest, Restored, SignedHead, Witness, WitnessEvidence
from peer.config.schema import FederationConfig
from peer.config.site_folder import SiteFolder
from peer.config.toml import suggestion
from peer.core.roster import Sha256
from peer.documents import LedgerExtent, LedgerJudgement, LedgerVerified
from peer.errors import FederationMismatch, StateError, UsageError
from peer.identity import certificates
from peer.records import history
from peer.records.journal import Journal
from peer.records.ledger import Chain, Ledger
from peer.transport.manifest import decode_manifest, from_base64


def verify(folder: SiteFolder, witnesses: Sequence[Path] = ()) -> LedgerVerified:
    """What can be proven of a site's own ledger; the keys are those of `egress verify --json`.

    Args:
        folder: the site's; its daemon may be running.
        witnesses: files of other sites, which ``egress witness`` wrote.

    Raises:
        PeerError: a file of a witness cannot be used; what is wrong with the ledger is in the document.
    """
    federation = FederationConfig.load(folder.federation_toml)
    ca = certificates.pinned_authority(federation.ca_certificate)
    heard = [
        (path, evidence_files.hear(path, of=folder.site, federation=federation.digest, ca=ca)) for path in witnesses
    ]
    seals, problems, restored = _own_seals(folder, federation.digest, ca)  # before the ledger, which may be growing
    chain = _chain(folder.egress_db)
    problems = [*chain.problems, *problems, *_against(chain, seals, "the site's own journal")]
    return {
        "site": folder.site,
        "federation": federation.name,
        "digest": federation.digest,
        "source": str(folder.egress_db),
        "made": None,
        **_described(chain),
        "own_manifests": len(seals),
        **_judged(chain, heard, restored, problems, []),
    }


def _own_seals(
    folder: SiteFolder, digest: Sha256, ca: x509.Certificate
) -> tuple[list[SignedHead], list[str], list[Restored]]:
    """The heads that the site itself has signed, what is wrong with them, and restored backups."""
    seals, problems, restored = [], [], []
    for journal in history.journals(folder):
        with contextlib.closing(journal):
            restored += _restored(journal)
            for _, round, body in journal.rows(("manifest",)):
                try:
                    signed = from_base64(body)
                    manifest = decode_manifest(signed.body)
                    if manifest.federation == digest:  # what a former federation.toml was the identity of is not judged
                        evidence_files.read_manifest(signed, of=folder.site, federation=digest, ca=ca)
                    seals.append(SignedHead.of(manifest))
                except ValueError as error:
                    problems.append(f"{journal.path}: the manifest of round {round} is not this site's: {error}")
    return seals, problems, restored


def _restored(journal: Journal) -> list[Restored]:
    return [
        Restored(
            time=int(row["time"]), generation=row["body"]["generation"], reported_by=str(row["body"]["reported_by"])
        )
        for row in journal.records(("regenerated",))
    ]


def _chain(path: Path) -> Chain:
    if not path.exists():
        return Chain()
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.chain()


def verify_export(path: Path, federation_toml: Path | None, witnesses: Sequence[Path] = ()) -> LedgerVerified:
    """What can be proven of an exported ledger, without its site's folder; the keys are those of ``verify``.

    Args:
        path: of the file that ``egress export`` wrote.
        federation_toml: the federation's, which pins the CA; without it nobody knows whose key signed.
        witnesses: files of other sites; they need ``federation_toml``.

    Raises:
        UsageError: there are witnesses and no federation.toml.
        FederationMismatch: the file is of another federation.
        PeerMisbehaved: it is no export, or its signature is not the site's.
    """
    if witnesses and federation_toml is None:
        raise UsageError("--witness needs --federation", "name the federation.toml that all sites hold")
    found = evidence_files.read(path, Export)
    ca, unproven = None, []
    heard: list[tuple[Path, WitnessEvidence]] = []
    if federation_toml is None:
        unproven.append(f"that {found.site} signed it: without --federation nobody vouches for the certificate in it")
    else:
        federation = FederationConfig.load(federation_toml)
        ca = certificates.pinned_authority(federation.ca_certificate)
        if federation.digest != found.federation_digest:
            raise FederationMismatch(
                f"{path} is of federation {found.federation_digest[:12]}, {federation_toml} is {federation.digest[:12]}"
            )
        heard = [
            (one, evidence_files.hear(one, of=found.site, federation=federation.digest, ca=ca)) for one in witnesses
        ]
    certificate = evidence_files.verify_export(found, str(path), ca=ca)
    chain = found.chain()
    if chain.before.count:
        unproven.append(f"rows 1 to {chain.before.count}, which are not in this file")
    if chain.left_out:
        unproven.append(f"{len(chain.left_out)} later rows, of which it holds nothing but the hash")
    made = datetime.datetime.fromtimestamp(found.made, datetime.UTC)
    if not certificate.not_valid_before_utc <= made <= certificate.not_valid_after_utc:
        unproven.append(f"when it was made: its certificate was not valid on {made:%Y-%m-%d}")
    return {
        "site": found.site,
        "federation": found.federation,
        "digest": found.federation_digest,
        "source": str(path),
        "made": found.made,
        **_described(chain),
        "own_manifests": None,
        **_judged(chain, heard, found.restored, list(chain.problems), unproven),
    }


def _described(chain: Chain) -> LedgerExtent:
    head = chain.head
    return {
        "rows": head.count - chain.before.count - len(chain.left_out),
        "head": {"count": head.count, "hash": head.hash},
        "transfers": chain.intents,
        "open": chain.open,
    }


def _judged(
    chain: Chain,
    heard: Sequence[tuple[Path, WitnessEvidence]],
    restored: Sequence[Restored],
    problems: list[str],
    unproven: list[str],
) -> LedgerJudgement:
    """What witnesses say, and what is left open."""
    lost = f"; the journal says that an older backup was restored on {_day(restored[-1])}" if restored else ""
    for path, evidence in heard:
        problems += [f"{found}{lost}" for found in _against(chain, evidence.seals, f"{path} of {evidence.by}")]
    vouched = max((evidence.newest.head.count for _, evidence in heard), default=None)
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
                "by": evidence.by,
                "manifests": len(evidence.seals),
                "rows": evidence.newest.head.count,
                "generation": evidence.newest.generation,
                "round": evidence.newest.round,
            }
            for path, evidence in heard
        ],
        "vouched_rows": vouched,
        "restored": [
            {"time": one.time, "generation": one.generation, "reported_by": one.reported_by} for one in restored
        ],
        "problems": problems,
        "unproven": unproven,
    }


def _against(chain: Chain, seals: Iterable[SignedHead], who: str) -> list[str]:
    """What heads that were signed say against the chain, in one line: the newest, and how many more."""
    found = [(seal, problem) for seal in seals if (problem := chain.against(seal.head)) is not None]
    if not found:
        return []
    seal, problem = max(found, key=lambda pair: pair[0].head.count)
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return [f"{problem} ({who}: the manifest of round {seal.round} of generation {seal.generation}{more})"]


def witness(folder: SiteFolder, of: str, *, everything: bool = False) -> Witness:
    """What this site has received of another one's ledger: its signed manifests.

    Args:
        folder: this site's.
        of: the site whose ledger is to be checked.
        everything: every manifest, and not only the one that covers most rows.

    Raises:
        UsageError: there is no such other site.
        StateError: nothing was received from it.
    """
    federation = FederationConfig.load(folder.federation_toml)
    ca = certificates.pinned_authority(federation.ca_certificate)
    others = federation.roster.others(folder.site)
    if of not in others:
        raise UsageError(f"--of {of}: not another site of this federation{suggestion(of, others)}", "name another site")
    found: list[tuple[int, ReceivedManifest]] = []
    for journal in history.journals(folder):
        with contextlib.closing(journal):
            for row in journal.records(("received",)):
                if row["body"]["peer"] == of:
                    found += _sighting(row, of, federation.digest, ca)
    if not found:
        raise StateError(f"{folder.site} has received no manifest of {of} yet", "try again after the next round")
    if not everything:
        found = [max(found, key=lambda pair: (pair[0], pair[1].received))]
    return Witness(
        mhfl_witness=evidence_files.VERSION,
        of=of,
        by=folder.site,
        federation_digest=federation.digest,
        manifests=tuple(received_manifest for _, received_manifest in found),
    )


def _sighting(
    row: Mapping[str, Any], of: str, digest: Sha256, ca: x509.Certificate
) -> list[tuple[int, ReceivedManifest]]:
    """A received manifest with the rows that it covers; nothing if it is of a former federation, or proves nothing."""
    try:
        manifest = evidence_files.read_manifest(from_base64(row["body"]), of=of, federation=digest, ca=ca)
    except ValueError:
        return []
    parts = {name: row["body"][name] for name in ("body", "signature", "certificate_der")}
    return [(manifest.egress_count, ReceivedManifest(received=int(row["time"]), **parts))]


def export(folder: SiteFolder, *, since_s: float = 0.0, rounds: tuple[int, int] | None = None) -> Export:
    """A site's ledger as an auditor gets it, signed by the site; a certificate that has expired still signs.

    Args:
        folder: the site's; its daemon may be running.
        since_s: show transfers from this Unix time on.
        rounds: show transfers of these rounds, the first and the last.
    """
    federation = FederationConfig.load(folder.federation_toml)
    own = certificates.Identity.load(folder.pki, name=folder.site, ca_certificate=federation.ca_certificate, now=None)
    restored = []
    for journal in history.journals(folder):
        with contextlib.closing(journal):
            restored += _restored(journal)
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
        made=int(time.time()),
        restored=restored,
        selects=selects,
    )


def _day(restored: Restored) -> str:
    return f"{datetime.datetime.fromtimestamp(restored.time, datetime.UTC):%Y-%m-%d}"
