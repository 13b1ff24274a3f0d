"""A site is backed up while its daemon trains, goes on, is lost, and comes back from the backup."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import run, run_json
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def test_a_backup_of_a_running_site_restores_it_and_its_peers_go_on_with_it(
    found: Callable[..., LocalFederation],
    copied: Callable[[LocalFederation], LocalFederation],
    tools: Any,
    tmp_path: Path,
) -> None:
    rounds = 14
    three = copied(found(rounds=rounds, steps=10, top='[schedule]\nkind = "derangement"\n'))
    tools.start(three, tools.sites)
    tools.wait_until(lambda: three.show("asia", "status")["committed"] >= 1)
    file, home = tmp_path / "asia.tar", ("--home", three.home)
    backup = run_json(*home, "backup", file, "--site", "asia", "--with-key")

    def remembered() -> bool:
        arrived = [row for name in ("africa", "europe") for row in tools.rows(three, name) if row[0] == "arrived"]
        return any(body["source"]["origin"] == "asia" and round > backup["round"] + 2 for _, round, body in arrived)

    tools.wait_until(remembered)
    three.kill("asia")
    shutil.rmtree(three.folder("asia").path)
    restored = run_json(*home, "restore", file, "--site", "asia")
    assert restored["round"] == backup["round"]
    three.start("asia")
    tools.finish_well(three)

    last = tools.records(three, "asia")[-1]
    assert (last["round"], last["generation"]) == (rounds, restored["generation"])
    rows = tools.rows(three, "asia")
    assert [body["reported_by"] for kind, _, body in rows if kind == "regenerated"] == ["asia"]
    refused = [body for name in tools.sites for kind, _, body in tools.rows(three, name) if kind == "refused"]
    assert refused == []
    run_json(*home, "egress", "verify", "--site", "asia")
    codes = {}
    for name in ("africa", "europe"):
        witness = tmp_path / f"{name}.json"
        run_json(*home, "egress", "witness", "--site", name, "--of", "asia", "--out", witness)
        done = run(*home, "egress", "verify", "--site", "asia", "--witness", witness)
        codes[name] = done.exit_code
        if done.exit_code:
            assert "the journal says that an older backup was restored on" in done.stderr
    assert set(codes.values()) <= {0, 18}
    assert 18 in codes.values(), "the rows that the backup lacks are visible for good"
