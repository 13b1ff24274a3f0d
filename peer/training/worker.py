"""The worker process: ``python -m peer.training.worker --fd N``, JSON lines on a socket that its daemon holds.

The first line is a ``WorkerSetting``; after that each command is answered in order, except that a ``Halt`` also ends
the work
in hand. A worker never outlives its daemon: the end of the socket ends it at once, wherever it stands; everything that
counts is on disk in one piece. ``WorkFailed`` is its last word: it exits, and the daemon decides about another one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from peer.core import commands, events
from peer.core.limits import WORKER_LINE_BYTES_MAX
from peer.core.worker_protocol import TO_WORKER, WorkerSetting, decode, encode

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXIT_FAILED = 1
EXIT_ORPHAN = 3  # nobody waits for it, but init logs it


class WorkerCommands(Protocol):
    """Carries out a worker's orders."""

    def perform(self, command: commands.Command) -> events.Event:
        """Carry out one; the event answers it."""


class Inbox:
    """The commands that came, read by a thread of their own so that a ``Halt`` is noticed while work is in hand."""

    def __init__(self, connection: socket.socket, *, ended: Callable[[], None]) -> None:
        """``ended`` is called, in the reading thread, when the daemon is gone."""
        self._commands: queue.SimpleQueue[commands.Command | Exception] = queue.SimpleQueue()
        self._ended = ended
        # Each is written by one thread only: their difference needs no lock.
        self._halts_read = self._halts_taken = 0
        threading.Thread(target=self._read, args=(connection,), name="inbox", daemon=True).start()

    def take(self) -> commands.Command:
        """The next command; waits for it. What cannot be understood raises ``ValueError``."""
        command = self._commands.get()
        if isinstance(command, Exception):
            raise command
        if isinstance(command, commands.Halt):
            self._halts_taken += 1
        return command

    def halted(self) -> bool:
        """Whether a ``Halt`` waits to be taken."""
        return self._halts_read > self._halts_taken

    def _read(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection.makefile("rb") as lines:
            while line := lines.readline(WORKER_LINE_BYTES_MAX + 1):
                try:
                    command = decode(line, TO_WORKER)
                except ValueError as error:
                    self._commands.put(error)
                else:
                    self._halts_read += isinstance(command, commands.Halt)
                    self._commands.put(command)
        self._ended()


def work(inbox: Inbox, send: Callable[[events.Event], None]) -> None:
    """Answer commands for ever; whatever goes wrong is sent as a ``WorkFailed`` and raised again."""
    command = commands.Command()
    try:
        command = inbox.take()
        if not isinstance(command, WorkerSetting):
            raise ValueError(f"the first message must be a Setting, not {type(command).__name__}")
        # Not before the inbox reads: torch and monai take seconds, in which the daemon may end.
        hand = _hand(command, inbox, send)
        gc.freeze()  # what was imported stays: later collections look at networks only and take no time
        while True:
            command = inbox.take()
            if (event := _answer(hand, command)) is not None:
                send(event)
    except Exception as error:
        from peer.training.errors import fault_of, reason_of

        logger.exception("work failed: command=%s", type(command).__name__)
        generation, attempt = getattr(command, "generation", 0), getattr(command, "attempt", 0)
        send(events.WorkFailed(generation, attempt, fault_of(error), reason_of(error)))
        raise


def _hand(setting: WorkerSetting, inbox: Inbox, send: Callable[[events.Event], None]) -> WorkerCommands:
    """Who does the work: the trainer, or whoever measures guests beside one."""
    from peer.training import monai

    monai.load()
    if setting.duty == "measure":
        from peer.training.guest import GuestEvaluator

        return GuestEvaluator(setting)
    from peer.training.trainer import Trainer

    return Trainer(setting, report=send, halted=inbox.halted)


def _answer(hand: WorkerCommands, command: commands.Command) -> events.Event | None:
    """The event that answers the command; nothing where a halt ended it, which has its own answer."""
    from peer.training.errors import WorkInterrupted

    if isinstance(command, commands.Halt):
        return events.Halted(command.generation, command.attempt)
    try:
        return hand.perform(command)
    except WorkInterrupted:
        logger.info("work halted: command=%s", type(command).__name__)
        return None


def die_with_parent() -> None:
    """Have the kernel end this process when the thread that started it ends, however it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Run the worker on the socket of the command line."""
    parser = argparse.ArgumentParser(prog="peer.training.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the daemon")
    arguments = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the daemon's: it sends a Halt
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    connection = socket.socket(fileno=arguments.fd)
    inbox = Inbox(connection, ended=lambda: os._exit(EXIT_ORPHAN))
    try:
        work(inbox, lambda event: connection.sendall(encode(event)))
    except Exception:
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
