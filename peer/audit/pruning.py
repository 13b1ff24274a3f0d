"""Deletes old files of a site that no round needs any more; never a journal, a ledger, a key or a list of people.

The daemon itself bounds the artifacts and checkpoints of the running generation (``peer.core.retention``). What stays
is what it leaves: former generations, files that no row names, prepared images, logs, folders that `restore` replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from peer.audit.backup import read_memory
from peer.core.roster import SiteName
from peer.errors import DiskError
from peer.files import STRAY_FOLDER, remove_folder
from peer.site.config.site_folder import SiteFolder

ROUNDS = "round-*"


@dataclass(frozen=True, slots=True)
class OldPath:
    """A file, or the folder of a checkpoint, that may be deleted; ``written_s`` is when it was last written to."""

    kind: str
    path: Path
    files: int
    bytes: int
    written_s: float


def find_old(folder: SiteFolder, *, before_s: float) -> list[OldPath]:
    """List what was last written before a Unix time and may go; the caller has locked the folder.

    Raises:
        StateError: the newest journal cannot be read, so that nobody can tell what its rounds need.
    """
    newest = max(folder.generations(), default=0)
    paths = [*_current(folder, newest), *_former(folder, newest), *_files("logs", folder.logs)]
    for path in sorted(folder.path.parent.glob(f"{folder.site}.before-*")):
        replaced = SiteFolder(folder.home, folder.federation, SiteName(path.name))
        paths += [*_former(replaced, 0), *_files("logs", replaced.logs)]
    return [path for path in paths if path.written_s < before_s]


def delete(paths: Iterable[OldPath]) -> None:
    """Delete what ``find_old`` listed; after a kill, the next call lists the rest."""
    for old in paths:
        try:
            if old.path.is_dir():
                remove_folder(old.path)
            else:
                old.path.unlink(missing_ok=True)
        except OSError as error:
            raise DiskError(f"{old.path} cannot be deleted: {error.strerror}", "run it as the daemon's user") from error


def _current(folder: SiteFolder, number: int) -> Iterator[OldPath]:
    """Yield what the newest generation's rounds, open and best, do not need."""
    home = folder.generation(number)
    yield from _beside(home)
    _, memory = read_memory(folder)
    if not memory.state:  # nothing, or the journal is lost, and only its files could tell what there was
        return
    needed, states = memory.needed_digests(), {state.partition("/")[0] for state in memory.kept_states()}
    yield from _files("artifacts that no round needs", home / "artifacts", lambda path: path.stem not in needed)
    for path in sorted((home / "checkpoints").glob(ROUNDS)):
        files = list(_files("", path))
        if path.name not in states and files:
            written_s = max(file.written_s for file in files)
            size = sum(file.bytes for file in files)
            yield OldPath("checkpoints that no round needs", path, len(files), size, written_s)


def _former(folder: SiteFolder, newest: int) -> Iterator[OldPath]:
    """Yield the weights and artifacts of all generations but the newest."""
    for number in folder.generations():
        if number != newest:
            home = folder.generation(number)
            yield from _files("artifacts of former generations", home / "artifacts")
            yield from _files("checkpoints of former generations", home / "checkpoints")
            yield from _beside(home)


def _beside(home: Path) -> Iterator[OldPath]:
    yield from _files("artifacts that no row names", home / STRAY_FOLDER)
    yield from _files("prepared images, which the next start prepares again", home / "cache")


def _files(kind: str, folder: Path, chosen: Callable[[Path], bool] = lambda path: True) -> Iterator[OldPath]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and chosen(path):
            status = path.lstat()
            yield OldPath(kind, path, 1, status.st_size, status.st_mtime)
