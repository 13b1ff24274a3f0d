"""A site is backed up while its daemon trains, goes on, is lost, and comes back from the backup."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peer.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]


def command(loopback: LocalFederation, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator does."""
    return subprocess.run(
        [*LocalFederation.program, "--home", str(loopback.home), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_backup_of_a_running_site_restores_it_and_its_peers_go_on_with_it(
    found: Callable[..., LocalFederation],
    copied: Callable[[LocalFederation], LocalFederation],
    tools: Any,
    tmp_path: Path,
) -> None:
    rounds = 14
    three = copied(found(rounds=rounds, steps=10, top='[schedule]\nkind = "derangement"\n'))
    for name in tools.sites:
        three.start(name)
    tools.wait_until(lambda: three.show("asia", "status")["committed"] >= 1)
    file = tmp_path / "asia.tar"
    done = command(three, "backup", file, "--site", "asia", "--with-key", "--json")
    assert done.returncode == 0, done.stderr
    backup = json.loads(done.stdout)

    def remembered() -> bool:
        arrived = [row for name in ("africa", "europe") for row in tools.rows(three, name) if row[0] == "arrived"]
        return any(body["source"]["origin"] == "asia" and round > backup["round"] + 2 for _, round, body in arrived)

    tools.wait_until(remembered)
    three.kill("asia")
    shutil.rmtree(three.folder("asia").path)
    done = command(three, "restore", file, "--site", "asia", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["round"] == backup["round"]
    generation = json.loads(done.stdout)["generation"]
    three.start("asia")
    codes = tools.finish(three)
    assert codes == dict.fromkeys(codes, 0), {name: three.console(name)[-2000:] for name in codes}

    assert (tools.records(three, "asia")[-1]["round"], tools.records(three, "asia")[-1]["generation"]) == (
        rounds,
        generation,
    )
    rows = tools.rows(three, "asia")
    assert [body["reported_by"] for kind, _, body in rows if kind == "regenerated"] == ["asia"]
    refused = [body for name in tools.sites for kind, _, body in tools.rows(three, name) if kind == "refused"]
    assert refused == []
    assert command(three, "egress", "verify", "--site", "asia").returncode == 0
    codes = {}
    for name in ("africa", "europe"):
        witness = tmp_path / f"{name}.json"
        assert command(three, "egress", "witness", "--site", name, "--of", "asia", "--out", witness).returncode == 0
        done = command(three, "egress", "verify", "--site", "asia", "--witness", witness)
        codes[name] = done.returncode
        if done.returncode:
            assert "the journal says that an older backup was restored on" in done.stderr
    assert set(codes.values()) <= {0, 18}
    assert 18 in codes.values(), "the rows that the backup lacks are visible for good"
