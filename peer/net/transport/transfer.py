"""Artifacts between disk and stream: the sender reads from an offset, the receiver hashes, writes and verifies.

Memory does not grow with the artifact. No file gets its final name before its digest is verified: ``<sha256>.part``
becomes ``<sha256>.safetensors`` after the last check. When a stream breaks, the part stays, and this process or the
next one resumes it. All file work happens in threads.

A part has its full length from the beginning, followed by the number of bytes that have arrived. So the receiver can
reuse the file of a deleted artifact, ``<sha256>.discarded``, and the kernel need not allocate its pages anew.

A round need not wait for the disk: an artifact can get its final name before it is durable. Until ``sync_artifacts``
runs, the file ``<sha256>.unsynced`` marks it, and the next start verifies the artifact again, which a power failure may
have torn (``verify_unsynced``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import struct
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, ClassVar, Self, TypeVar

from peer.core import limits
from peer.core.roster import Sha256
from peer.errors import DiskError
from peer.files import artifact_path, sync_folder

Result = TypeVar("Result")

PART_SUFFIX = ".part"
DISCARDED_SUFFIX = ".discarded"
UNSYNCED_SUFFIX = ".unsynced"
CHUNK_BYTES_MIN = 64 << 10  # a connection of 35 kbit/s carries one within STALL_S
CHUNK_FAST_S = 0.25  # after a faster chunk the next one has twice its size
CHUNK_SLOW_S = 1.0  # after a slower one the next one has half its size, so that slow connections show progress

UNWRITTEN_CHUNKS_MAX = 4  # chunks queued for the disk; more gained nothing, with none each write would stop the stream
UNWRITTEN_IN_ALL = 8  # of all concurrent downloads; above it, each stream stops at each write
STREAMS_AT_ONCE = 4  # they fill a line; gRPC keeps a megabyte of each, which is 240 MB less than of 31
STREAM_TURN_S = 0.25
STREAM_TURN_BYTES = 2 << 20  # a stream that carries less in its turn is slow; a busy machine does not reach 8 MiB
IDLE_THREADS_MAX = 2 * STREAMS_AT_ONCE  # for downloads and uploads
ARRIVED = struct.Struct("<Q")  # follows the bytes of a part: how many of them have arrived
BLOCK_BYTES = 512  # of `st_blocks`
FLUSH_BYTES = 4 << 20  # written to disk while the next chunks arrive; smaller pieces were slower


class ArtifactWrong(Exception):  # noqa: N818 - the name is the fact
    """The received bytes are not those of the manifest; the part is deleted."""


class PartVanished(Exception):  # noqa: N818 - the name is the fact
    """Someone deleted the part before it got its final name; it must be received again."""


class InsufficientSpace(Exception):  # noqa: N818 - the name is the fact
    """This site has no space for the artifact; the part is deleted, the site runs on."""


def sync_artifacts(folder: Path, digests: Iterable[Sha256]) -> None:
    """Make artifacts durable that were received without ``durable``; skip one that is deleted meanwhile."""
    synced = []
    for sha256 in digests:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(artifact_path(folder, sha256), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            synced.append(sha256)
    sync_folder(folder)
    for sha256 in synced:
        artifact_path(folder, sha256).with_suffix(UNSYNCED_SUFFIX).unlink(missing_ok=True)


def verify_unsynced(folder: Path) -> list[Sha256]:
    """Sync artifacts that an earlier process did not; delete those torn by a power failure, and return their digests.

    Raises:
        DiskError: this site's disk failed.
    """
    unsynced, torn = [Sha256(marker.stem) for marker in folder.glob(f"*{UNSYNCED_SUFFIX}")], []
    try:
        for sha256 in unsynced:
            path = artifact_path(folder, sha256)
            if not path.exists():
                path.with_suffix(UNSYNCED_SUFFIX).unlink()
            elif not is_complete(path, sha256=sha256, size=path.stat().st_size):
                path.unlink()
                path.with_suffix(UNSYNCED_SUFFIX).unlink()
                torn.append(sha256)
        if unsynced:
            sync_artifacts(folder, unsynced)
    except OSError as error:
        raise DiskError(f"{folder} cannot be used: {error.strerror}") from error
    return torn


def is_complete(path: Path, *, sha256: Sha256, size: int, check: Callable[[Path], None] = lambda path: None) -> bool:
    """Return whether the file exists, has this size and digest, and passes ``check``; reads the whole file.

    ``check`` raises ``ValueError``, which passes through. A file that vanishes meanwhile counts as missing.
    """
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != size or hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return False
            check(path)
            return True
    except FileNotFoundError:
        return False


def is_shared(file: int) -> bool:
    """Return whether another descriptor, a mapping or another name may still refer to the file.

    The descriptor is open for reading and writing. If the system cannot tell, the file counts as shared.
    """
    try:
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # by default ignored, should the file be opened just now
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)  # granted only where nobody else has the file open
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except (OSError, AttributeError):
        return True
    return os.fstat(file).st_nlink > 1


class FileThread:
    """The only thread that uses a file: steps run in order, the event loop never waits for the disk.

    Idle threads are reused for the next files: starting one takes longer than a small artifact.
    """

    _idle: ClassVar[deque[ThreadPoolExecutor]] = deque()

    def __init__(self) -> None:
        try:
            self._thread = self._idle.popleft()
        except IndexError:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="file")

    def submit(self, step: Callable[..., Result], *arguments: Any) -> Future[Result]:
        """Queue a step after the earlier ones."""
        return self._thread.submit(step, *arguments)

    def run(self, step: Callable[..., Result], *arguments: Any) -> asyncio.Future[Result]:
        """Queue a step, and return a future of its result.

        A cancellation does not reach the thread, which must not skip bytes.
        """
        return asyncio.shield(asyncio.wrap_future(self.submit(step, *arguments)))

    async def end(self, step: Callable[..., None], *arguments: Any) -> None:
        """Run the last step, and release the thread to another file, whose steps queue behind it."""
        closing = self.run(step, *arguments)
        if len(self._idle) < IDLE_THREADS_MAX:
            self._idle.append(self._thread)
        else:
            self._thread.shutdown(wait=False)
        await closing


class OutgoingArtifact:
    """An artifact on its way to a peer; ``sent`` counts the bytes that may have left."""

    def __init__(self, path: Path, *, offset: int) -> None:
        self.sent = 0
        self._path = path
        self._offset = offset
        self._file: BinaryIO | None = None

    async def send(
        self,
        write: Callable[[bytes], Awaitable[None]],
        *,
        stall_s: float = limits.STALL_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Pass the file from the offset to ``write``, chunk by chunk, and close it in any case.

        The event loop reads a chunk itself only if the page cache has both its ends, and then rarely waits for the
        disk. A thread reads the other chunks; one thread per chunk is slower.

        Raises:
            OSError: the file cannot be read.
            ValueError: the offset is beyond the file's end.
            TimeoutError: the receiver took no byte for ``stall_s``.
        """
        clock = clock or asyncio.get_running_loop().time
        thread = FileThread()
        size = CHUNK_BYTES_MIN
        try:
            await thread.run(self._open)
            while chunk := self._read_cached(size) or await thread.run(self._read, size):
                self._offset += len(chunk)
                self.sent += len(chunk)
                began_s = clock()
                async with asyncio.timeout(stall_s):
                    await write(chunk)
                took_s = clock() - began_s
                if took_s < CHUNK_FAST_S:
                    size = min(2 * size, limits.CHUNK_BYTES)
                elif took_s > CHUNK_SLOW_S:
                    size = max(size // 2, CHUNK_BYTES_MIN)
        finally:
            await thread.end(self._close)

    def _read_cached(self, size: int) -> bytes | None:
        """Read the chunk if the page cache has its ends; return ``None`` if not, or if the system cannot tell."""
        assert self._file is not None
        file, byte = self._file.fileno(), [bytearray(1)]
        try:
            ends = [os.preadv(file, byte, at, os.RWF_NOWAIT) for at in (self._offset, self._offset + size - 1)]
        except (OSError, AttributeError):
            return None
        if ends != [1, 1]:
            return None
        # The kernel reads ahead while the chunk is sent, so the cache rarely lacks the next one.
        os.posix_fadvise(file, self._offset + size, 2 * limits.CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
        return os.pread(file, size, self._offset)

    # --- in the thread ---
    def _open(self) -> None:
        self._file = self._path.open("rb", buffering=0)
        size = os.fstat(self._file.fileno()).st_size
        if self._offset > size:
            raise ValueError(f"offset {self._offset} is beyond the {size} bytes of the artifact")

    def _read(self, size: int) -> bytes:
        assert self._file is not None
        file = self._file.fileno()
        os.posix_fadvise(file, self._offset + size, 2 * limits.CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
        return os.pread(file, size, self._offset)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()


class StreamTurn:
    """Turn of a download: a few streams may fill the line, the others wait.

    A slow stream returns its turn and continues: many slow links are used at once, and a peer that delivers nothing
    delays the others by at most ``STREAM_TURN_S``.
    """

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self.moved = 0
        self._turns = turns
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.give_back()

    async def take(self) -> None:
        await self._turns.acquire()
        self._wait()

    def give_back(self) -> None:
        """End the turn; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._turns.release()

    def _wait(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(STREAM_TURN_S, self._look, self.moved)

    def _look(self, moved_before: int) -> None:
        if self.moved - moved_before < STREAM_TURN_BYTES:
            self.give_back()
        else:
            self._wait()


class IncomingArtifact:
    """An artifact on its way from a peer; one thread owns its file, and calls queue for it.

    Use it as an async context manager. An exception or a cancellation in the block keeps the part for the next attempt;
    ``ArtifactWrong``, ``InsufficientSpace`` and ``DiskError`` delete it.
    """

    _under_way: ClassVar[set[IncomingArtifact]] = set()
    """This process's incoming artifacts; disk space is reserved for their remaining bytes."""
    _counted = threading.Lock()
    """Protects ``_under_way``: each artifact has its own thread."""

    def __init__(self, folder: Path, *, sha256: Sha256, size: int, durable: bool = True) -> None:
        """Prepare to receive ``size`` bytes with this digest into an existing folder.

        Without ``durable``, the artifact is durable only after ``sync_artifacts``.
        """
        self.received = 0
        self.resumed = False
        self._final = artifact_path(folder, sha256)
        self._part = folder / f"{sha256}{PART_SUFFIX}"
        self._sha256 = sha256
        self._size = size
        self._durable = durable
        self._thread = FileThread()
        self._unwritten: deque[Future[None]] = deque()
        self._flushed = self._allocated = 0
        self._hash = hashlib.sha256()
        self._file = -1

    async def __aenter__(self) -> Self:
        """Open the part; hash the bytes of an earlier attempt again, and count them as received."""
        try:
            await self._thread.run(self._open)
        except BaseException:
            await self._thread.end(self._close, False)
            raise
        self.resumed = self.received > 0
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the part after the thread's last step; ``ArtifactWrong`` deletes it."""
        await self._thread.end(self._close, isinstance(error, ArtifactWrong))

    async def feed(self, chunk: bytes | memoryview) -> None:
        """Queue the next bytes for hashing and writing; wait while too many chunks are queued."""
        if self.received + len(chunk) > self._size:
            raise ArtifactWrong(f"more than the {self._size} bytes of the manifest came")
        self._unwritten.append(self._thread.submit(self._write, chunk))
        self.received += len(chunk)
        await self._catch_up(min(UNWRITTEN_CHUNKS_MAX, UNWRITTEN_IN_ALL // len(self._under_way)))

    async def finish(self, check: Callable[[Path], None]) -> Path:
        """Verify the digest, ``check`` the file, and give it its final name.

        ``check`` runs in the thread on the part, and raises ``ValueError`` with the reason to refuse it. Raises
        ``PartVanished`` if the part is gone.
        """
        await self._catch_up(0)
        return await self._thread.run(self._finish, check)

    async def _catch_up(self, unwritten_max: int) -> None:
        """Above ``unwritten_max`` queued chunks, wait until half remain: the thread wakes the loop less often."""
        if len(self._unwritten) > unwritten_max:
            surplus = len(self._unwritten) - unwritten_max // 2
            await asyncio.shield(asyncio.wrap_future(self._unwritten[surplus - 1]))
            for _ in range(surplus):
                self._unwritten.popleft().result()

    # --- in the thread ---
    def _open(self) -> None:
        with self._storage():
            reused = not self._part.exists() and self._take_discarded()
            self._open_part()
            if reused and is_shared(self._file):
                os.close(self._file)
                self._part.unlink()
                self._open_part()
            status = os.fstat(self._file)
            self._allocated = status.st_blocks * BLOCK_BYTES
            self.received = self._flushed = 0 if reused else self._arrived(status.st_size)
            self._check_space()
            os.ftruncate(self._file, self._size + ARRIVED.size)
            self._count(self.received)
            while (position := os.lseek(self._file, 0, os.SEEK_CUR)) < self.received:
                self._hash.update(os.read(self._file, min(limits.CHUNK_BYTES, self.received - position)))

    def _open_part(self) -> None:
        self._file = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _arrived(self, length: int) -> int:
        """Read how many bytes of the part arrived earlier; their digest tells whether that is true."""
        if length == self._size:  # only the final name was missing
            return self._size
        if length != self._size + ARRIVED.size:
            return 0
        (arrived,) = ARRIVED.unpack(os.pread(self._file, ARRIVED.size, self._size))
        return int(arrived) if arrived <= self._size else 0

    def _take_discarded(self) -> bool:
        """Rename a discarded artifact to the part; return False if there is none."""
        for path in sorted(self._part.parent.glob(f"*{DISCARDED_SUFFIX}")):
            with contextlib.suppress(FileNotFoundError):  # the thread of another artifact took it
                path.rename(self._part)
                return True
        return False

    def _count(self, arrived: int) -> None:
        os.pwrite(self._file, ARRIVED.pack(arrived), self._size)

    def _missing(self) -> int:
        """Return the bytes for which no disk space is allocated yet."""
        return self._size - min(self._size, max(self.received, self._allocated))

    def _check_space(self) -> None:
        """Reserve disk space for the artifact beside the reserve. Raises ``DiskError`` if too little is free."""
        free = shutil.disk_usage(self._part.parent).free
        if free < limits.DISK_RESERVE_BYTES:
            raise DiskError(f"the disk of {self._part.parent} is full: {free} of {limits.DISK_RESERVE_BYTES} bytes")
        with self._counted:
            promised = sum(other._missing() for other in self._under_way)
            usable, needed = max(0, free - promised - limits.DISK_RESERVE_BYTES), self._missing()
            if needed > usable:
                raise OSError(errno.ENOSPC, f"{needed} bytes are needed, {usable} are free")
            self._under_way.add(self)

    def _write(self, chunk: bytes | memoryview) -> None:
        with self._storage():
            self._hash.update(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(self._file, rest) :]
            position = os.lseek(self._file, 0, os.SEEK_CUR)
            self._count(position)
            if self._durable and position - self._flushed >= FLUSH_BYTES:
                # Linux starts to write these pages back and keeps them, since they are dirty: the final fsync
                # has little left to do.
                os.posix_fadvise(self._file, self._flushed, position - self._flushed, os.POSIX_FADV_DONTNEED)
                self._flushed = position

    def _finish(self, check: Callable[[Path], None]) -> Path:
        if self.received != self._size or self._hash.hexdigest() != self._sha256:
            raise ArtifactWrong(f"{self.received} bytes came whose digest is not the manifest's")
        with self._storage():
            os.ftruncate(self._file, self._size)
        try:
            check(self._part)
        except ValueError as error:
            raise ArtifactWrong(str(error)) from error
        except FileNotFoundError:
            raise PartVanished from None
        with self._storage():
            if self._durable:
                os.fsync(self._file)
            else:
                self._final.with_suffix(UNSYNCED_SUFFIX).touch(0o600)
            try:
                self._part.rename(self._final)
            except FileNotFoundError:
                raise PartVanished from None
            if self._durable:
                sync_folder(self._final.parent)
        return self._final

    @contextlib.contextmanager
    def _storage(self) -> Iterator[None]:
        """Delete the part and raise an exception if the disk fails.

        An artifact that does not fit must not stop the site, since another site decides how large an artifact is.
        """
        try:
            yield
        except OSError as error:
            self._discard()
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InsufficientSpace(f"the disk has no room for it: {error.strerror}") from error
            raise DiskError(f"{self._part} cannot be written: {error.strerror}") from error

    def _discard(self) -> None:
        self._part.unlink(missing_ok=True)

    def _close(self, discard: bool) -> None:
        with self._counted:
            self._under_way.discard(self)
        if discard:
            self._discard()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
