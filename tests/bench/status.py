"""Time in which a daemon answers its operator while every core of the machine trains."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

from row import Row, below

from fakes.datasets import write_cubes
from fakes.drafts import draft, site_text, task
from peer.errors import DaemonDown
from peer.lab.demo.local_federation import LocalFederation

ANSWER_MS_MAX = 50.0
SITES = tuple(f"site-{index}" for index in range(max(2, os.cpu_count() or 2)))
START_S = 300.0


def measure(*, quick: bool) -> list[Row]:
    """Start one training site a core, and call ``status`` of one of them many times."""
    calls = 100 if quick else 1000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = draft("status", rounds=1, method="local", task=task(3), stages={"train": {"count": 100_000}})
        model = {"parameters": {"width": 16, "stem_stride": 2}}
        site = site_text(32, 32, 32, datalist=write_cubes(folder / "data", seed=0, side=32), model=model)
        with LocalFederation.create(folder, text, dict.fromkeys(SITES, site)) as loopback:
            for site in SITES:
                loopback.start(site)
            _wait_for_training(loopback)
            durations_ms = []
            for _ in range(calls):
                start = time.perf_counter()
                loopback.show(SITES[0], "status")
                durations_ms.append(1000 * (time.perf_counter() - start))
            for site in SITES:
                loopback.kill(site)
    durations_ms.sort()
    p99_ms = durations_ms[int(0.99 * len(durations_ms))]
    return [
        Row("status call while training, median", statistics.median(durations_ms), "ms"),
        below("status call while training, p99", p99_ms, "ms", ANSWER_MS_MAX),
    ]


def _wait_for_training(loopback: LocalFederation) -> None:
    end_s = time.monotonic() + START_S
    waiting = set(SITES)
    while waiting:
        if time.monotonic() > end_s:
            raise TimeoutError(f"{sorted(waiting)} did not begin to train within {START_S:.0f} s")
        for site in sorted(waiting):
            try:
                if loopback.show(site, "status")["training"].get("step", 0) > 1:
                    waiting.discard(site)
            except DaemonDown:
                pass
        time.sleep(0.2)
