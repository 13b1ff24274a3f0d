"""A site's disk: real files and real SQLite over a layer that can fail.

Every write of a process passes this layer: SQLite's through a VFS (apsw), all others through the
functions of ``os``. A write counts as durable after the next ``fsync`` of its file; the entry of a
new, renamed or removed file after the next ``fsync`` of its folder. A crash of the machine keeps
any part of what is not durable: of writes to files any subset, the last piece of each at a sector's
border; of a folder's changes the first ones. A crash of the process alone keeps everything.

A folder itself is durable as soon as it is made: the layer does not lose whole folders.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from simulation.loop import PROCESS, Crash

SECTOR_BYTES = 512
CAPACITY_BYTES = 1 << 30


@dataclass(slots=True)
class PendingWrite:
    """A write that is not durable yet."""

    offset: int
    before: bytes
    after: bytes
    size_before: int
    truncates: bool = False


class Disk:
    """Args:
    root: the site's folder; the disk holds everything under it.
    rng: decides what a crash leaves.

    ``_pending`` has what is not durable yet of each file, ``_undo`` of each folder how to take its changes back.
    """

    def __init__(self, root: Path, rng: random.Random) -> None:
        self.root, self._rng = str(root), rng
        self.operations = 0
        self.crash_at: int | None = None
        self.full, self.was_full, self.slow_s = False, False, 0.0
        self.newest_worker: Any = None
        self._pending: dict[str, list[PendingWrite]] = {}
        self._undo: dict[str, list[Callable[[], None]]] = {}

    # --- what the layer above calls ---
    def write(
        self, path: str, offset: int, data: bytes, *, size: int, old: bytes, apply: Callable[[bytes], Any]
    ) -> None:
        """Write, or fail, or crash with a part of it written."""
        if self._due():
            data = data[: self._rng.randrange(len(data) + 1)]
            if data:
                self._pend(path, PendingWrite(offset, old[: len(data)], data, size))
                apply(data)
            self._crash()
        self._check_space()
        self._pend(path, PendingWrite(offset, old, data, size))
        apply(data)

    def truncate(self, path: str, length: int, *, size: int, old: bytes, apply: Callable[[], Any]) -> None:
        self._gate()
        if length < size:
            self._pend(path, PendingWrite(length, old, b"", size, truncates=True))
        apply()

    def sync(self, path: str) -> None:
        """Make the content of a file, or the entries of a folder, durable."""
        self._gate()
        if path in self._pending:
            self._pending[path].clear()
        else:
            self._undo.pop(path, None)

    def create(self, path: str, apply: Callable[[], Any]) -> Any:
        self._gate()
        self._check_space()
        result = apply()
        self._change(path, lambda: self._forget(path))
        return result

    def rename(self, source: str, target: str, apply: Callable[[], Any]) -> None:
        self._gate()
        replaced = _content(target)
        replaced_writes = self._pending.pop(target, None)
        apply()
        if source in self._pending:
            self._pending[target] = self._pending.pop(source)

        def undo() -> None:
            REAL["rename"](target, source)
            if target in self._pending:
                self._pending[source] = self._pending.pop(target)
            if replaced is not None:
                self._restore(target, replaced, replaced_writes)

        self._change(target, undo)

    def unlink(self, path: str, apply: Callable[[], Any]) -> None:
        self._gate()
        content = _content(path)
        apply()
        writes = self._pending.pop(path, None)
        if content is not None:
            self._change(path, lambda: self._restore(path, content, writes))

    def unsynced(self, path: str) -> bool:
        """Whether a crash of the machine could lose a part of the file."""
        return bool(self._pending.get(path))

    # --- crashes ---
    def lose_power(self) -> None:
        """Leave what a crash of the machine may leave, and start with it as durable."""
        for folder in sorted(self._undo):
            changes = self._undo[folder]
            for undo in reversed(changes[self._rng.randint(0, len(changes)) :]):
                undo()
        for path in sorted(self._pending):
            writes = self._pending[path]
            if writes and os.path.exists(path):
                self._tear(path, writes)
        self.settle()

    def settle(self) -> None:
        """Take the files as they are for durable."""
        self._undo.clear()
        self._pending.clear()
        for folder, _, names in os.walk(self.root):
            for name in names:
                if name.endswith("-shm"):
                    REAL["unlink"](os.path.join(folder, name))

    def _tear(self, path: str, writes: list[PendingWrite]) -> None:
        with open(path, "r+b") as file:
            for write in reversed(writes):
                file.seek(write.offset)
                file.write(write.before)
                file.truncate(write.size_before)
            for write in writes:
                if write.truncates:
                    if self._rng.random() < 0.5:
                        file.truncate(write.offset)
                    continue
                kept = self._rng.choice((0.0, 1.0, self._rng.random()))
                length = int(len(write.after) * kept)
                if length < len(write.after):
                    length -= (write.offset + length) % SECTOR_BYTES
                if length > 0:
                    file.seek(write.offset)
                    file.write(write.after[:length])

    def _pend(self, path: str, write: PendingWrite) -> None:
        self._pending.setdefault(path, []).append(write)

    def _change(self, path: str, undo: Callable[[], None]) -> None:
        self._undo.setdefault(os.path.dirname(path), []).append(undo)

    def _forget(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            REAL["unlink"](path)
        self._pending.pop(path, None)

    def _restore(self, path: str, content: bytes, writes: list[PendingWrite] | None) -> None:
        """Put a file back, with what was not durable of it."""
        with open(path, "wb") as file:
            file.write(content)
        os.chmod(path, 0o600)  # secrets are among them
        if writes is not None:
            self._pending[path] = writes

    def _check_space(self) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _due(self) -> bool:
        """Count an operation; whether the process crashes in it."""
        process = PROCESS.get()
        if process is not None:
            process.check()
        self.operations += 1
        return process is not None and self.crash_at is not None and self.operations >= self.crash_at

    def _gate(self) -> None:
        if self._due():
            self._crash()

    def _crash(self) -> None:
        self.crash_at = None
        PROCESS.get().crash()
        raise Crash


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


# --- SQLite ---
REAL: dict[str, Any] = {
    name: getattr(os, name)
    for name in (
        "open",
        "write",
        "pwrite",
        "close",
        "fsync",
        "ftruncate",
        "rename",
        "replace",
        "unlink",
        "remove",
        "fdopen",
    )
}
VFS_NAME = "simulated"


def put_file(path: Path, content: bytes) -> None:
    """Write a secret file durably and at once, past the layer that can fail: an operator tries until it succeeds."""
    part = path.with_name(f"{path.name}.part")
    descriptor = REAL["open"](part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    REAL["write"](descriptor, content)
    REAL["close"](descriptor)
    REAL["replace"](part, path)


class Disks:
    """The disks of all sites, in place of the real one while ``mounted``."""

    def __init__(self) -> None:
        self._disks: list[Disk] = []
        self._open_files: dict[int, str] = {}

    def add(self, disk: Disk) -> None:
        self._disks.append(disk)

    def of(self, path: Any) -> Disk | None:
        """The disk that a path lies on; ``None`` of a path elsewhere."""
        text = os.fspath(path) if not isinstance(path, int) else self._open_files.get(path, "")
        return next((disk for disk in self._disks if f"{text}/".startswith(f"{disk.root}/")), None)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[None]:
        """Send what this process writes through the disks."""
        vfs = SimulatedVFS(self)
        functions = {name: getattr(self, f"_{name}") for name in REAL}
        with contextlib.ExitStack() as stack:
            stack.callback(vfs.unregister)
            for name, function in functions.items():
                stack.enter_context(mock.patch.object(os, name, function))
            stack.enter_context(mock.patch.object(os, "preadv", _no_preadv))
            stack.enter_context(mock.patch.object(shutil, "disk_usage", self._disk_usage))
            stack.enter_context(mock.patch.object(sqlite3, "connect", self._connect))
            yield

    # --- in place of the functions of `os` ---
    def _open(self, path: Any, flags: int, mode: int = 0o777, **options: Any) -> int:
        disk = self.of(path) if isinstance(path, str | os.PathLike) else None
        if disk is None:
            return int(REAL["open"](path, flags, mode, **options))
        text = os.fspath(path)

        def apply() -> int:
            return int(REAL["open"](path, flags, mode, **options))

        new = flags & os.O_CREAT and not os.path.exists(text)
        if flags & os.O_TRUNC and not new:
            old = _content(text) or b""
            disk.truncate(text, 0, size=len(old), old=old, apply=lambda: None)
        descriptor = disk.create(text, apply) if new else apply()
        self._open_files[descriptor] = text
        return int(descriptor)

    def _write(self, descriptor: int, data: Any) -> int:
        if self.of(descriptor) is None:
            return int(REAL["write"](descriptor, data))
        length = self._pwrite(descriptor, data, os.lseek(descriptor, 0, os.SEEK_CUR))
        os.lseek(descriptor, length, os.SEEK_CUR)
        return length

    def _pwrite(self, descriptor: int, data: Any, offset: int) -> int:
        disk = self.of(descriptor)
        if disk is None:
            return int(REAL["pwrite"](descriptor, data, offset))
        content, size = bytes(data), os.fstat(descriptor).st_size
        old = os.pread(descriptor, len(content), offset) if offset < size else b""

        def apply(part: bytes) -> None:
            REAL["pwrite"](descriptor, part, offset)

        disk.write(self._open_files[descriptor], offset, content, size=size, old=old, apply=apply)
        return len(content)

    def _fsync(self, descriptor: int) -> None:
        disk = self.of(descriptor)
        if disk is not None:
            disk.sync(self._open_files[descriptor])
        else:
            REAL["fsync"](descriptor)

    def _ftruncate(self, descriptor: int, length: int) -> None:
        disk = self.of(descriptor)
        if disk is None:
            REAL["ftruncate"](descriptor, length)
            return
        size = os.fstat(descriptor).st_size
        old = os.pread(descriptor, max(0, size - length), length)
        path = self._open_files[descriptor]
        disk.truncate(path, length, size=size, old=old, apply=lambda: REAL["ftruncate"](descriptor, length))

    def _close(self, descriptor: int) -> None:
        self._open_files.pop(descriptor, None)
        REAL["close"](descriptor)

    def _fdopen(self, descriptor: int, *args: Any, **options: Any) -> Any:
        if descriptor in self._open_files:
            return io.BufferedWriter(DescriptorFile(descriptor))
        return REAL["fdopen"](descriptor, *args, **options)

    def _rename(self, source: Any, target: Any, **options: Any) -> None:
        disk = self.of(source)
        if disk is None:
            REAL["rename"](source, target, **options)
        else:
            disk.rename(os.fspath(source), os.fspath(target), lambda: REAL["rename"](source, target))

    _replace = _rename

    def _unlink(self, path: Any, **options: Any) -> None:
        disk = self.of(path) if not options else None
        if disk is None:
            REAL["unlink"](path, **options)
        else:
            disk.unlink(os.fspath(path), lambda: REAL["unlink"](path))

    _remove = _unlink

    def _disk_usage(self, path: Any) -> Any:
        disk = self.of(path)
        free = 0 if disk is not None and disk.full else CAPACITY_BYTES
        return shutil._ntuple_diskusage(CAPACITY_BYTES, CAPACITY_BYTES - free, free)  # type: ignore[attr-defined]

    def _connect(self, path: Any, *, uri: bool = False, isolation_level: None = None, **options: Any) -> Any:
        return Connection(os.fspath(path), read_only="mode=ro" in str(path), uri=uri)


def _no_preadv(*args: Any) -> int:
    """The page cache of the machine that runs the simulation must not decide anything."""
    raise OSError(errno.EOPNOTSUPP, "not in the simulation")


class DescriptorFile(io.RawIOBase):
    """A file object whose writes go through ``os.write``."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def write(self, data: Any) -> int:
        return os.write(self._descriptor, data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            os.close(self._descriptor)


class SimulatedVFS(apsw.VFS):
    """SQLite's layer below its files, over the one of the system."""

    def __init__(self, disks: Disks) -> None:
        self._disks = disks
        super().__init__(VFS_NAME, "", maxpathname=1024)

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        disk = self._disks.of(path) if path else None
        if disk is None:
            return apsw.VFSFile("", name, flags)
        with _io_errors():
            if os.path.exists(path):
                return SimulatedFile(disk, path, name, flags)
            return disk.create(path, lambda: SimulatedFile(disk, path, name, flags))

    def xDelete(self, path: str, sync_folder: bool) -> None:  # noqa: N802
        disk = self._disks.of(path)
        if disk is None:
            super().xDelete(path, sync_folder)
            return
        with _io_errors():
            disk.unlink(path, lambda: super(SimulatedVFS, self).xDelete(path, sync_folder))
            if sync_folder:
                disk.sync(os.path.dirname(path))


class SimulatedFile(apsw.VFSFile):
    """A database file or its log."""

    def __init__(self, disk: Disk, path: str, name: Any, flags: list[int]) -> None:
        self._disk, self._path = disk, path
        self._sync_entry = path.endswith(("-wal", "-journal"))  # as the system's VFS, at the first sync of each opening
        super().__init__("", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        size = super().xFileSize()
        old = super().xRead(min(len(data), size - offset), offset) if offset < size else b""
        with _io_errors():
            self._disk.write(
                self._path,
                offset,
                bytes(data),
                size=size,
                old=old,
                apply=lambda part: super(SimulatedFile, self).xWrite(part, offset),
            )

    def xTruncate(self, length: int) -> None:  # noqa: N802
        size = super().xFileSize()
        old = super().xRead(size - length, length) if length < size else b""
        with _io_errors():
            self._disk.truncate(
                self._path, length, size=size, old=old, apply=lambda: super(SimulatedFile, self).xTruncate(length)
            )

    def xSync(self, flags: int) -> None:  # noqa: N802
        with _io_errors():
            self._disk.sync(self._path)
            if self._sync_entry:
                self._sync_entry = False
                self._disk.sync(os.path.dirname(self._path))


@contextlib.contextmanager
def _io_errors() -> Iterator[None]:
    """Let SQLite see the disk's failures as its own errors."""
    try:
        yield
    except Crash:
        raise apsw.IOError("crashed") from None
    except OSError as error:
        raise (apsw.FullError if error.errno == errno.ENOSPC else apsw.IOError)(str(error)) from None


FAILURES = {
    apsw.FullError: sqlite3.SQLITE_FULL,
    apsw.IOError: sqlite3.SQLITE_IOERR,
    apsw.BusyError: sqlite3.SQLITE_BUSY,
    apsw.CantOpenError: sqlite3.SQLITE_CANTOPEN,
    apsw.ReadOnlyError: sqlite3.SQLITE_READONLY,
    apsw.SQLError: sqlite3.SQLITE_ERROR,
}
"""The errors that Python's module raises as `OperationalError`, with their codes."""


class Connection:
    """As much of ``sqlite3.Connection`` as the records use, over apsw and the simulated VFS."""

    def __init__(self, path: str, *, read_only: bool, uri: bool) -> None:
        flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
        self._process = PROCESS.get()
        if self._process is not None:
            self._process.check()
        try:
            self._connection = apsw.Connection(
                path, flags=flags | (apsw.SQLITE_OPEN_URI if uri else 0), vfs=VFS_NAME if path != ":memory:" else None
            )
        except apsw.Error as error:
            raise self._failure(error) from error
        if self._process is not None:
            self._process.connections.append(self)

    def execute(self, statement: str, values: Any = ()) -> Any:
        if self._process is not None:
            self._process.check()
        try:
            return self._connection.execute(statement, values)
        except apsw.Error as error:
            raise self._failure(error) from error

    executescript = execute

    def backup(self, target: Connection) -> None:
        try:
            with target._connection.backup("main", self._connection, "main") as copy:
                copy.step()
        except apsw.Error as error:
            raise self._failure(error) from error

    def close(self) -> None:
        process = self._process
        if process is not None and self in process.connections:
            process.connections.remove(self)
        with contextlib.suppress(apsw.Error):
            self._connection.close(True)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if self._connection.in_transaction:
            try:
                self.execute("COMMIT" if error is None else "ROLLBACK")
            except sqlite3.Error:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                if error is None:
                    raise

    def _failure(self, error: apsw.Error) -> BaseException:
        """The exception of the standard library in place of apsw's."""
        if self._process is not None and self._process.dead:
            return Crash()
        kind = sqlite3.OperationalError if type(error) in FAILURES else sqlite3.DatabaseError
        failure = kind(str(error))
        failure.sqlite_errorcode = FAILURES.get(type(error), sqlite3.SQLITE_CORRUPT)
        return failure
