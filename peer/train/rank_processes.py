"""The ranks beside the worker: data-parallel processes that train in step with it, each on a share of every batch.

The worker is rank 0. Only the worker talks to the daemon, judges received artifacts, evaluates, and writes files. It
starts the other ranks with PyTorch's launcher, ``torch.multiprocessing``, at its first step, and keeps them for later
stages. They inherit its confinement and priority, and the kernel kills them when it ends for any reason.

A pipe to each rank announces stages and steps; the rank reads checkpoint, artifacts and samples itself. Tensors travel
through torch's process group: gloo between processors, NCCL between GPUs. The ranks find each other through a file in
the site's folder, and both backends bind to the loopback interface alone: other machines reach no port.

A rank that fails sends the reason; one that is killed has an exit code. Either ends the worker, with the rank as the
reason, and the daemon starts another worker.
"""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import spawn

from peer.core import commands
from peer.core.worker_protocol import WorkerSetting
from peer.train.device import check_devices, choose_device
from peer.train.errors import UnusableDataError, WorkError, WorkInterrupted
from peer.train.loop import Loop
from peer.train.ranks import ProcessGroup, Ranks

logger = logging.getLogger(__name__)

LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
COLLECTIVE_S = 24 * 3600.0
"""The daemon's watchdog ends a worker that hangs; torch's own timeout must not be shorter."""
EXPLAIN_S = 5.0
"""How long a broken exchange waits for the failure of the rank that caused it."""
SETTLE_S = 1.0
"""A rank's crash counts as the cause once no other rank's failure has become known for this long."""
ABANDON_S = 15.0
"""NCCL waits for a dead rank for ever; the worker ends this long after that rank."""
UNDIVIDED = (
    "every process trains on whole batches, which saves no time: stage=%s; a received network has normalisation whose "
    "statistics several processes do not synchronise on this device"
)
FOLDER = "ranks"
"""In the worker's home: the folder of the file through which the ranks find each other."""


class RankFailed(WorkError):  # noqa: N818 - the name is the fact
    """Another rank failed or was killed."""

    def __init__(self, fault: str, reason: str) -> None:
        super().__init__(reason)
        self.fault = fault


@dataclass(frozen=True)
class BeginStage:
    """To a rank: prepare this stage. The numbers of steps follow, and None at its end."""

    number: int
    command: commands.Train
    work: str


@dataclass(frozen=True)
class StageReady:
    """From a rank: ready for the stage's first step, with the digest of samples and labels. Number 0: the rank runs."""

    number: int
    samples: str = ""


@dataclass(frozen=True)
class Reading:
    """From a rank: it is reading samples."""


@dataclass(frozen=True)
class Failed:
    """From a rank, as its last message."""

    fault: str
    reason: str


class RankProcesses:
    """The other ranks, as the worker controls them.

    Args:
        setting: the worker's setting; its ``processes`` counts all ranks.
        run: the function that a rank runs in its process: ``peer.train.worker.run_rank``.
        halted: called while the ranks get ready, whenever one sends a message.
        abandon: ends this process with an error, from another thread.
    """

    def __init__(
        self,
        setting: WorkerSetting,
        run: Callable[..., None],
        *,
        halted: Callable[[], bool] = lambda: False,
        abandon: Callable[[Exception], None] = lambda error: None,
    ) -> None:
        training = setting.site["training"]
        self.ranks = Ranks(0, training["processes"], ProcessGroup())
        self._setting, self._run, self._device = setting, run, choose_device(training["device"])
        self._halted, self._abandon = halted, abandon
        self._folder = Path(setting.home) / FOLDER
        self._processes: Sequence[Any] = ()
        self._connections: list[Connection] = []
        self._joined = self._busy = self._closing = False
        self._number = 0
        self._news = threading.Condition()
        self._signs = 0
        self._ready: dict[int, StageReady] = {}
        self._failure: RankFailed | None = None
        self._explained = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def check(self, networks: Mapping[str, nn.Module]) -> None:
        """Raise ``UnusableConfigurationError`` if a rank lacks a GPU, or cannot divide one of this site's networks."""
        check_devices(self._device, self.ranks.count)
        self.ranks.check_norms(networks, self._device)

    def begin(self, command: commands.Train, work: str, loop: Loop, samples: str) -> None:
        """Have every rank prepare a stage, and wait until all can take its first step.

        Args:
            work: the digest whose partial checkpoint the stage continues from.
            loop: the loop of rank 0.
            samples: the digest of the training samples and their labels at rank 0.

        Raises:
            RankFailed: a rank failed.
            WorkInterrupted: the daemon sent a halt; the ranks keep running.
            UnusableDataError: a rank has other samples, or other labels.
        """
        if not loop.is_divided:
            logger.warning(UNDIVIDED, command.stage)
        self._busy = True
        try:
            self._begin(command, work, samples)
        except BaseException:
            self.end()
            raise

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """Announce a step, which the block takes; raise ``RankFailed`` if it fails because another rank did."""
        try:
            self._send(number)
            yield
        except WorkError:
            raise
        except Exception as error:
            if (failure := self._find_failure()) is None:
                raise
            raise failure from error

    def end(self) -> None:
        """End the stage, if one has begun; the ranks wait for the next one."""
        if self._busy and self._number and self._failure is None:
            with contextlib.suppress(RankFailed):
                self._send(None)
        self._busy = False

    def close(self) -> None:
        """Kill the ranks."""
        self._closing = True
        for process in self._processes:
            process.kill()
        if self._watcher is not None:
            self._watcher.join()
        for process in self._processes:
            process.join()
        if self._joined:
            dist.destroy_process_group()
        self._clear()

    def _clear(self) -> None:
        """Empty the folder without removing it: the confined worker may write inside it only."""
        for path in self._folder.glob("*"):
            path.unlink(missing_ok=True)

    def _begin(self, command: commands.Train, work: str, samples: str) -> None:
        if not self._processes:
            self._start()
        if not self._joined:
            self._wait_until_ready(0)
            join_group(self._folder, 0, self.ranks.count, self._device)
            self._joined = True
        self._number += 1
        self._send(BeginStage(self._number, command, work))
        self._wait_until_ready(self._number)
        for rank, ready in sorted(self._ready.items()):
            if ready.samples != samples:
                raise UnusableDataError(
                    f"rank {rank} of {self.ranks.count} has other training samples or labels than rank 0: a file "
                    "changed, or became readable or unreadable, in between; the log names those that cannot be read"
                )

    def _start(self) -> None:
        check_devices(self._device, self.ranks.count)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._clear()  # left by a killed worker
        others = range(1, self.ranks.count)
        pipes = {rank: Pipe() for rank in others}
        with self._temporary_files():
            context = spawn(  # type: ignore[no-untyped-call]
                self._run,
                (self._setting, self._folder, [theirs for _, theirs in pipes.values()], os.getpid()),
                nprocs=len(pipes),
                join=False,
                daemon=True,
            )
        assert context is not None  # as join is false
        for _, theirs in pipes.values():
            theirs.close()
        self._processes, self._connections = context.processes, [ours for ours, _ in pipes.values()]
        logger.info("ranks started: count=%d pids=%s", self.ranks.count, self.pids)
        self._watcher = threading.Thread(target=self._watch, name="ranks", daemon=True)
        self._watcher.start()

    @contextlib.contextmanager
    def _temporary_files(self) -> Iterator[None]:
        """Have the launcher put its temporary files into the ranks' folder, which ``_clear`` empties.

        The launcher reads and writes them. If a site's keys lie in the system's temporary folder, a confined worker
        cannot read a file that it creates there.
        """
        before, tempfile.tempdir = tempfile.tempdir, str(self._folder)
        try:
            yield
        finally:
            tempfile.tempdir = before

    def _send(self, message: BeginStage | int | None) -> None:
        for connection in self._connections:
            try:
                connection.send(message)
            except OSError as error:
                raise self._find_failure() or error from error

    def _wait_until_ready(self, number: int) -> None:
        signs = -1
        while True:
            with self._news:
                self._news.wait_for(lambda: self._failure is not None or self._signs != signs)  # noqa: B023
                signs = self._signs
                if self._failure is not None:
                    self._explained.set()
                    raise self._failure
                late = [rank for rank in range(1, self.ranks.count) if self._number_of(rank) < number]
            if not late:
                return
            if self._halted():
                raise WorkInterrupted

    def _number_of(self, rank: int) -> int:
        return self._ready[rank].number if rank in self._ready else -1

    def _find_failure(self) -> RankFailed | None:
        """Wait for the failure of a rank and return it; ``None`` if none becomes known within ``EXPLAIN_S``."""
        with self._news:
            self._news.wait_for(lambda: self._failure is not None, EXPLAIN_S)
            if self._failure is not None:
                self._explained.set()
            return self._failure

    # --- in the thread that watches -----------------------------------------------------------------------------------
    def _watch(self) -> None:
        """Receive the ranks' messages until one has failed or ended."""
        waiting: dict[Any, int] = {connection: rank for rank, connection in enumerate(self._connections, 1)}
        waiting |= {process.sentinel: rank for rank, process in enumerate(self._processes, 1)}
        crashes: dict[int, str] = {}
        while self._failure is None:
            ready = wait(list(waiting), SETTLE_S if crashes else None)
            if not ready:
                self._fail(*next(iter(crashes.items())))
            for item in ready:
                rank = waiting[item]
                failed = self._receive(rank)
                if isinstance(item, int) or self._connections[rank - 1].closed:
                    del waiting[item]
                if failed is not None and failed.fault != "crash":
                    self._fail(rank, failed.reason, failed.fault)
                elif failed is not None:  # another rank's end may be the cause
                    crashes[rank] = failed.reason
                elif isinstance(item, int) and rank not in crashes:
                    self._fail(rank, describe_end(self._processes[rank - 1]))
        if not self._closing and self._busy and not self._explained.wait(ABANDON_S):
            assert self._failure is not None
            self._abandon(self._failure)

    def _receive(self, rank: int) -> Failed | None:
        """Receive all messages of a rank; return its failure if it sent one. Close a connection that has ended."""
        connection = self._connections[rank - 1]
        try:
            while not connection.closed and connection.poll():
                message = connection.recv()
                if isinstance(message, Failed):
                    return message
                with self._news:
                    self._signs += 1
                    if isinstance(message, StageReady):
                        self._ready[rank] = message
                    self._news.notify_all()
        except (EOFError, OSError):
            connection.close()
        return None

    def _fail(self, rank: int, reason: str, fault: str = "crash") -> None:
        """Record the first failure, which caused all others."""
        with self._news:
            self._failure = self._failure or RankFailed(fault, f"rank {rank} of {self.ranks.count}: {reason}")
            self._news.notify_all()


def describe_end(process: Any) -> str:
    """Describe how a process ended that sent no reason."""
    process.join()
    code = process.exitcode or 0
    hint = " (out of memory?)" if code == -signal.SIGKILL else ""
    return f"ended with exit code {code}" if code >= 0 else f"ended with signal {-code}{hint}"


def join_group(folder: Path, rank: int, count: int, device: torch.device) -> None:
    """Join torch's process group, through a file in the folder and on the loopback interface."""
    for variable in INTERFACES:
        os.environ[variable] = LOOPBACK
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=dist.FileStore(str(folder / "store"), count),  # type: ignore[attr-defined]
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=COLLECTIVE_S),
    )
