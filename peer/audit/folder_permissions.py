"""Check that only its own user can change a site's folder, as ssh checks its own.

Whoever may write site.toml decides which code the worker loads and which data leaves the site. If a
state folder is a link, the daemon deletes another user's files. The folders above the site's are the
administrator's: a volume of Kubernetes or a state directory belongs to another user or a group.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from peer.cohorts import FOLDER as COHORTS
from peer.errors import StateError
from peer.files import STRAY_FOLDER, SUM_SECRETS_FOLDER
from peer.site.config.site_folder import SiteFolder

WRITE_BY_OTHERS = 0o022
ANY_BY_OTHERS = 0o077


def check_permissions(folder: SiteFolder, *, uid: int | None = None) -> None:
    """Refuse a folder that another user can change; missing files are allowed.

    Args:
        folder: the site's folder.
        uid: the user that the daemon runs as; this process's by default.

    Raises:
        StateError: a file or folder belongs to another user, is writable by others, or is a link.
    """
    own = os.geteuid() if uid is None else uid
    for path in (folder.site_toml, folder.federation_toml):  # links too: some administrators write these files
        if (status := _status(path, follow=True)) is not None:
            _check(path, status, owners={own, 0}, refused_mode=WRITE_BY_OTHERS, remedy=f"chmod go-w {path}")
    for path, refused_mode in _state(folder):
        status = _status(path, follow=path == folder.path)
        if status is None:
            continue
        if stat.S_ISLNK(status.st_mode):
            raise StateError(
                f"{path} is a link to {os.readlink(path)}: the daemon would write and delete there",
                f"move its content to {path} itself, or mount the other disk at {folder.path}",
            )
        _check(path, status, owners={own}, refused_mode=refused_mode, remedy=f"chmod -R go-rwx {folder.path}")


def _state(folder: SiteFolder) -> Iterator[tuple[Path, int]]:
    """Yield the paths that the daemon writes and later reads, each with the refused mode bits."""
    yield folder.path, WRITE_BY_OTHERS
    yield folder.pki, ANY_BY_OTHERS
    yield folder.egress_db, WRITE_BY_OTHERS
    for number in folder.generations():
        home = folder.generation(number)
        for path in (
            home,
            *(home / name for name in ("journal.db", "artifacts", "checkpoints", COHORTS, STRAY_FOLDER)),
        ):
            yield path, WRITE_BY_OTHERS
        yield home / SUM_SECRETS_FOLDER, ANY_BY_OTHERS


def _status(path: Path, *, follow: bool) -> os.stat_result | None:
    try:
        return path.stat() if follow else path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{path} cannot be examined: {error.strerror}", f"run as the user that owns {path}") from error


def _check(path: Path, status: os.stat_result, *, owners: set[int], refused_mode: int, remedy: str) -> None:
    if status.st_uid not in owners:
        me, owner = _user(max(owners)), _user(status.st_uid)
        raise StateError(
            f"{path} belongs to user {owner}, and this is user {me}",
            f"run the command as {owner}, or give the whole folder to {me} with `chown -R`",
        )
    mode = stat.S_IMODE(status.st_mode)
    if mode & refused_mode:
        verb = "write" if mode & WRITE_BY_OTHERS else "enter"
        raise StateError(f"other users can {verb} {path} (mode {mode:04o})", f"run `{remedy}`")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
