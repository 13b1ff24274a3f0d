"""An event loop without input or output: its clock is virtual, and a run depends on its seed alone.

The loop waits for nothing. When no callback is ready it moves its clock to the next timer. Code
that a daemon runs in a thread runs in the loop itself. A worker is no process but an object of
``simulation.worker``. Each task belongs to the ``Process`` in whose context it was created, so that
a process can be killed with all of its tasks.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import itertools
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from simulation.streams import AcceptedSocket

if TYPE_CHECKING:
    from simulation.disk import Disk
    from simulation.programs import Program

START_S = 1000.0
TIMERS_MAX = 100
"""Above it, asyncio looks for cancelled timers to remove."""
STEPS_PER_SECOND_MAX = 20_000
"""Turns of the loop in one virtual second: a daemon that needs more spins."""


class Crash(BaseException):
    """The process died. No handler for ``Exception`` sees it."""


class Stuck(Exception):  # noqa: N818 - the name is the fact
    """Nothing can happen any more, or too much happens at once."""


class Process:
    """One life of a site's daemon: from a start to a crash or an exit.

    Attributes:
        site: the site's name, or a relay's.
        disk: the site's disk, which outlives the process; a relay has none.
        tasks: the running tasks, in the order of their creation.
        ends: its ends of streams.
        program: which version of the program it runs.
        dead: whether the process has crashed. Nothing that it still does has an effect.
    """

    def __init__(self, site: str, disk: Disk | None) -> None:
        self.site, self.disk, self.dead = site, disk, False
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.connections: list[Any] = []
        self.ends: dict[Any, None] = {}
        self.program: Program | None = None
        self.on_crash: Callable[[], None] = lambda: None

    def crash(self) -> None:
        """Die at once; what the process has already written stays as the disk has it."""
        if not self.dead:
            self.dead = True
            self.on_crash()

    def check(self) -> None:
        """Raise ``Crash`` in a process that is dead."""
        if self.dead:
            raise Crash

    def context(self) -> contextvars.Context:
        """A context whose tasks belong to this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context


PROCESS: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class VirtualLoop(asyncio.BaseEventLoop):
    """Args:
    spawn: makes the worker for a command line; called in the context of its site.
    """

    def __init__(self, spawn: Callable[[Process, tuple[str, ...]], Any]) -> None:
        super().__init__()
        self._selector = self  # the base class waits there for input, until the next timer is due
        self._now_s = START_S
        self._spawn = spawn
        self._steps, self._second = 0, 0
        self.task_numbers = itertools.count()
        self.dial: Callable[..., Coroutine[Any, Any, Any]]
        self.set_task_factory(make_task)

    def time(self) -> float:
        return self._now_s

    def select(self, timeout: float | None) -> tuple[()]:
        """Let time pass until the next timer."""
        if timeout is None:
            raise Stuck("nothing can happen any more")
        self._now_s += timeout
        if timeout and int(self._now_s) != self._second:
            self._second, self._steps = int(self._now_s), 0
        self._steps += 1
        if self._steps > STEPS_PER_SECOND_MAX:
            raise Stuck(f"more than {STEPS_PER_SECOND_MAX} turns of the event loop in a second")
        return ()

    def _process_events(self, event_list: Any) -> None:
        pass

    def _run_once(self) -> None:
        """One turn as the base class makes it, in its order, without what only real input needs."""
        scheduled, ready = self._scheduled, self._ready  # type: ignore[attr-defined]
        if len(scheduled) > TIMERS_MAX:  # the base class sweeps cancelled timers out
            super()._run_once()  # type: ignore[misc]
            return
        while scheduled and scheduled[0]._cancelled:
            self._timer_cancelled_count -= 1
            heapq.heappop(scheduled)._scheduled = False
        if ready or self._stopping:  # type: ignore[attr-defined]
            self.select(0)
        else:
            self.select(max(0.0, scheduled[0]._when - self._now_s) if scheduled else None)
        end_s = self._now_s + self._clock_resolution  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._when < end_s:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _write_to_self(self) -> None:
        pass

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Run the function in the loop's next turn, or once a slow disk has it, even if nobody waits for it then."""
        future, process = self.create_future(), PROCESS.get()

        def run() -> None:
            try:
                result = func(*args)
            except BaseException as error:
                if not future.done():
                    future.set_exception(error)
                    future.exception()  # a dead process does not retrieve it
            else:
                if not future.done():
                    future.set_result(result)

        slow_s = process.disk.slow_s if process is not None and process.disk is not None else 0.0
        if slow_s:
            self.call_later(slow_s, run)
        else:
            self.call_soon(run)
        return future

    async def subprocess_exec(self, protocol_factory: Any, *command: Any, **options: Any) -> Any:  # type: ignore[override]
        process = PROCESS.get()
        process.check()
        protocol = protocol_factory()
        return self._spawn(process, tuple(map(str, command))), protocol

    async def create_connection(self, protocol_factory: Any, *where: Any, sock: Any = None, **options: Any) -> Any:  # type: ignore[override]
        """The daemon's end of the line to the worker that it has just started, or of a stream."""
        process, protocol = PROCESS.get(), protocol_factory()
        if isinstance(sock, AcceptedSocket):
            sock.end.use(protocol)
            return sock.end, protocol
        if sock is None:
            end = await self.dial(*where, **options)
            end.use(protocol)
            return end, protocol
        sock.close()
        return process.disk.newest_worker.connect(protocol), protocol

    # --- what a relay uses of the loop ---
    async def sock_accept(self, sock: Any) -> Any:
        return await sock.queue.get()

    async def sock_sendall(self, sock: Any, data: bytes) -> None:
        sock.end.write(data)

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, *, ssl: Any, **options: Any) -> Any:  # type: ignore[override]
        protocol = protocol_factory()
        sock.secure(ssl.protocols[0])
        sock.end.use(protocol)
        return sock.end, protocol


class NumberedTask(asyncio.Task[Any]):
    """A task whose place in a set depends on the run alone, and not on where it lies in memory."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: Any, context: Any) -> None:
        self._number = next(loop.task_numbers)
        super().__init__(coro, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], context: Any = None) -> Any:
    task = NumberedTask(coro, loop=loop, context=context)
    process = PROCESS.get() if context is None else context.get(PROCESS)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(process.tasks.pop)
    return task


class InlineExecutor(Executor):
    """In place of a thread: a step runs when it is submitted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        pass

    def submit(self, step: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(step(*args, **options))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass
