"""Global Test between real daemons: models travel over TLS, figures come back, data and guests stay where they are."""

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from fakes.cli import run_json
from peer.core.worker_protocol import WorkerSetting, to_json
from peer.daemon.startup import load
from peer.lab.demo.local_federation import LocalFederation
from peer.site.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 3
GLOBAL = "global_test = true\nevaluation_every = 2"
PERMITS = "[egress]\nevaluate = true\nevaluation_samples_min = 4\n"


def transfers(loopback: LocalFederation, name: str, kind: str) -> list[tuple[str, int]]:
    """To whom and of which round something of a kind left for evaluation."""
    ledger = Ledger(loopback.folder(name).egress_db, read_only=True)
    rows, problems = ledger.transfers(), ledger.verify()
    ledger.close()
    assert problems == []
    return [(row["peer"], row["round"]) for row in rows if (row["purpose"], row["kind"]) == ("evaluate", kind)]


def by_hand(loopback: LocalFederation, tools: Any) -> dict[str, dict[str, dict[str, float]]]:
    """The same matrix from all the sites' folders on one machine, as the simulator has it."""
    sites = []
    for name in tools.sites:
        folder = loopback.folder(name)
        federation, site, _ = load(folder)
        documents = (federation.model_dump(mode="json"), site.model_dump(mode="json"))
        home = str(folder.generation(1))
        setting = WorkerSetting(name, federation.digest, *documents, home, str(folder.path))
        state = [body["state"] for kind, _, body in tools.rows(loopback, name) if kind == "committed"][-1]
        sites.append({"setting": to_json(setting), "state": state, "sources": []})
    command = [sys.executable, "-m", "peer.lab.experiments.cross_site"]
    request = json.dumps({"federations": {"only": sites}})
    finished = subprocess.run(command, input=request, capture_output=True, text=True, check=True)
    matrix: dict[str, dict[str, dict[str, float]]] = json.loads(finished.stdout)["only"]
    return matrix


def test_every_site_learns_how_its_model_does_everywhere_though_one_is_killed_again_and_again(
    found: Callable[..., LocalFederation], tools: Any
) -> None:
    with found(rounds=ROUNDS, top=GLOBAL, linger_s=120, site=PERMITS) as loopback:
        tools.start(loopback, tools.sites)
        for kind in ("guest", "measured"):
            tools.wait_until(lambda kind=kind: kind in [row[0] for row in tools.rows(loopback, "europe")])
            loopback.kill("europe")
            loopback.start("europe")
        tools.finish_well(loopback)
    matrix = by_hand(loopback, tools)
    for name in tools.sites:
        records = run_json("--home", loopback.home, "evaluation", "--site", name)
        assert [record["round"] for record in records] == [2, 3]
        last = records[-1]
        assert last["global_test"] is not None, last
        for site, cell in last["cells"].items():
            expected = matrix[name][site]
            assert cell["counts"]["samples"] == expected["samples"] == 8
            assert {**expected, **cell["metrics"]} == pytest.approx(expected), (name, site)
        others = {site for site in tools.sites if site != name}
        assert {peer for peer, round in transfers(loopback, name, "metrics") if round == ROUNDS} == others
        assert {peer for peer, round in transfers(loopback, name, "model") if round == ROUNDS} == others
        guests = {body["report"]["sha256"] for kind, _, body in tools.rows(loopback, name) if kind == "measured"}
        kept = {path.stem for path in (loopback.folder(name).generation(1) / "artifacts").iterdir()}
        assert len(guests) >= 2
        assert not guests & kept, "a guest is left on disk"
        rows = tools.rows(loopback, name)
        assert [round for kind, round, _ in rows if kind == "committed"] == [1, 2, 3]
        reports = [(body["site"], round) for kind, round, body in rows if kind == "report"]
        assert len(reports) == len(set(reports))
