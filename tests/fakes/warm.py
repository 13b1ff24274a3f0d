"""Daemons and workers that start at once: a server has imported what they import, and forks them.

``warm.py serve SOCKET`` serves until its input ends: a FIFO that all processes of a test run hold open, which share the
server. A test starts a daemon with ``Warm.start``. ``warm.py call SOCKET PROGRAM [ARGUMENT...] --fd N`` is what a
daemon executes as its worker: it passes its descriptors on, waits, and ends as the forked program ended. PROGRAM is a
module, or the path of a file.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

REQUEST_BYTES_MAX = 1 << 17  # arguments and environment
READY = "serving"
ANSWER_BYTES = 16  # the number of a process, or its exit code


class Warm:
    """The server of a folder, for tests: the first process that needs it starts it, and it ends with the last."""

    def __init__(self, folder: Path) -> None:
        self._socket, users = folder / "warm.socket", folder / "warm.users"
        with _locked(folder):
            if not users.exists():
                os.mkfifo(users)
            try:
                self._user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:  # nobody reads it: there is no server
                    raise
                self._user = self._start(users)

    def _start(self, users: Path) -> int:
        """Start the server; the descriptor that keeps it alive."""
        reads = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
        user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(self._socket)],
            stdin=reads,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            start_new_session=True,
            text=True,
        )
        os.close(reads)
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline().strip() != READY:
                raise RuntimeError("the server of warm workers did not start; what it wrote stands above")
        process.returncode = 0  # it outlives this object: other processes of the run may use it
        return user

    def command(self, *program: str) -> tuple[str, ...]:
        """What a daemon executes as its worker, without ``--fd N``."""
        return (sys.executable, "-I", "-S", __file__, "call", str(self._socket), *program)

    def start(self, words: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a program, which writes to ``output``."""
        connection = _connect(str(self._socket))
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), output.fileno(), output.fileno()]
            _ask(connection, words, environment, streams)
        return ForkedProcess(connection)

    def close(self) -> None:
        """End the server and every process that it forked, unless another process of the run uses it."""
        os.close(self._user)


class ForkedProcess:
    """A process that the server forked, with what tests use of ``subprocess.Popen``."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(connection.recv(ANSWER_BYTES))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raise ``TimeoutExpired`` after ``timeout`` seconds."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            self.returncode = int(self._connection.recv(ANSWER_BYTES))
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    return connection


def _ask(
    connection: socket.socket, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> None:
    """Ask for a process with these descriptors: its streams, and a worker's channel."""
    request = {"words": words, "environment": dict(environment), "folder": os.getcwd()}
    socket.send_fds(connection, [json.dumps(request).encode()], descriptors)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process of a run at a time looks for the server, starts it, or lets it end."""
    with (folder / "warm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def load() -> None:
    """Import what daemons and workers import."""
    from models.lean_monai import load_monai

    load_monai()
    for name in ("models", "peer.daemon.startup", "peer.train.guest", "peer.train.trainer"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a forked process copies no page of these objects to count who refers to them


def serve(path: str) -> None:
    """Fork a process for every connection until standard input ends."""
    load()
    ours = os.getpid()
    running: dict[int, socket.socket] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as selector:
        Path(path).unlink(missing_ok=True)  # of a server that was killed
        listener.bind(path)
        listener.listen()

        def leave() -> None:
            with _locked(Path(path).parent):
                if select.select([sys.stdin], [], [], 0)[0]:  # nobody has come meanwhile
                    os.close(0)
                    raise SystemExit

        def accept() -> None:
            connection, _ = listener.accept()
            message, descriptors, *_ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 4)
            if (pid := os.fork()) == 0:
                try:
                    become(json.loads(message), descriptors)
                finally:
                    os._exit(70)  # become ends the process itself
            for descriptor in descriptors:
                os.close(descriptor)
            with contextlib.suppress(OSError):  # the caller was killed
                connection.sendall(str(pid).encode())
            running[pid] = connection
            selector.register(connection, selectors.EVENT_READ, lambda: abandon(pid))

        def abandon(pid: int) -> None:
            selector.unregister(running[pid])  # it stays readable, and would keep the others from their turn
            os.kill(pid, signal.SIGKILL)

        def reap() -> None:
            os.read(wake, 4096)
            for pid in list(running):
                ended, status = os.waitpid(pid, os.WNOHANG)
                if not ended:
                    continue
                with running.pop(pid) as connection, contextlib.suppress(KeyError, OSError):  # the caller was killed
                    selector.unregister(connection)
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())

        selector.register(wake, selectors.EVENT_READ, reap)
        selector.register(listener, selectors.EVENT_READ, accept)
        selector.register(sys.stdin, selectors.EVENT_READ, leave)
        print(READY, flush=True)
        try:
            while True:
                (key, _), *_ = selector.select()  # one at a time: its answer may end another
                key.data()
        finally:
            if os.getpid() == ours:
                for pid in running:
                    os.kill(pid, signal.SIGKILL)


def become(request: Mapping[str, Any], descriptors: list[int]) -> None:
    """Be the program, in a process that was forked for it, and end that."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    sys.argv[:] = request["words"]
    program = sys.argv[0]
    for number, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, number)
    unused = 3
    for channel in descriptors[3:]:  # a worker's
        os.nice(10)
        sys.argv += ["--fd", str(channel)]
        os.closerange(unused, channel)
        unused = channel + 1
    os.closerange(unused, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace")  # noqa: SIM115
    code: Any = 1
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of any Python, which os._exit leaves out
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # its disk may be full
            stream.flush()
    os._exit(code)


def call(path: str, words: list[str], channel: int) -> int:
    """Have the server fork the program on these descriptors; its exit code, or death by its signal."""
    with _connect(path) as connection:
        _ask(connection, words, os.environ, [0, 1, 2, channel])
        os.close(channel)
        connection.recv(ANSWER_BYTES)  # the number of the process
        code = int(connection.recv(ANSWER_BYTES) or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path]:
            serve(path)
        case ["call", path, *words, "--fd", channel]:
            sys.exit(call(path, words, int(channel)))
