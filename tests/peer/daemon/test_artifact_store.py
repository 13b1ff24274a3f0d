"""The artifacts of a site on its disk: who holds one, what is discarded and when, what the disk keeps."""

import asyncio
import errno
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from peer.core.roster import Sha256
from peer.daemon import artifact_store
from peer.daemon.artifact_store import ArtifactStore
from peer.errors import DiskError, PeerError
from peer.net.transport.transfer import DISCARDED_SUFFIX, UNSYNCED_SUFFIX

LIMIT_S = 10.0
DIGEST, OTHER = Sha256("ab" * 32), Sha256("cd" * 32)


class Shelf:
    """A store with what the state machine needs, and the errors that end a daemon."""

    def __init__(self, folder: Path) -> None:
        self.needed: set[Sha256] = set()
        self.faults: list[PeerError] = []
        self.store = ArtifactStore(folder, needed=lambda: self.needed, fail=self.faults.append)

    def put(self, sha256: Sha256, content: bytes = b"old") -> Path:
        path = self.store.path(sha256)
        path.write_bytes(content)
        return path

    def receive(self, sha256: Sha256, round: int) -> Path:
        """As the fetcher does after a transfer."""
        path = self.put(sha256)
        path.with_suffix(UNSYNCED_SUFFIX).touch()
        self.store.sync_later(sha256, round)
        return path

    def names(self, suffix: str) -> list[str]:
        return sorted(file.stem for file in self.store.folder.glob(f"*{suffix}"))

    async def tidied(self) -> None:
        """Wait until what was received is synced, and what need not stay deleted."""
        assert self.store._tidying is not None
        await asyncio.wait_for(self.store._tidying, LIMIT_S)


@pytest.fixture
async def shelf(tmp_path: Path) -> AsyncIterator[Shelf]:
    shelf = Shelf(tmp_path)
    yield shelf
    await shelf.store.close()
    assert not shelf.faults


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk to be quiet."""
    monkeypatch.setattr(artifact_store, "QUIET_AFTER_S", 0.0)


async def test_what_somebody_holds_is_discarded_after_the_last_release(shelf: Shelf) -> None:
    path = shelf.put(DIGEST)
    shelf.store.hold(DIGEST)
    shelf.store.hold(DIGEST)
    shelf.store.discard(DIGEST)
    shelf.store.release(DIGEST)
    assert path.read_bytes() == b"old"
    shelf.store.release(DIGEST)
    assert not path.exists()
    assert shelf.names(DISCARDED_SUFFIX) == [DIGEST]


async def test_what_memory_needs_is_never_discarded(shelf: Shelf) -> None:
    path = shelf.put(DIGEST)
    shelf.store.hold(DIGEST)
    shelf.store.discard(DIGEST)
    shelf.needed.add(DIGEST)  # the state machine took what had come while it was held
    shelf.store.release(DIGEST)
    shelf.store.discard(DIGEST)
    assert path.exists()
    shelf.needed.clear()
    shelf.store.discard(DIGEST)
    assert not path.exists()


async def test_a_discarded_artifact_leaves_no_marker_even_before_or_in_its_sync(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.put(DIGEST).with_suffix(UNSYNCED_SUFFIX).touch()  # its fetch was cancelled before it ordered the sync
    shelf.store.discard(DIGEST)
    shelf.receive(OTHER, 1)
    monkeypatch.setattr(artifact_store, "sync_artifacts", lambda folder, due: None)  # it comes too late for the file
    syncing = asyncio.create_task(shelf.store.sync())
    await asyncio.sleep(0)
    shelf.store.discard(OTHER)
    await syncing
    assert shelf.names(UNSYNCED_SUFFIX) == []


async def test_a_held_artifact_holds_no_other(shelf: Shelf) -> None:
    path = shelf.put(OTHER)
    shelf.store.hold(DIGEST)
    shelf.store.discard(OTHER)
    assert not path.exists()
    shelf.store.release(DIGEST)  # one that never came


async def test_it_says_which_files_are_gone(shelf: Shelf) -> None:
    shelf.put(DIGEST)
    assert shelf.store.lacks([DIGEST]) == []
    assert shelf.store.lacks([DIGEST, OTHER]) == [OTHER]


async def test_a_discarded_artifact_loses_its_name_at_once_and_a_later_one_of_that_name_stays(shelf: Shelf) -> None:
    path = shelf.put(DIGEST)
    shelf.store.discard(DIGEST)
    shelf.store.discard(DIGEST)  # after a crash its row may be there, and the file gone
    assert not path.exists()
    shelf.put(DIGEST, b"new")
    await shelf.store.close()
    assert [file.read_bytes() for file in shelf.store.folder.iterdir()] == [b"new"]


async def test_an_artifact_that_cannot_be_discarded_ends_the_daemon_with_a_fault_of_the_disk(shelf: Shelf) -> None:
    path = shelf.put(DIGEST)
    path.with_suffix(DISCARDED_SUFFIX).mkdir()  # the file cannot be renamed, as on a disk that is read-only
    shelf.store.discard(DIGEST)
    fault = shelf.faults.pop()
    assert isinstance(fault, DiskError)
    assert fault.message.startswith(f"{path} cannot be deleted: ")
    path.with_suffix(DISCARDED_SUFFIX).rmdir()


def discard(shelf: Shelf, number: int) -> None:
    """Have so many artifacts discarded."""
    for index in range(number):
        shelf.put(Sha256(f"{index:064x}"))
        shelf.store.discard(Sha256(f"{index:064x}"))


@pytest.mark.usefixtures("hurried")
async def test_one_discarded_artifact_stays_for_the_next_one_until_the_end(shelf: Shelf) -> None:
    discard(shelf, 3)
    await shelf.tidied()
    assert len(shelf.names(DISCARDED_SUFFIX)) == 1
    await shelf.store.close()
    assert shelf.names(DISCARDED_SUFFIX) == []


@pytest.mark.usefixtures("hurried")
async def test_a_discarded_artifact_keeps_its_space_while_this_site_receives(shelf: Shelf) -> None:
    shelf.store.quiet.clear()
    discard(shelf, 2)
    for _ in range(10):  # passes of the loop, in which a deletion would begin
        await asyncio.sleep(0)
    assert len(shelf.names(DISCARDED_SUFFIX)) == 2
    shelf.store.quiet.set()
    await shelf.tidied()
    assert len(shelf.names(DISCARDED_SUFFIX)) == 1


@pytest.mark.usefixtures("hurried")
async def test_an_artifact_is_synced_once_this_site_receives_nothing(shelf: Shelf) -> None:
    shelf.store.quiet.clear()
    shelf.receive(DIGEST, 3)
    for _ in range(10):  # passes of the loop, in which it would begin to sync
        await asyncio.sleep(0)
    assert shelf.names(UNSYNCED_SUFFIX) == [DIGEST]
    shelf.store.quiet.set()
    await shelf.tidied()
    assert shelf.names(UNSYNCED_SUFFIX) == []


async def test_what_a_later_round_uses_need_not_be_on_disk_at_the_end_of_a_stage(shelf: Shelf) -> None:
    shelf.receive(DIGEST, 3)
    await shelf.store.sync(2)
    assert shelf.names(UNSYNCED_SUFFIX) == [DIGEST]
    await shelf.store.sync(3)
    assert shelf.names(UNSYNCED_SUFFIX) == []
    shelf.receive(DIGEST, 3)
    shelf.store.discard(DIGEST)
    assert shelf.names(UNSYNCED_SUFFIX) == [], "a discarded artifact loses its mark"
    shelf.receive(OTHER, 3)
    await shelf.store.close()
    assert shelf.names(UNSYNCED_SUFFIX) == [], "the end of the daemon leaves nothing unsynced"


async def test_a_disk_that_cannot_keep_artifacts_ends_the_daemon(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path, digests: list[Sha256]) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(artifact_store, "sync_artifacts", fail)
    shelf.receive(DIGEST, 3)
    await shelf.store.sync(3)
    assert shelf.faults.pop().message == f"artifacts cannot be kept in {shelf.store.folder}: Input/output error"


async def test_only_parts_that_are_too_old_are_deleted(shelf: Shelf) -> None:
    old, fresh = shelf.store.folder / f"{'0a' * 32}.part", shelf.store.folder / f"{'0b' * 32}.part"
    for part, age_s in ((old, 101), (fresh, 50)):
        part.write_bytes(b"half")
        os.utime(part, (time.time() - age_s,) * 2)
    shelf.store.delete_parts(older_than_s=100)
    assert (old.exists(), fresh.exists()) == (False, True)
