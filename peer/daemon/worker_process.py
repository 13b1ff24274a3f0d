"""The worker process: the daemon starts it, sends it orders over a socket pair, and reports its death.

The daemon executes the worker and never forks it, so that the worker has its own memory and CUDA context. Both send one
JSON object a line (``peer.core.worker_protocol``); tensors travel as files.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from peer.core import events, worker_protocol
from peer.core.commands import Command, Halt
from peer.core.limits import WORKER_LINE_BYTES_MAX
from peer.daemon.worker_watchdog import ProgressMonitor, cpu_s
from peer.errors import one_line

log = logging.getLogger(__name__)

WORKER = (sys.executable, "-P", "-m", "peer.train.worker")
"""``-P``: Python must not import a ``models`` or ``peer`` from the daemon's working directory."""
NICE = 10
"""Priority of the worker: the daemon must answer peers and operators while every core trains."""
NICEST = 19
"""Priority of the evaluation process: it gets an eighth of a core that the training uses, too."""
STOP_S = 10.0
"""A worker that failed, or whose socket is closed, ends within a step; the daemon kills it after this time."""
LOG_BYTES_MAX = 10 << 20
"""Size of a worker's log; the daemon keeps one older file."""
TAIL_BYTES = 4096
LOG_CHUNK_BYTES = 64 << 10
LOG_END_S = 1.0
"""Time limit for reading a dead worker's output: its children may hold the pipe open for ever."""


class WorkerLog:
    """A worker's standard output and error, copied into a file that is rotated at its limit.

    The daemon copies, since a worker with the file open would continue writing into the rotated one. A thread does it,
    since the disk may be slow.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        if self._file.tell() > LOG_BYTES_MAX:
            self._rotate()
        self._last = b""
        reader, self._writer = os.pipe()
        self._thread = threading.Thread(target=self._copy, args=(reader,), name="worker log", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def writer(self) -> Iterator[int]:
        """Yield the file descriptor for the worker, and close it in this process afterwards."""
        try:
            yield self._writer
        finally:
            os.close(self._writer)

    async def last_line(self) -> str:
        """Return the last line of a worker that has ended."""
        await asyncio.to_thread(self._thread.join, LOG_END_S)
        lines = self._last.decode(errors="replace").split("\n")
        return next((one_line(line) for line in reversed(lines) if one_line(line)), "it said nothing")

    def _copy(self, reader: int) -> None:
        with open(reader, "rb", buffering=0) as pipe:
            while chunk := pipe.read(LOG_CHUNK_BYTES):
                self._last = (self._last + chunk)[-TAIL_BYTES:]
                with contextlib.suppress(OSError):  # a full disk must not stall the worker
                    if self._file.tell() + len(chunk) > LOG_BYTES_MAX:
                        self._rotate()
                    self._file.write(chunk)
        self._file.close()

    def _rotate(self) -> None:
        self._path.replace(self._path.with_suffix(".log.1"))
        fresh = self._path.open("ab", buffering=0)
        self._file.close()
        self._file = fresh


class WorkerProcess:
    """At most one worker, started by the first order, and again by the first order after its death.

    Args:
        setting: the first line that every new worker gets.
        log_path: the file for the worker's output.
        report: called in the event loop with each event of the worker.
        command: the worker's command line, without ``--fd N``.
        nice: its priority.
        stop_s: time limit for a worker that should end.
        hang_s: time limit without a sign of progress for a worker with an order; the watchdog measures the work's own
            pace (``peer.daemon.worker_watchdog``). None: no watchdog.
    """

    def __init__(
        self,
        setting: worker_protocol.WorkerSetting,
        log_path: Path,
        report: Callable[[events.Event], None],
        *,
        command: Sequence[str] = WORKER,
        nice: int = NICE,
        stop_s: float = STOP_S,
        hang_s: float | None = None,
    ) -> None:
        self._monitor = ProgressMonitor(hang_s) if hang_s is not None else None
        self._began = self._busy = self._has_nothing_to_save = False
        self._hang = ""
        self._setting = self._used = setting
        self._retired = False
        self._log_path = log_path
        self._report = report
        self._command = command
        self._nice = nice
        self._stop_s = stop_s
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watch: asyncio.Task[None] | None = None
        self._order: Command | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def send(self, order: Command) -> None:
        """Send an order, and start a worker if there is none; do not wait until the worker reads it.

        After ``close`` no worker starts any more. A worker that cannot be started counts as dead.
        """
        if self._closing:
            return
        self._order, self._busy = order, True
        if isinstance(order, Halt) and self._process is not None and not self._began:
            self._has_nothing_to_save = True  # it still imports its libraries, which takes long
            self._process.kill()
            return
        if self._monitor is not None:
            self._monitor.begin()
        try:
            writer = self._writer if self._writer is not None else await self._start()
        except OSError as error:
            self._report(self._about_order("crash", f"the worker cannot be started: {error}"))
        else:
            writer.write(worker_protocol.encode(order))  # if the worker is dead by now, `_listen` reports it

    async def use(self, setting: worker_protocol.WorkerSetting) -> None:
        """Apply this setting from the next order on; end an idle worker that has another one."""
        self._setting = setting
        if self._writer is None or self._watch is None or self._used == setting or self._busy:
            return
        self._retired = True
        self._writer.transport.abort()
        await self._watch
        self._retired = False

    async def close(self) -> None:
        """Close the worker's socket, which ends the worker; kill it if it does not end."""
        self._closing = True
        if self._writer is not None:
            self._writer.transport.abort()  # not close: that would wait until all orders are read
        if self._watch is not None:
            await self._watch

    async def _start(self) -> asyncio.StreamWriter:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as on_failure:
            on_failure.enter_context(ours)
            with theirs:
                worker_log = WorkerLog(self._log_path)
                with worker_log.writer() as output:
                    process = await asyncio.create_subprocess_exec(
                        *self._command,
                        *("--fd", str(theirs.fileno())),
                        stdin=asyncio.subprocess.DEVNULL,
                        stdout=output,
                        stderr=output,
                        pass_fds=(theirs.fileno(),),
                        start_new_session=True,
                    )
            on_failure.pop_all()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # dead, or the daemon's priority is lower
            os.setpriority(os.PRIO_PROCESS, process.pid, self._nice)
        reader, writer = await asyncio.open_connection(sock=ours, limit=WORKER_LINE_BYTES_MAX)
        writer.write(worker_protocol.encode(self._setting))
        self._used = self._setting
        log.info("worker started", extra={"pid": process.pid})
        self._process, self._writer = process, writer
        self._began = self._has_nothing_to_save = False
        self._watch = asyncio.create_task(self._listen(reader, writer, process, worker_log), name="worker")
        return writer

    async def _listen(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        process: asyncio.subprocess.Process,
        worker_log: WorkerLog,
    ) -> None:
        """Report the worker's events; report its failure last, when a new worker can start."""
        failure: events.WorkFailed | None = None
        problem = ""
        watchdog = asyncio.create_task(self._watch_progress(process), name="worker watchdog")
        try:
            while failure is None and (line := await reader.readline()).endswith(b"\n"):
                event = worker_protocol.decode(line, worker_protocol.FROM_WORKER)
                if isinstance(event, events.WorkFailed):
                    failure = event
                elif self._advance(event):
                    self._report(event)
        except ConnectionError:
            pass
        except (TypeError, ValueError) as error:  # ValueError: also a line that is too long
            problem = f"the worker's answer makes no sense: {error}"
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        watchdog.cancel()
        writer.transport.abort()
        code = await self._end(process)
        last_line = await worker_log.last_line()
        self._process, self._writer = None, None
        if self._closing or self._retired:
            return
        if failure is not None:
            self._report(self._about_order(failure.fault, failure.reason, failure.detail))
            return
        if isinstance(self._order, Halt) and self._has_nothing_to_save:
            self._report(events.Halted(self._order.generation, self._order.attempt))
            return
        hang, self._hang = self._hang, ""
        reason = hang or problem or f"the worker ended with {describe_exit(code)}: {last_line}"
        log.error("worker died", extra={"reason": reason})
        self._report(self._about_order("hang" if hang else "crash", reason))

    def _advance(self, event: events.Event) -> bool:
        """Record an event as a sign of progress; return whether the event is to be reported."""
        if self._monitor is not None and self._began:
            self._monitor.advance()
        elif self._monitor is not None:
            self._monitor.begin()  # the worker has imported its libraries: no step has to take as long
        self._began = True
        if isinstance(event, worker_protocol.StillWorking):
            return False
        if not isinstance(event, events.Progressed):
            self._busy = self._busy and getattr(event, "attempt", None) != getattr(self._order, "attempt", None)
        return True

    async def _watch_progress(self, process: asyncio.subprocess.Process) -> None:
        """Kill a worker that has an order and gives no sign of progress for too long."""
        monitor = self._monitor
        if monitor is None:
            return
        before_s = cpu_s(process.pid)
        while not self._hang:
            await asyncio.sleep(monitor.tick_s)
            now_s = cpu_s(process.pid)
            computed_s = None if now_s is None or before_s is None else now_s - before_s
            before_s = now_s
            if self._busy:
                self._hang = monitor.elapse(computed_s) or ""
        with contextlib.suppress(ProcessLookupError):
            process.kill()

    async def _end(self, process: asyncio.subprocess.Process) -> int:
        """Wait for a worker that should end, or kill it; return its exit code.

        A process that hangs in the kernel does not die even if killed. After another ``stop_s`` the daemon continues
        without it.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s):
                return await process.wait()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._stop_s):
                return await process.wait()
        log.error("a killed worker does not end", extra={"pid": process.pid})
        return -signal.SIGKILL

    def _about_order(self, fault: str, reason: str, detail: str = "") -> events.WorkFailed:
        """Build the failure of the present order, even if the worker did not read it."""
        order = self._order
        return events.WorkFailed(getattr(order, "generation", 0), getattr(order, "attempt", 0), fault, reason, detail)


class EvaluationProcess:
    """A second worker that evaluates lent models: on the CPU, at the lowest priority, only while there are any.

    It shares neither memory nor GPU with the training, so that no lent model can make the training fail.

    Args:
        setting: the training worker's first line.
        log_path: the file for the process's output.
        report: called with each of its events.
        command: the command line, without ``--fd N``.
    """

    def __init__(
        self,
        setting: worker_protocol.WorkerSetting,
        log_path: Path,
        report: Callable[[events.Event], None],
        *,
        command: Sequence[str] = WORKER,
    ) -> None:
        alone = {"device": "cpu", "precision": "fp32"}
        site = {**setting.site, "training": {**(setting.site.get("training") or {}), **alone}}
        self._setting = dataclasses.replace(setting, site=site, duty="measure")
        self._log_path = log_path
        self._report = report
        self._command = command
        self._worker: WorkerProcess | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    async def send(self, order: Command) -> None:
        """Send an order, and start the process if it does not run."""
        if self._worker is None:
            self._worker = WorkerProcess(
                self._setting, self._log_path, self._report_event, command=self._command, nice=NICEST
            )  # without a watchdog: the state machine gives up a measurement after MEASURE_S_MAX
        await self._worker.send(order)

    def dismiss(self) -> None:
        """End the process without an event."""
        worker, self._worker = self._worker, None
        if worker is not None:
            task = asyncio.create_task(worker.close(), name="examiner leaves")
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def close(self) -> None:
        self.dismiss()
        await asyncio.gather(*self._leaving)

    def _report_event(self, event: events.Event) -> None:
        if isinstance(event, events.WorkFailed):  # concerns a lent model, not the training
            event = events.MeasurementFailed(event.generation, event.attempt, event.fault, event.reason)
        self._report(event)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"signal {-code}{hint}"
