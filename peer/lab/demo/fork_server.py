"""Worker processes that start at once: a server imports what they import, and forks one for each call.

``fork_server.py serve SOCKET MODULE[:FUNCTION]...`` imports the modules, calls the functions, and serves until its
standard input ends: a FIFO that all processes with a ``ForkServer`` of the same folder hold open. A daemon executes
``fork_server.py call SOCKET PROGRAM [ARGUMENT...] --fd N`` as its worker: it passes its descriptors on, waits, and ends
as the forked process ends. PROGRAM is a module, or the path of a file.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import gc
import json
import os
import pkgutil
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
from typing import Any, Self

REQUEST_BYTES_MAX = 1 << 17  # arguments and environment
READY = "serving"
ANSWER_BYTES = 16  # the number of a process, or its exit code


class ForkServer:
    """The server of a folder: the first process that needs it starts it, and it ends with the last.

    Args:
        folder: with a path so short that a socket in it has a name that Linux takes.
        modules: what the server imports, or calls with ``MODULE:FUNCTION``; nothing of it may start a thread.
    """

    def __init__(self, folder: Path, modules: Sequence[str]) -> None:
        self._modules = modules
        self.socket, users = folder / "fork.socket", folder / "fork.users"
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
        """Start the server; return the descriptor that keeps it alive."""
        reads = os.open(users, os.O_RDONLY | os.O_NONBLOCK)
        user = os.open(users, os.O_WRONLY | os.O_NONBLOCK)
        path = [str(Path(__file__).resolve().parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(
            [sys.executable, "-P", __file__, "serve", str(self.socket), *self._modules],
            stdin=reads,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,
            text=True,
        )
        os.close(reads)
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline().strip() != READY:
                raise RuntimeError("the server of worker processes did not start; its message is above")
        process.returncode = 0  # it outlives this object: other processes may use it
        return user

    def command(self, *program: str) -> tuple[str, ...]:
        """Return what a daemon executes as its worker, without ``--fd N``."""
        return (sys.executable, "-I", "-S", __file__, "call", str(self.socket), *program)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and every process that it forked, unless another process uses it."""
        os.close(self._user)


def connect(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(path)
    return connection


def ask(
    connection: socket.socket, words: Sequence[str], environment: Mapping[str, str], descriptors: Sequence[int]
) -> None:
    """Ask for a process with these descriptors: its streams, and a worker's channel."""
    request = {"words": words, "environment": dict(environment), "folder": os.getcwd()}
    socket.send_fds(connection, [json.dumps(request).encode()], descriptors)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time look for the server, start it, or let it end."""
    with (folder / "fork.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _load(modules: Sequence[str]) -> None:
    for name in modules:
        if callable(loaded := pkgutil.resolve_name(name)):
            loaded()
    gc.collect()
    gc.freeze()  # a forked process copies no page of these objects to count who refers to them


def serve(path: str, modules: Sequence[str]) -> None:
    """Fork a process for every connection until standard input ends."""
    _load(modules)
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
            with contextlib.ExitStack() as stack:
                with contextlib.suppress(FileNotFoundError):  # who deleted the folder was the last
                    stack.enter_context(_locked(Path(path).parent))
                if select.select([sys.stdin], [], [], 0)[0]:  # nobody has come meanwhile
                    os.close(0)
                    raise SystemExit

        def accept() -> None:
            connection, _ = listener.accept()  # its request may never come: the others have their turn meanwhile
            selector.register(connection, selectors.EVENT_READ, lambda: fork(connection))

        def fork(connection: socket.socket) -> None:
            selector.unregister(connection)
            message, descriptors, *_ = socket.recv_fds(connection, REQUEST_BYTES_MAX, 4)
            if not message:  # the caller was killed
                connection.close()
                return
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
            kill(pid)

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
                    kill(pid)


def kill(pid: int) -> None:
    """Kill a forked process that was not waited for, and its children in its group, which it leads once it is one."""
    if os.getpgid(pid) == pid:
        os.killpg(pid, signal.SIGKILL)
    else:
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
    """Have the server fork the program on these descriptors; return its exit code, or die by its signal."""
    with connect(path) as connection:
        ask(connection, words, os.environ, [0, 1, 2, channel])
        os.close(channel)
        connection.recv(ANSWER_BYTES)  # the number of the process
        code = int(connection.recv(ANSWER_BYTES) or 1)
    if code < 0:
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", path, *modules]:
            serve(path, modules)
        case ["call", path, *words, "--fd", channel]:
            sys.exit(call(path, words, int(channel)))
