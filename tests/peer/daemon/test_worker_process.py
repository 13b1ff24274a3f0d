"""Workers that die in every way: each death is reported once, and the next order starts a new process."""

import asyncio
import contextlib
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from peer.core import commands, events, worker_protocol
from peer.core.artifacts import Artifact, Source
from peer.core.commands import Halt
from peer.core.limits import WORKER_LINE_BYTES_MAX
from peer.core.roster import Sha256, SiteName
from peer.daemon.worker_process import LOG_BYTES_MAX, NICEST, WORKER, EvaluationProcess, WorkerProcess
from peer.daemon.worker_watchdog import ProgressMonitor

SETTING = worker_protocol.WorkerSetting("asia", "ab" * 32, {}, {}, "/nowhere", "/nowhere")
LIMIT_S = 20.0
BEGIN = """
import json, os, select, signal, socket, sys
connection = socket.socket(fileno=int(sys.argv[-1]))
lines = connection.makefile("rb")
def take():
    return json.loads(lines.readline() or os._exit(3))
def say(kind, **fields):
    connection.sendall(json.dumps({"type": kind, **fields}).encode() + b"\\n")
def wait_for_the_end():
    ended = select.poll()
    ended.register(connection, select.POLLRDHUP)
    ended.poll()
"""
HALTS = """
setting = take()
while True:
    order = take()
    say("Halted", generation=order["generation"], attempt=order["attempt"])
"""


class WorkerSetup:
    """A worker process that runs a script of the test, and the events that it reported."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "worker.log"
        self.events: asyncio.Queue[events.Event] = asyncio.Queue()
        self.foremen: list[WorkerProcess] = []

    def worker_process(
        self, script: str, *, command: tuple[str, ...] = (), stop_s: float = LIMIT_S, hang_s: float | None = None
    ) -> WorkerProcess:
        command = command or (sys.executable, "-I", "-S", "-c", BEGIN + script)
        worker_process = WorkerProcess(
            SETTING, self.log, self.events.put_nowait, command=command, stop_s=stop_s, hang_s=hang_s
        )
        self.foremen.append(worker_process)
        return worker_process

    async def next(self) -> Any:
        return await asyncio.wait_for(self.events.get(), LIMIT_S)


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[WorkerSetup]:
    setup = WorkerSetup(tmp_path)
    yield setup
    for worker_process in setup.foremen:
        await worker_process.close()
    assert setup.events.empty(), "an event that no test expects"


async def gone(pid: int) -> None:
    """Wait until a process that was killed is no more: ``stop_s`` may be over before the kernel has ended it."""
    async with asyncio.timeout(LIMIT_S):
        with contextlib.suppress(ProcessLookupError):
            while True:
                os.kill(pid, 0)
                await asyncio.sleep(0.01)


def heavy_order() -> commands.Train:
    """An order that is larger than any socket buffer."""
    artifact = Artifact("model", SiteName("asia"), Sha256("cd" * 32), 1, 0, {"layer": "x" * 2_000_000})
    return commands.Train(1, 1, 1, "train", "initial", (Source(SiteName("asia"), 1, artifact),))


def test_the_worker_is_the_real_one_unless_a_test_says_otherwise() -> None:
    assert (sys.executable, "-P", "-m", "peer.train.worker") == WORKER


async def test_one_worker_hears_the_setting_first_and_then_every_order(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process("""
assert take()["site_name"] == "asia"
for _ in range(2):
    order = take()
    say("Halted", generation=os.getpid(), attempt=order["attempt"])
take()
""")
    assert worker_process.pid is None
    await worker_process.send(Halt(1, 7))
    pid = worker_process.pid
    assert await setup.next() == events.Halted(pid, 7)
    await worker_process.send(Halt(1, 8))
    assert await setup.next() == events.Halted(pid, 8)
    assert os.getpriority(os.PRIO_PROCESS, pid) == 10
    await worker_process.close()
    assert worker_process.pid is None


async def test_an_order_with_another_setting_goes_to_a_new_worker_and_no_death_is_reported(
    setup: WorkerSetup,
) -> None:
    worker_process = setup.worker_process("""
setting = take()
order = take()
say("Halted", generation=len(setting["federation"]), attempt=order["attempt"])
take()
""")
    await worker_process.use(SETTING)
    await worker_process.send(Halt(1, 7))
    first = worker_process.pid
    assert await setup.next() == events.Halted(0, 7)
    await worker_process.use(dataclasses.replace(SETTING, federation={"stages": {}}))
    await worker_process.send(Halt(1, 8))
    assert await setup.next() == events.Halted(1, 8)
    assert worker_process.pid != first


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("sys.exit(0)", "exit code 0: it said nothing$"),
        ("os._exit(9)", "exit code 9: it said nothing$"),
        ("import no_such_module", "exit code 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"signal 9 \(out of memory\?\): it said nothing"),
        ("take(); take(); os.abort()", "signal 6: it said nothing"),
        ("take(); take(); print('last \\x1b[2J words', flush=True); os._exit(5)", r"exit code 5: last  \[2J words"),
        ('take(); take(); connection.sendall(b\'{"type": "Hal\'); os._exit(6)', "exit code 6: it said nothing"),
        ("take(); take(); connection.sendall(b'hello?\\n'); take()", "answer makes no sense: Expecting value"),
        ("take(); take(); connection.sendall(b'{\"type\": []}\\n'); take()", "answer makes no sense: "),
        ("take(); take(); say('Halted', generation=1); take()", "answer makes no sense: Halted.attempt is missing"),
        ("take(); take(); say('Persist'); take()", "answer makes no sense: no message of type 'Persist'"),
        (f"take(); take()\nwhile True: connection.sendall(b'x' * {WORKER_LINE_BYTES_MAX})", "answer makes no sense: "),
    ],
    ids=[
        "end",
        "exit",
        "import",
        "kill",
        "abort",
        "words",
        "half a line",
        "garbage",
        "no type",
        "field",
        "command",
        "endless",
    ],
)
async def test_a_death_is_told_once_about_the_order_in_hand(setup: WorkerSetup, script: str, reason: str) -> None:
    setup.log.write_text("CUDA out of memory\n")  # the last words of an earlier worker
    worker_process = setup.worker_process(script)
    await worker_process.send(Halt(3, 7))
    failed = await setup.next()
    assert (failed.generation, failed.attempt, failed.fault) == (3, 7, "crash")
    assert worker_process.pid is None
    assert re.search(reason, failed.reason), failed.reason


@pytest.mark.parametrize("last", ["say('WorkFailed', generation=1, attempt=1, fault='memory', reason='full')", "pass"])
async def test_the_order_after_a_failure_goes_to_a_new_worker(setup: WorkerSetup, last: str, tmp_path: Path) -> None:
    """The first worker lingers after its last event, as with a GPU: no order may be lost."""
    mark = tmp_path / "mark"
    worker_process = setup.worker_process(f"""
setting, order = take(), take()
if not os.path.exists({str(mark)!r}):
    open({str(mark)!r}, "w").close()
    {last}
    connection.shutdown(socket.SHUT_WR)
    wait_for_the_end()
    sys.exit(1)
say("Halted", generation=order["generation"], attempt=order["attempt"])
take()
""")
    await worker_process.send(Halt(1, 1))
    failed = await setup.next()
    assert isinstance(failed, events.WorkFailed)
    assert failed.fault == ("memory" if "memory" in last else "crash")
    await worker_process.send(Halt(1, 2))
    assert await setup.next() == events.Halted(1, 2)


async def test_a_failure_counts_for_the_newest_order_also_when_that_was_not_read(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process("""
take(); take(); take()
say("WorkFailed", generation=1, attempt=1, fault="data", reason="none")
""")
    await worker_process.send(commands.Initialise(1, 1))
    await worker_process.send(commands.Initialise(1, 2))
    assert await setup.next() == events.WorkFailed(1, 2, "data", "none")


async def test_a_worker_that_has_not_begun_has_nothing_to_save_and_is_ended_by_a_halt(setup: WorkerSetup) -> None:
    """Importing torch takes seconds, in which an operator who presses Ctrl-C would wait."""
    worker_process = setup.worker_process("take(); signal.pause()")
    await worker_process.send(commands.Initialise(1, 1))
    pid = worker_process.pid
    assert pid is not None
    await worker_process.send(Halt(1, 2))
    assert await setup.next() == events.Halted(1, 2)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_order_after_such_a_halt_is_not_lost(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process("take(); signal.pause()")
    await worker_process.send(commands.Initialise(1, 1))
    await worker_process.send(Halt(1, 2))
    await worker_process.send(commands.Initialise(1, 3))
    failed = await setup.next()
    assert (failed.attempt, failed.fault) == (3, "crash")


async def test_a_worker_that_does_not_read_holds_nobody_up(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process("wait_for_the_end()")
    assert len(worker_protocol.encode(heavy_order())) > 1 << 20
    await asyncio.wait_for(worker_process.send(heavy_order()), LIMIT_S)
    await asyncio.wait_for(worker_process.send(commands.Initialise(1, 2)), LIMIT_S)


async def test_a_worker_that_hears_nothing_any_more_is_killed(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process(
        "take(); take(); connection.close(); lines.close(); signal.pause()", stop_s=0.1
    )
    await worker_process.send(Halt(1, 1))
    assert "signal 9" in (await setup.next()).reason


async def test_close_kills_a_worker_that_stays(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process(
        "take(); say('Halted', **{'generation': 1, 'attempt': 1}); signal.pause()", stop_s=0.1
    )
    await worker_process.send(Halt(1, 1))
    await setup.next()
    pid = worker_process.pid
    assert pid is not None
    await worker_process.close()
    await gone(pid)


@pytest.mark.parametrize(
    ("work", "did"),
    [
        ("signal.pause()", "did not compute"),
        ("os.kill(os.getpid(), signal.SIGSTOP)", "did not compute"),
        pytest.param("while True: pass", "", marks=pytest.mark.e2e),  # beside others it may compute too little
    ],
    ids=["waits", "stopped", "dead loop"],
)
async def test_a_worker_that_hangs_is_killed_and_the_next_order_starts_another(
    setup: WorkerSetup, work: str, did: str, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    worker_process = setup.worker_process(
        f"""
setting, order = take(), take()
if not os.path.exists({str(mark)!r}):
    open({str(mark)!r}, "w").close()
    {work}
say("Halted", generation=order["generation"], attempt=order["attempt"])
take()
""",
        stop_s=1.0,
        hang_s=1.0,
    )
    await worker_process.send(commands.Initialise(1, 5))
    failed = await setup.next()
    assert (failed.attempt, failed.fault) == (5, "hang")
    assert did in failed.reason
    worker_process._monitor = ProgressMonitor(LIMIT_S)  # a busy machine may take a second to start the other
    await worker_process.send(commands.Initialise(1, 6))
    assert await setup.next() == events.Halted(1, 6)


async def test_the_start_of_a_worker_is_no_step_that_later_ones_may_take_three_times_as_long_as(
    setup: WorkerSetup, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    os.mkfifo(started)
    worker_process = setup.worker_process(
        f"""
setting, order = take(), take()
open({str(started)!r}).close()
say("StillWorking")
say("Halted", generation=order["generation"], attempt=order["attempt"])
take()
"""
    )
    worker_process._monitor = monitor = ProgressMonitor(1000.0)
    await worker_process.send(commands.Initialise(1, 1))
    assert [monitor.elapse(0.0) for _ in range(900)] == [None] * 900
    await asyncio.to_thread(started.write_bytes, b"")
    assert await setup.next() == events.Halted(1, 1)
    assert [monitor.elapse(0.0) is None for _ in range(1000)] == [True] * 999 + [False]


@pytest.mark.e2e
async def test_a_worker_that_gives_signs_or_has_no_order_is_never_taken_for_hung(setup: WorkerSetup) -> None:
    """It works for twice as long as it may give no sign, and is idle for longer than that, too."""
    worker_process = setup.worker_process(
        """
import time
setting = take()
for _ in range(2):
    order = take()
    for _ in range(30):
        time.sleep(0.1)
        say("StillWorking")
    say("Halted", generation=order["generation"], attempt=order["attempt"])
take()
""",
        hang_s=1.5,
    )
    for attempt in (1, 2):
        await worker_process.send(commands.Initialise(1, attempt))
        assert await setup.next() == events.Halted(1, attempt)
        await asyncio.sleep(2.0)


async def test_nothing_starts_after_close(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process(HALTS)
    await worker_process.close()
    await worker_process.send(Halt(1, 1))
    assert worker_process.pid is None
    assert not setup.log.exists()


async def test_a_worker_that_is_no_program_or_has_no_log_counts_as_one_that_died(setup: WorkerSetup) -> None:
    worker_process = setup.worker_process("", command=("/no/such/program",))
    await worker_process.send(Halt(1, 4))
    failed = await setup.next()
    assert (failed.attempt, failed.fault) == (4, "crash")
    assert "cannot be started" in failed.reason
    assert "/no/such/program" in failed.reason
    setup.log.unlink()
    setup.log.mkdir()  # which cannot be written
    worker_process = setup.worker_process(HALTS)
    await worker_process.send(Halt(1, 1))
    assert "cannot be started" in (await setup.next()).reason


async def test_a_long_log_is_put_aside(setup: WorkerSetup) -> None:
    setup.log.touch()
    os.truncate(setup.log, LOG_BYTES_MAX + 1)
    worker_process = setup.worker_process(HALTS)
    await worker_process.send(Halt(1, 1))
    await setup.next()
    assert setup.log.stat().st_size == 0
    assert setup.log.with_suffix(".log.1").stat().st_size > LOG_BYTES_MAX


async def test_a_worker_that_never_stops_warning_fills_two_logs_at_most(setup: WorkerSetup) -> None:
    lines = 3 * LOG_BYTES_MAX // 64
    worker_process = setup.worker_process(f"""
take(); order = take()
for number in range({lines}):
    sys.stderr.write(f"{{number:063}}\\n")
say("Halted", generation=order["generation"], attempt=order["attempt"])
wait_for_the_end()
""")
    await worker_process.send(Halt(1, 1))
    await setup.next()
    await worker_process.close()
    logs = [setup.log.with_suffix(".log.1").read_bytes(), setup.log.read_bytes()]
    assert all(0 < len(content) <= LOG_BYTES_MAX for content in logs)
    assert sorted(path.name for path in setup.log.parent.iterdir()) == ["worker.log", "worker.log.1"]
    numbers = [int(line) for line in b"".join(logs).split()]
    assert numbers == list(range(numbers[0], lines)), "the newest lines, and none is lost between the two files"


# --- the second worker -----------------------------------------------------------------------------------------------
TELLS = """
setting = take()
while True:
    order = take()
    figures = {"pid": float(os.getpid()), "nice": float(os.getpriority(os.PRIO_PROCESS, 0))}
    figures["apart"] = float((setting["duty"], setting["site"]["training"]["device"]) == ("measure", "cpu"))
    fields = {key: order[key] for key in ("generation", "round", "attempt")}
    say("Measured", metrics=figures, **fields)
"""
MODEL = Artifact("model", SiteName("asia"), Sha256("ab" * 32), 9, 0, {"name": "net"})


def measure(attempt: int) -> commands.Measure:
    return commands.Measure(1, 2, attempt, Source(SiteName("asia"), 2, MODEL))


@pytest.fixture
async def evaluation_process(
    tmp_path: Path,
) -> AsyncIterator[Callable[[str], tuple[EvaluationProcess, asyncio.Queue[Any]]]]:
    """Makes an evaluation process that runs a script, and the queue of its events."""
    started: list[EvaluationProcess] = []

    def make(script: str) -> tuple[EvaluationProcess, asyncio.Queue[Any]]:
        reported: asyncio.Queue[Any] = asyncio.Queue()
        command = (sys.executable, "-I", "-S", "-c", BEGIN + script)
        setting = dataclasses.replace(SETTING, site={"training": {"device": "cuda", "threads": 2}})
        started.append(EvaluationProcess(setting, tmp_path / "examiner.log", reported.put_nowait, command=command))
        return started[-1], reported

    yield make
    for process in started:
        await process.close()


async def test_guests_are_measured_on_the_cpu_at_the_lowest_priority(evaluation_process: Callable[..., Any]) -> None:
    process, reported = evaluation_process(TELLS)
    await process.send(measure(1))
    event = await asyncio.wait_for(reported.get(), LIMIT_S)
    assert (event.attempt, event.metrics["apart"], event.metrics["nice"]) == (1, 1.0, NICEST)


async def test_a_dismissed_process_ends_in_silence_and_the_next_order_starts_another(evaluation_process) -> None:
    process, reported = evaluation_process(TELLS)
    pids = []
    for attempt in (1, 2):
        await process.send(measure(attempt))
        pids.append((await asyncio.wait_for(reported.get(), LIMIT_S)).metrics["pid"])
        process.dismiss()
    await process.close()
    process.dismiss()
    assert pids[0] != pids[1]
    assert reported.empty()


async def test_the_death_of_a_guest_s_process_is_no_failure_of_the_training(evaluation_process) -> None:
    process, reported = evaluation_process("take(); take(); os.kill(os.getpid(), signal.SIGKILL)")
    await process.send(measure(7))
    event = await asyncio.wait_for(reported.get(), LIMIT_S)
    assert isinstance(event, events.MeasurementFailed)
    assert (event.generation, event.attempt, event.fault) == (1, 7, "crash")
    assert "signal 9" in event.reason


def test_a_package_in_the_folder_that_the_daemon_is_started_in_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "__init__.py").write_text("raise RuntimeError('somebody else')")
    done = subprocess.run([*WORKER, "--help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
