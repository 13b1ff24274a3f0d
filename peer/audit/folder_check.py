"""Whether the parts of a site's folder belong together: a restored backup may be another site's, or of another time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cryptography import x509

from peer.audit.evidence_files import SignedHead
from peer.config.schema import FederationConfig
from peer.config.site_folder import SiteFolder
from peer.core.messages import PURPOSES, Manifest
from peer.errors import StateError
from peer.identity import certificates
from peer.records import history
from peer.records.journal import Journal
from peer.records.ledger import Ledger
from peer.transport.manifest import decode_manifest, from_base64

INTENTS_LOOKED_AT = 64
"""Of the newest ledger rows at a start, which must not take long; another site's ledger shows in the first few."""
RESTORE = "restore pki, egress.db and every gen folder from one backup of this site"


def consistent(folder: SiteFolder, federation: FederationConfig, own: certificates.Identity) -> list[str]:
    """Refuse to start on a folder whose parts are of different sites or times; remarks on what may go on.

    It looks at the newest manifest of each generation and at the newest rows of the ledger, and takes milliseconds. A
    ledger that is newer than the journal is no fault: evidence was kept while the work was restored.

    Args:
        folder: the site's, held by this process.
        federation: as it is now.
        own: the site's identity, as ``Identity.load`` checked it.

    Raises:
        StateError: a journal or the ledger is another site's, the ledger lost rows, or the certificate is an older one
            than the journal was written with. The message says what to restore.
    """
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(contextlib.closing(journal)) for journal in history.journals(folder)]
        found = {journal.path: newest for journal in journals if (newest := _newest_manifest(journal)) is not None}
        for journal in journals:
            _refuse_foreign(journal, found.get(journal.path), folder)
        for path, (manifest, certificate) in found.items():
            if manifest.federation == federation.digest:
                _refuse_older(own, certificate, path)
        ledger = None
        if folder.egress_db.exists():
            ledger = stack.enter_context(contextlib.closing(Ledger(folder.egress_db, read_only=True)))
        for path, (manifest, _) in found.items():
            _refuse_rolled_back(ledger, SignedHead.of(manifest), path, folder.egress_db)
        stages = [_stage(journal, found[journal.path][0]) for journal in journals if journal.path in found]
        last = max(stages, default=(0, 0))
        return _remarks(ledger, last, folder) if ledger is not None else []


def _newest_manifest(journal: Journal) -> tuple[Manifest, x509.Certificate] | None:
    """The newest manifest that the site signed in a generation, and the certificate beside it."""
    for _, _, body in journal.newest(("manifest",)):
        try:
            signed = from_base64(body)
            certificate = x509.load_der_x509_certificate(signed.certificate_der)
            return decode_manifest(signed.body), certificate
        except ValueError as error:
            raise StateError(f"{journal.path} is damaged: its newest manifest: {error}", RESTORE) from error
    return None


def _stage(journal: Journal, newest: Manifest) -> tuple[int, int]:
    """Generation and round of what was published last; the newest manifest may be of an earlier model that is lent."""
    published = [round for _, round, _ in journal.newest(("published",))]
    return newest.generation, max([newest.round, *published])


def _refuse_foreign(journal: Journal, newest: tuple[Manifest, x509.Certificate] | None, folder: SiteFolder) -> None:
    """Another site's journal shows by whose model it began with, or whose manifests it holds."""
    owners = {(body["artifact"] or {}).get("owner") for _, _, body in journal.newest(("initialised",))}
    if newest is not None:
        owners.add(newest[0].origin)
    for owner in owners - {None, folder.site}:
        raise StateError(f"{journal.path} is the journal of {owner}, not of {folder.site}", RESTORE)


def _refuse_older(own: certificates.Identity, used: x509.Certificate, journal: Path) -> None:
    """A certificate that was renewed may be refused elsewhere: a backup must not bring it back."""
    if own.certificate.not_valid_before_utc < used.not_valid_before_utc:
        raise StateError(
            f"cert.pem is of {_day(own.certificate)}, but {journal} was written with one of {_day(used)} "
            f"(serial {used.serial_number:x}): an older pki folder was restored",
            "join the newest bundle again with `mhfl-peer site join`, or ask the founder for another one",
        )


def _refuse_rolled_back(ledger: Ledger | None, seal: SignedHead, journal: Path, path: Path) -> None:
    """The journal was written beside a ledger with these rows."""
    head, held = seal.head, ledger.head.count if ledger is not None else 0
    if held < head.count:
        raise StateError(
            f"{path} has {held} rows, but {journal} was written when it had {head.count}: the record of what left this "
            "site was cut or rolled back",
            "restore the newest egress.db, or the whole folder from one older backup; without either, put the gen "
            "folders aside for the data protection officer and start without them",
        )
    if ledger is not None and ledger.hash_at(head.count) != head.hash:
        raise StateError(
            f"row {head.count} of {path} is not the one that {journal} was written after: this is another ledger",
            "restore this site's own egress.db, and keep this one for its data protection officer",
        )


def _remarks(ledger: Ledger, last: tuple[int, int], folder: SiteFolder) -> list[str]:
    """A ledger with sendings to the site itself is another's; one with later rounds than the journal is ahead of it."""
    intents = ledger.newest_intents(INTENTS_LOOKED_AT)
    if any(intent.get("peer") == folder.site for intent in intents):
        raise StateError(f"{folder.egress_db} says what was sent to {folder.site}: it is another site's", RESTORE)
    newest = max(_stages(intents), default=(0, 0))
    if newest <= last:
        return []
    return [
        f"egress.db knows of round {newest[1]} of generation {newest[0]}, the journal only of round {last[1]} of "
        f"generation {last[0]}: an older journal was restored"
    ]


def _stages(intents: Iterable[Mapping[str, Any]]) -> Iterator[tuple[int, int]]:
    """Generation and round of the artifacts sent; reports and exports name rounds of other sites."""
    for intent in intents:
        if intent.get("purpose") in PURPOSES and intent.get("kind") != "metrics":
            yield intent["generation"], intent["round"]


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_before_utc:%Y-%m-%d %H:%M}"
