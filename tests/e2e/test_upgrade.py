"""Four sites of release 0.2.0 are upgraded one by one while their federation runs.

The daemons of both programs are real; their worker is one without torch.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from peer.core.messages import FEATURES
from peer.demo.local_federation import LocalFederation
from peer.records.journal import Journal

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.timeout(580),
]

ROOT = Path(__file__).parents[2]
RELEASE = "c941538"  # the last commit of 0.2.0
SITES = ("africa", "america", "asia", "europe")
ROUNDS = 400
NUMBERS = 64  # of an artifact
FAKES = Path("tests", "fakes")
SITE = "[data]\ninput_size = [8]\n[training]\ndevice = 'cpu'\n"
DRAFT = f"""
name = "rolling"
rounds = {ROUNDS}
[task]
kind = "classification"
spatial_dims = 1
in_channels = 1
classes = 2
[method]
name = "fedskd"
activation = 0.0
[schedule]
kind = "derangement"
[pace]
linger_s = 120
"""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of release 0.2.0, from this repository's history."""
    archived = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"the history of this checkout does not have commit {RELEASE}, release 0.2.0")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    return folder


class RollingFederation(LocalFederation):
    """Sites whose daemons run from one of two source folders."""

    source = ROOT

    @property
    def program(self) -> tuple[str, ...]:  # type: ignore[override]
        worker = [sys.executable, str(self.source / FAKES / "worker.py"), "obeys", str(NUMBERS)]
        return (sys.executable, "-P", str(self.source / FAKES / "daemon.py"), json.dumps(worker))

    def run(self, name: str, source: Path) -> None:
        """Start a site with the program of a source folder."""
        self.source = source
        self.start(name, environment={"PYTHONPATH": str(source)})


def test_four_sites_of_0_2_0_are_upgraded_one_by_one_while_they_train(
    release: Path, tmp_path: Path, tools: Any
) -> None:
    with RollingFederation.create(tmp_path, DRAFT, dict.fromkeys(SITES, SITE)) as federation:
        for name in SITES:
            federation.run(name, release)
        for done, name in enumerate(SITES, start=1):
            tools.wait_until(lambda name=name, done=done: federation.show(name, "status")["committed"] >= 30 * done)
            federation.daemons[name].send_signal(signal.SIGTERM)
            federation.daemons[name].wait(60)
            federation.run(name, ROOT)
            tools.wait_until(lambda name=name: federation.show(name, "status")["phase"] != "new")
            upgraded = set(SITES[:done])
            told = tools.wait_until(lambda name=name: features(federation, name))
            assert {peer: bool(known) for peer, known in told.items()} == {
                peer: peer in upgraded for peer in SITES if peer != name
            }
        codes = tools.finish(federation, limit_s=300)
        assert codes == dict.fromkeys(SITES, 0)
        for name in SITES:
            committed = [record["round"] for record in tools.records(federation, name)]
            assert committed[-1] == ROUNDS
            assert len(committed) == len(set(committed))
            assert not [body for kind, _, body in tools.rows(federation, name) if kind == "refused"]
            journal = Journal(federation.folder(name).generation(1) / "journal.db", read_only=True)
            assert [row["body"]["generation"] for row in journal.records(("began",))] == [1, 1]
            journal.close()


def features(federation: RollingFederation, name: str) -> dict[str, list[str]] | None:
    """What each peer understands, once the site knows it of all of them."""
    peers = federation.show(name, "peers")
    known = {peer: state["features"] for peer, state in peers.items()}
    assert all(one in (None, [], list(FEATURES)) for one in known.values())
    return known if None not in known.values() else None
