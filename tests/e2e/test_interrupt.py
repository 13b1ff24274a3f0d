"""Ctrl-C and SIGTERM at any moment after `mhfl-peer start`: quick, quiet, and no worker is left."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peer.errors import Interrupted
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

COMMAND = Path(sys.executable).with_name("mhfl-peer")
NOISE = ("Traceback", "Exception ignored", "never awaited", "internal error", "Event loop is closed")
END_S = 60.0
"""Generous for a busy machine; a worker that imports torch would take its ten seconds or more."""


def processes_with(variable: str) -> Iterator[int]:
    """The processes that inherited an environment variable."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes().split(b"\0"):
                yield int(folder.name)
        except OSError:
            continue


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    return found(sites=("asia", "europe"), rounds=2, cold=True)


@pytest.mark.parametrize(
    ("number", "delays_ms"),
    [
        pytest.param(signal.SIGINT, range(0, 3000, 600), id="Ctrl-C"),
        pytest.param(signal.SIGINT, range(150, 3000, 150), id="Ctrl-C-often", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, range(75, 3000, 450), id="SIGTERM", marks=pytest.mark.nightly),
    ],
)
def test_a_signal_at_any_moment_ends_the_start_quietly(
    enrolled: LocalFederation, number: signal.Signals, delays_ms: range
) -> None:
    for delay_ms in delays_ms:
        for generation in enrolled.folder("asia").generations():
            shutil.rmtree(enrolled.folder("asia").generation(generation))
        variable = f"INTERRUPTED={enrolled.home}-{number}-{delay_ms}"
        process = subprocess.Popen(
            [str(COMMAND), "--home", str(enrolled.home), "start", "--site", "asia"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **dict([variable.split("=", 1)])},
            start_new_session=True,
        )
        time.sleep(delay_ms / 1000)  # the moment is what is tested
        process.send_signal(number)
        _, stderr = process.communicate(timeout=END_S)
        if "init_import_site" in stderr:  # Python itself was not up yet: no program can be quiet there
            continue
        assert process.returncode in (0, -number, Interrupted.exit_code), (delay_ms, stderr)
        assert not [noise for noise in NOISE if noise in stderr], (delay_ms, stderr)
        assert len(stderr.splitlines()) <= 8, (delay_ms, stderr)
        assert list(processes_with(variable)) == []
