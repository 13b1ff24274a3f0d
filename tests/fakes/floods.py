"""Floods against a real daemon of a federation that goes on with its rounds."""

from __future__ import annotations

import multiprocessing
import resource
import time
from pathlib import Path
from typing import NamedTuple

from adversary import http2

from fakes import daemon
from fakes.amended_daemons import WatchedDaemons
from fakes.drafts import draft, site_text

PACE = {"beat_s": 1, "silence_s": 15, "linger_s": 5}
FLOOD_S = 14.0
CONNECTIONS = 4
STRANGERS = 6000
STRANGE = "strangers"
KINDS = [*http2.FLOODS, STRANGE]
spawn = multiprocessing.get_context("spawn")


class FloodedFederation(WatchedDaemons):
    program = daemon.program("paced", 64)
    limit_s = 60.0


class Flooded(NamedTuple):
    """What a flood left of a daemon: whether its process lives, its peak memory, the bytes of its log."""

    lives: bool
    peak_mb: float
    log_bytes: int


def flood(folder: Path, kinds: list[str], seconds: float = FLOOD_S) -> Flooded:
    """Flood one of two honest sites, which wait for no third one, until it has gone on for three rounds."""
    sites = dict.fromkeys(("asia", "europe", "mallory"), site_text())
    with FloodedFederation.create(folder, draft("trial", rounds=100000, pace=PACE), sites) as federation:
        for site in ("asia", "europe"):
            federation.start(site, "--without", "mallory")
        before = federation.until("asia", lambda status: status["committed"] >= 2)
        pki = str(federation.folder("mallory").pki)
        attacker = spawn.Process(target=attack, args=(before["listen"], pki, kinds, seconds))
        attacker.start()
        attacker.join()
        if attacker.exitcode:
            raise RuntimeError(f"the attacker ended with {attacker.exitcode}")
        after = federation.until("asia", lambda status: status["committed"] >= before["committed"] + 3)
        lines = Path(f"/proc/{before['pid']}/status").read_text().splitlines()
        peak_kb = int(next(line.split()[1] for line in lines if line.startswith("VmHWM:")))
        log = (federation.folder("asia").logs / "daemon.log").stat().st_size
        return Flooded(after["pid"] == before["pid"], peak_kb / 1024, log)


def attack(address: str, pki: str, kinds: list[str], seconds: float) -> None:
    """The attacker's process, with one kind after the other in so many seconds."""
    seconds /= len(kinds)
    for kind in kinds:
        if kind == STRANGE:
            dial_as_strangers(address, seconds)
            continue
        context = http2.member_context(Path(pki))
        for reads in (True, False):
            http2.flood(address, context, kind, connections=CONNECTIONS, seconds=seconds / 2, reads=reads)


def dial_as_strangers(address: str, seconds: float) -> None:
    """Dial as strangers, who dial again what the daemon closes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for stranger in http2.open_strangers(address, min(STRANGERS, hard - 100)):
            stranger.close()
