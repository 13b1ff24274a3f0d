"""Daemons that start at once, with workers that do: the server of workers has imported what daemons import, too."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from peer.lab.demo.fork_server import ANSWER_BYTES, ForkServer, ask, connect

MODULES = ("models.lean_monai:load_monai", "models", "peer.daemon.startup", "peer.train.guest", "peer.train.trainer")


class Warm(ForkServer):
    """Forks daemons, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, MODULES)

    def start(self, words: Sequence[str], output: BinaryIO, environment: Mapping[str, str]) -> ForkedProcess:
        """Fork a program, which writes to ``output``."""
        connection = connect(str(self.socket))
        with Path(os.devnull).open("rb") as nothing:
            streams = [nothing.fileno(), output.fileno(), output.fileno()]
            ask(connection, words, environment, streams)
        return ForkedProcess(connection)


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
