"""Floods against a real daemon: its memory stays within the promise, and its rounds go on.

``make test SLOW=only`` runs them; with ``-s`` they print the peaks that ``deploy/guarantees.md`` has.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from adversary import http2

from fakes.drafts import draft
from peer.config.site_folder import SiteFolder
from peer.demo.local_federation import LocalFederation

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

FAKES = Path(__file__).parents[1] / "fakes"
WORKER = (sys.executable, "-I", "-S", str(FAKES / "worker.py"), "paced", "64")
SITE = '[data]\ndatalist = "datalist.json"\ninput_size = [8]\n[training]\ndevice = "cpu"\n'
PACE = {"beat_s": 1, "silence_s": 15, "linger_s": 5}
MEMORY_MB_MAX = 120
HEADERS_MB_MAX = 300  # until its settings are acknowledged, gRPC buffers 16 MiB of headers for each connection
FLOOD_S = 14.0
CONNECTIONS = 4
STRANGERS = 6000
STARTED_S = 60.0
spawn = multiprocessing.get_context("spawn")


def memory_mb(pid: int, key: str) -> int:
    """``VmRSS``, or ``VmHWM`` for the most so far, of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{key}:"))) // 1024


@pytest.fixture
def loopback(tmp_path: Path) -> Iterator[LocalFederation]:
    """Two honest sites in endless rounds; mallory is enrolled, runs no daemon and is not waited for."""

    class FloodedFederation(LocalFederation):
        program = (sys.executable, str(FAKES / "daemon.py"), json.dumps(WORKER))

    text = draft("trial", rounds=100000, pace=PACE)
    sites = dict.fromkeys(("asia", "europe", "mallory"), SITE)
    made = FloodedFederation.create(tmp_path, text, sites)
    with FloodedFederation(made.home, made.federation) as federation:
        for site in ("asia", "europe"):
            federation.start(site, "--without", "mallory")
        yield federation


def wait_for_round(loopback: LocalFederation, committed: int) -> dict[str, Any]:
    """The status of asia once it has committed a round."""
    end_s = time.monotonic() + STARTED_S
    while True:
        try:
            status = loopback.show("asia", "status")
            if status["committed"] >= committed:
                return dict(status)
        except Exception:
            if time.monotonic() > end_s:
                raise
        assert time.monotonic() < end_s, loopback.console("asia")
        time.sleep(0.1)


def flood_address(address: str, pki: str, kind: str) -> None:
    """The attacker's process."""
    context = http2.member_context(Path(pki))
    for reads in (True, False):
        http2.flood(address, context, kind, connections=CONNECTIONS, seconds=FLOOD_S / 2, reads=reads)


def dial_as_strangers(address: str, pki: str, kind: str) -> None:
    """The process of strangers, who dial again what the daemon closes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    end_s = time.monotonic() + FLOOD_S
    while time.monotonic() < end_s:
        for stranger in http2.open_strangers(address, min(STRANGERS, hard - 100)):
            stranger.close()


@pytest.mark.parametrize("kind", [*http2.FLOODS, "strangers"])
def test_a_flood_takes_neither_the_daemon_s_memory_nor_its_rounds(loopback: LocalFederation, kind: str) -> None:
    before = wait_for_round(loopback, 2)
    folder: SiteFolder = loopback.folder("mallory")
    attack = dial_as_strangers if kind == "strangers" else flood_address
    attacker = spawn.Process(target=attack, args=(before["listen"], str(folder.pki), kind))
    attacker.start()
    attacker.join()
    assert attacker.exitcode == 0
    wait_for_round(loopback, before["committed"] + 3)
    peak = memory_mb(before["pid"], "VmHWM")
    log = (loopback.folder("asia").logs / "daemon.log").stat().st_size
    print(f"\n{kind}: peak {peak} MB, {memory_mb(before['pid'], 'VmRSS')} MB after, {log >> 10} KB of log")
    assert loopback.show("asia", "status")["pid"] == before["pid"] != os.getpid()
    assert peak < (HEADERS_MB_MAX if kind == "CONTINUATION" else MEMORY_MB_MAX)
    assert log < 1 << 20
