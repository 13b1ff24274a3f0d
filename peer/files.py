"""Durable writes: after a crash, a file or folder has either its old or its new content. Failures are ``OSError``."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

UNFINISHED = ".unfinished-"
"""Prefix of files being written; at startup, a file with this prefix is left over from a crash."""
ARTIFACT_SUFFIX = ".safetensors"
STATISTICS_FILE = "statistics.json"
"""In a generation's folder: what the method `statistics` counted."""
STRAY_FOLDER = "stray"
"""Beside ``artifacts/``: artifacts that no journal row names."""
SUM_SECRETS_FOLDER = "sums"
"""In a generation's folder: the seeds of secure sums."""
STRAYS_MAX = 64
"""Files kept in that folder: the artifacts of about ten rounds of a federation of six."""


def artifact_path(folder: Path, sha256: str) -> Path:
    """Return the path of an artifact, which is content-addressed."""
    return folder / f"{sha256}{ARTIFACT_SUFFIX}"


def write_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write or replace a file atomically and durably; without a mode, the process's umask applies."""
    unfinished = path.with_name(f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-{path.name}")
    try:
        _write(unfinished, content, mode)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_artifact_parts(folder: Path, parts: Iterable[bytes | memoryview]) -> tuple[str, int]:
    """Write an artifact part by part, atomically and durably, under its digest; an error of ``parts`` leaves no file.

    Returns:
        The SHA-256 in hex, and the size in bytes.
    """
    unfinished = folder / f"{UNFINISHED}{os.getpid()}-{threading.get_ident()}-parts"
    digest, size = hashlib.sha256(), 0
    try:
        with unfinished.open("wb") as file:
            for part in parts:
                file.write(part)
                digest.update(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(artifact_path(folder, digest.hexdigest()))
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    return digest.hexdigest(), size


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Write a folder of files durably; atomically replace one of the same name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{UNFINISHED}{path.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for name, content in files.items():
        _write(unfinished / name, content)
    sync_folder(unfinished)
    remove_folder(path)
    unfinished.replace(path)
    sync_folder(path.parent)
    sync_folder(path.parent.parent)


def remove_folder(path: Path) -> None:
    """Remove a folder atomically: no reader sees a part of it."""
    if path.exists():
        removed = path.with_name(f"{UNFINISHED}{path.name}.old")
        shutil.rmtree(removed, ignore_errors=True)
        path.replace(removed)
        shutil.rmtree(removed)


def put_aside(paths: Sequence[Path], folder: Path) -> None:
    """Move files into a folder, durably.

    First delete the folder's oldest files beyond ``STRAYS_MAX``; the files moved now are all kept.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    earlier = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
    for path in earlier[:-STRAYS_MAX]:
        path.unlink()
    for path in paths:
        path.replace(folder / path.name)
    sync_folder(folder)
    sync_folder(folder.parent)


def clear_unfinished(folder: Path) -> None:
    """Remove the files and folders under the folder that a crash left half written."""
    for path in sorted(folder.rglob(f"{UNFINISHED}*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def stamp(path: str | Path) -> tuple[int, ...]:
    """Return a value that changes whenever the file is replaced or written; empty if the file cannot be read."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot sync a folder and need not
            raise
    finally:
        os.close(descriptor)


def _write(path: Path, content: bytes, mode: int | None = None) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666 if mode is None else mode)
    with os.fdopen(descriptor, "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
