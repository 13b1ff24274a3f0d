"""The folder of a site: its paths, the lock of its daemon, and writes that a crash cannot leave
half done.

``<home>/<federation>/<site>/`` holds everything that a site owns; the layout is the table of
``SiteFolder``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from peer.core.roster import SITE_NAME, SiteName
from peer.errors import DaemonDown, DiskError, LockedError, StateError, UsageError
from peer.files import sync_folder, write_file

SOCKET_PATH_BYTES_MAX = 100  # sun_path has 108 bytes on Linux and 104 on BSD, a terminating zero included
GENERATION = re.compile(r"gen-([0-9]{4,})")
PAGE_START = b"<!doctype html>"


@dataclass(frozen=True, slots=True)
class SiteFolder:
    """The folder of one site of one federation, and the paths in it."""

    home: Path
    federation: str
    site: SiteName

    @property
    def path(self) -> Path:
        return self.home / self.federation / self.site

    @property
    def pki(self) -> Path:
        """Key, certificate, CA certificate and round key (``peer.site.identity.certificates``)."""
        return self.path / "pki"

    @property
    def federation_toml(self) -> Path:
        """This site's copy of the file that all sites share; it pins the CA."""
        return self.path / "federation.toml"

    @property
    def site_toml(self) -> Path:
        return self.path / "site.toml"

    @property
    def lock(self) -> Path:
        """The daemon locks this file before it does anything else, until it ends."""
        return self.path / "lock"

    @property
    def egress_db(self) -> Path:
        """The egress ledger; it outlives generations."""
        return self.path / "egress.db"

    @property
    def membership(self) -> Path:
        """The chain of amendments, and what belongs to it; it outlives generations."""
        return self.path / "membership"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def control_path(self) -> Path:
        """The file with the control socket's path, where this folder's own is too long for one."""
        return self.path / "control.path"

    def generation(self, number: int) -> Path:
        """Return the folder of one generation: journal, artifacts, checkpoints."""
        return self.path / f"gen-{number:04d}"

    def generations(self) -> tuple[int, ...]:
        """Return the numbers of all generations on disk, oldest first."""
        try:
            names = [entry.name for entry in self.path.iterdir() if entry.is_dir()]
        except FileNotFoundError:
            return ()
        return tuple(sorted(int(match[1]) for name in names if (match := GENERATION.fullmatch(name))))

    def create_generation(self, number: int | None = None) -> int:
        """Make the folder of the next generation, or of this one, with ``artifacts/`` and
        ``checkpoints/``.

        Raises:
            StateError: that generation or a later one exists.
            DiskError: it cannot be made.
        """
        newest = max(self.generations(), default=0)
        number = newest + 1 if number is None else number
        if number <= newest:
            raise StateError(f"{self.path} already holds generation {newest}", f"ask for one after {newest}")
        for name in ("artifacts", "checkpoints"):
            make_private(self.generation(number) / name)
        return number

    def control_socket(self) -> Path:
        """Return the path of the running daemon's control socket.

        ``DaemonDown`` when no daemon ever made one.
        """
        path = self.path / "control" / "control.sock"
        if _fits(path):
            return path
        try:
            return Path(self.control_path.read_text().rstrip("\n"))
        except FileNotFoundError:
            raise DaemonDown(f"site {self.site!r} has no control socket ({self.control_path} is missing)") from None

    def prepare_control_socket(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Prepare a path to which a control socket can be bound, in a folder that only this user can enter.

        Where the path in the site's folder is over the socket limit, it is in a fresh folder under
        ``XDG_RUNTIME_DIR`` or the temporary directory. An earlier folder is used again if it still
        is this user's and closed to others.
        """
        path = self.path / "control" / "control.sock"
        if _fits(path):
            make_private(path.parent)
            return path
        with contextlib.suppress(DaemonDown):
            former_path = self.control_socket()
            if _is_private(former_path.parent):
                return former_path
        import tempfile  # here, since the import takes time, and only the next lines need it

        base = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        try:
            path = Path(tempfile.mkdtemp(prefix="mhfl-", dir=base)) / "control.sock"
        except OSError as error:
            raise DiskError(f"{base} takes no folder for the control socket: {error.strerror}") from error
        if not _fits(path):
            path.parent.rmdir()
            raise StateError(
                f"the control socket's path {path} is over {SOCKET_PATH_BYTES_MAX} bytes",
                "set XDG_RUNTIME_DIR to a folder with a shorter path",
            )
        write_atomically(self.control_path, f"{path}\n".encode())
        return path

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for this process.

        The kernel unlocks it when the process ends, also after a crash.

        Raises:
            LockedError: another process, which the message names by its id, has locked it.
            DiskError: the lock file cannot be opened or locked.
        """
        try:
            descriptor = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DiskError(f"{self.lock} cannot be opened: {error.strerror}") from error
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise LockedError(
                    f"site {self.site!r} in {self.path} is held by process {_read_holder(descriptor)}",
                    f"stop it first: `mhfl-peer stop --site {self.federation}/{self.site}`",
                ) from None
            except OSError as error:
                raise DiskError(
                    f"{self.lock} cannot be locked: {error.strerror}", "put the home folder on a disk that knows flock"
                ) from error
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())
            yield
        finally:
            os.close(descriptor)

    def holder(self) -> str | None:
        """Return the id of the process that has locked the folder, such as a daemon that does not answer.

        ``None`` where no process has, or this user cannot tell.
        """
        try:
            descriptor = os.open(self.lock, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_holder(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None


def _read_holder(descriptor: int) -> str:
    return os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"


def home_folder(explicit: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the state folder: the explicit one, else ``MHFL_HOME``, ``XDG_STATE_HOME/mhfl`` or
    ``~/.local/share/mhfl``.
    """
    if explicit is not None:
        return explicit.expanduser().absolute()
    if mhfl_home := environ.get("MHFL_HOME"):
        return Path(mhfl_home).expanduser().absolute()
    if state_home := environ.get("XDG_STATE_HOME"):
        return Path(state_home).absolute() / "mhfl"
    return Path.home() / ".local" / "share" / "mhfl"


def sites(home: Path) -> tuple[SiteFolder, ...]:
    """Return every site under the home folder that this user may read: each folder with a federation.toml, sorted."""
    try:
        paths = sorted(home.glob("*/*/federation.toml"))
    except PermissionError:
        return ()
    return tuple(
        SiteFolder(home, path.parent.parent.name, SiteName(path.parent.name))
        for path in paths
        if SITE_NAME.fullmatch(path.parent.name)
    )


def find_site(home: Path, name: str | None = None) -> SiteFolder:
    """Find the site named ``site`` or ``federation/site``.

    Without a name, the only site under the home folder.

    Raises:
        UsageError: no site or several sites fit; the message lists the sites under the home folder.
    """
    folders = sites(home)
    if not folders and (denied := _find_denied(home)) is not None:
        raise UsageError(
            f"user {os.geteuid()} may not read {denied}", "run the command as the user of the daemon, or give --home"
        )
    if not folders:
        raise UsageError(f"no site lives under {home}", "run `mhfl-peer site init`, or give --home or MHFL_HOME")
    fitting = [folder for folder in folders if name in (None, folder.site, f"{folder.federation}/{folder.site}")]
    if len(fitting) == 1:
        return fitting[0]
    listed = ", ".join(f"{folder.federation}/{folder.site}" for folder in fitting or folders)
    if not fitting:
        raise UsageError(f"no site {name!r} lives under {home} (there: {listed})", "give one of these as --site")
    raise UsageError(f"several sites live under {home} ({listed})", "give one of these as --site")


def _find_denied(home: Path) -> Path | None:
    """Find the home folder or a folder in it that this user cannot list: glob passes over these without a word."""
    folders = [home]
    for folder in folders:
        try:
            with os.scandir(folder) as entries:
                folders += [Path(entry) for entry in entries if folder == home and entry.is_dir()]
        except PermissionError:
            return folder
        except OSError:
            continue
    return None


def make_private(path: Path) -> None:
    """Make the missing ones of the folder and its parents with mode 0700, durably."""
    try:
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(folder.parent)
    except OSError as error:
        raise DiskError(f"folder {path} cannot be made: {error.strerror}") from error
    if not path.is_dir():
        raise DiskError(f"{path} is not a folder", "move it away")


def must_be_new(path: Path) -> None:
    """``StateError`` where a file that a person named as output exists already."""
    if path.exists():
        raise StateError(f"{path} exists", "remove it, or name another file with --out")


def must_be_new_or_page(path: Path) -> None:
    """``StateError`` where the page that a person named as output exists and is no page: a page may be written anew."""
    try:
        with path.open("rb") as file:
            is_page = file.read(len(PAGE_START)).lower() == PAGE_START
    except OSError:
        is_page = False
    if not is_page:
        must_be_new(path)


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace the file's content in one step, durably: after a crash the file has the old content
    or the new one. ``DiskError`` where the file cannot be written; the old one is untouched, and no
    other file is left behind.
    """
    try:
        write_file(path, content, mode)
    except OSError as error:
        raise DiskError(f"{path} cannot be written: {error.strerror}") from error


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX


def _is_private(folder: Path) -> bool:
    """Return whether the path is a folder of this user, no link, and no other user can enter it."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
