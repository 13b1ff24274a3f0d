"""The worker: commands in, events out, a halt in the middle of the work, never alive without its daemon."""

import dataclasses
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from peer import landlock
from peer.core import commands, events
from peer.core.worker_protocol import FROM_WORKER, StillWorking, WorkerSetting, decode, encode
from peer.train.worker import EXIT_FAILED, EXIT_ORPHAN, Inbox, confine, work

pytestmark = pytest.mark.e2e

FOREVER = 10**6


class Daemon:
    """The other end of a worker's socket."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.lines: IO[bytes] = self.socket.makefile("rb")

    def send(self, *messages: object) -> None:
        self.socket.sendall(
            b"".join(message if isinstance(message, bytes) else encode(message) for message in messages)
        )

    def next(self, kind: type) -> Any:
        """The next event of this kind; progress on the way is passed over."""
        for line in self.lines:
            event = decode(line, FROM_WORKER)
            if isinstance(event, kind):
                return event
            assert isinstance(event, events.Progressed | StillWorking), event
        raise AssertionError(f"the worker ended without a {kind.__name__}")

    def close(self) -> None:
        self.lines.close()
        self.socket.close()


@contextmanager
def worker_thread() -> Iterator[tuple[Daemon, threading.Event]]:
    """A worker in a thread; the event is set when it noticed that its daemon is gone."""
    daemon, daemon_ended = Daemon(), threading.Event()
    inbox = Inbox(daemon.theirs.makefile("rb"), ended=daemon_ended.set)

    def run() -> None:
        try:
            work(inbox, lambda event: daemon.theirs.sendall(encode(event)))
        except Exception:  # the daemon got the event; in a process the error is the exit code
            daemon.theirs.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield daemon, daemon_ended
        daemon.send(b"the test is over\n")
        thread.join()
    finally:
        daemon.close()
        daemon.theirs.close()


def test_commands_are_answered_in_order(make_setting) -> None:
    with worker_thread() as (daemon, _):
        daemon.send(make_setting(steps=2), commands.Initialise(1, 1))
        state = daemon.next(events.Initialised).state
        daemon.send(commands.Train(1, 1, 2, "train", state, ()), commands.Evaluate(1, 1, 3, state))
        assert daemon.next(events.Trained).attempt == 2
        assert daemon.next(events.Evaluated).attempt == 3
        daemon.send(commands.Halt(1, 4))
        assert daemon.next(events.Halted) == events.Halted(1, 4)


def test_a_halt_ends_the_work_in_hand_and_what_waits_behind_it(make_setting) -> None:
    setting = make_setting(steps=FOREVER)
    with worker_thread() as (daemon, _):
        daemon.send(setting, commands.Initialise(1, 1))
        state = daemon.next(events.Initialised).state
        daemon.send(commands.Train(1, 1, 2, "train", state, ()))
        first = daemon.next(events.Progressed)
        daemon.send(commands.Evaluate(1, 1, 3, state), commands.Halt(1, 4))
        assert daemon.next(events.Halted).attempt == 4
        daemon.send(commands.Train(1, 1, 5, "train", state, ()))
        later = daemon.next(events.Progressed)
        assert (later.attempt, later.step > first.step) == (5, True)
        daemon.send(commands.Halt(1, 6), commands.Halt(1, 7))
        assert daemon.next(events.Halted).attempt == 6
        assert daemon.next(events.Halted).attempt == 7


def test_work_without_steps_gives_signs_of_progress_too(make_setting) -> None:
    """Reading the data and measuring are long; each sample and batch of them is a sign."""
    with worker_thread() as (daemon, _):
        for order in (commands.Initialise(1, 1), commands.Evaluate(1, 1, 2, "initial")):
            daemon.send(*([make_setting()] if isinstance(order, commands.Initialise) else []), order)
            kinds = []
            while not kinds or kinds[-1] is StillWorking:
                kinds.append(type(decode(next(daemon.lines), FROM_WORKER)))
            if isinstance(order, commands.Initialise):
                assert StillWorking in kinds


def test_a_worker_whose_duty_is_to_measure_trains_nothing(make_setting) -> None:
    setting = dataclasses.replace(make_setting(), duty="measure")
    with worker_thread() as (daemon, _):
        daemon.send(setting, commands.Initialise(1, 3))
        failed = daemon.next(events.WorkFailed)
        assert failed.reason == "a worker that evaluates lent models has no answer to Initialise"
    assert not (Path(setting.home) / "checkpoints").exists()


@pytest.mark.parametrize(
    ("parts", "fault", "reason"),
    [
        ({"model": {"name": "resnet12"}}, "configuration", "[model] resnet12: unknown model"),
        ({"data": {"datalist": "none.json"}}, "data", "none.json cannot be read: No such file"),
    ],
)
def test_a_fault_has_its_name_and_its_reason(make_setting, parts: dict, fault: str, reason: str) -> None:
    with worker_thread() as (daemon, _):
        daemon.send(make_setting(**parts), commands.Initialise(1, 3))
        failed = daemon.next(events.WorkFailed)
        assert (failed.generation, failed.attempt, failed.fault) == (1, 3, fault)
        assert reason in (failed.detail or failed.reason)
        assert "\n" not in failed.detail + failed.reason


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b"{}\n", "ValueError: no message of type None (worker_protocol.py:"),
        (b'{"type":"Halt","generation":1}\n', "Halt.attempt is missing"),
        (encode(commands.Halt(1, 1)), "the first message must be a Setting, not Halt"),
    ],
)
def test_what_cannot_be_understood_is_a_crash(first: bytes, reason: str) -> None:
    with worker_thread() as (daemon, _):
        daemon.send(first)
        failed = daemon.next(events.WorkFailed)
        assert failed.fault == "crash"
        assert reason in failed.reason


def test_the_end_of_the_socket_is_noticed_at_once() -> None:
    daemon_ended = threading.Event()
    daemon = Daemon()
    Inbox(daemon.theirs.makefile("rb"), ended=daemon_ended.set)
    daemon.close()
    assert daemon_ended.wait(30)
    daemon.theirs.close()


# --- as a process ---------------------------------------------------------------------------------------------------
@contextmanager
def worker_process(**environment: str) -> Iterator[tuple[Daemon, subprocess.Popen[bytes]]]:
    daemon = Daemon()
    descriptor = daemon.theirs.fileno()
    process = subprocess.Popen(
        [sys.executable, "-m", "peer.train.worker", "--fd", str(descriptor)],
        pass_fds=[descriptor],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
    daemon.theirs.close()
    try:
        yield daemon, process
    finally:
        daemon.close()
        process.kill()
        process.communicate()


def test_a_worker_ends_with_its_daemon_in_the_middle_of_its_work(make_setting) -> None:
    setting: WorkerSetting = make_setting(steps=FOREVER)
    with worker_process() as (daemon, process):
        daemon.send(setting, commands.Initialise(1, 1))
        state = daemon.next(events.Initialised).state
        daemon.send(commands.Train(1, 1, 2, "train", state, ()))
        step = daemon.next(events.Progressed).step
        process.send_signal(signal.SIGINT)  # Ctrl-C in the daemon's terminal
        assert daemon.next(events.Progressed).step > step
        daemon.close()
        out, _ = process.communicate()
        assert process.returncode == EXIT_ORPHAN
        assert out == b""


def test_a_failed_worker_exits_with_one_and_logs_why() -> None:
    with worker_process() as (daemon, process):
        daemon.send(commands.Initialise(1, 1))
        assert daemon.next(events.WorkFailed).fault == "crash"
        out, log = process.communicate()
        assert process.returncode == EXIT_FAILED
        assert out == b""
        assert b"work failed: command=Initialise" in log


INTRUDER = """
from pathlib import Path

site = Path({site!r})
results = []
for name, action in [
    ("read the key", lambda: (site / "pki" / "key.pem").read_bytes()),
    ("read another site's key", lambda: (site.parent / "other" / "pki" / "key.pem").read_bytes()),
    ("read a seed", lambda: (site / "gen-0001" / "sums" / "1.key").read_bytes()),
    ("read another site's seed", lambda: (site.parent / "other" / "gen-0002" / "sums" / "1.key").read_bytes()),
    ("write the journal", lambda: (site / "gen-0001" / "journal.db").write_text("x")),
    ("read the datalist", lambda: Path({datalist!r}).read_bytes()),
    ("write an artifact", lambda: (site / "gen-0001" / "artifacts" / "x").write_text("x")),
]:
    try:
        action()
    except PermissionError:
        results.append(name + ": no")
    else:
        results.append(name + ": yes")
raise RuntimeError("; ".join(results))
"""


@pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock, or it is switched off")
def test_network_code_reads_no_key_and_writes_only_into_the_worker_s_folders(make_setting, tmp_path: Path) -> None:
    site, setting = tmp_path / "trial" / "asia", make_setting(model={"name": "intruder:Net"})
    written = ("asia/gen-0001/artifacts", "asia/gen-0001/checkpoints")
    for folder in ("asia/pki", "other/pki", "asia/gen-0001/sums", "other/gen-0002/sums", *written):
        (site.parent / folder).mkdir(parents=True)
    for file in (site / "gen-0001" / "sums" / "1.key", site.parent / "other" / "gen-0002" / "sums" / "1.key"):
        file.write_text("secret")
    for folder in (site, site.parent / "other"):
        (folder / "pki" / "key.pem").write_text("secret")
    (site / "gen-0001" / "journal.db").write_text("rows")
    datalist = str(Path(setting.base_folder) / setting.site["data"]["datalist"])
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "intruder.py").write_text(INTRUDER.format(site=str(site), datalist=datalist))
    setting = dataclasses.replace(setting, base_folder=str(site), home=str(site / "gen-0001"))
    setting.site["data"]["datalist"] = datalist
    (tmp_path / "temporary").mkdir()
    environment = {"PYTHONPATH": f"{tmp_path / 'code'}{os.pathsep}{Path.cwd()}", "TMPDIR": str(tmp_path / "temporary")}
    with worker_process(**environment) as (daemon, _):
        daemon.send(setting, commands.Initialise(1, 1))
        reason = daemon.next(events.WorkFailed).reason
    assert "read the key: no; read another site's key: no; read a seed: no; read another site's seed: no" in reason
    assert "write the journal: no" in reason
    assert "read the datalist: yes; write an artifact: yes" in reason


def test_a_user_without_a_home_can_run_a_worker(
    make_setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    confine(make_setting())
    assert "the worker is not confined" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's death signal is Linux's")
def test_a_worker_dies_with_its_parent() -> None:
    child = "import signal; from peer.train.worker import die_with_parent; die_with_parent(); "
    child += "print(1, flush=True); signal.pause()"
    parent = f"import subprocess, sys, signal; subprocess.Popen([sys.executable, '-c', {child!r}]); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b""  # ends only when the child, too, let go of it


def test_the_process_starts_without_torch() -> None:
    code = "import sys, peer.train.worker; print({'torch', 'monai', 'grpc', 'asyncio'} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"
