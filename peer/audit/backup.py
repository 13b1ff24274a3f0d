"""Backup of a site to one file, also while its daemon runs, and its restoration.

The file is a tar archive: the site's files, and ``manifest.json`` with the size and SHA-256 of each
as its last member. The copies of the newest journal and of the ledger show the same moment. The file
holds what a site needs to resume from its journal, but none of its data.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from random import SystemRandom
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from peer.audit.evidence_files import trust
from peer.cohorts import FOLDER as COHORTS
from peer.core import rows, site_memory
from peer.core.limits import ROUNDS_MAX
from peer.core.roster import SITE_NAME, Sha256, SiteName
from peer.errors import CertificateError, DiskError, StateError, UsageError
from peer.files import ARTIFACT_SUFFIX, STATISTICS_FILE, SUM_SECRETS_FOLDER, UNFINISHED, artifact_path, sync_folder
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, make_private, must_be_new
from peer.site.identity.certificates import (
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    PENDING_KEY_FILE,
    ROUND_KEY_FILE,
    Identity,
)
from peer.site.identity.noise_key import FILE as NOISE_KEY_FILE
from peer.site.membership.folder import MembershipFolder
from peer.site.records.history import open_journals
from peer.site.records.journal import JOURNAL, Journal, storage
from peer.site.records.ledger import Ledger

VERSION: Literal[1] = 1
MANIFEST = "manifest.json"
MANIFEST_BYTES_MAX = 16 << 20
TRIES = 5
"""A running daemon may delete a file between the copy of its journal and the opening of the file."""
PUBLIC = (CERTIFICATE_FILE, CA_FILE)
SECRET = (KEY_FILE, PENDING_KEY_FILE, ROUND_KEY_FILE, NOISE_KEY_FILE)
ROUND_KEYS = "round_keys.json"
"""The one file of the folder ``membership`` that holds secrets."""
PLACE = re.compile(
    r"membership/(chain|forks|notices|approvals|accepted|joined|round_keys)\.json|site\.toml|federation\.toml|egress\.db|pki/(site\.key|site\.key\.new|cert\.pem|ca\.pem|round\.key|noise\.key)"
    r"|gen-[0-9]{4,}/(journal\.db|statistics\.json|cohorts/(key|[0-9a-f]{64}\.json)|artifacts/[0-9a-f]{64}\.safetensors"
    r"|checkpoints/round-[0-9]{6,}/[a-z_-]+/(?!\.\.?$)[A-Za-z0-9_.-]+)"
)
"""Paths, relative to the site's folder, that a file of a backup may have."""


class BackedUpFile(BaseModel):
    """A file in a backup."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    path: str
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class BackupManifest(BaseModel):
    """The last member of a backup. ``time`` is Unix seconds, ``round`` the last committed round."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    mhfl_backup: Literal[1]
    federation: str
    site: str
    time: int
    generation: Annotated[int, Field(ge=0, le=ROUNDS_MAX)]
    round: Annotated[int, Field(ge=0, le=ROUNDS_MAX)]
    ledger_rows: int
    private_key: bool
    files: list[BackedUpFile]


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored site.

    ``lost`` is the first and the last committed round that the replaced folder had and the backup
    lacks. ``aside`` is the replaced folder's new path. ``ledger_kept``: the replaced folder's ledger was
    newer and was kept. ``broken`` names the replaced folder's unreadable files about amendments: the
    backup's copies, which may lack an approval, replace them.
    """

    folder: SiteFolder
    manifest: BackupManifest
    generation: int
    lost: tuple[int, int] | None
    aside: Path | None
    ledger_kept: bool
    has_key: bool
    broken: tuple[str, ...] = ()


# --- backup -----------------------------------------------------------------------------------------------------------
def back_up(folder: SiteFolder, path: Path, *, with_key: bool = False) -> BackupManifest:
    """Write a backup of a site, whose daemon may run. The file appears atomically, with mode 0600.

    Args:
        folder: the site's folder.
        path: the file to write.
        with_key: also write the private key and the round key.

    Raises:
        StateError: the file exists, or the site's journal or ledger is damaged.
        DiskError: the file cannot be written.
    """
    must_be_new(path)
    part = path.with_name(f"{UNFINISHED}{path.name}")
    copies = path.with_name(f"{UNFINISHED}{path.name}.copies")
    try:
        shutil.rmtree(copies, ignore_errors=True)  # left by a killed backup
        copies.mkdir(mode=0o700)
        try:
            manifest = _write(folder, part, copies, with_key=with_key)
            part.replace(path)
        finally:
            shutil.rmtree(copies, ignore_errors=True)
            part.unlink(missing_ok=True)
        sync_folder(path.parent)
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}", "name a file on a disk with space") from error
    return manifest


def _write(folder: SiteFolder, part: Path, copies: Path, *, with_key: bool) -> BackupManifest:
    """Copy the databases, open all other files, and write the archive; start over if the daemon deletes a file."""
    for tries_left in reversed(range(TRIES)):
        copied = SiteFolder(copies, "copy", folder.site)
        shutil.rmtree(copied.path, ignore_errors=True)
        copied.path.mkdir(parents=True)
        _copy_databases(folder, copied)
        generation, memory = read_memory(copied)
        if tries_left and memory.repeats_published(_artifacts(folder)):
            continue  # the daemon deleted artifacts meanwhile; a newer journal says so
        with contextlib.ExitStack() as stack:
            try:
                files = [
                    (str(place), stack.enter_context((folder.path / place).open("rb")))
                    for place in _places(folder, generation, memory, with_key=with_key)
                ]
            except FileNotFoundError:
                continue  # the daemon deleted a superseded file meanwhile
            databases = sorted(copied.path.rglob("*.db"))
            files += [(str(p.relative_to(copied.path)), stack.enter_context(p.open("rb"))) for p in databases]
            size = sum(os.fstat(file.fileno()).st_size for _, file in files)
            _require_space(part.parent, size, "another disk")
            return _archive(part, files, folder, generation, memory, copied, with_key=with_key)
    raise StateError(
        f"files of {folder.path} are missing that its journal names", "see `mhfl-peer check`, or try again"
    )


def _copy_databases(folder: SiteFolder, copied: SiteFolder) -> None:
    """Copy the journals and the ledger; the newest journal and the ledger show the same moment."""
    newest = folder.generation(max(folder.generations(), default=0)) / JOURNAL
    paths = [folder.egress_db, *(folder.generation(number) / JOURNAL for number in folder.generations())]
    with contextlib.ExitStack() as stack:
        sources, locks = {}, []
        for path in filter(Path.exists, paths):
            stack.enter_context(storage(path))
            sources[path] = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
            if path in (folder.egress_db, newest):
                locks.append(stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None))))
        for lock in locks:
            lock.execute("BEGIN IMMEDIATE")  # blocks the daemon's writes until every reader has its snapshot
        for source in sources.values():
            source.execute("BEGIN")
            source.execute("SELECT count(*) FROM sqlite_master").fetchone()
        for lock in locks:
            lock.execute("ROLLBACK")
        for path, source in sources.items():
            target = copied.path / path.relative_to(folder.path)
            target.parent.mkdir(exist_ok=True)
            with contextlib.closing(sqlite3.connect(target)) as connection:
                target.chmod(0o600)
                source.backup(connection)
    _verify(copied)


def _verify(folder: SiteFolder) -> None:
    """Raise ``StateError`` if a journal or the ledger is damaged."""
    for journal in open_journals(folder):
        with contextlib.closing(journal):
            journal.verify()
    if folder.egress_db.exists():
        with contextlib.closing(Ledger(folder.egress_db, read_only=True)) as ledger:
            problems = ledger.verify()
        if problems:
            raise StateError(f"{folder.egress_db}: {problems[0]}", "see `mhfl-peer egress verify`")


def read_memory(folder: SiteFolder) -> tuple[int, site_memory.Memory]:
    """Return the newest generation's number and the memory recovered from its journal."""
    generation = max(folder.generations(), default=0)
    path = folder.generation(generation) / JOURNAL
    if not path.exists():
        return generation, site_memory.Memory()
    with contextlib.closing(Journal(path, read_only=True)) as journal:
        memory = journal.fold(lambda stored: site_memory.recover(stored, generation=generation), site_memory.REMEMBERED)
    return generation, memory


def _artifacts(folder: SiteFolder) -> set[Sha256]:
    """Return the digests of the newest generation's artifacts on disk."""
    artifacts = folder.generation(max(folder.generations(), default=0)) / "artifacts"
    return {Sha256(path.stem) for path in artifacts.glob(f"*{ARTIFACT_SUFFIX}")}


def _places(
    folder: SiteFolder, generation: int, memory: site_memory.Memory, *, with_key: bool
) -> Iterator[PurePosixPath]:
    """Yield the files that a backup needs beside the databases, relative to the site's folder."""
    yield from map(PurePosixPath, ("federation.toml", "site.toml"))
    for name in (*PUBLIC, *(SECRET if with_key else ())):
        if (folder.pki / name).exists():
            yield PurePosixPath("pki", name)
    for path in sorted(folder.membership.glob("*.json")):
        if with_key or path.name != ROUND_KEYS:
            yield PurePosixPath("membership", path.name)
    home = PurePosixPath(folder.generation(generation).name)
    if (folder.generation(generation) / STATISTICS_FILE).exists():
        yield home / STATISTICS_FILE
    for path in sorted((folder.generation(generation) / COHORTS).glob("[!.]*") if with_key else ()):
        yield home / COHORTS / path.name
    artifacts = folder.generation(generation) / "artifacts"
    for digest in sorted(memory.needed_digests()):
        if artifact_path(artifacts, digest).exists():  # the daemon forgets a missing one, or fetches it again
            yield home / "artifacts" / f"{digest}{ARTIFACT_SUFFIX}"
    present = {name for name in memory.kept_states() if (folder.generation(generation) / "checkpoints" / name).is_dir()}
    for state in sorted({*memory.current_states(), *present}):
        names = sorted(path.name for path in (folder.generation(generation) / "checkpoints" / state).iterdir())
        yield from (home / "checkpoints" / state / name for name in names)


def _archive(
    part: Path,
    files: Sequence[tuple[str, BinaryIO]],
    folder: SiteFolder,
    generation: int,
    memory: site_memory.Memory,
    copied: SiteFolder,
    *,
    with_key: bool,
) -> BackupManifest:
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as output:
        with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as archive:
            backed_up = []
            for name, file in files:
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # typeshed
                size = file.tell()
                file.seek(0)
                _add(archive, name, file, size)
                backed_up.append(BackedUpFile(path=name, bytes=size, sha256=sha256))
            rows_sent = 0
            if copied.egress_db.exists():
                with contextlib.closing(Ledger(copied.egress_db, read_only=True)) as ledger:
                    rows_sent = ledger.head.count
            manifest = BackupManifest(
                mhfl_backup=VERSION,
                federation=folder.federation,
                site=folder.site,
                time=int(time.time()),
                generation=memory.generation if generation else 0,
                round=memory.committed,
                ledger_rows=rows_sent,
                private_key=with_key,
                files=backed_up,
            )
            content = manifest.model_dump_json(indent=1).encode()
            _add(archive, MANIFEST, io.BytesIO(content), len(content))
        output.flush()
        os.fsync(output.fileno())
    return manifest


def _add(archive: tarfile.TarFile, name: str, file: BinaryIO, size: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, 0o600, int(time.time())
    archive.addfile(member, file)


def _require_space(folder: Path, size: int, other: str) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise DiskError(f"{folder} has {free} bytes free, and the backup needs {size}", f"name {other}")


# --- restore ----------------------------------------------------------------------------------------------------------
def restore(path: Path, home: Path, site: str | None = None, *, force: bool = False) -> Restored:
    """Restore a site's folder from a backup, atomically and as a new generation.

    In the old generation, peers would take the artifacts that the site recomputes for forgeries.

    Args:
        path: the file that ``back_up`` wrote.
        home: the state folder.
        site: the site that the backup must be of, as ``site`` or ``federation/site``.
        force: move an existing folder aside. Its keys stay in use if they are usable, and so does its
            ledger if it continues the backup's.

    Raises:
        StateError: the file is damaged or not a backup, or the site's folder exists.
        UsageError: the backup is of another site.
        LockedError: the site's daemon runs.
        DiskError: the folder cannot be written.
    """
    try:
        with contextlib.closing(_open(path)) as archive:
            manifest = _read_manifest(archive, path)
            folder = SiteFolder(home, manifest.federation, SiteName(manifest.site))
            if site not in (None, manifest.site, f"{manifest.federation}/{manifest.site}"):
                raise UsageError(f"{path} is a backup of {manifest.federation}/{manifest.site}, not of {site}")
            with contextlib.ExitStack() as stack:
                if folder.path.exists():
                    if not force:
                        raise StateError(
                            f"{folder.path} exists", "give --force to move it aside, or --home for another place"
                        )
                    stack.enter_context(folder.locked())
                make_private(home)
                staging = home / f"{UNFINISHED}restore-{manifest.federation}-{manifest.site}"
                shutil.rmtree(staging, ignore_errors=True)  # left by a killed restoration
                try:
                    staged = SiteFolder(staging, folder.federation, folder.site)
                    _extract(archive, manifest, staged, path)
                    _verify(staged)
                    return _put_in_place(staged, folder, manifest)
                finally:
                    shutil.rmtree(staging, ignore_errors=True)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        raise DiskError(f"{error.filename or path}: {error.strerror}", "free space, or name another --home") from error


def _open(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path, "r:")
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist", "name the file that `mhfl-peer backup` wrote") from None


def _damaged(path: Path, reason: str) -> StateError:
    return StateError(f"{path} is damaged, or no backup: {reason}", "use another backup; nothing was changed")


def _read_manifest(archive: tarfile.TarFile, path: Path) -> BackupManifest:
    members = archive.getmembers()
    if not members or members[-1].name != MANIFEST or members[-1].size > MANIFEST_BYTES_MAX:
        raise _damaged(path, "its end is missing")
    file = archive.extractfile(members[-1])
    try:
        manifest = BackupManifest.model_validate_json(file.read() if file is not None else b"")
    except ValidationError as error:
        raise _damaged(path, f"its {MANIFEST}: {error.errors()[0]['msg']}") from error
    listed = [(file.path, file.bytes) for file in manifest.files]
    if [(member.name, member.size) for member in members[:-1]] != listed or len(dict(listed)) != len(listed):
        raise _damaged(path, f"its files are not those of its {MANIFEST}")
    if odd := next((member.name for member in members if not member.isreg() or member.issparse()), None):
        raise _damaged(path, f"{odd} is no regular file, or has gaps")
    names = (manifest.federation, manifest.site)
    unsafe = [file.path for file in manifest.files if not PLACE.fullmatch(file.path)]
    if unsafe or not all(map(SITE_NAME.fullmatch, names)):
        raise _damaged(path, f"{(unsafe or names)[0]!r} has no place in a site's folder")
    return manifest


def _extract(archive: tarfile.TarFile, manifest: BackupManifest, staged: SiteFolder, path: Path) -> None:
    make_private(staged.path)
    _require_space(staged.path, sum(file.bytes for file in manifest.files), "--home on another disk")
    make_private(staged.pki)
    folders = {staged.path, staged.pki}
    for expected in manifest.files:
        source = archive.extractfile(expected.path)
        if source is None:
            raise _damaged(path, f"{expected.path} is no file")
        target = staged.path / expected.path
        make_private(target.parent)
        folders.add(target.parent)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
        with target.open("rb") as written:
            sha256 = hashlib.file_digest(written, "sha256").hexdigest()
        if (target.stat().st_size, sha256) != (expected.bytes, expected.sha256):
            raise _damaged(path, f"{expected.path} has other content than its {MANIFEST} says")
        if target.suffix == ".db":
            _refuse_programs(target, expected.path, path)
    for number in staged.generations():
        for name in ("artifacts", "checkpoints"):
            make_private(staged.generation(number) / name)
    for folder in folders:
        sync_folder(folder)


def _refuse_programs(database: Path, name: str, path: Path) -> None:
    """Refuse a database with triggers or views: the program's own have none, and a trigger would run in it."""
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            (count,) = connection.execute(
                "SELECT count(*) FROM sqlite_master WHERE type NOT IN ('table', 'index')"
            ).fetchone()
        except sqlite3.DatabaseError as error:
            raise _damaged(path, f"{name}: {error}") from error
    if count:
        raise _damaged(path, f"{name} has triggers or views")


def _put_in_place(staged: SiteFolder, folder: SiteFolder, manifest: BackupManifest) -> Restored:
    """Begin a new generation, take over newer files of the replaced folder, and swap the two folders."""
    exists = folder.path.exists()
    ledger_kept = exists and _keep_newer_ledger(folder, staged)
    broken: tuple[str, ...] = ()
    if exists:
        broken = _keep_membership(folder, staged)
        _keep_cohorts(folder, staged)
        _keep_keys(folder, staged)
    newest, memory = read_memory(staged)
    former_generation, former_round = _former(folder) if exists else (0, 0)
    generation = 0
    if newest:
        generation = site_memory.later_generation(max(memory.generation, former_generation), SystemRandom().random())
        with contextlib.closing(Journal(staged.generation(newest) / JOURNAL)) as journal:
            row = rows.RegeneratedRow(
                memory.committed, generation=generation, reported_by=folder.site, their_round=memory.committed
            )
            journal.write(row)
        generation += memory.repeats_published(_artifacts(staged))  # the daemon's start will begin another generation
    newcomer = (staged.membership / "joined.json").exists()  # it receives the round keys of its epochs from members
    has_key = (staged.pki / KEY_FILE).exists() and (newcomer or (staged.pki / ROUND_KEY_FILE).exists())
    make_private(folder.path.parent)
    aside = None
    if exists:
        moment = datetime.datetime.now(datetime.UTC)
        generations = [folder.generation(number).name for number in folder.generations()]
        aside = folder.path.with_name(f"{folder.site}.before-{moment:%Y%m%dT%H%M%S.%f}Z")
        folder.path.rename(aside)
        for name in generations:  # nobody deletes them there, and they unmask what this site sent
            shutil.rmtree(aside / name / SUM_SECRETS_FOLDER, ignore_errors=True)
    staged.path.rename(folder.path)
    sync_folder(folder.path.parent)
    lost = (manifest.round + 1, former_round) if former_round > manifest.round else None
    return Restored(folder, manifest, generation, lost, aside, ledger_kept, has_key, broken)


def _former(folder: SiteFolder) -> tuple[int, int]:
    """Return generation and last committed round of the replaced folder, as far as it can be read."""
    with contextlib.suppress(StateError, DiskError):
        generation, memory = read_memory(folder)
        return max(generation, memory.generation), memory.committed
    return max(folder.generations(), default=0), 0


def _keep_newer_ledger(folder: SiteFolder, staged: SiteFolder) -> bool:
    """Copy the replaced folder's ledger if it continues the backup's, so that no record of a transfer is lost."""
    if not folder.egress_db.exists():
        return False
    with contextlib.suppress(StateError, DiskError):
        head = None
        if staged.egress_db.exists():
            with contextlib.closing(Ledger(staged.egress_db, read_only=True)) as ledger:
                head = ledger.head
        with contextlib.closing(Ledger(folder.egress_db)) as former:
            count = head.count if head is not None else 0
            if former.verify() or former.head.count <= count or (head and former.hash_at(count) != head.hash):
                return False
        with (
            contextlib.closing(sqlite3.connect(folder.egress_db)) as source,
            contextlib.closing(sqlite3.connect(staged.egress_db)) as target,
        ):
            source.backup(target)
        staged.egress_db.chmod(0o600)
        return True
    return False


def _keep_membership(folder: SiteFolder, staged: SiteFolder) -> tuple[str, ...]:
    """Take over the chain and the site's approvals: a site must never sign two amendments of one number.

    Returns the replaced folder's broken files, for which the backup's are used.
    """
    federation = FederationConfig.load(staged.federation_toml)
    return MembershipFolder(staged.membership).take_over(MembershipFolder(folder.membership), federation)


def _keep_cohorts(folder: SiteFolder, staged: SiteFolder) -> None:
    """Take over who was trained on, which a backup without keys lacks."""
    for number in staged.generations():
        former, target = folder.generation(number) / COHORTS, staged.generation(number) / COHORTS
        if former.is_dir():
            shutil.copytree(former, target, dirs_exist_ok=True)
            for path in target.iterdir():
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(target)


def _keep_keys(folder: SiteFolder, staged: SiteFolder) -> None:
    """Keep the replaced folder's keys if they are usable: they may have been renewed since the backup."""
    try:
        federation, authorities = trust(staged.federation_toml)
        Identity.load(
            folder.pki,
            name=folder.site,
            ca_certificate=federation.ca_certificate,
            now=None,
            later=authorities[1:],
            joined_later=folder.site not in federation.roster,
        )
    except (CertificateError, StateError):
        return
    shutil.rmtree(staged.pki)
    shutil.copytree(folder.pki, staged.pki)
    for path in staged.pki.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    sync_folder(staged.pki)
