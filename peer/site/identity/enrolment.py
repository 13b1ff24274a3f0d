"""Enrolment of a site: the founder's CA folder, the site's request, the admission, the join.

A site trusts only the CA in its own federation.toml. The founder trusts a key only after a person
compared its fingerprint. Every function that checks a date takes the time as an argument.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from peer.core.messages import ChainHead
from peer.core.roster import NOT_IDENTITY, ROUND_KEY_BYTES, RoundKey, Sha256, SiteName, federation_digest, site_name
from peer.errors import BundleError, CertificateError, ConfigError, DiskError, FederationMismatch, StateError
from peer.files import sync_folder
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, make_private, write_atomically
from peer.site.config.toml import suggestion
from peer.site.identity import certificates
from peer.site.identity.bundle import Bundle, seal, unseal

CA_KEY_FILE = "ca.key"
ADMITTED_FILE = "admitted.json"
FEDERATION_FILE = "federation.toml"
IMAGE_AXES = """\
# Height before width; a site of release 0.3.0 needs to be told.
image_axes = "rows_columns"
"""
PREFACE = '''\
# Written by `mhfl-peer federation create`. Every site holds this very file: its digest is the federation's identity.
# Only an `address` or a `description` may still change.
ca_certificate = """
{pem}"""
'''
DERIVED_COUNT = "{steps} steps for each of the {sites} sites, as in {source}."


@dataclass(frozen=True, slots=True)
class Admission:
    """One certificate that the founder issued, as in ``admitted.json``."""

    fingerprint: str
    certificate_sha256: str
    not_after: str


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """The bundle of an admitted site.

    ``replaced`` lists certificates of its former keys, which sites should refuse.
    """

    site: SiteName
    bundle: bytes
    admission: Admission
    renewal: bool
    replaced: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Authority:
    """A founder's CA folder."""

    folder: Path
    federation: FederationConfig
    federation_toml: str
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    round_key: RoundKey = field(repr=False)

    @classmethod
    def create(
        cls, folder: Path, draft: str, where: str, *, now: datetime.datetime, days: int = certificates.CA_DAYS
    ) -> Authority:
        """Found a federation: write CA, round key and final federation.toml into a folder, atomically.

        Args:
            folder: the CA folder; it must not exist, or be empty.
            draft: the text of a federation.toml without ``ca_certificate``; its comments stay. The
                function adds a missing ``image_axes`` that the task needs, a stage's ``count`` where
                the method's paper derives it from the number of sites, and keys of the method whose
                default was another one in earlier releases.

        Raises:
            ConfigError: the draft is wrong.
            StateError: the draft has a CA already, or the folder is not empty.
            DiskError: the folder cannot be written.
        """
        federation = FederationConfig.parse(draft, where)
        if federation.ca_certificate is not None:
            raise StateError(f"{where} has a ca_certificate already", "remove that key to found a new federation")
        for site in federation.site:
            try:
                toml.check_dialable(site.address or "localhost:1")
            except ValueError as error:
                raise ConfigError(f"{where}: site {site.name}: address: {error}", "correct the address") from None
        if (problem := federation.unpinned_problem) is not None:
            raise ConfigError(f"{where}: governance: {problem}")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise StateError(
                f"{folder} exists and is not an empty folder",
                "name another folder with --out; a CA is never overwritten",
            )
        key, certificate = certificates.new_authority(federation.name, now=now, days=days)
        pem = certificates.certificate_pem(certificate)
        preface = PREFACE.format(pem=pem.decode("ascii"))
        if federation.task.spatial_dims > 1 and "image_axes" not in federation.model_fields_set:
            preface += IMAGE_AXES
        secret = secrets.token_bytes(ROUND_KEY_BYTES).hex()
        files = {
            CA_KEY_FILE: (certificates.key_pem(key), 0o600),
            certificates.CA_FILE: (pem, 0o644),
            certificates.ROUND_KEY_FILE: (f"{secret}\n".encode("ascii"), 0o600),
            FEDERATION_FILE: (f"{preface}\n{_complete(draft, federation)}".encode(), 0o644),
            ADMITTED_FILE: (b"{}\n", 0o600),
        }
        _create_folder(folder, files)
        return cls.load(folder, now=now)

    @classmethod
    def load(cls, folder: Path, *, now: datetime.datetime) -> Authority:
        """Open a CA folder.

        Raises:
            ConfigError: the federation.toml in it is missing or wrong.
            CertificateError: a key is missing, readable by others or not the CA's, or the CA has
                expired.
        """
        path = folder / FEDERATION_FILE
        text = toml.read(path)
        federation = FederationConfig.parse(text, str(path))
        certificate = certificates.pinned_authority(federation.ca_certificate)
        key = certificates.read_key(folder / CA_KEY_FILE)
        if key.public_key() != certificate.public_key():
            raise CertificateError(f"{folder / CA_KEY_FILE} is not the CA's key in {path}", "restore the CA folder")
        try:
            certificates.verify_dates(certificate, now, f"the CA's certificate in {path}")
        except ValueError as error:
            raise CertificateError(str(error), "found the federation anew; every site enrols again") from error
        return cls(
            folder,
            federation,
            text,
            certificate,
            key,
            certificates.read_round_key(folder / certificates.ROUND_KEY_FILE),
        )

    def admit(
        self,
        request: bytes,
        *,
        fingerprint: str,
        now: datetime.datetime,
        days: int = certificates.SITE_DAYS,
        replace: bool = False,
        members: Mapping[SiteName, Sha256 | None] | None = None,
        added: ChainHead | None = None,
    ) -> AdmissionResult:
        """Certify a site's key and seal the round key to it.

        The admission is durable before the bundle exists.

        Args:
            request: the signing request in PEM, of which only the common name and the key are used.
            fingerprint: the key's fingerprint, which the site's operator told the founder over
                another channel.
            replace: admit a key other than the one that the site was admitted with before.
            members: the members and their pinned keys after the newest amendment; federation.toml's
                by default.
            added: the amendment that added the site. Its bundle has no round key: members give it
                that of its epoch.

        Raises:
            BundleError: the request is refused: its form, name, fingerprint or key.
            DiskError: the admission cannot be recorded.
        """
        members = self.federation.pinned_keys if members is None else members
        name, public_key = self._vet(request, fingerprint, members)
        own_fingerprint = certificates.fingerprint(public_key)
        admitted = self.admissions()
        earlier = admitted.get(name, ())
        if earlier and earlier[-1].fingerprint != own_fingerprint and not replace:
            raise BundleError(
                f"{name} was admitted with another key ({earlier[-1].fingerprint})",
                "if the site's people confirm that they made a new one, repeat with --replace",
            )
        for other, admissions in admitted.items():
            if other != name and any(row.fingerprint == own_fingerprint for row in admissions):
                raise BundleError(f"the key in the request of {name} is that of {other}", "every site has its own key")
        certificate = certificates.issue(
            self.key, self.certificate, name=name, public_key=public_key, now=now, days=days
        )
        digest = certificates.certificate_sha256(certificates.certificate_der(certificate))
        admission = Admission(own_fingerprint, digest, certificate.not_valid_after_utc.isoformat())
        self._record({**admitted, name: (*earlier, admission)})
        sealed = b"" if added else seal(self.round_key, public_key, digest=self.federation.digest, site=name)
        bundle = Bundle(
            site=name,
            federation_digest=self.federation.digest,
            federation_toml=self.federation_toml,
            certificate=certificates.certificate_pem(certificate).decode("ascii"),
            sealed_round_key=sealed,
            added=added,
        )
        of_former_keys = [row for row in earlier if row.fingerprint != own_fingerprint]
        return AdmissionResult(
            site=name,
            bundle=bundle.with_signature(self.key).encode(),
            admission=admission,
            renewal=len(of_former_keys) < len(earlier),
            replaced=tuple(
                row.certificate_sha256 for row in of_former_keys if datetime.datetime.fromisoformat(row.not_after) > now
            ),
        )

    def certify_relay(
        self,
        request: bytes,
        *,
        fingerprint: str,
        now: datetime.datetime,
        days: int = certificates.SITE_DAYS,
        used_names: Collection[str] = (),
    ) -> x509.Certificate:
        """Certify a relay's key; a relay gets no round key, and no site accepts it as a peer.

        Args:
            used_names: further names that sites have or had: those of amendments, if a chain is available.

        Raises:
            BundleError: the request is refused: its form, fingerprint, or a site's name or key.
            DiskError: the admission cannot be recorded.
        """
        name, public_key = _read(request, fingerprint)
        own_fingerprint, admitted = certificates.fingerprint(public_key), self.admissions()
        if name in {*self.federation.roster, *used_names} or any(
            row.fingerprint == own_fingerprint for other, rows in admitted.items() if other != name for row in rows
        ):
            raise BundleError(f"{name} is a site, or has a site's key", "a relay has a name and a key of its own")
        certificate = certificates.issue(
            self.key, self.certificate, name=name, public_key=public_key, now=now, days=days
        )
        digest = certificates.certificate_sha256(certificates.certificate_der(certificate))
        admission = Admission(own_fingerprint, digest, certificate.not_valid_after_utc.isoformat())
        self._record({**admitted, name: (*admitted.get(name, ()), admission)})
        return certificate

    def admissions(self) -> dict[str, tuple[Admission, ...]]:
        """Return every issued certificate by site, oldest first. Raise ``StateError`` if the file cannot be read."""
        path = self.folder / ADMITTED_FILE
        try:
            document = json.loads(path.read_bytes())
            return {name: tuple(Admission(**row) for row in rows) for name, rows in document.items()}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise StateError(f"{path} cannot be read: {error}", "restore the CA folder") from error

    def _record(self, admitted: Mapping[str, tuple[Admission, ...]]) -> None:
        document = {name: [dataclasses.asdict(row) for row in rows] for name, rows in sorted(admitted.items())}
        write_atomically(self.folder / ADMITTED_FILE, json.dumps(document, indent=2).encode("ascii") + b"\n")

    def _vet(
        self, request: bytes, fingerprint: str, members: Mapping[SiteName, Sha256 | None]
    ) -> tuple[SiteName, ec.EllipticCurvePublicKey]:
        """Return a request's site and key if the site is a member with this fingerprint and no other pinned key."""
        name, public_key = _read(request, fingerprint)
        if name not in members:
            raise BundleError(
                f"the signing request names {name[:80]!r}, which the roster does not{suggestion(name, members)}",
                "a site is admitted under its name in federation.toml, or once `federation amend --add` has added it; "
                "a relay with --relay",
            )
        pinned = members[name]
        if pinned not in (None, certificates.key_digest(public_key)):
            raise BundleError(
                f"the federation pins another key for {name} ({pinned[:12]}…) than the one in its request",
                "no certificate for this key would count: ask the site for a request with the pinned one",
            )
        return name, public_key


def _read(request: bytes, fingerprint: str) -> tuple[SiteName, ec.EllipticCurvePublicKey]:
    """Return name and key of a signing request. Raise ``BundleError`` unless the key has this fingerprint."""
    try:
        text, public_key = certificates.read_request(request)
        name = site_name(text)
    except ValueError as error:
        raise BundleError(f"the signing request is refused: {error}", "ask for a new one") from error
    own_fingerprint = certificates.fingerprint(public_key)
    if "".join(fingerprint.replace(":", " ").split()).lower() != own_fingerprint.replace(":", ""):
        raise BundleError(
            f"the key in the request of {name} has the fingerprint {own_fingerprint}, not the one given",
            "compare it with what `mhfl-peer site init` or `relay init` prints there",
        )
    return name, public_key


@dataclass(frozen=True, slots=True)
class EnrolmentRequest:
    """A site's signing request, and whether its key is new, kept or renewed."""

    pem: bytes
    fingerprint: str
    key: Literal["new", "kept", "renewed"]


def request(
    folder: SiteFolder,
    federation: FederationConfig,
    federation_toml: str,
    *,
    now: datetime.datetime,
    renew: bool = False,
    newcomer: bool = False,
) -> EnrolmentRequest:
    """Prepare a site's folder and its signing request; an existing key is never overwritten.

    With a draft, the function creates the site's key, which the founder can write into the draft, but
    no federation.toml.

    Args:
        folder: the site's folder; created if it is missing.
        federation: the parsed ``federation_toml``, which must have a CA and name the site.
        federation_toml: the text that the site keeps.
        renew: make a second key, which replaces the first one when its certificate is joined.
        newcomer: the site is not in the roster: an amendment will add it, or did.

    Raises:
        ConfigError: the site is not in the roster, or is, and should not be.
        CertificateError: federation.toml's CA has expired, or the site's key cannot be read.
        FederationMismatch: the folder belongs to another federation of the same name.
    """
    if newcomer and (folder.site in federation.roster or federation.ca_certificate is None):
        raise ConfigError(
            f"{federation.where}: it is a draft, or its roster names {folder.site!r}", "leave --newcomer out"
        )
    if not newcomer and folder.site not in federation.roster:
        raise ConfigError(
            f"{federation.where}: the roster does not name {folder.site!r}{suggestion(folder.site, federation.roster)}",
            "take the name that the founder gave the site, or add --newcomer where an amendment will add it",
        )
    is_draft = federation.ca_certificate is None
    try:
        if not is_draft:
            authority = certificates.pinned_authority(federation.ca_certificate)
            certificates.verify_dates(authority, now, "the CA's certificate")
    except ValueError as error:
        raise CertificateError(f"{federation.where}: {error}", "ask the founder for a new federation") from error
    if folder.federation_toml.exists() and FederationConfig.load(folder.federation_toml).digest != federation.digest:
        raise _mismatch(folder.federation_toml, toml.read(folder.federation_toml), federation_toml)
    make_private(folder.pki)
    if not is_draft:
        write_atomically(folder.federation_toml, federation_toml.encode("utf-8"), 0o644)
    first, pending = folder.pki / certificates.KEY_FILE, folder.pki / certificates.PENDING_KEY_FILE
    path = pending if renew and first.exists() else first
    state: Literal["new", "kept", "renewed"] = "kept"
    if not path.exists():
        write_atomically(path, certificates.key_pem(certificates.new_key()))
        state = "renewed" if path == pending else "new"
    key = certificates.read_key(path)
    return EnrolmentRequest(
        certificates.signing_request(key, folder.site), certificates.fingerprint(key.public_key()), state
    )


def join(
    folder: SiteFolder,
    bundle: Bundle,
    *,
    now: datetime.datetime,
    pinned: Sha256 | None = None,
    keep: Callable[[ChainHead], None] | None = None,
) -> certificates.Identity:
    """Check a bundle against the site's federation.toml and key, then write its files into the site's folder.

    The certificate is written last: until then the site keeps its former identity.

    Args:
        pinned: the key that amendments pin for the site; federation.toml's by default.
        keep: called with the amendment that added the site, if the bundle has one, to keep it.

    Raises:
        BundleError: the bundle is for another site, not signed by the CA, not for this key, or
            older than the one that was joined before.
        FederationMismatch: the bundle is of another federation; the message names the first key
            that differs.
        CertificateError: the site's own key or CA is missing.
        DiskError: the files cannot be written.
    """
    own_toml = toml.read(folder.federation_toml)
    federation = FederationConfig.parse(own_toml, str(folder.federation_toml))
    ca = certificates.pinned_authority(federation.ca_certificate)
    if bundle.site != folder.site:
        raise BundleError(f"the bundle is for {bundle.site}, not for {folder.site}", "join it at that site")
    try:
        bundle.verify(certificates.certificate_key(ca))
    except ValueError as error:
        raise BundleError(f"the bundle is not signed by the CA in {folder.federation_toml}, or was changed") from error
    if bundle.federation_digest != federation.digest:
        raise _mismatch(folder.federation_toml, own_toml, bundle.federation_toml)
    try:
        der = certificates.certificate_der(x509.load_pem_x509_certificate(bundle.certificate.encode("ascii")))
        certificate = certificates.verify_certificate(
            der, ca, folder.site, now, pinned=pinned or federation.pinned_keys.get(folder.site)
        )
    except ValueError as error:
        raise BundleError(f"the bundle's certificate is refused: {error}") from error
    path, key = _requested_key(folder, certificate)
    _refuse_older(folder, certificate, ca)
    secret: RoundKey | None = None
    try:
        if bundle.added is None:
            secret = unseal(bundle.sealed_round_key, key, digest=federation.digest, site=folder.site)
    except ValueError as error:
        raise BundleError(f"the bundle is refused: {error}") from error
    write_atomically(folder.pki / certificates.CA_FILE, certificates.certificate_pem(ca), 0o644)
    if secret is not None:
        write_atomically(folder.pki / certificates.ROUND_KEY_FILE, f"{secret.hex()}\n".encode("ascii"))
    if bundle.added is not None and keep is not None:
        keep(bundle.added)
    write_atomically(folder.pki / certificates.CERTIFICATE_FILE, certificates.certificate_pem(certificate), 0o644)
    if path.name == certificates.PENDING_KEY_FILE:
        path.replace(folder.pki / certificates.KEY_FILE)
        sync_folder(folder.pki)
    return certificates.Identity.load(
        folder.pki,
        name=folder.site,
        ca_certificate=federation.ca_certificate,
        now=now,
        joined_later=bundle.added is not None,
    )


def _requested_key(folder: SiteFolder, certificate: x509.Certificate) -> tuple[Path, ec.EllipticCurvePrivateKey]:
    """Return the site's key that the certificate belongs to, first or renewed, and its file."""
    paths = [folder.pki / name for name in (certificates.PENDING_KEY_FILE, certificates.KEY_FILE)]
    keys = {path: certificates.read_key(path) for path in paths if path.exists() or path.name == certificates.KEY_FILE}
    for path, key in keys.items():
        if key.public_key() == certificate.public_key():
            return path, key
    raise BundleError(
        f"the bundle's certificate is for another key than the one in {folder.pki}",
        "send the founder the request that `mhfl-peer site init` writes now",
    )


def _refuse_older(folder: SiteFolder, joined: x509.Certificate, ca: x509.Certificate) -> None:
    """Refuse a bundle that would undo a renewal.

    A current certificate that the site cannot use does not count as a renewal.
    """
    try:
        current = certificates.read_certificate(folder.pki / certificates.CERTIFICATE_FILE)
        certificates.verify_certificate(certificates.certificate_der(current), ca, folder.site, None)
        _requested_key(folder, current)
    except (CertificateError, BundleError, ValueError):
        return
    if joined.not_valid_before_utc < current.not_valid_before_utc:
        raise BundleError(
            f"the bundle's certificate (of {joined.not_valid_before_utc:%Y-%m-%d %H:%M}, serial "
            f"{joined.serial_number:x}) is older than the one in {folder.pki / certificates.CERTIFICATE_FILE} "
            f"(of {current.not_valid_before_utc:%Y-%m-%d %H:%M}, serial {current.serial_number:x})",
            "join the newest bundle, or ask the founder for another one",
        )


def _mismatch(path: Path, ours: str, theirs: str) -> FederationMismatch:
    """Build the error about two federations of one name; it names the first key that differs."""
    difference = _difference(toml.parse(ours, str(path)), toml.parse(theirs, "the other federation.toml"))
    return FederationMismatch(f"{path} is of another federation: {difference}")


def _difference(ours: Any, theirs: Any, key: str = "") -> str:
    """Describe the first key at which two federations differ, with both values."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted((ours.keys() | theirs.keys()) - NOT_IDENTITY):
            own, other = ours.get(name), theirs.get(name)
            if federation_digest({"": own}) != federation_digest({"": other}):
                return _difference(own, other, f"{key}.{name}".lstrip("."))
    if key == "ca_certificate":
        return "ca_certificate differs"
    return f"{key} is {str(ours)[:80]} here and {str(theirs)[:80]} there"


def _complete(draft: str, federation: FederationConfig) -> str:
    """Add to the draft what follows from the roster or may change with a release; all else stays unchanged.

    The former are counts of stages, the latter keys with another default in earlier releases.
    """
    plan, counts = federation.plan, federation.derived_counts
    if not counts and not plan.earlier_defaults:
        return draft
    import tomlkit  # here: the import takes 14 ms, and only this command needs it
    from tomlkit.items import Table

    document: Any = tomlkit.parse(draft)
    for path in plan.earlier_defaults:
        table, _, key = path.rpartition(".")
        if table == "method":
            document["method"].setdefault(key, federation.parameters[key])
        else:
            stage = table.removeprefix("stages.")
            _stage_table(document, stage).setdefault(key, getattr(federation.stages[stage], key))
    for stage, count in counts.items():
        stage_table = _stage_table(document, stage)
        stage_table["count"] = tomlkit.item(count)
        if isinstance(stage_table, Table):  # an inline table has no room for a comment
            steps, sites = plan.steps_per_site[stage], len(federation.site)
            stage_table["count"].comment(DERIVED_COUNT.format(steps=steps, sites=sites, source=plan.source))
    return tomlkit.dumps(document)


def _stage_table(document: Any, stage: str) -> Any:
    import tomlkit

    stages = document.setdefault("stages", tomlkit.table(is_super_table=True))
    return stages.setdefault(stage, tomlkit.table())


def _create_folder(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Create a folder with these files (content, mode) atomically: after a crash it is whole or absent."""
    parent = folder.absolute().parent
    make_private(parent)
    building = None
    try:
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=parent))
        for name, (content, mode) in files.items():
            write_atomically(building / name, content, mode)
        os.rename(building, folder)
        sync_folder(parent)
    except OSError as error:
        raise DiskError(f"{folder} cannot be made: {error.strerror}") from error
    finally:
        if building is not None:
            shutil.rmtree(building, ignore_errors=True)
