"""A peer is killed while its model moves, with every core busy: the others go on after its silence."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.drafts import DERANGEMENT, draft
from fakes.still import SITE, StillProcess
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

RUNS = int(os.environ.get("MHFL_KILL_RUNS", "3"))
MEGABYTES = 32
HANG_S = 300
"""Only what hangs takes so long: every core is busy, and others may be on the machine, too."""
SITES = ("africa", "america", "asia", "europe")
VICTIM = "asia"
OPTIONS = {VICTIM: ("--mortal",)}


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
def test_killed_in_mid_transfer(tmp_path: Path, run: int) -> None:
    text = draft("midtransfer", schedule=DERANGEMENT, pace={"beat_s": 0.5})
    loopback = LocalFederation.create(tmp_path, text, dict.fromkeys(SITES, SITE))
    sites = {name: StillProcess(loopback, name, MEGABYTES, (), *OPTIONS.get(name, ())) for name in SITES}
    try:
        for site in sites.values():
            site.hear("ready", limit_s=HANG_S)
        with busy():
            for site in sites.values():
                site.release()
            assert sites[VICTIM].process.wait(HANG_S) == -signal.SIGKILL
        lines = [site.hear("ordered 2", limit_s=HANG_S) for name, site in sites.items() if name != VICTIM]
        assert "ordered 2" in lines, "its receiver goes on alone"
        assert f"ordered 2 {VICTIM}" not in lines
    finally:
        for site in sites.values():
            site.end()
