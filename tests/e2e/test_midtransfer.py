"""A peer is killed while its model moves, with every core busy: the others' next round is at most 20 s late."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

STILL = Path(__file__).resolve().parents[1] / "bench" / "still.py"
RUNS = int(os.environ.get("MHFL_KILL_RUNS", "3"))
MEGABYTES = 100
LATE_S_MAX = 20.0
SITES = ("africa", "america", "asia", "europe")
DRAFT = """
name = "midtransfer"
rounds = 3
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "fedskd"
[schedule]
kind = "derangement"
"""


class Site:
    """A daemon without training, and the lines that it has said so far."""

    def __init__(self, loopback: LocalFederation, name: str) -> None:
        command = [sys.executable, str(STILL), str(loopback.home), loopback.federation.name, name, str(MEGABYTES)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.put(line.strip())

    def hear(self, wanted: str, *, limit_s: float) -> str:
        """The next line that begins like this."""
        end_s = time.monotonic() + limit_s
        while True:
            line = self.lines.get(timeout=max(0.01, end_s - time.monotonic()))
            if line.startswith(wanted):
                return line

    def release(self) -> None:
        """End the training of the round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        """Kill it, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def busy() -> Iterator[None]:
    """Every core has something else to do."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.slow) for run in range(1, RUNS))])
def test_killed_in_mid_transfer(tmp_path: Path, tools: Any, busy: None, run: int) -> None:
    loopback = LocalFederation.create(tmp_path, DRAFT, dict.fromkeys(SITES, "[data]\ninput_size = [8]\n"))
    sites = {name: Site(loopback, name) for name in SITES}
    try:
        for site in sites.values():
            site.hear("ready", limit_s=120)
        victim, receiver = None, None

        def moving() -> bool:
            nonlocal victim, receiver
            for name in SITES:
                for transfer in loopback.show(name, "status")["transfers"]:
                    if transfer["direction"] == "in" and 0 < transfer["received"] < transfer["bytes"]:
                        victim, receiver = transfer["peer"], name
                        return True
            return False

        for site in sites.values():
            site.release()
        tools.wait_until(moving, limit_s=60, what="no transfer was seen on its way")
        assert victim is not None
        sites[victim].end()
        killed_s = time.monotonic()
        for name in SITES:
            if name != victim:
                limit_s = LATE_S_MAX - (time.monotonic() - killed_s)
                line = sites[name].hear("ordered 2", limit_s=limit_s)
                if name == receiver:
                    assert line == "ordered 2", "it goes on alone"
    finally:
        for site in sites.values():
            site.end()
