"""Consistency check of a site's folder.

A restored backup may be of another site or of another time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from peer.audit.evidence_files import SignedHead
from peer.core.artifacts import PURPOSES
from peer.core.messages import Manifest
from peer.errors import StateError
from peer.net.transport.manifest import decode_manifest, from_base64
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates
from peer.site.records import history
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger

INTENTS_CHECKED = 64
"""Number of newest ledger rows that a start reads: few, to start fast; a foreign ledger shows in the first."""
RESTORE = "restore pki, egress.db and every gen folder from one backup of this site"
INITIAL_CHECKPOINTS = "round-000000"


def check_folder(
    folder: SiteFolder, federation: FederationConfig, own: certificates.Identity, *, fresh: bool = False
) -> list[str]:
    """Refuse a folder whose parts are of different sites or times.

    Returns remarks on findings that do not prevent a start. The check reads the newest manifest of
    each generation and the newest rows of the ledger, which takes milliseconds. A ledger newer than the
    journal is allowed: the operator kept the evidence and restored the work.

    Args:
        folder: the site's folder, locked by this process.
        federation: the federation's current configuration.
        own: the site's identity, which ``Identity.load`` has checked.
        fresh: a new generation begins, so that the newest journal may be lost.

    Raises:
        StateError: a journal or the ledger is another site's, the ledger lost rows, the newest journal
            lost its rows, or the certificate is older than the one that the journal was written with.
            The message says what to restore.
    """
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in history.open_journals(folder)]
        for journal in journals[-1:]:  # a start continues this one
            journal.verify()
        newest_manifests = {
            journal.path: newest for journal in journals if (newest := _newest_manifest(journal)) is not None
        }
        for journal in journals:
            _refuse_foreign(journal, newest_manifests.get(journal.path), folder)
        for path, (manifest, certificate) in newest_manifests.items():
            if manifest.federation == federation.digest:
                _refuse_older(own, certificate, path)
        ledger = None
        if folder.egress_db.exists():
            ledger = stack.enter_context(contextlib.closing(Ledger(folder.egress_db, read_only=True)))
        for path, (manifest, _) in newest_manifests.items():
            _refuse_rolled_back(ledger, SignedHead.of(manifest), path, folder.egress_db)
        last_rounds = [
            _last_round(journal, newest_manifests[journal.path][0])
            for journal in journals
            if journal.path in newest_manifests
        ]
        remarks = _compare_rounds(ledger, max(last_rounds, default=(0, 0)), folder) if ledger is not None else []
        if not fresh:
            _refuse_lost_journal(folder, ledger)
        return remarks


def _newest_manifest(journal: Journal) -> tuple[Manifest, x509.Certificate] | None:
    """Return the newest manifest that the site signed in a generation, and its certificate; None without one."""
    for _, _, body in journal.newest(("manifest",)):
        try:
            signed = from_base64(body)
            certificate = x509.load_der_x509_certificate(signed.certificate_der)
            return decode_manifest(signed.body), certificate
        except ValueError as error:
            raise StateError(f"{journal.path} is damaged: its newest manifest: {error}", RESTORE) from error
    return None


def _last_round(journal: Journal, newest: Manifest) -> tuple[int, int]:
    """Return generation and last round of a journal.

    The newest manifest may be of a model lent in an earlier round.
    """
    published = [round for _, round, _ in journal.newest(("published",))]
    return newest.generation, max([newest.round, *published])


def _refuse_foreign(journal: Journal, newest: tuple[Manifest, x509.Certificate] | None, folder: SiteFolder) -> None:
    """Refuse a journal whose initial model's owner, or whose manifest's origin, is another site."""
    owners = {(body["artifact"] or {}).get("owner") for _, _, body in journal.newest(("initialised",))}
    if newest is not None:
        owners.add(newest[0].origin)
    for owner in owners - {None, folder.site}:
        raise StateError(f"{journal.path} is the journal of {owner}, not of {folder.site}", RESTORE)


def _refuse_older(own: certificates.Identity, former: x509.Certificate, journal: Path) -> None:
    """Refuse a certificate older than the journal's: other sites may reject it after its renewal."""
    if own.certificate.not_valid_before_utc < former.not_valid_before_utc:
        raise StateError(
            f"cert.pem is of {_day(own.certificate)}, but {journal} was written with one of {_day(former)} "
            f"(serial {former.serial_number:x}): an older pki folder was restored",
            "join the newest bundle again with `mhfl-peer site join`, or ask the founder for another one",
        )


def _refuse_rolled_back(ledger: Ledger | None, signed: SignedHead, journal: Path, path: Path) -> None:
    """Refuse a ledger without the rows that it had when the journal was written."""
    head, rows = signed.head, ledger.head.count if ledger is not None else 0
    if rows < head.count:
        raise StateError(
            f"{path} has {rows} rows, but {journal} was written when it had {head.count}: the record of what left this "
            "site was cut or rolled back",
            "restore the newest egress.db, or the whole folder from one older backup; without either, put the gen "
            "folders aside for the data protection officer and start with --resume fresh",
        )
    if ledger is not None and ledger.hash_at(head.count) != head.hash:
        raise StateError(
            f"row {head.count} of {path} is not the one that {journal} was written after: this is another ledger",
            "restore this site's own egress.db, and keep this one for its data protection officer",
        )


def _compare_rounds(ledger: Ledger, last_round: tuple[int, int], folder: SiteFolder) -> list[str]:
    """Refuse a ledger with transfers to the site itself, which is another site's.

    Returns a remark if the ledger knows of a later round than the journal.
    """
    intents = ledger.newest_intents(INTENTS_CHECKED)
    if any(intent.get("peer") == folder.site for intent in intents):
        raise StateError(f"{folder.egress_db} says what was sent to {folder.site}: it is another site's", RESTORE)
    newest = max(_rounds_sent(intents), default=(0, 0))
    if newest <= last_round:
        return []
    return [
        f"egress.db knows of round {newest[1]} of generation {newest[0]}, the journal only of round {last_round[1]} of "
        f"generation {last_round[0]}: an older journal was restored"
    ]


def _refuse_lost_journal(folder: SiteFolder, ledger: Ledger | None) -> None:
    """Refuse a journal without a model if other files show that the site has one.

    The worker begins after the first row is on disk, and nothing is sent before the row
    ``initialised``. A daemon that restarted from round 0 would train other models for rounds that
    peers have seen.
    """
    generation = max(folder.generations(), default=0)
    home = folder.generation(generation)
    journal = home / "journal.db"
    state = "missing"
    if journal.exists():
        with contextlib.closing(Journal(journal, read_only=True)) as rows:
            if list(rows.newest(("initialised", "manifest"))):
                return
            state = "empty" if rows.empty() else "without an initial model"
    artifacts = len(list(home.glob("artifacts/*.safetensors")))
    checkpoints = {path.name for path in home.glob("checkpoints/round-*")}
    sent = max(_rounds_sent(ledger.newest_intents(INTENTS_CHECKED)), default=(0, 0)) if ledger is not None else (0, 0)
    facts = []
    # A worker that was killed before the row `initialised` leaves its first files behind.
    if checkpoints - {INITIAL_CHECKPOINTS} or (state != "without an initial model" and (artifacts or checkpoints)):
        facts.append(f"{artifacts} artifacts and the checkpoints of {len(checkpoints)} rounds are beside it")
    if sent[0] >= max(generation, 1):
        facts.append(f"egress.db knows of round {sent[1]} of generation {sent[0]}")
    if facts:
        raise StateError(
            f"{journal} is {state}, but {' and '.join(facts)}: the record of this site's rounds was lost",
            "restore the whole folder from a backup; without one, begin anew with `mhfl-peer start --resume fresh`, "
            "which deletes nothing",
        )


def _rounds_sent(intents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Yield generation and round of each artifact sent.

    Evaluations and exports are left out, as they may name other rounds.
    """
    for intent in intents:
        if intent.get("purpose") in PURPOSES and intent.get("kind") != "metrics":
            yield intent["generation"], intent["round"]


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M}"
