"""A peer is killed while its model moves, with every core busy: the others go on after its silence."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE, StillProcess
from peer.core import limits
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


@pytest.mark.parametrize(
    ("run", "silence_s"),
    [(0, 5.0), *(pytest.param(run, limits.SILENCE_S, marks=pytest.mark.nightly) for run in range(1, RUNS))],
)
def test_killed_in_mid_transfer(tmp_path: Path, tools: Any, run: int, silence_s: float) -> None:
    text = draft("midtransfer", schedule=DERANGEMENT, pace={"silence_s": silence_s, "beat_s": 0.5})
    loopback = LocalFederation.create(tmp_path, text, dict.fromkeys(SITES, SITE))
    sites = {name: StillProcess(loopback, name, MEGABYTES) for name in SITES}
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

        with busy():
            for site in sites.values():
                site.release()
            tools.wait_until(moving, limit_s=60, what="no transfer was seen on its way")
            assert victim is not None
            sites[victim].end()
            for name in SITES:
                if name != victim:
                    line = sites[name].hear("ordered 2", limit_s=120)
                    if name == receiver:
                        assert line == "ordered 2", "it goes on alone"
    finally:
        for site in sites.values():
            site.end()
