"""A peer is killed while its model moves, with every core busy: the others go on after its silence."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE, StillProcess
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

RUNS = int(os.environ.get("MHFL_KILL_RUNS", "3"))
MEGABYTES = 100
SITES = ("africa", "america", "asia", "europe")


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Every core has something else to do."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.parametrize("run", [0, *(pytest.param(run, marks=pytest.mark.nightly) for run in range(1, RUNS))])
def test_killed_in_mid_transfer(tmp_path: Path, tools: Any, run: int) -> None:
    text = draft("midtransfer", schedule=DERANGEMENT, pace={"beat_s": 0.5})
    loopback = LocalFederation.create(tmp_path, text, dict.fromkeys(SITES, SITE))
    sites = {name: StillProcess(loopback, name, MEGABYTES) for name in SITES}
    try:
        for site in sites.values():
            site.hear("ready", limit_s=120)

        def moving(name: str) -> list[str]:
            """The peers from which this site has received something, and less than half."""
            transfers = [each for each in loopback.show(name, "status")["transfers"] if each["direction"] == "in"]
            return [each["peer"] for each in transfers if 0 < 2 * each["received"] < each["bytes"]]

        def stopped() -> tuple[str, str] | None:
            """A sender that is stopped, with the rest of its artifact still in its memory, and its receiver."""
            for name in SITES:
                for peer in moving(name):
                    sites[peer].process.send_signal(signal.SIGSTOP)
                    if peer in moving(name):
                        return peer, name
                    sites[peer].process.send_signal(signal.SIGCONT)
            return None

        with busy():
            for site in sites.values():
                site.release()
            victim, receiver = tools.wait_until(stopped, limit_s=60, what="no transfer was seen on its way")
            sites[victim].end()
        for name in SITES:
            if name != victim:
                line = sites[name].hear("ordered 2", limit_s=120)
                if name == receiver:
                    assert line == "ordered 2", "it goes on alone"
    finally:
        for site in sites.values():
            site.end()
