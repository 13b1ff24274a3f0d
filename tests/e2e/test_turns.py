"""Two federations whose members share two devices crosswise: each hospital has one device and a site
in both.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.drafts import draft
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

FAKES = Path(__file__).parents[1] / "fakes"
WORKER = (sys.executable, "-P", str(FAKES / "worker.py"), "in turns", "64")
ROUNDS = 100
ROUNDS_IN_CI = 40
"""In the first ten nobody dies; then a holder is killed, at the latest in the tenth trial."""
HOSPITALS = {"asia": "first", "europe": "second"}
SITE = '[data]\ndatalist = "datalist.json"\ninput_size = [8]\n[training]\ndevice = "cpu"\ngpu = "turns"\n'
PACE = {"beat_s": 1, "silence_s": 60, "linger_s": 30}


class Crosswise(LocalFederation):
    program = (sys.executable, "-P", str(FAKES / "daemon.py"), json.dumps(WORKER))


def found(folder: Path, name: str, rounds: int) -> Crosswise:
    sites = {}
    for site, hospital in HOSPITALS.items():
        (folder / hospital).mkdir(exist_ok=True)
        sites[site] = f'{SITE}gpu_folder = "{folder / hospital}"\nhang_s = 60.0\n'
    made = Crosswise.create(folder / name, draft(name, rounds=rounds, pace=PACE), sites)
    return Crosswise(made.home, made.federation)


def failed_work(federation: LocalFederation, site: str, tools: Any) -> list[str]:
    return [body["reason"] for kind, _, body in tools.rows(federation, site) if kind == "work_failed"]


def kill_worker(federation: LocalFederation, site: str, tools: Any) -> bool:
    """Kill a site's worker while it trains, and wait for the next one; False where it was between two orders."""
    before = failed_work(federation, site, tools)

    def pid_at_work() -> int | None:
        status = federation.show(site, "status")
        return status["worker_pid"] if status["phase"] == "train" else None

    killed = tools.wait_until(pid_at_work)
    os.kill(killed, signal.SIGKILL)
    tools.wait_until(lambda: federation.show(site, "status")["worker_pid"] not in (None, killed))
    return failed_work(federation, site, tools) != before


@pytest.mark.parametrize("rounds", [ROUNDS_IN_CI, pytest.param(ROUNDS, marks=pytest.mark.nightly)])
def test_no_round_stalls_although_a_holder_of_the_device_is_killed(tmp_path: Path, tools: Any, rounds: int) -> None:
    with found(tmp_path, "hearts", rounds) as hearts, found(tmp_path, "lungs", rounds) as lungs:
        for federation in (hearts, lungs):
            tools.start(federation, HOSPITALS)
        tools.wait_until(lambda: hearts.show("asia", "status")["committed"] >= 10)
        assert any(kill_worker(hearts, "asia", tools) for _ in range(10))
        for federation in (hearts, lungs):
            tools.finish_well(federation, limit_s=400)
            for site in HOSPITALS:
                committed = tools.records(federation, site)
                assert [record["round"] for record in committed] == list(range(1, rounds + 1))
                assert not [record for record in committed if record["missing"]]
        failures = {
            (federation.federation.name, site)
            for federation in (hearts, lungs)
            for site in HOSPITALS
            if failed_work(federation, site, tools)
        }
        assert failures == {("hearts", "asia")}
