"""Daemons without training (``tests/bench/still.py``), by the lines that they say."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from peer.lab.demo.local_federation import LocalFederation

STILL = Path(__file__).resolve().parents[1] / "bench" / "still.py"
LIMIT_S = 120.0
SITE = "[data]\ninput_size = [8]\n"
"""The ``site.toml`` of a site that never reads its data."""


class StillProcess:
    """A site's daemon in a process of its own, and the lines that it has said so far; ``prefix`` stands
    before its command, ``options`` after it.
    """

    def __init__(
        self, loopback: LocalFederation, name: str, megabytes: int, prefix: Sequence[str] = (), *options: str
    ) -> None:
        where = (loopback.home, loopback.federation.name, name, megabytes, *options)
        command = [*prefix, sys.executable, *map(str, (STILL, *where))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def hear(self, wanted: str, *, limit_s: float = LIMIT_S) -> str:
        """The next line that begins like this; ``queue.Empty`` when it does not come in time."""
        end_s = time.monotonic() + limit_s
        while True:
            line = self._lines.get(timeout=max(0.01, end_s - time.monotonic()))
            if line.startswith(wanted):
                return line

    def release(self) -> None:
        """End the training of the round."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        self._listener.join()
        for pipe in (self.process.stdin, self.process.stdout):
            pipe.close()
