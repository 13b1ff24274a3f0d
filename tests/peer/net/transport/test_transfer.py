"""The sent bytes are those on disk; received bytes get their name only if they are the manifest's."""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import mmap
import os
import resource
import shutil
import threading
from collections import deque

import pytest

from peer.core import limits
from peer.errors import DiskError
from peer.net.transport import transfer
from peer.net.transport.transfer import (
    ARRIVED,
    CHUNK_BYTES_MIN,
    ArtifactWrong,
    IncomingArtifact,
    InsufficientSpace,
    OutgoingArtifact,
    is_complete,
    sync_artifacts,
    verify_unsynced,
)

CONTENT = os.urandom(3 * limits.CHUNK_BYTES + 17)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PART, FINAL, UNSYNCED = f"{SHA256}.part", f"{SHA256}.safetensors", f"{SHA256}.unsynced"
DISCARDED = f"{'0d' * 32}.discarded"


def incoming(folder, *, size=None, durable=True):
    return IncomingArtifact(folder, sha256=SHA256, size=len(CONTENT) if size is None else size, durable=durable)


async def receive(folder, *chunks, check=lambda part: None, **options):
    """Feed these chunks and finish."""
    async with incoming(folder, **options) as receiving:
        for chunk in chunks:
            await receiving.feed(chunk)
        return await receiving.finish(check)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def descriptors():
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def published(tmp_path):
    path = tmp_path / "published"
    path.write_bytes(CONTENT)
    return path


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "received"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("offset", [0, 1, limits.CHUNK_BYTES, len(CONTENT) - 1, len(CONTENT)])
async def test_the_file_is_sent_from_its_offset_on(published, offset):
    chunks = []

    async def write(chunk):
        chunks.append(chunk)

    outgoing = OutgoingArtifact(published, offset=offset)
    await outgoing.send(write)
    assert b"".join(chunks) == CONTENT[offset:]
    assert outgoing.sent == len(CONTENT) - offset
    assert all(0 < len(chunk) <= limits.CHUNK_BYTES for chunk in chunks)


async def test_chunks_grow_on_a_fast_line_and_shrink_on_a_slow_one(published):
    sizes, now_s = [], 0.0
    seconds = iter([0.1] * 4 + [1.5] * 2 + [0.5] * 99)

    async def write(chunk):
        nonlocal now_s
        sizes.append(len(chunk) // CHUNK_BYTES_MIN)
        now_s += next(seconds)

    await OutgoingArtifact(published, offset=0).send(write, clock=lambda: now_s)
    assert sizes == [1, 2, 4, 8, 16, 8, 4, 4, 1]


async def test_a_file_that_is_gone_or_too_short_cannot_be_sent(published):
    async def write(chunk):
        raise AssertionError("nothing may be sent")

    before = descriptors()
    with pytest.raises(ValueError, match=f"offset {len(CONTENT) + 1} is beyond the {len(CONTENT)} bytes"):
        await OutgoingArtifact(published, offset=len(CONTENT) + 1).send(write)
    published.unlink()
    with pytest.raises(FileNotFoundError):
        await OutgoingArtifact(published, offset=0).send(write)
    assert descriptors() == before


async def test_the_event_loop_runs_on_while_the_senders_disk_stalls(tmp_path):
    """A named pipe stands for a network disk that does not answer: opening it blocks."""
    os.mkfifo(stalled := tmp_path / "stalled")

    async def write(chunk):
        raise AssertionError("nothing may be sent")

    sending = asyncio.create_task(OutgoingArtifact(stalled, offset=0).send(write))
    await asyncio.sleep(0)  # the sender's thread waits from here on
    (await asyncio.to_thread(stalled.open, "wb")).close()
    with pytest.raises(OSError, match="Illegal seek"):
        await sending


async def test_a_receiver_that_takes_nothing_is_given_up(published):
    before = descriptors()
    outgoing = OutgoingArtifact(published, offset=0)

    async def never(chunk):
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await outgoing.send(never, stall_s=0.01)
    assert outgoing.sent == CHUNK_BYTES_MIN
    assert descriptors() == before


async def test_an_artifact_appears_when_it_is_complete_and_checked(folder):
    seen = []
    async with incoming(folder) as receiving:
        for start in range(0, len(CONTENT), 1_000_000):
            await receiving.feed(CONTENT[start : start + 1_000_000])
            assert names(folder) == [PART]
        path = await receiving.finish(lambda part: seen.append((part.name, part.read_bytes() == CONTENT)))
    assert seen == [(PART, True)]
    assert path == folder / FINAL
    assert path.read_bytes() == CONTENT
    assert names(folder) == [FINAL]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def synced(monkeypatch):
    """The descriptors' files at each ``fsync``."""
    files = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: files.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    return files


async def test_an_artifact_is_on_disk_before_it_has_its_name(folder, synced):
    await receive(folder, CONTENT)
    assert synced == [str(folder / PART), str(folder)]


async def test_an_artifact_that_the_disk_need_not_have_yet_is_marked_until_it_is_synced(folder, synced):
    path = await receive(folder, CONTENT, durable=False)
    assert (path.read_bytes() == CONTENT, names(folder), synced) == (True, [FINAL, UNSYNCED], [])
    sync_artifacts(folder, [SHA256])
    assert (names(folder), synced) == ([FINAL], [str(path), str(folder)])


def test_an_artifact_that_is_deleted_meanwhile_is_not_synced(folder, synced):
    (folder / UNSYNCED).touch()
    sync_artifacts(folder, [SHA256])
    assert (names(folder), synced) == ([UNSYNCED], [str(folder)]), "it may be received again"


@pytest.mark.parametrize("content", [CONTENT, CONTENT[:-1], b"\0" * len(CONTENT), b"", None])
def test_the_next_start_verifies_what_was_not_synced(folder, content):
    (folder / UNSYNCED).touch()
    if content is not None:
        (folder / FINAL).write_bytes(content)
    (folder / f"{'ab' * 32}.safetensors").write_bytes(b"synced before")
    assert verify_unsynced(folder) == ([] if content in (CONTENT, None) else [SHA256])
    assert names(folder) == sorted([f"{'ab' * 32}.safetensors", *([FINAL] if content == CONTENT else [])])


def test_a_disk_that_cannot_be_read_at_the_start_is_no_torn_artifact(folder):
    (folder / UNSYNCED).touch()
    (folder / FINAL).mkdir()
    with pytest.raises(DiskError, match="received cannot be used: Is a directory"):
        verify_unsynced(folder)
    assert names(folder) == [FINAL, UNSYNCED]


async def test_a_part_is_resumed_by_the_next_attempt(folder):
    async with incoming(folder) as first:
        assert (first.received, first.resumed) == (0, False)
        await first.feed(CONTENT[:2_000_000])
    async with incoming(folder) as second:
        assert (second.received, second.resumed) == (2_000_000, True)
        await second.feed(memoryview(CONTENT)[2_000_000:])
        path = await second.finish(lambda part: None)
    assert path.read_bytes() == CONTENT


def write_part(folder, content, *, arrived):
    """A part with this content, behind it what its file held before, and a number of arrived bytes."""
    (folder / PART).write_bytes((content + b"\xff" * len(CONTENT))[: len(CONTENT)] + ARRIVED.pack(arrived))


async def test_a_part_goes_on_behind_the_bytes_that_it_counts(folder):
    write_part(folder, CONTENT[:2_000_000], arrived=1_000_000)
    async with incoming(folder) as receiving:
        assert (receiving.received, receiving.resumed) == (1_000_000, True)
        await receiving.feed(CONTENT[1_000_000:])
        path = await receiving.finish(lambda part: None)
    assert path.read_bytes() == CONTENT


async def test_a_part_that_was_damaged_on_disk_is_found_and_deleted(folder):
    write_part(folder, bytes(1000), arrived=1000)
    with pytest.raises(ArtifactWrong, match="whose digest is not the manifest's"):
        await receive(folder, CONTENT[1000:])
    assert names(folder) == []


async def test_a_part_that_lacks_its_name_alone_is_complete(folder):
    """A kill came after the last check."""
    (folder / PART).write_bytes(CONTENT)
    assert (await receive(folder)).read_bytes() == CONTENT


@pytest.mark.parametrize(
    "content",
    [
        CONTENT[:1000],
        CONTENT + b"x",
        CONTENT + ARRIVED.pack(len(CONTENT) + 1),
        CONTENT + ARRIVED.pack(1000) + b"x",
        b"",
    ],
    ids=["without its number", "a part of the number", "more than all", "too long", "empty"],
)
async def test_a_part_that_does_not_say_what_has_arrived_starts_again(folder, content):
    (folder / PART).write_bytes(content)
    async with incoming(folder) as receiving:
        assert (receiving.received, receiving.resumed) == (0, False)
        await receiving.feed(CONTENT)
        assert (await receiving.finish(lambda part: None)).read_bytes() == CONTENT


@pytest.fixture
def leases(tmp_path):
    """Skips where the system grants no leases, without which nothing is written over."""
    with (tmp_path / "leased").open("w+b") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError as error:
            pytest.skip(f"no leases: {error.strerror}")


@pytest.mark.parametrize("size", [0, 1, len(CONTENT), len(CONTENT) + ARRIVED.size, 2 * len(CONTENT)])
async def test_an_artifact_is_written_in_the_place_of_a_discarded_one(folder, leases, size):
    discarded = b"\xff" * (size - ARRIVED.size) + ARRIVED.pack(1000)[:size]
    (folder / DISCARDED).write_bytes(discarded)
    (folder / DISCARDED).chmod(0o600)
    async with incoming(folder) as receiving:
        assert (receiving.received, receiving.resumed) == (0, False)
        assert (folder / PART).read_bytes().startswith(discarded[: len(CONTENT)])
        await receiving.feed(CONTENT[:2_000_000])
        await receiving.feed(CONTENT[2_000_000:])
        path = await receiving.finish(lambda part: None)
    assert path.read_bytes() == CONTENT
    assert names(folder) == [FINAL]


async def test_a_transfer_into_a_discarded_artifact_goes_on_where_it_stopped(folder):
    (folder / DISCARDED).write_bytes(b"\xff" * len(CONTENT))
    async with incoming(folder) as first:
        await first.feed(CONTENT[:2_000_000])
    assert (await receive(folder, CONTENT[2_000_000:])).read_bytes() == CONTENT


def set_free(monkeypatch, free):
    """Let the disk have so many free bytes."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1 << 40, 1 << 39, free))


@contextlib.contextmanager
def opened(path):
    with path.open("rb") as file:
        yield file.read


@contextlib.contextmanager
def mapped(path):
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    with pages:
        yield pages.read


@contextlib.contextmanager
def linked(path):
    other = path.with_name("other")
    other.hardlink_to(path)
    yield other.read_bytes
    other.unlink()


@pytest.mark.parametrize("reader", [opened, mapped, linked])
async def test_a_discarded_artifact_that_somebody_reads_is_left_to_him(folder, reader):
    """A peer takes it, a worker has it in memory, or `mhfl-peer predict` has linked it."""
    (folder / DISCARDED).write_bytes(b"still read")
    with reader(folder / DISCARDED) as read:
        path = await receive(folder, CONTENT)
        assert (read(), path.read_bytes()) == (b"still read", CONTENT)
    assert names(folder) == [FINAL]


async def test_artifacts_that_begin_at_once_take_a_discarded_one_each(folder):
    for letter in "ab":
        (folder / f"{letter * 64}.discarded").write_bytes(b"old")
    async with (
        incoming(folder),
        IncomingArtifact(folder, sha256="cd" * 32, size=1),
        IncomingArtifact(folder, sha256="ef" * 32, size=1),
    ):
        assert names(folder) == sorted([PART, f"{'cd' * 32}.part", f"{'ef' * 32}.part"])
        assert len({path.stat().st_ino for path in folder.iterdir()}) == 3


async def test_an_artifact_in_the_place_of_another_needs_no_room(folder, leases, monkeypatch):
    (folder / DISCARDED).write_bytes(CONTENT)
    set_free(monkeypatch, 1000 + limits.DISK_RESERVE_BYTES)
    async with incoming(folder), IncomingArtifact(folder, sha256="ab" * 32, size=1000):
        with pytest.raises(InsufficientSpace, match="1 bytes are needed, 0 are free"):
            async with IncomingArtifact(folder, sha256="cd" * 32, size=1):
                pass


@pytest.mark.parametrize(
    ("chunks", "reason"),
    [
        ([CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])], f"{len(CONTENT)} bytes came whose digest"),
        ([CONTENT, b"x"], f"more than the {len(CONTENT)} bytes of the manifest"),
        ([CONTENT[:1000]], "1000 bytes came"),
    ],
    ids=["another digest", "too many", "too few"],
)
async def test_other_bytes_than_the_manifest_s_leave_nothing(folder, chunks, reason):
    with pytest.raises(ArtifactWrong, match=reason):
        await receive(folder, *chunks)
    assert names(folder) == []


async def test_a_check_that_objects_leaves_nothing(folder):
    def object_to(part):
        raise ValueError("tensor 'w' is missing in the file")

    with pytest.raises(ArtifactWrong, match="tensor 'w' is missing in the file"):
        await receive(folder, CONTENT, check=object_to)
    assert names(folder) == []


async def test_a_cancelled_receiver_keeps_its_part_and_no_descriptor(folder):
    before = descriptors()
    started = asyncio.Event()

    async def receive():
        async with incoming(folder) as receiving:
            await receiving.feed(CONTENT[:1_500_000])
            started.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(receive())
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    part = (folder / PART).read_bytes()
    assert (part[:1_500_000], part[len(CONTENT) :]) == (CONTENT[:1_500_000], ARRIVED.pack(1_500_000))
    assert descriptors() == before


@pytest.mark.parametrize(("artifacts", "queued"), [(1, 4), (4, 2), (9, 0)])
async def test_artifacts_that_arrive_at_once_share_what_may_be_queued_for_the_disk(
    folder, monkeypatch, artifacts, queued
):
    release, write = threading.Event(), os.write
    async with contextlib.AsyncExitStack() as stack:
        for number in range(artifacts - 1):
            await stack.enter_async_context(IncomingArtifact(folder, sha256=f"{number:064x}", size=1))
        receiving = await stack.enter_async_context(incoming(folder))
        monkeypatch.setattr(os, "write", lambda *arguments: release.wait() and write(*arguments))
        fed = [asyncio.create_task(receiving.feed(b"x"))]
        await asyncio.sleep(0)  # up to where it waits for the disk, if it does
        while fed[-1].done() and len(fed) < 20:
            fed.append(asyncio.create_task(receiving.feed(b"x")))
            await asyncio.sleep(0)
        release.set()
        await fed[-1]
    assert len(fed) == queued + 1


async def test_a_full_disk_is_named_and_gets_its_space_back(folder):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(DiskError, match=f"{PART} cannot be written: File too large"):
            await receive(folder, CONTENT[:2_000_000], CONTENT[2_000_000:])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == []


async def test_an_artifact_that_cannot_fit_is_not_begun(folder):
    with pytest.raises(InsufficientSpace, match=f"no room for it: {1 << 60} bytes are needed, [0-9]+ are free"):
        await receive(folder, size=1 << 60)
    assert names(folder) == []


@pytest.mark.parametrize(("spare", "fits"), [(0, True), (-1, False)])
async def test_an_artifact_leaves_the_reserve_free(folder, monkeypatch, spare, fits):
    set_free(monkeypatch, len(CONTENT) + limits.DISK_RESERVE_BYTES + spare)
    if fits:
        assert await receive(folder, CONTENT) == folder / FINAL
    else:
        with pytest.raises(InsufficientSpace, match=f"{len(CONTENT)} bytes are needed, {len(CONTENT) - 1} are free"):
            await receive(folder, CONTENT)
        assert names(folder) == []


async def test_a_full_disk_is_nobodys_artifact(folder, monkeypatch):
    set_free(monkeypatch, 31 << 20)
    with pytest.raises(DiskError, match=r"the disk of .* is full"):
        await receive(folder, CONTENT)


async def test_artifacts_that_are_under_way_have_their_room(folder, monkeypatch):
    set_free(monkeypatch, len(CONTENT) + limits.DISK_RESERVE_BYTES)
    async with IncomingArtifact(folder, sha256=SHA256, size=len(CONTENT)):
        with pytest.raises(InsufficientSpace, match="1 bytes are needed, 0 are free"):
            async with IncomingArtifact(folder, sha256="ab" * 32, size=1):
                pass
    async with IncomingArtifact(folder, sha256="ab" * 32, size=1):
        pass


async def test_artifacts_that_begin_at_once_are_counted_one_after_the_other(folder):
    counting, begun = threading.Event(), threading.Event()

    class Counted(int):
        def __sub__(self, other):
            if not counting.is_set():
                counting.set()
                begun.wait(0.2)  # the next one would begin now
            return int(self) - other

    async def begin():
        async with IncomingArtifact(folder, sha256="ab" * 32, size=1):
            pass

    async with incoming(folder) as under_way:
        under_way._size = Counted(len(CONTENT))
        beginning = asyncio.create_task(begin())
        await asyncio.to_thread(counting.wait)
        async with IncomingArtifact(folder, sha256="cd" * 32, size=1):
            begun.set()
            await beginning


async def test_a_disk_that_fills_up_meanwhile_costs_this_artifact_only(folder, monkeypatch):
    def write(descriptor, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(InsufficientSpace, match="no room for it: No space left on device"):
        await receive(folder, CONTENT)
    assert names(folder) == []


async def test_a_link_in_place_of_the_part_is_not_followed_and_a_missing_folder_is_named(folder, tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"precious")
    (folder / PART).symlink_to(target)
    with pytest.raises(DiskError, match="symbolic links"):
        await receive(folder)
    assert target.read_bytes() == b"precious"
    with pytest.raises(DiskError, match="No such file or directory"):
        await receive(tmp_path / "nowhere")


def test_a_file_is_held_only_with_the_right_content(folder):
    path = folder / FINAL
    assert not is_complete(path, sha256=SHA256, size=len(CONTENT))
    path.write_bytes(CONTENT)
    assert is_complete(path, sha256=SHA256, size=len(CONTENT))
    assert not is_complete(path, sha256=SHA256, size=len(CONTENT) + 1)
    path.write_bytes(CONTENT[::-1])
    assert not is_complete(path, sha256=SHA256, size=len(CONTENT))


def test_a_file_that_vanishes_between_two_looks_is_not_held(folder):
    path = folder / FINAL
    path.write_bytes(CONTENT)

    def check(path):
        path.unlink()
        path.stat()

    assert not is_complete(path, sha256=SHA256, size=len(CONTENT), check=check)


async def test_a_thread_serves_one_file_after_the_other_and_few_are_kept(monkeypatch):
    monkeypatch.setattr(transfer.FileThread, "_idle", deque())
    threads = [transfer.FileThread() for _ in range(transfer.IDLE_THREADS_MAX + 3)]
    first = {await thread.run(threading.current_thread) for thread in threads}
    assert len(first) == len(threads)
    for thread in threads:
        await thread.end(lambda: None)
    again = [transfer.FileThread() for _ in threads]
    second = {await thread.run(threading.current_thread) for thread in again}
    assert len(second) == len(again), "no two files share a thread"
    assert len(first & second) == transfer.IDLE_THREADS_MAX
    for thread in again:
        await thread.end(lambda: None)


async def test_a_stream_that_fills_the_line_keeps_its_turn():
    turns = asyncio.Semaphore(1)
    async with transfer.StreamTurn(turns) as turn:
        turn.moved = transfer.STREAM_TURN_BYTES
        turn._look(0)
        assert turns.locked()
    assert not turns.locked()


async def test_a_slow_stream_gives_its_turn_back_and_goes_on(monkeypatch):
    monkeypatch.setattr(transfer, "STREAM_TURN_S", 0.001)
    turns = asyncio.Semaphore(1)
    async with transfer.StreamTurn(turns):
        async with asyncio.timeout(10):
            await turns.acquire()  # another stream begins
    assert turns.locked(), "a turn is given back once"
