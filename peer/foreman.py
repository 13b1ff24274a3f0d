"""Starts the training worker in a process of its own, hands it orders, and tells what it answers or how it died.

The worker is executed, never forked from this process, so that it has its own memory and its own CUDA context. One
JSON object a line over a socket pair (``peer.core.work``); tensors travel as files.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.core import events, work
from peer.core.commands import Command
from peer.core.limits import WORKER_LINE_BYTES_MAX

log = logging.getLogger(__name__)

NICE = 10
"""The daemon must answer peers and operators while every core trains."""
STOP_S = 10.0
"""A worker whose socket is closed ends by itself within a step; after this long it is killed."""
LOG_BYTES_MAX = 10 << 20
TAIL_BYTES = 4096


class Foreman:
    """One worker at most; it is started by the first order and again by the first order after its death.

    Args:
        setting: the first line that every new worker gets.
        log_path: where the worker's own output goes.
        report: called in the event loop with each event of the worker.
    """

    def __init__(self, setting: work.Setting, log_path: Path, report: Callable[[events.Event], None]) -> None:
        self._setting = setting
        self._log_path = log_path
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._watch: asyncio.Task[None] | None = None
        self._order: Command | None = None
        self._closing = False

    @property
    def pid(self) -> int | None:
        """The worker's process id while it runs."""
        return self._process.pid if self._process is not None else None

    async def send(self, order: Command) -> None:
        """Hand over an order, starting a worker if there is none."""
        self._order = order
        if self._writer is None:
            await self._start()
        assert self._writer is not None
        with contextlib.suppress(ConnectionError):  # its death is reported by the one who reads
            self._writer.write(work.encode(order))
            await self._writer.drain()

    async def close(self) -> None:
        """End the worker: it leaves when its socket closes, and is killed if it does not."""
        self._closing = True
        if self._writer is not None:
            self._writer.close()
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), STOP_S)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._watch is not None:
            await self._watch

    async def _start(self) -> None:
        if self._log_path.exists() and self._log_path.stat().st_size > LOG_BYTES_MAX:
            self._log_path.replace(self._log_path.with_suffix(".log.1"))
        ours, theirs = socket.socketpair()
        with theirs, self._log_path.open("ab") as output:
            os.set_inheritable(theirs.fileno(), True)
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "peer.training.worker", "--fd", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, NICE)
        reader, self._writer = await asyncio.open_connection(sock=ours, limit=WORKER_LINE_BYTES_MAX)
        self._writer.write(work.encode(self._setting))
        log.info("worker started", extra={"pid": self._process.pid})
        self._watch = asyncio.create_task(self._listen(reader, self._process), name="worker")

    async def _listen(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
        failed = False
        problem = ""
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                try:
                    event: Any = work.decode(line, work.FROM_WORKER)
                except ValueError as error:
                    problem = f"the worker's answer makes no sense: {error}"
                    process.kill()
                    break
                if isinstance(event, events.WorkFailed):
                    failed = True
                    event = self._about_order(event.fault, event.reason)
                self._report(event)
        code = await process.wait()
        self._process, self._writer = None, None
        if self._closing or failed:
            return
        reason = problem or f"the worker ended with {describe_exit(code)}: {self._tail()}"
        log.error("worker died", extra={"reason": reason})
        self._report(self._about_order("crash", reason))

    def _about_order(self, fault: str, reason: str) -> events.WorkFailed:
        """The failure of the order in hand, also when the worker did not get as far as reading it."""
        order = self._order
        return events.WorkFailed(getattr(order, "generation", 0), getattr(order, "attempt", 0), fault, reason)

    def _tail(self) -> str:
        """The last line that the worker wrote."""
        with self._log_path.open("rb") as file:
            file.seek(max(0, self._log_path.stat().st_size - TAIL_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"exit code {code}"
    hint = " (out of memory?)" if code == -9 else ""
    return f"signal {-code}{hint}"
