"""The worker process: ``python -m peer.train.worker --fd N``, JSON lines on a socket that its
daemon holds.

The first line is a ``WorkerSetting``. After that the worker answers each command in order; a
``Halt`` also ends the current work. A worker never outlives its daemon: it exits at once when the
socket ends, since all state is on disk and complete at any time. After a ``WorkFailed`` the worker
exits, and the daemon decides whether to start another one.
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
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from peer import landlock
from peer.allocator import keep_memory_between_steps
from peer.cohorts import FOLDER as COHORTS
from peer.core import commands, events
from peer.core.limits import SIGN_S, WORKER_LINE_BYTES_MAX
from peer.core.worker_protocol import TO_WORKER, StillWorking, WorkerSetting, decode, encode
from peer.files import SUM_SECRETS_FOLDER
from peer.site.config.schema import SiteConfig
from peer.train.device_queue import gpu_folder

logger = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
EXIT_FAILED = 1
EXIT_ORPHAN = 3  # the daemon is gone; init logs this code


class WorkerCommands(Protocol):
    """Carries out a worker's commands."""

    def perform(self, command: commands.Command) -> events.Event:
        """Carry out one command; return the event that answers it."""


class Inbox:
    """The received commands; a thread reads them, to notice a ``Halt`` while the trainer works."""

    def __init__(self, lines: IO[bytes], *, ended: Callable[[], None], first: bytes = b"") -> None:
        """Call ``ended`` in the reading thread when the daemon is gone; ``first`` is a line that was read before."""
        self._commands: queue.SimpleQueue[commands.Command | Exception] = queue.SimpleQueue()
        self._ended = ended
        # One thread writes each counter: their difference needs no lock.
        self._halts_read = self._halts_taken = 0
        threading.Thread(target=self._read, args=(lines, first), name="inbox", daemon=True).start()

    def take(self) -> commands.Command:
        """Wait for the next command; raise ``ValueError`` for a line that is not a command."""
        command = self._commands.get()
        if isinstance(command, Exception):
            raise command
        if isinstance(command, commands.Halt):
            self._halts_taken += 1
        return command

    def halted(self) -> bool:
        """Return whether a ``Halt`` waits in the inbox."""
        return self._halts_read > self._halts_taken

    def _read(self, lines: IO[bytes], line: bytes) -> None:
        with contextlib.suppress(OSError), lines:
            while line := line or lines.readline(WORKER_LINE_BYTES_MAX + 1):
                try:
                    command = decode(line, TO_WORKER)
                except ValueError as error:
                    self._commands.put(error)
                else:
                    self._halts_read += isinstance(command, commands.Halt)
                    self._commands.put(command)
                line = b""
        self._ended()


class HaltCheck:
    """Asks between two steps whether a halt waits. Each call is a sign of progress for the daemon's watchdog.

    A separate thread could not give the sign: it would go on while the work hangs.
    """

    def __init__(self, inbox: Inbox, send: Callable[[events.Event], None]) -> None:
        self._inbox, self._send = inbox, send
        self._sent_s = -SIGN_S

    def __call__(self) -> bool:
        now_s = time.monotonic()
        if now_s >= self._sent_s + SIGN_S:
            self._send(StillWorking())
            self._sent_s = now_s
        return self._inbox.halted()


def work(inbox: Inbox, send: Callable[[events.Event], None]) -> None:
    """Answer commands for ever; send any error as a ``WorkFailed`` and re-raise it."""
    command = commands.Command()
    try:
        command = inbox.take()
        if not isinstance(command, WorkerSetting):
            raise ValueError(f"the first message must be a Setting, not {type(command).__name__}")
        # Only once the inbox reads: importing torch and monai takes seconds, in which the daemon may end.
        duty = _start_duty(command, inbox, send)
        send(StillWorking())  # imports are done; from now on it can be halted
        gc.freeze()  # imported objects stay: later collections scan only networks and take no time
        while True:
            command = inbox.take()
            if (event := _answer(duty, command)) is not None:
                send(event)
    except Exception as error:
        from peer.train.errors import work_failed

        logger.exception("work failed: command=%s", type(command).__name__)
        generation, attempt = getattr(command, "generation", 0), getattr(command, "attempt", 0)
        send(work_failed(error, generation=generation, attempt=attempt))
        raise


def _start_duty(setting: WorkerSetting, inbox: Inbox, send: Callable[[events.Event], None]) -> WorkerCommands:
    """Create the object that carries out the commands: a trainer, or an evaluator of lent models."""
    keep_memory_between_steps()
    if setting.duty == "measure":
        from peer.train.guest import GuestEvaluator

        return GuestEvaluator(setting)
    from peer.train.trainer import Trainer

    halted = HaltCheck(inbox, send)
    if setting.site["training"]["processes"] == 1:
        return Trainer(setting, report=send, halted=halted)
    from peer.train.errors import work_failed
    from peer.train.rank_processes import RankProcesses
    from peer.train.worker import run_rank  # not __main__'s: the other processes import it by name

    def abandon(error: Exception) -> None:
        with contextlib.suppress(OSError):
            send(work_failed(error))
        os._exit(EXIT_FAILED)

    lead = RankProcesses(setting, run_rank, halted=halted, abandon=abandon)
    return Trainer(setting, report=send, halted=halted, lead=lead)


def _answer(duty: WorkerCommands, command: commands.Command) -> events.Event | None:
    """Return the event that answers the command; ``None`` if a halt ended it, which is answered itself."""
    from peer.train.errors import WorkInterrupted

    if isinstance(command, commands.Halt):
        return events.Halted(command.generation, command.attempt)
    try:
        return duty.perform(command)
    except WorkInterrupted:
        logger.info("work halted: command=%s", type(command).__name__)
        return None


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def confine(setting: object) -> None:
    """Give up the right to read the keys of this machine's sites, and to write outside the worker's folders.

    The seeds of the sites' sums are keys, too. This must happen before any thread starts and before anything foreign
    is imported: Landlock confines one thread and those that it starts.
    """
    if not isinstance(setting, WorkerSetting):
        return
    base, home = Path(setting.base_folder), Path(setting.home)
    own = [] if setting.duty == "measure" else [home / name for name in ("artifacts", "checkpoints", COHORTS, "cache")]
    site = SiteConfig.model_validate(setting.site)
    if site.data.cache == "disk" and own:
        own[-1].mkdir(exist_ok=True)
    if site.training.processes > 1 and own:
        own.append(home / "ranks")
        own[-1].mkdir(mode=0o700, exist_ok=True)
    try:
        shared = gpu_folder(site.training, base)
        if shared is not None and own:
            shared.mkdir(parents=True, exist_ok=True)
            own.append(shared)
        if setting.budget_folder and own:
            own.append(Path(setting.budget_folder))
            own[-1].mkdir(mode=0o700, exist_ok=True)
        caches = [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"), Path.home() / ".nv"]
        system = [Path(tempfile.gettempdir()), Path("/dev"), Path("/proc")]
        sites = base.parent.parent
        hidden = [*sites.glob("*/*/pki"), *sites.glob(f"*/*/gen-*/{SUM_SECRETS_FOLDER}")]
        landlock.confine(hidden=hidden, writable=[*own, *caches, *system])
    except (OSError, RuntimeError) as error:  # `mhfl-peer check` tells whether the kernel has Landlock
        logger.warning("the worker is not confined: reason=%s", error)


def run_rank(index: int, setting: WorkerSetting, folder: Path, connections: Sequence[Any], parent: int) -> None:
    """Run another rank, in a process that the worker started, until the worker ends.

    Args:
        index: the index of this rank's connection to the worker; the worker itself is rank 0.
        folder: the folder in which the ranks find each other.
        parent: the worker's process id.
    """
    die_with_parent()
    if os.getppid() != parent:  # it ended before prctl took effect
        os._exit(EXIT_ORPHAN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    rank, connection = index + 1, connections[index]
    log_format = f"%(levelname)s rank {rank} %(name)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=log_format, force=True)
    for other in connections:
        if other is not connection:
            other.close()
    try:
        _follow_worker(rank, setting, folder, connection)
    except EOFError:
        os._exit(EXIT_ORPHAN)
    except BaseException as error:
        from peer.train.errors import work_failed
        from peer.train.rank_processes import Failed

        logger.exception("rank failed")
        failure = work_failed(error)
        with contextlib.suppress(OSError):
            connection.send(Failed(failure.fault, failure.reason))
    os._exit(EXIT_FAILED)  # at once: the end of a process group may wait for dead ranks


def _follow_worker(rank: int, setting: WorkerSetting, folder: Path, connection: Any) -> None:
    """Prepare the stages that the worker begins, and take their steps, for ever."""
    keep_memory_between_steps()
    from peer.train.rank_processes import BeginStage, Reading, StageReady, join_group
    from peer.train.ranks import ProcessGroup, Ranks
    from peer.train.trainer import Trainer

    sent_s = -SIGN_S

    def halted() -> bool:
        """Return False; each call, between two samples, is a sign of progress."""
        nonlocal sent_s
        if time.monotonic() >= sent_s + SIGN_S:
            connection.send(Reading())
            sent_s = time.monotonic()
        return False

    count = setting.site["training"]["processes"]
    trainer = Trainer(setting, halted=halted, ranks=Ranks(rank, count, ProcessGroup()))
    connection.send(StageReady(0))
    join_group(folder, rank, count, trainer.device)
    while True:
        stage = connection.recv()
        if isinstance(stage, BeginStage):

            def ready(samples: str, number: int = stage.number) -> None:
                connection.send(StageReady(number, samples))

            trainer.follow(stage.command, stage.work, ready=ready, steps=iter(connection.recv, None))


def main() -> int:
    """Run the worker on the socket of the command line."""
    parser = argparse.ArgumentParser(prog="peer.train.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="descriptor of the socket to the daemon")
    arguments = parser.parse_args()
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the daemon's: it sends a Halt
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    connection = socket.socket(fileno=arguments.fd)
    lines = connection.makefile("rb")
    first = lines.readline(WORKER_LINE_BYTES_MAX + 1)
    with contextlib.suppress(ValueError):  # `work` reports a line that is no setting
        confine(decode(first, TO_WORKER))
    inbox = Inbox(lines, ended=lambda: os._exit(EXIT_ORPHAN), first=first)
    lock = threading.Lock()  # the thread that watches other ranks may send the last event

    def send(event: events.Event) -> None:
        with lock:
            connection.sendall(encode(event))

    try:
        work(inbox, send)
    except Exception:
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
