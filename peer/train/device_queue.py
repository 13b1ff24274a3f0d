"""Lets several workers of one machine take turns at a device: the worker with the lowest ticket computes.

A ticket is a file ``NNN-PID`` that its worker keeps locked with ``flock``. The kernel unlocks it when the worker ends
for any reason, so that an unlocked ticket belongs to a dead worker and is ignored. A worker has at most one ticket, and
the worker that computes waits for nothing but its own work: no deadlock can arise, on one machine or between several.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from peer.site.config.site_tables import TrainingConfig

TICKET = re.compile(r"([0-9]{3,})-[0-9]+")
POLL_S = 0.1
"""Interval at which tickets are checked: short beside a stage, and cheap for the processor."""


def gpu_folder(training: TrainingConfig, site_folder: Path) -> Path | None:
    """Return the folder with the queues of this machine's devices; None if workers share the devices."""
    if training.gpu != "turns":
        return None
    named = training.gpu_folder
    return site_folder / named if named is not None else site_folder.parent.parent / ".gpu"


class DeviceQueue:
    """The turns at one device.

    Args:
        folder: holds the device's tickets; all workers that share the device use the same one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def turn(self, waiting: Callable[[int], None]) -> Iterator[None]:
        """Draw a ticket, wait until no live one is lower, and keep the device until the block ends.

        Args:
            waiting: called every ``POLL_S`` with the number of turns ahead, and once with 0
                after that. An exception from it gives up the place in the queue.
        """
        path, descriptor = self._draw()
        try:
            ahead = first = self.ahead(path)
            while ahead:
                waiting(ahead)
                time.sleep(POLL_S)
                ahead = self.ahead(path)
            if first:
                waiting(0)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(descriptor)

    def ahead(self, ticket: Path) -> int:
        """Count the live tickets that are lower."""
        number = _number(ticket)
        return sum(_is_living(path) for path in self._tickets() if _number(path) < number)

    def _tickets(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if TICKET.fullmatch(path.name)]

    def _draw(self) -> tuple[Path, int]:
        """Create a ticket above all others; return it with the descriptor that keeps it locked.

        The ticket is locked before it is named, so that no worker takes it for dead.
        """
        with self._locked():
            for path in self._folder.glob("new-*"):  # left by a worker that died at this point
                with contextlib.suppress(OSError):
                    path.unlink()
            for path in self._tickets():
                if not _is_living(path):
                    with contextlib.suppress(OSError):  # another user's; it is ignored
                        path.unlink()
            number = 1 + max(map(_number, self._tickets()), default=0)
            descriptor, unnamed = tempfile.mkstemp(prefix="new-", dir=self._folder)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.fchmod(descriptor, 0o644)  # another user's worker must be able to see that it is locked
                path = self._folder / f"{number:03}-{os.getpid()}"
                os.rename(unnamed, path)
            except BaseException:
                os.close(descriptor)
                raise
        return path, descriptor

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one worker at a time draw; it waits for nothing meanwhile."""
        descriptor = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _number(ticket: Path) -> int:
    return int(ticket.name.partition("-")[0])


def _is_living(ticket: Path) -> bool:
    """Return whether a process keeps the ticket locked."""
    try:
        descriptor = os.open(ticket, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
