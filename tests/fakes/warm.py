"""Workers that start at once: a server has imported torch and MONAI, and forks the real worker for every call.

``warm.py serve SOCKET`` serves until its input ends: a FIFO that all processes of a test run hold open, which share the
server. ``warm.py call SOCKET PROGRAM [ARGUMENT...] --fd N`` is what a
daemon executes as its worker: it passes its descriptors on, waits, and ends as the forked program ended. PROGRAM is a
module, or the path of a file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

REQUEST_BYTES_MAX = 1 << 20  # arguments and environment
READY = "serving"


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

    def close(self) -> None:
        """End the server and every worker that it forked, unless another process of the run uses it."""
        os.close(self._user)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process of a run at a time looks for the server, starts it, or lets it end."""
    with (folder / "warm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def serve(path: str) -> None:
    """Fork a worker for every connection until standard input ends."""
    from models.lean_monai import load_monai

    load_monai()
    for name in ("models", "peer.train.guest", "peer.train.trainer"):
        importlib.import_module(name)
    os.nice(10)
    ours = os.getpid()
    running: dict[int, socket.socket] = {}
    wake, woken = os.pipe2(os.O_NONBLOCK)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as selector:
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
    channel, *standard = descriptors
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, channel)
    os.closerange(channel + 1, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    program, *arguments = request["words"]
    sys.argv = [program, *arguments, "--fd", str(channel)]
    sys.stdin, sys.stdout, sys.stderr = (open(number, mode) for number, mode in enumerate("rww"))  # noqa: SIM115
    code: Any = 1
    try:
        if program.endswith(".py"):
            runpy.run_path(program, run_name="__main__")
        else:
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    os._exit(code)


def call(path: str, words: list[str], channel: int) -> int:
    """Have the server fork the program on these descriptors; its exit code, or death by its signal."""
    request = {"words": words, "environment": dict(os.environ), "folder": os.getcwd()}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        socket.send_fds(connection, [json.dumps(request).encode()], [channel, 0, 1, 2])
        os.close(channel)
        code = int(connection.recv(16) or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path]:
            serve(path)
        case ["call", path, *words, "--fd", channel]:
            sys.exit(call(path, words, int(channel)))
