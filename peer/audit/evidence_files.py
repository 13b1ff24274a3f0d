"""Files for auditors: a site's signed ledger, and the tips of that ledger that other sites received.

An export is a JSON document that the site's key signs. It may leave rows out, but not their hashes.
A witness file is a list of signed manifests that another site received. Each manifest carries its
origin's ledger tip under the origin's own signature: the author of a witness file can leave
manifests out, but cannot invent one.
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
from peer.net.transport.manifest import from_base64, verify_manifest
from peer.site.config.schema import FederationConfig
from peer.site.identity import certificates
from peer.site.membership.folder import MembershipFolder
from peer.site.records.journal import GENESIS
from peer.site.records.ledger import ChainVerifier, Head

LABEL = b"mhfl/egress/v1\x00"
VERSION: Literal[1] = 1
FILE_BYTES_MAX = 1 << 30  # a million rows of 700 bytes, escaped as JSON
IntentFilter = Callable[[Mapping[str, Any]], bool]

Count = Annotated[int, Field(ge=0, le=1 << 53)]
Moment = Annotated[int, Field(ge=0, le=1 << 37)]
"""Unix seconds within the calendar of every time zone."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
AnyDocument = TypeVar("AnyDocument", bound="EvidenceDocument")


class EvidenceDocument(BaseModel):
    """A file from another site, or a part of one: exact types, no unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class LedgerPosition(EvidenceDocument):
    """The chain's hash after ``count`` rows."""

    count: Count
    hash: Digest

    def head(self) -> Head:
        return Head(self.count, self.hash)


class LedgerLine(EvidenceDocument):
    """A row: its canonical JSON as text, or ``None`` where the export leaves it out."""

    seq: Annotated[int, Field(ge=1, le=1 << 53)]
    body: str | None
    hash: Digest


class Restoration(EvidenceDocument):
    """A restored older backup: the peer that reported it, and the time of the report (Unix seconds)."""

    time: Moment
    generation: Count
    reported_by: str


class Export(EvidenceDocument):
    """The file that ``egress export`` writes.

    ``made`` is the time in Unix seconds, ``certificate`` is in PEM.
    """

    mhfl_egress: Literal[1]
    site: str
    federation: str
    federation_digest: Digest
    made: Moment
    before: LedgerPosition
    rows: tuple[LedgerLine, ...]
    head: LedgerPosition
    restored: tuple[Restoration, ...]
    certificate: str
    signature: str

    def signed_bytes(self) -> bytes:
        """Return the label and all fields but the signature, as ASCII JSON with sorted keys and no spaces."""
        return LABEL + _canonical(self.model_dump(mode="json", exclude={"signature"}))

    def verify_chain(self) -> ChainVerifier:
        """Verify the rows in the file; the returned verifier lists the problems."""
        chain = ChainVerifier(self.before.head())
        if not self.before.count and self.before.hash != GENESIS:
            chain.problems.append("the rows begin after row 0 with a hash that no ledger begins with")
        for row in self.rows:
            chain.add(row.seq, row.body, row.hash)
        if chain.head != self.head.head():
            chain.problems.append(f"the rows end with row {chain.head.count}, the file says row {self.head.count}")
        return chain


class ReceivedManifest(EvidenceDocument):
    """A signed manifest in base64, and the time at which the witness received it (Unix seconds)."""

    received: Moment
    body: str
    signature: str
    certificate_der: str


class Witness(EvidenceDocument):
    """The file that ``egress witness`` writes: manifests of the site ``of`` that the site ``by`` received."""

    mhfl_witness: Literal[1]
    of: str
    by: str
    federation_digest: Digest
    manifests: tuple[ReceivedManifest, ...]


@dataclass(frozen=True, slots=True)
class SignedHead:
    """A site's ledger tip in one of its manifests, under the site's signature."""

    head: Head
    generation: int
    round: int

    @classmethod
    def of(cls, manifest: Manifest) -> SignedHead:
        """Read the origin's ledger tip from its manifest."""
        head = Head(manifest.egress_count, manifest.egress_head or GENESIS)
        return cls(head, manifest.generation, manifest.round)


@dataclass(frozen=True, slots=True)
class WitnessEvidence:
    """The verified ledger tips in a witness file, and the site that wrote it."""

    by: str
    signed_heads: tuple[SignedHead, ...]

    @property
    def newest(self) -> SignedHead:
        return max(self.signed_heads, key=lambda signed: signed.head.count)


def read_manifest(
    signed: SignedManifest, *, of: str, federation: Sha256, authorities: Sequence[x509.Certificate]
) -> Manifest:
    """Verify and decode a manifest, ignoring dates: evidence stays valid after its certificate expires.

    Args:
        signed: the manifest as the site received it.
        of: the site that must have signed it.
        federation: the federation's digest, which the manifest must name.
        authorities: the federation's CAs. Any key of the site counts, also a replaced one.

    Raises:
        ValueError: the manifest proves nothing about that site's ledger; the message says why.
    """
    certificate = certificates.verify_any_certificate(signed.certificate_der, authorities, of, None, pinned=None)
    manifest = verify_manifest(signed, certificate)
    for name, actual, expected in (("federation", manifest.federation, federation), ("origin", manifest.origin, of)):
        if actual != expected:
            raise ValueError(f"its {name} is {actual}, not {expected}")
    return manifest


def export(
    rows: Sequence[tuple[int, str, str]],
    own: certificates.Identity,
    *,
    federation: str,
    digest: Sha256,
    time_s: int,
    restored: Iterable[Restoration] = (),
    selects: IntentFilter = lambda intent: True,
) -> Export:
    """Build and sign an export of a site's ledger for an auditor.

    Args:
        rows: the whole ledger: number, canonical JSON, hash.
        own: the identity of the site, whose key signs.
        federation: the federation's name.
        digest: the federation's digest.
        time_s: the time of the export, in Unix seconds.
        restored: restorations of older backups that are in the journal.
        selects: whether to show an intent and its outcome. Of the other rows, the export holds only
            the hash. It omits all rows before the first shown one.
    """
    shown = _select(rows, selects)
    first = next((index for index, show in enumerate(shown) if show), len(rows))
    before = (
        LedgerPosition(count=rows[first - 1][0], hash=rows[first - 1][2])
        if first
        else LedgerPosition(count=0, hash=GENESIS)
    )
    lines = tuple(
        LedgerLine(seq=number, body=text if show else None, hash=row_hash)
        for (number, text, row_hash), show in zip(rows[first:], shown[first:], strict=True)
    )
    unsigned = Export(
        mhfl_egress=VERSION,
        site=own.name,
        federation=federation,
        federation_digest=digest,
        made=time_s,
        before=before,
        rows=lines,
        head=LedgerPosition(count=rows[-1][0], hash=rows[-1][2]) if rows else before,
        restored=tuple(restored),
        certificate=certificates.certificate_pem(own.certificate).decode("ascii"),
        signature="",
    )
    signature = base64.b64encode(certificates.sign(own.key, unsigned.signed_bytes())).decode("ascii")
    return unsigned.model_copy(update={"signature": signature})


def _select(rows: Sequence[tuple[int, str, str]], selects: IntentFilter) -> list[bool]:
    """Choose the rows to show: intents by the filter, outcomes with their intents, and every malformed row."""
    show_intent: dict[int, bool] = {}
    shown = []
    for number, text, _ in rows:
        try:
            body = json.loads(text)
            if body["type"] == "intent":
                show_intent[number] = selects(body)
            shown.append(show_intent[body.get("intent", number)])
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            shown.append(True)
    return shown


def verify_export(document: Export, where: str, *, authorities: Sequence[x509.Certificate]) -> x509.Certificate:
    """Return the certificate whose key signed the file.

    Raise ``PeerMisbehaved`` if the signature or the certificate is wrong.

    Args:
        document: the file's content.
        where: the file's name, for errors.
        authorities: the federation's CAs; without one, nobody vouches for the owner of the key.
    """
    try:
        certificate = x509.load_pem_x509_certificate(document.certificate.encode("ascii"))
        if authorities:
            der = certificates.certificate_der(certificate)
            certificates.verify_any_certificate(der, authorities, document.site, None, pinned=None)
        signature = base64.b64decode(document.signature, validate=True)
        certificates.verify_signature(certificates.certificate_key(certificate), signature, document.signed_bytes())
    except certificates.UNREADABLE as error:
        remedy = f"have {document.site} export it again, and compare the file's SHA-256 with the sender's"
        raise PeerMisbehaved(f"{where} is refused: {error}", remedy) from error
    return certificate


def read_witness(
    path: Path, *, of: str, federation: Sha256, authorities: Sequence[x509.Certificate]
) -> WitnessEvidence:
    """Read a witness file's evidence about the ledger of the site ``of``.

    Raises:
        UsageError: the file is about another site.
        FederationMismatch: the file is about another federation.
        PeerMisbehaved: the file is not a witness file, the site wrote it itself, or it holds a manifest
            of another site.
        DiskError: the file cannot be read.
    """
    witness = read(path, Witness)
    if witness.of != of:
        raise UsageError(
            f"{path} is a witness of {witness.of}'s ledger, not of {of}'s", f"ask for one with `--of {of}`"
        )
    if witness.federation_digest != federation:
        raise FederationMismatch(
            f"{path} is a witness of federation {witness.federation_digest[:12]}, not of {federation[:12]}",
            "ask a site of this federation",
        )
    signed_heads = []
    for number, received_manifest in enumerate(witness.manifests, start=1):
        try:
            signed = from_base64(received_manifest.model_dump())
            manifest = read_manifest(signed, of=of, federation=federation, authorities=authorities)
        except ValueError as error:
            remedy = f"ask {witness.by} to write it again; that is no proof against {of}"
            raise PeerMisbehaved(f"{path}: manifest {number} is refused: {error}", remedy) from error
        signed_heads.append(SignedHead.of(manifest))
    if witness.by == of:
        raise PeerMisbehaved(f"{path} is a witness by {of} itself", "ask another site, and get the file from it")
    if not signed_heads:
        raise PeerMisbehaved(f"{path} holds no manifest", f"ask {witness.by} to write it again")
    return WitnessEvidence(witness.by, tuple(signed_heads))


def trust(federation_toml: Path) -> tuple[FederationConfig, tuple[x509.Certificate, ...]]:
    """Load the federation and the CAs that verify evidence.

    The CAs are the one in federation.toml and, if the file lies in a site's folder with its chain, those
    that amendments added. Raise ``StateError`` if that chain is invalid.
    """
    federation = FederationConfig.load(federation_toml)
    genesis = certificates.pinned_authority(federation.ca_certificate)
    chain = MembershipFolder(federation_toml.with_name("membership")).chain(federation)
    later = (certificates.read_authority(pem.encode()) for pem in chain.head.authorities[1:])
    return federation, (genesis, *later)


def read(path: Path, kind: type[AnyDocument]) -> AnyDocument:
    """Read a document.

    Raise ``DiskError`` if the file cannot be read, ``PeerMisbehaved`` if it is of another kind.
    """
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise DiskError(f"{path} cannot be read: {error.strerror}", "name the right file") from error
    known = {Export: "an egress export", Witness: "a witness of an egress ledger"}
    expected = known.get(kind, "a file of `evidence --out`")
    if len(content) > FILE_BYTES_MAX:
        raise PeerMisbehaved(f"{path} is over {FILE_BYTES_MAX} bytes", f"no such file is {expected}")
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        reason = f"{where}: {first['msg']}" if where else first["msg"]
        raise PeerMisbehaved(
            f"{path} is not {expected}: {reason}", "name the file as the other site wrote it"
        ) from error


def encode(document: EvidenceDocument) -> bytes:
    return json.dumps(document.model_dump(mode="json"), indent=1).encode("ascii") + b"\n"


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii")
