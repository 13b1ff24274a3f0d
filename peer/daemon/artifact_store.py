"""The artifacts on one site's disk. Only the store decides what the daemon keeps and discards.

The fetcher and the service hold the digest of what they fetch and send. The transport reads and writes only files whose
digests they hold. The store discards no artifact that is held or that the state machine needs. So an artifact that is
refused in one round can arrive for the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from peer import errors
from peer.core.roster import Sha256
from peer.files import ARTIFACT_SUFFIX, artifact_path, put_aside
from peer.net.transport.transfer import (
    DISCARDED_SUFFIX,
    PART_SUFFIX,
    UNSYNCED_SUFFIX,
    sync_artifacts,
    verify_unsynced,
)

log = logging.getLogger(__name__)

QUIET_AFTER_S = 1.0
"""Minimum delay before discarded artifacts are deleted and received ones synced: no transfer of the round waits for
the disk."""
QUIET_WITHIN_S = 60.0
"""Longest additional delay while this site receives."""


class ArtifactStore:
    """Keeps the files of a generation's artifact folder.

    Args:
        folder: the folder, for own and received artifacts.
        needed: returns the digests that the state machine needs.
        fail: called with an error that the site cannot survive, such as a failed disk.
        spares: how many discarded artifacts stay, to be overwritten by the next ones.

    Attributes:
        quiet: set while this site receives no artifact; the fetcher clears and sets it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        needed: Callable[[], Collection[Sha256]],
        fail: Callable[[errors.PeerError], None],
        spares: int = 1,
    ) -> None:
        self.folder, self.spares = folder, spares
        self._needed, self._fail = needed, fail
        self._holds: Counter[Sha256] = Counter()
        self._unsynced: dict[Sha256, int] = {}  # with the round of its exchange
        self._has_discarded = False  # since the last deletion
        self._tidying: asyncio.Task[None] | None = None
        self._sync_lock = asyncio.Lock()
        self.quiet = asyncio.Event()
        self.quiet.set()

    def path(self, sha256: Sha256) -> Path:
        return artifact_path(self.folder, sha256)

    def lacks(self, digests: Collection[Sha256]) -> list[Sha256]:
        """Return the digests whose files are gone."""
        return [sha256 for sha256 in digests if not self.path(sha256).exists()]

    def hold(self, sha256: Sha256) -> Path:
        """Keep an artifact, present or future, until the same number of calls of :meth:`release`; return its path."""
        self._holds[sha256] += 1
        return self.path(sha256)

    def release(self, sha256: Sha256) -> None:
        """End one hold; an artifact that nobody holds or needs is discarded."""
        self._holds[sha256] -= 1
        if not self._holds[sha256]:
            del self._holds[sha256]
            self.discard(sha256)

    def discard(self, sha256: Sha256) -> None:
        """Free an artifact's name at once, since the next one may have it, unless it is held or needed.

        The next artifacts overwrite ``spares`` discarded ones. The space of others is freed after ``QUIET_AFTER_S``: a
        disk takes up to 20 ms for 20 MB, which would delay the round's transfers. If this site receives by then, the
        space is freed after the transfer.
        """
        if self._holds[sha256] or sha256 in self._needed():
            return
        path = self.path(sha256)
        try:
            path.rename(path.with_suffix(DISCARDED_SUFFIX))
            self._unsynced.pop(sha256, None)
            path.with_suffix(UNSYNCED_SUFFIX).unlink(
                missing_ok=True
            )  # also that of a sync under way, or not yet ordered
        except FileNotFoundError:
            return
        except OSError as error:
            self._fail(errors.DiskError(f"{path} cannot be deleted: {error.strerror}"))
            return
        self._has_discarded = True
        self._tidy_later()

    def verify(self) -> set[Sha256]:
        """Delete the artifacts that a power failure tore; return the digests of the rest."""
        if torn := verify_unsynced(self.folder):
            log.warning("artifacts that a loss of power tore were deleted", extra={"artifacts": torn})
        return {Sha256(path.stem) for path in self.folder.glob(f"*{ARTIFACT_SUFFIX}")}

    def put_strays_aside(self, folder: Path, is_known: Callable[[str], bool]) -> None:
        """Clear the artifacts that memory does not need; parts stay, since a transfer may resume them.

        A file that the journal names was superseded, and is deleted. Any other file is moved to the folder: the journal
        may be an older one, and the file the only copy of a model.

        Args:
            folder: takes the files that no row names.
            is_known: returns whether the journal has a row with a digest.
        """
        needed, strays = self._needed(), []
        for path in self.folder.glob(f"*{DISCARDED_SUFFIX}"):
            path.unlink()
        for path in sorted(self.folder.glob(f"*{ARTIFACT_SUFFIX}")):
            if path.stem in needed:
                continue
            if is_known(path.stem):
                path.unlink()
                log.info("superseded artifact removed", extra={"sha256": path.stem})
            else:
                strays.append(path)
        if strays:
            put_aside(strays, folder)
            facts = {"artifacts": len(strays), "folder": str(folder)}
            log.warning("artifacts that no row of the journal names were put aside", extra=facts)

    def delete_parts(self, *, older_than_s: float) -> None:
        """Delete the parts of artifacts that were last written more than ``older_than_s`` ago."""
        oldest_s = time.time() - older_than_s
        with contextlib.suppress(OSError):  # the next fetch tries again
            for part in self.folder.glob(f"*{PART_SUFFIX}"):
                if part.stat().st_mtime < oldest_s:
                    part.unlink()
                    log.info("part of an artifact removed", extra={"sha256": part.stem})

    async def delete_discarded(self, spares: int) -> bool:
        """Delete discarded artifacts except ``spares``; return whether there was one to delete."""
        self._has_discarded = False

        def delete() -> bool:
            surplus = sorted(self.folder.glob(f"*{DISCARDED_SUFFIX}"))[spares:]
            for path in surplus:
                path.unlink(missing_ok=True)
            return bool(surplus)

        try:
            return await asyncio.to_thread(delete)
        except OSError as error:
            self._fail(errors.DiskError(f"{self.folder} cannot be used: {error.strerror}"))
            return False

    async def sync(self, round: int | None = None) -> None:
        """Make the artifacts durable that were received for the exchanges up to a round, or for all.

        Other sites consider a stage finished only after that: if a power failure took an artifact, its result could not
        be computed again.
        """
        async with self._sync_lock:
            due = [sha256 for sha256, needed in self._unsynced.items() if round is None or needed <= round]
            if not due:
                return
            for sha256 in due:
                del self._unsynced[sha256]
            try:
                await asyncio.to_thread(sync_artifacts, self.folder, due)
            except OSError as error:
                self._fail(errors.DiskError(f"artifacts cannot be kept in {self.folder}: {error.strerror}"))

    def sync_later(self, sha256: Sha256, round: int) -> None:
        """Sync an artifact of a round's exchange later, when no transfer waits for the disk."""
        self._unsynced[sha256] = round
        self._tidy_later()

    async def close(self) -> None:
        await self.delete_discarded(spares=0)
        await self.sync()
        if self._tidying is not None:
            self._tidying.cancel()

    def _tidy_later(self) -> None:
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.create_task(self._tidy_when_quiet(), name="sync and delete artifacts")

    async def _tidy_when_quiet(self) -> None:
        """Sync received artifacts and delete discarded ones, once transfers of the round are over."""
        while self._unsynced or self._has_discarded:
            await asyncio.sleep(QUIET_AFTER_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.quiet.wait(), QUIET_WITHIN_S)
            await self.sync()
            if self._has_discarded:
                await self.delete_discarded(self.spares)
