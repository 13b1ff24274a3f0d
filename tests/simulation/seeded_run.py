"""One run: a federation of real daemons under one seeded scheduler, and the verdict."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import hashlib
import logging
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from cryptography.hazmat.primitives.serialization import load_pem_private_key

from peer import errors
from peer.daemon import worker_process
from peer.transport import transfer
from simulation.disk import Disks
from simulation.faults import (
    FAULTS,
    FAULTS_END_S,
    Fault,
    Undo,
    draw_faults,
    draw_liars,
    draw_shape,
    resume,
    with_visits,
)
from simulation.invariants import Referee
from simulation.liars import Liar, draw_habits
from simulation.loop import PROCESS, START_S, Crash, InlineExecutor, Process, Stuck, VirtualLoop
from simulation.network import Failed, Network
from simulation.sites import EPOCH_S, FINAL, Shape, Site, enrolled, remembered_keys, repeatable_signatures
from simulation.worker import NoLog, spawn

RESTART_S = 5.0
OPERATOR_S = 30.0
LARGE_EVERY = 3
"""One seed of so many may draw a large federation: a small one costs half, and meets the same rules."""
TOTAL_S = FAULTS_END_S + 1500.0
"""When every honest site has reached the last round: the waits of a round, for each of its exchanges."""


@dataclass
class Outcome:
    """The verdict on a seed."""

    seed: int
    violation: str
    digest: str
    virtual_s: float
    lines: list[str] = field(default_factory=list)


class ErrorLog(logging.Handler):
    """Tells the run of exceptions that a daemon logs: each is a bug of the program."""

    def __init__(self, tell: Callable[[str], None], ignores: Callable[[Process], bool]) -> None:
        super().__init__(logging.ERROR)
        self._tell, self._ignores = tell, ignores

    def emit(self, record: logging.LogRecord) -> None:
        process = PROCESS.get()
        kind, error, _ = record.exc_info or (None, None, None)
        if kind is None or issubclass(kind, errors.PeerError) or (process is not None and self._ignores(process)):
            return  # of a `PeerError` the operator is told; it is no bug
        self._tell(f"{record.getMessage()}: {kind.__name__}: {error}")


class Simulation:
    """Args:
    seed: decides everything that happens.
    shape, faults, liars: in place of those that the seed draws; liars with their habits.
    keep_lines: keep the trace's lines, not only their digest.
    """

    def __init__(
        self,
        seed: int,
        *,
        shape: Shape | None = None,
        faults: Sequence[Fault] | None = None,
        liars: Mapping[str, tuple[str, ...]] | None = None,
        keep_lines: bool = False,
    ) -> None:
        self.seed, self._keep_lines = seed, keep_lines
        rng = self.stream("plan")
        self.shape = shape or with_visits(self.stream("visitors"), draw_shape(rng, small=seed % LARGE_EVERY != 1))
        self.faults = draw_faults(rng, self.shape) if faults is None else faults
        drawn = {name: draw_habits(self.stream(f"habits of {name}")) for name in draw_liars(rng, self.shape)}
        self.liars = drawn if liars is None else liars
        self._hash, self._lines = hashlib.sha256(), list[str]()
        self.loop: VirtualLoop
        self.sites: dict[str, Site] = {}

    def run(self) -> Outcome:
        """Play the seed; the same seed gives the same outcome."""
        root = Path(tempfile.mkdtemp(prefix="mhfl-", dir=memory_folder()))
        gc.disable()  # a collection at some moment would end generators in no repeatable order
        try:
            return self._run(root)
        finally:
            gc.enable()
            shutil.rmtree(root, ignore_errors=True)

    def trace(self, line: str) -> None:
        line = f"{self.loop.time():.6f} {line}"
        self._hash.update(line.encode() + b"\n")
        if self._keep_lines:
            self._lines.append(line)

    def _run(self, root: Path) -> Outcome:
        disks = Disks()
        for name in self.shape.names:
            site = self.sites[name] = Site.enrol(root, name, self.shape, self.stream(name))
            disks.add(site.disk)
            if name in self.liars:
                key = load_pem_private_key(enrolled()[1][name]["site.key"], None)
                artifacts = site.folder.generation(1) / "artifacts"
                site.liar = Liar(self.liars[name], self.shape.rounds, key, self.stream(f"liar {name}"), artifacts)
        pems = {name: folder["cert.pem"] for name, folder in enrolled()[1].items()}
        self.loop = VirtualLoop(lambda process, command: start_worker(process, command))
        self.referee = Referee(self.sites, self.loop.time, self.trace, guilty=set(self.liars))
        start_worker = spawn(lambda name: self.sites[name].pace, lambda name: self.sites[name].rng, self.referee)
        self.network = Network(self.stream("network"), pems, self.referee)
        self.loop.set_exception_handler(self._unhandled)
        with self._replaced(disks):
            asyncio.set_event_loop(self.loop)
            try:
                self.loop.run_until_complete(self._play())
            except Stuck as error:
                self.referee.fail(str(error))
            finally:
                self._end()
        return Outcome(
            self.seed, self.referee.violation, self._hash.hexdigest(), self.loop.time() - START_S, self._lines
        )

    def stream(self, name: str) -> random.Random:
        """Random numbers of their own for one part of the run."""
        return random.Random(f"{self.seed} {name}")

    @contextlib.contextmanager
    def _replaced(self, disks: Disks) -> Iterator[None]:
        """The clock, the disk, the threads and the network; all else is the program."""
        log = logging.getLogger("peer")
        handler = ErrorLog(
            lambda reason: self.referee.fail(f"logged: {reason}"),
            lambda process: process.dead or self.sites[process.site].liar is not None,
        )
        former = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.ERROR)
        log.propagate = False
        with contextlib.ExitStack() as stack:
            stack.callback(log.removeHandler, handler)
            stack.enter_context(disks.mounted())
            stack.enter_context(self.network.mounted())
            stack.enter_context(repeatable_signatures())
            stack.enter_context(remembered_keys())
            stack.enter_context(mock.patch.object(time, "time", self._wall_clock))
            stack.enter_context(mock.patch.object(worker_process, "WorkerLog", NoLog))
            stack.enter_context(mock.patch.object(transfer, "ThreadPoolExecutor", InlineExecutor))
            yield
        log.setLevel(former[0])
        log.propagate = former[1]

    def _wall_clock(self) -> float:
        process = PROCESS.get()
        skew_s = self.sites[process.site].skew_s if process is not None else 0.0
        return EPOCH_S + self.loop.time() + skew_s

    async def _play(self) -> None:
        for site in self.sites.values():
            self.start(site)
        plan = self.loop.create_task(self._trouble())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TOTAL_S):
                await self.referee.stop.wait()
        if not self.referee.violation and not self.finished():
            where = {site.name: site.daemon.summary() if site.daemon else "down" for site in self.sites.values()}
            plan.cancel()
            self.referee.fail(f"not every honest site has reached the last round: {where}")
        self.referee.end()

    async def _trouble(self) -> None:
        """Carry out the plan of faults; then mend what can be mended."""
        began_s, undo = self.loop.time(), list[Undo]()
        for fault in self.faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self.loop.time()))
            self.trace(f"FAULT {fault}")
            mend = FAULTS[fault.kind](self, self.sites[fault.site], fault)
            self.loop.call_later(fault.lasts_s, mend)
            undo.append(mend)
        await asyncio.sleep(max(0.0, began_s + FAULTS_END_S - self.loop.time()))
        self.trace("faults end")
        for mend in undo:
            mend()
        while True:  # operators look after their sites
            for site in self.sites.values():
                resume(site)
            await asyncio.sleep(OPERATOR_S)

    def finished(self) -> bool:
        return all(site.left for site in self.sites.values() if site.liar is None)

    # --- lives ---
    def start(self, site: Site) -> None:
        self.trace(f"{site.name} starts")
        site.start(watch=self._watch, crashed=self._crashed, ended=self._ended)

    def _watch(self, site: Site) -> None:
        if site.liar is None:
            self.referee.watch(site)

    def _ended(self, site: Site, error: BaseException | None) -> None:
        """A daemon has ended by itself."""
        self.trace(f"{site.name} ended {type(error).__name__ if error else ''}")
        if site.liar is not None:
            site.left = error is None
        elif error is None:
            self.referee.check_ledger(site)
            site.left = "finished" in [kind for kind, _, _ in self.referee.records[site.name].rows]
            if self.finished():
                self.referee.stop.set()
        elif isinstance(error, FINAL) or not isinstance(error, errors.PeerError):
            self.referee.fail(f"{site.name} cannot go on: {type(error).__name__}: {error}")
        if not site.left:
            self._restart_later(site)

    def _crashed(self, site: Site) -> None:
        self.trace(f"{site.name} crashed")
        outside = contextvars.Context()  # what follows is no act of the dead process
        self.loop.call_soon(lambda: self.take_down(site, power=site.power), context=outside)

    def take_down(self, site: Site, *, power: bool = False) -> None:
        """Kill the daemon, with ``power`` its machine; it starts again later."""
        process = site.process
        if process is None:
            return
        self.trace(f"{site.name} is killed")
        self.network.down(process)
        site.bury(power=power)
        self._restart_later(site)

    def _restart_later(self, site: Site) -> None:
        down_s, site.down_s = site.down_s or RESTART_S, 0.0
        self.loop.call_later(down_s, self._restart, site)

    def _restart(self, site: Site) -> None:
        if site.process is None and not site.left and not self.referee.stop.is_set():
            self.start(site)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Crash | Failed | None):  # `Failed`: the answer of a call for which nobody waits
            self.referee.fail(f"{context['message']}: {error!r}")

    def _end(self) -> None:
        """Take everything down that still runs."""
        for site in self.sites.values():
            if site.process is not None:
                self.network.down(site.process)
                site.bury(power=False)
        pending = asyncio.all_tasks(self.loop)
        for task in sorted(
            pending, key=lambda task: int(task.get_name().rpartition("-")[2]) if "Task-" in task.get_name() else 0
        ):
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)


def memory_folder() -> str | None:
    """Where a run's files lie: in memory, where the system has a folder for that."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
