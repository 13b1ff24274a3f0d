"""What an auditor is handed: a site's ledger, signed by the site, and the heads of it that other sites have seen.

An export is a JSON document that the site's key signs; rows may be left out of it, their hashes may not. A witness is
a list of signed manifests that another site received: each carries the end of the origin's ledger as it was, under the
origin's own signature, so that a witness can leave something out, but invent nothing.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cryptography import x509
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peer.core.messages import Manifest, SignedManifest
from peer.core.roster import Sha256
from peer.errors import DiskError, FederationMismatch, PeerMisbehaved, UsageError
from peer.identity import certificates
from peer.records.ledger import GENESIS, Chain, Head
from peer.transport.manifest import from_base64, verify_manifest

LABEL = b"mhfl/egress/v1\x00"
VERSION: Literal[1] = 1
FILE_BYTES_MAX = 1 << 30  # a million rows of 700 bytes, escaped as JSON
Selects = Callable[[Mapping[str, Any]], bool]

Count = Annotated[int, Field(ge=0, le=1 << 53)]
Moment = Annotated[int, Field(ge=0, le=1 << 37)]
"""Unix seconds that a calendar has a day for, in every zone."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AnyPage = TypeVar("AnyPage", bound="EvidenceDocument")


class EvidenceDocument(BaseModel):
    """A part of a file that somebody handed over: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LedgerPosition(EvidenceDocument):
    """The end of the chain after so many rows."""

    count: Count
    hash: Digest

    def head(self) -> Head:
        return Head(self.count, self.hash)


class LedgerLine(EvidenceDocument):
    """A row: its canonical JSON as text, or ``None`` where it was left out."""

    seq: Annotated[int, Field(ge=1, le=1 << 53)]
    body: str | None
    hash: Digest


class Restored(EvidenceDocument):
    """When, in Unix seconds, the site learnt that an older backup had been restored, and from whom."""

    time: Moment
    generation: Count
    reported_by: str


class Export(EvidenceDocument):
    """The file that ``egress export`` writes; ``made`` is in Unix seconds, ``certificate`` in PEM."""

    mhfl_egress: Literal[1]
    site: str
    federation: str
    federation_digest: Digest
    made: Moment
    before: LedgerPosition
    rows: tuple[LedgerLine, ...]
    head: LedgerPosition
    restored: tuple[Restored, ...]
    certificate: str
    signature: str

    def signed_bytes(self) -> bytes:
        """The label, and everything but the signature as ASCII JSON with sorted keys and no spaces."""
        return LABEL + _canonical(self.model_dump(mode="json", exclude={"signature"}))

    def chain(self) -> Chain:
        """The proof of the rows that are in it."""
        chain = Chain(self.before.head())
        if not self.before.count and self.before.hash != GENESIS:
            chain.problems.append("the rows begin after row 0 with a hash that no ledger begins with")
        for row in self.rows:
            chain.add(row.seq, row.body, row.hash)
        if chain.head != self.head.head():
            chain.problems.append(f"the rows end with row {chain.head.count}, the file says row {self.head.count}")
        return chain


class ReceivedManifest(EvidenceDocument):
    """A manifest as it came, in base64, and when, in Unix seconds."""

    received: Moment
    body: str
    signature: str
    certificate_der: str


class Witness(EvidenceDocument):
    """The file that ``egress witness`` writes at the site ``by`` about the ledger of the site ``of``."""

    mhfl_witness: Literal[1]
    of: str
    by: str
    federation_digest: Digest
    manifests: tuple[ReceivedManifest, ...]


@dataclass(frozen=True, slots=True)
class SignedHead:
    """The end of a site's ledger as one of its manifests states it, under the site's signature."""

    head: Head
    generation: int
    round: int

    @classmethod
    def of(cls, manifest: Manifest) -> SignedHead:
        """What a manifest says of its origin's ledger."""
        head = Head(manifest.egress_count, manifest.egress_head or GENESIS)
        return cls(head, manifest.generation, manifest.round)


@dataclass(frozen=True, slots=True)
class WitnessEvidence:
    """What a witness' file says, after every check."""

    by: str
    seals: tuple[SignedHead, ...]

    @property
    def newest(self) -> SignedHead:
        return max(self.seals, key=lambda seal: seal.head.count)


def read_manifest(signed: SignedManifest, *, of: str, federation: Sha256, ca: x509.Certificate) -> Manifest:
    """The manifest, after every check but that of dates: what was signed stays signed when a certificate expires.

    Args:
        signed: as it came.
        of: the site that must have signed it.
        federation: the digest that it must name.
        ca: the federation's.

    Raises:
        ValueError: the reason why it proves nothing about that site's ledger.
    """
    certificate = certificates.verify_certificate(signed.certificate_der, ca, of, None)
    manifest = verify_manifest(signed, certificate)
    for name, said, wanted in (("federation", manifest.federation, federation), ("origin", manifest.origin, of)):
        if said != wanted:
            raise ValueError(f"its {name} is {said}, not {wanted}")
    return manifest


def export(
    rows: Sequence[tuple[int, str, str]],
    own: certificates.Identity,
    *,
    federation: str,
    digest: Sha256,
    made: int,
    restored: Iterable[Restored] = (),
    selects: Selects = lambda intent: True,
) -> Export:
    """A site's ledger as an auditor gets it, signed.

    Args:
        rows: the whole ledger: number, canonical JSON, hash.
        own: the site, whose key signs.
        federation: the federation's name.
        digest: the federation's digest.
        made: the time in Unix seconds.
        restored: restorations of older backups that the journal knows of.
        selects: whether an intent, and so the outcome of it, is shown; only the hash is told of the others. Rows
            before the first one that is shown are left out altogether.
    """
    shown = _selected(rows, selects)
    first = next((place for place, show in enumerate(shown) if show), len(rows))
    before = (
        LedgerPosition(count=rows[first - 1][0], hash=rows[first - 1][2])
        if first
        else LedgerPosition(count=0, hash=GENESIS)
    )
    kept = tuple(
        LedgerLine(seq=number, body=text if show else None, hash=found)
        for (number, text, found), show in zip(rows[first:], shown[first:], strict=True)
    )
    unsigned = Export(
        mhfl_egress=VERSION,
        site=own.name,
        federation=federation,
        federation_digest=digest,
        made=made,
        before=before,
        rows=kept,
        head=LedgerPosition(count=rows[-1][0], hash=rows[-1][2]) if rows else before,
        restored=tuple(restored),
        certificate=certificates.certificate_pem(own.certificate).decode("ascii"),
        signature="",
    )
    signature = base64.b64encode(certificates.sign(own.key, unsigned.signed_bytes())).decode("ascii")
    return unsigned.model_copy(update={"signature": signature})


def _selected(rows: Sequence[tuple[int, str, str]], selects: Selects) -> list[bool]:
    """Which rows are shown: intents by what they say, outcomes with their intents, and whatever cannot be read."""
    wanted: dict[int, bool] = {}
    shown = []
    for number, text, _ in rows:
        try:
            body = json.loads(text)
            if body["type"] == "intent":
                wanted[number] = selects(body)
            shown.append(wanted[body.get("intent", number)])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            shown.append(True)
    return shown


def verify_export(found: Export, where: str, *, ca: x509.Certificate | None) -> x509.Certificate:
    """The certificate whose key signed the file; ``PeerMisbehaved`` when none did, or one that the CA did not issue.

    Args:
        found: the file's content.
        where: its name, for errors.
        ca: the federation's; without it, nothing is known of whose key that is.
    """
    try:
        certificate = x509.load_pem_x509_certificate(found.certificate.encode("ascii"))
        if ca is not None:
            certificates.verify_certificate(certificates.certificate_der(certificate), ca, found.site, None)
        signature = base64.b64decode(found.signature, validate=True)
        certificates.verify_signature(certificates.certificate_key(certificate), signature, found.signed_bytes())
    except certificates.UNREADABLE as error:
        remedy = f"have {found.site} export it again, and compare the file's SHA-256 with the sender's"
        raise PeerMisbehaved(f"{where} is refused: {error}", remedy) from error
    return certificate


def hear(path: Path, *, of: str, federation: Sha256, ca: x509.Certificate) -> WitnessEvidence:
    """What a witness' file says about a site's ledger.

    Raises:
        UsageError: it is about another site.
        FederationMismatch: it is about another federation.
        PeerMisbehaved: it is no such file, the site's own, or a manifest in it is not the site's.
        DiskError: it cannot be read.
    """
    found = read(path, Witness)
    if found.of != of:
        raise UsageError(f"{path} is a witness of {found.of}'s ledger, not of {of}'s", f"ask for one with `--of {of}`")
    if found.federation_digest != federation:
        raise FederationMismatch(
            f"{path} is a witness of federation {found.federation_digest[:12]}, not of {federation[:12]}",
            "ask a site of this federation",
        )
    seals = []
    for number, received_manifest in enumerate(found.manifests, start=1):
        try:
            manifest = read_manifest(from_base64(received_manifest.model_dump()), of=of, federation=federation, ca=ca)
        except ValueError as error:
            remedy = f"ask {found.by} to write it again; that is no proof against {of}"
            raise PeerMisbehaved(f"{path}: manifest {number} is refused: {error}", remedy) from error
        seals.append(SignedHead.of(manifest))
    if found.by == of:
        raise PeerMisbehaved(f"{path} is a witness by {of} itself", "ask another site, and get the file from it")
    if not seals:
        raise PeerMisbehaved(f"{path} holds no manifest", f"ask {found.by} to write it again")
    return WitnessEvidence(found.by, tuple(seals))


def read(path: Path, kind: type[AnyPage]) -> AnyPage:
    """A file that somebody handed over; ``DiskError`` or ``PeerMisbehaved`` when it cannot be read or is none."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}", "name the right file") from error
    what = "an egress export" if kind is Export else "a witness of an egress ledger"
    if len(content) > FILE_BYTES_MAX:
        raise PeerMisbehaved(f"{path} is over {FILE_BYTES_MAX} bytes", f"no such file is {what}")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise PeerMisbehaved(f"{path} is not {what}: {reason}", "name the file as the other site wrote it") from error


def encode(page: EvidenceDocument) -> bytes:
    return json.dumps(page.model_dump(mode="json"), indent=1).encode("ascii") + b"\n"


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
