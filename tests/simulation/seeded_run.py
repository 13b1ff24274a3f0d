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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from peer import errors
from peer.core import events
from peer.daemon import worker_process
from peer.net.transport import transfer
from peer.site.identity.certificates import certificate_der
from peer.site.membership.round_keys import amendment_tag
from simulation import programs
from simulation.amendments import Operators, identity, with_amendments, with_rekeys, with_requirement
from simulation.disk import Disks
from simulation.faults import (
    FAULTS,
    FAULTS_END_S,
    STORAGE_FAULTS,
    Undo,
    draw_faults,
    draw_liars,
    draw_shape,
    draw_storage_faults,
    resume,
    with_staleness,
    with_sums,
    with_visits,
)
from simulation.invariants import Referee
from simulation.liars import (
    REPEATING_HABITS,
    Liar,
    draw_amending_habits,
    draw_chain_habits,
    draw_habits,
    draw_repeating_habits,
)
from simulation.loop import PROCESS, START_S, Crash, InlineExecutor, Process, Stuck, VirtualLoop
from simulation.network import Failed, Network
from simulation.programs import Upgrade, with_upgrades
from simulation.relays import RELAY_FAULTS, RELAYING_FAULTS, Relays, with_relaying_member, with_relays
from simulation.sites import (
    EPOCH_S,
    FINAL,
    NAMES,
    Site,
    genesis_key,
    parsed_federation,
    remembered_keys,
    renewed,
    repeatable_signatures,
)
from simulation.worker import NoLog, spawn

OF_RELAYS = {**RELAY_FAULTS, **RELAYING_FAULTS}
RESTART_S = 5.0
OPERATOR_S, LOOK_S = 30.0, 5.0
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
    keep_lines: keep the trace's lines, not only their digest.
    total_s: when every honest site must have reached the last round.
    """

    def __init__(self, seed: int, *, keep_lines: bool = False, total_s: float = TOTAL_S) -> None:
        self.seed, self._keep_lines, self._total_s = seed, keep_lines, total_s
        rng = self.stream("plan")
        shape = with_visits(self.stream("visitors"), draw_shape(rng, small=seed % LARGE_EVERY != 1))
        shape = with_staleness(self.stream("staleness"), shape)
        faults = draw_faults(rng, shape)
        liars = {name: draw_habits(self.stream(f"habits of {name}")) for name in draw_liars(rng, shape)}
        shape = with_sums(self.stream("sums 117"), shape, len(liars))
        shape, acts = with_amendments(self.stream("epochs"), shape)
        shape, acts = with_rekeys(self.stream("rekeys"), shape, acts)
        shape, relay_faults = with_relays(self.stream("relays"), shape)
        shape, relaying_faults = with_relaying_member(self.stream("member as relay"), shape, acts, liars)
        self.shape, self.roll = with_upgrades(self.stream("upgrades"), shape, acts)
        self.acts = with_requirement(self.stream("requires"), self.shape, acts, self.roll)
        for name, habits in liars.items():
            if acts:
                habits = draw_chain_habits(self.stream(f"chain habits of {name}")) + habits
                habits = draw_amending_habits(self.stream(f"amendments of {name}")) + habits
            liars[name] = draw_repeating_habits(self.stream(f"repeats of {name}")) + habits
        self.liars = liars
        slow = any(set(habits) & set(REPEATING_HABITS) for habits in liars.values())
        storage_faults = draw_storage_faults(self.stream("storage"), self.shape, slow=slow)
        all_faults = [*faults, *relay_faults, *relaying_faults, *storage_faults]
        self.faults = sorted(all_faults, key=lambda fault: fault.at_s)
        self._settled = False
        self.operators = Operators(self, self.acts, self.stream("operators"))
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
        self._root, self._disks = root, Disks()
        for name in NAMES:
            renewed(name)  # before signatures are replaced
        for name in self.shape.names:
            site = self.admit(name)
            if name in self.liars:
                own, artifacts = identity(name, None), site.folder.generation(1) / "artifacts"
                digest = parsed_federation(self.shape.text, "federation.toml").digest
                site.liar = Liar(
                    self.liars[name],
                    self.shape.rounds,
                    own.key,
                    self.stream(f"liar {name}"),
                    artifacts,
                    federation=digest,
                    round_key_tag=amendment_tag(genesis_key(), digest),
                    certificate_der=certificate_der(own.certificate),
                )
        self.loop = VirtualLoop(lambda process, command: start_worker(process, command))
        self.referee = Referee(self.sites, self.loop.time, self.trace, guilty=set(self.liars))
        start_worker = spawn(lambda name: self.sites[name].pace, lambda name: self.sites[name].rng, self.referee)
        self.network = Network(
            self.stream("network"),
            lambda name: self.sites[name].certificate_pem,
            self.referee,
            lambda name: self.sites[name].program,
        )
        self.relays = Relays(self, self.stream("relay connections"))
        self.loop.set_exception_handler(self._unhandled)
        with self._replaced(self._disks):
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

    def admit(self, name: str) -> Site:
        """The site of a new member, which has never started."""
        site = self.sites[name] = Site.enrol(self._root, name, self.shape, self.stream(name))
        self._disks.add(site.disk)
        if self.roll.upgrades:
            site.programs.append(self.roll.first if name in self.shape.names else self.roll.last)
        return site

    def stop(self, site: Site) -> None:
        """The operator stops a daemon that runs."""
        if site.daemon is not None:
            site.daemon.report(events.StopRequested())

    def stream(self, name: str) -> random.Random:
        """Random numbers of their own for one part of the run."""
        return random.Random(f"{self.seed} {name}")

    @contextlib.contextmanager
    def _replaced(self, disks: Disks) -> Iterator[None]:
        """The clock, the disk, the threads and the network; all else is the program."""
        log = logging.getLogger("peer")
        handler = ErrorLog(
            lambda reason: self.referee.fail(f"logged: {reason}"),
            lambda process: process.dead or (process.site in self.sites and self.sites[process.site].liar is not None),
        )
        former = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.ERROR)
        log.propagate = False
        with contextlib.ExitStack() as stack:
            stack.callback(log.removeHandler, handler)
            stack.enter_context(disks.mounted())
            stack.enter_context(self.network.mounted())
            stack.enter_context(self.relays.mounted())
            if self.roll.upgrades:
                stack.enter_context(programs.mounted())
            stack.enter_context(repeatable_signatures())
            stack.enter_context(remembered_keys())
            stack.enter_context(mock.patch.object(time, "time", self._wall_clock))
            stack.enter_context(mock.patch.object(worker_process, "WorkerLog", NoLog))
            stack.enter_context(mock.patch.object(transfer, "ThreadPoolExecutor", InlineExecutor))
            stack.enter_context(mock.patch.object(transfer.FileThread, "_idle", deque()))  # real ones elsewhere
            yield
        log.setLevel(former[0])
        log.propagate = former[1]

    def _wall_clock(self) -> float:
        process = PROCESS.get()
        site = None if process is None else self.sites.get(process.site)
        return EPOCH_S + self.loop.time() + (0.0 if site is None else site.skew_s)

    async def _play(self) -> None:
        for relay in self.shape.relay_names:
            self.relays.start(relay)
        for site in self.sites.values():
            self.start(site)
        plan = self.loop.create_task(self._trouble())
        plan.add_done_callback(
            lambda plan: plan.cancelled() or self.referee.fail(f"trouble ended: {plan.exception()!r}")
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._total_s):
                await self.referee.stop.wait()
        if not self.referee.violation and not self.finished():
            where = {site.name: site.daemon.summary() if site.daemon else "down" for site in self.sites.values()}
            plan.cancel()
            missing = ", ".join(self.operators.unreached() if self.shape.stay else self.operators.unfinished())
            self.referee.fail(f"not every honest site has reached the last round, and the others: {missing}; {where}")
        self.referee.end()

    async def _trouble(self) -> None:
        """Carry out the plan of faults; then mend what can be mended."""
        began_s, undo = self.loop.time(), list[Undo]()
        acting = self.loop.create_task(self.operators.play())
        for fault in sorted([*self.faults, *self.roll.upgrades], key=lambda fault: fault.at_s):
            await asyncio.sleep(max(0.0, began_s + fault.at_s - self.loop.time()))
            if isinstance(fault, Upgrade):
                programs.install(self, fault)
                continue
            self.trace(f"FAULT {fault}")
            if fault.kind in OF_RELAYS:
                mend = OF_RELAYS[fault.kind](self, fault.site, fault)
            else:
                mend = {**FAULTS, **STORAGE_FAULTS}[fault.kind](self, self.sites[fault.site], fault)
            self.loop.call_later(fault.lasts_s, mend)
            undo.append(mend)
        await asyncio.sleep(max(0.0, began_s + FAULTS_END_S - self.loop.time()))
        self.trace("faults end")
        for mend in undo:
            mend()
        for site in list(self.sites.values()):
            if site.program not in (None, self.roll.last):
                programs.install(self, Upgrade(FAULTS_END_S, site.name, self.roll.last, killed=False))
        self.referee.mended_s = self.loop.time()
        while True:  # operators look after their sites
            for site in self.sites.values():
                resume(site)
            if acting.done():
                acting.result()
            self.operators.tend()
            await self._await_operators()

    async def _await_operators(self) -> None:
        """Until operators look again; where sites stay, they are stopped once all are done and hear each other."""
        for _ in range(int(OPERATOR_S / LOOK_S)):
            starting = any(site.running and site.daemon is None for site in self.sites.values())
            if self.shape.stay and not (self._settled or starting or self.operators.unreached()):
                self._settled = True
                for site in self.sites.values():
                    if site.liar is None:
                        self.stop(site)
            self.stop_if_finished()
            await asyncio.sleep(LOOK_S)

    def finished(self) -> bool:
        if self.shape.stay:
            return self._settled and not any(site.running for site in self.sites.values() if site.liar is None)
        return not self.operators.unfinished()

    def stop_if_finished(self) -> None:
        if self.finished():
            self.referee.stop.set()

    # --- lives ---
    def start(self, site: Site) -> None:
        self.trace(f"{site.name} starts")
        self.network.machine_is_up(site.name)
        site.start(watch=self._watch, crashed=self._crashed, ended=self._ended)

    def _watch(self, site: Site) -> None:
        site.keeper = site.daemon.chain
        if site.program is not None:
            self.referee.require(not site.journal_is_newer, f"{site.name} opens a journal of a newer program")
            site.journal_ahead = site.program.journal
        if site.liar is None:
            self.referee.watch(site)

    def _ended(self, site: Site, error: BaseException | None) -> None:
        """A daemon has ended by itself."""
        self.trace(f"{site.name} ended {type(error).__name__ if error else ''}")
        if site.liar is not None:
            site.left = error is None
        elif error is None:
            self.referee.check_ledger(site)
            finished = "finished" in [kind for kind, _, _ in self.referee.records[site.name].rows]
            finished &= site.name != self.shape.relaying  # the others have no other way: its operator starts it again
            expelled = site.keeper is not None and site.name not in site.keeper.chain.head.keys
            site.left = self._settled or finished or expelled or self.operators.has_left(site.name)
            self.stop_if_finished()
        elif isinstance(error, errors.CertificateError) and site.name in self.referee.rekeyed:
            self.trace(f"{site.name} waits for the certificate of its new key")
        elif isinstance(error, errors.StateError) and site.had_later_program and "by a newer mhfl-peer" in str(error):
            self.trace(f"{site.name} is refused the journal of a later program")
            site.programs.append(self.roll.last)
        elif isinstance(error, errors.DiskError) and not site.disk.was_full:
            self.referee.fail(f"{site.name} blames its disk, which is well: {error}")
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
        self.network.down(process, power=power)
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
        for relay in self.shape.relay_names:
            self.relays.kill(relay, power=False)
        for _ in range(2):  # a task that is cancelled may have begun another one
            pending = sorted(asyncio.all_tasks(self.loop), key=hash)
            for task in pending:
                task.cancel()
            self.loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        asyncio.set_event_loop(None)


def memory_folder() -> str | None:
    """Where a run's files lie: in memory, where the system has a folder for that."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
