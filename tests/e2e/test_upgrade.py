"""Four sites of the last release are upgraded one by one while their federation runs.

The daemons of both programs are real; their worker is one without torch. The page ``deploy/upgrade.md`` shows what the
commands print: ``pytest tests/e2e/test_upgrade.py -m nightly --rewrite-scenarios`` writes it.
"""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import sys
import tarfile
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import run
from fakes.transcript import Transcript
from peer.lab.demo.local_federation import LocalFederation
from peer.site.records.journal import Journal

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(580),
]

ROOT = Path(__file__).parents[2]
RELEASE = "ae0e401"  # 0.3.0
OLD = "mhfl-peer 0.3.0"
SITES = ("africa", "america", "asia", "europe")
ROUNDS = 4000
"""The amendment that they can make at last ends the federation much earlier."""
LEAD_ROUNDS = 200
"""A round takes so little here that an amendment's first one would be over before all have heard of it."""
PAGE = ROOT / "deploy" / "upgrade.md"
TITLE = """# A rolling upgrade

What the commands printed in one run of `tests/e2e/test_upgrade.py`: four real daemons of release
0.3.0 on one machine, whose workers train nothing, are upgraded one by one to this version while
their federation runs. Digests are cut. [site.md](site.md#upgrade) says how to upgrade a site;
nobody has to do it at the same time as the others. The test compares its commands with this page,
and `--rewrite-scenarios` writes it.

Each operator types the following, the second line in a checkout or an unpacked source distribution
of the new version. The page shows the first command alone.

```sh
mhfl-peer stop --wait --site africa
/opt/mhfl/bin/pip install -c constraints.txt .
mhfl-peer start --site africa
```

As a service, `sudo systemctl stop mhfl-peer@africa` is the first of them, and
`sudo systemctl start mhfl-peer@africa` the last.
"""
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


TEXTS = {
    "africa": "The others go on. Its operator installs the new program, and starts the daemon as ever: it goes on\n"
    "with its journal. `peers` says which program each of the others runs.",
    "america": "One a day, or one a week: nothing depends on how long it takes.",
    "asia": "A site that was away for more rounds than `lag_rounds_max` leaves out those that the others have\n"
    "passed; nobody waits for it longer than for any silent site.",
    "europe": "The last one.",
}
COST = """A round takes some milliseconds here, and a daemon's stop and start some seconds: meanwhile the
others go on for many rounds, with an older model in place of one that the site would have given.
With rounds of minutes it is about the round in hand. No round was committed twice."""


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the last release, from this repository's history."""
    archived = subprocess.run(["git", "archive", RELEASE], cwd=ROOT, capture_output=True, check=False)
    if archived.returncode:
        pytest.skip(f"the history of this checkout does not have commit {RELEASE}, the last release")
    folder = tmp_path_factory.mktemp("release")
    with tarfile.open(fileobj=io.BytesIO(archived.stdout)) as archive:
        archive.extractall(folder, filter="data")
    version = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["version"]
    installed = folder / f"mhfl_peer-{version}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mhfl-peer\nVersion: {version}\n")
    return folder


@dataclass(frozen=True)
class Finished:
    """A command of a process of its own."""

    exit_code: int
    stdout: str
    stderr: str
    output: str = ""


def call(source: Path, *words: object) -> Finished:
    """Call a command of the program in a source folder."""
    command = [sys.executable, "-P", "-m", "peer.cli", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return Finished(process.returncode, process.stdout, process.stderr)


class RollingFederation(LocalFederation):
    """Sites whose programs, daemon and commands, are in one of two source folders."""

    source = ROOT

    @property
    def program(self) -> tuple[str, ...]:  # type: ignore[override]
        worker = [sys.executable, str(self.source / FAKES / "worker.py"), "obeys", str(NUMBERS)]
        return (sys.executable, "-P", str(self.source / FAKES / "daemon.py"), json.dumps(worker))

    def run(self, name: str, source: Path) -> None:
        """Start a site with the program of a source folder."""
        self.source = source
        self.start(name, environment={"PYTHONPATH": str(source)})
        self.sources[name] = source

    @functools.cached_property
    def sources(self) -> dict[str, Path]:
        """By site, the source folder of its program."""
        return {}

    def call(self, *words: object) -> Any:
        """Call a command of the program of the site that the words name."""
        source = self.sources[str(words[words.index("--site") + 1])]
        return run(*words) if source == ROOT else call(source, *words)

    def show(self, name: str, document: str, **arguments: Any) -> Any:
        """Query a document with the command of the site's program."""
        if self.sources[name] == ROOT:
            return super().show(name, document, **arguments)
        told = self.call("--home", self.home, document, "--json", "--site", name)
        assert not told.exit_code, told.stderr
        return json.loads(told.stdout)


def test_four_sites_of_the_last_release_are_upgraded_one_by_one_while_they_train(
    release: Path, tmp_path: Path, tools: Any, rewrite: bool
) -> None:
    with RollingFederation.create(tmp_path, DRAFT, dict.fromkeys(SITES, SITE)) as federation:
        story = Transcript(federation.home, TITLE, federation.call)
        requires = ("federation", "amend", "--yes", "--ca", tmp_path / "ca", "--requires", "amendments", "--site")
        for name in SITES:
            federation.run(name, release)
        for done, name in enumerate(SITES, start=1):
            tools.wait_until(lambda name=name, done=done: federation.show(name, "status")["committed"] >= 30 * done)
            story.say(name.capitalize(), TEXTS[name])
            story.type("stop", "--wait", "--site", name)
            assert federation.daemons[name].wait(60) == 0
            federation.run(name, ROOT)
            tools.wait_until(lambda name=name: federation.show(name, "status")["phase"] != "new")
            upgraded = set(SITES[:done])
            programs = tools.wait_until(lambda name=name: programs_of_peers(federation, name))
            assert {peer for peer, program in programs.items() if program != OLD} == upgraded - {name}
            lines = [f"| {peer} | {program} |" for peer, program in programs.items()]
            story.append("\n" + "\n".join([f"| {name} hears | that runs |", "|---|---|", *lines]) + "\n")
            if name == SITES[0]:
                check_mixed_programs(federation, release, new=name, old=SITES[1])
        peers = federation.show(name, "peers")
        first = max(peer["round"] or 0 for peer in peers.values()) + LEAD_ROUNDS
        story.say("All of them", "Now the founder can ask for what only the new release knows, from a later round on.")
        story.type(*requires, name, "--from-round", first, "--rounds", first + 2)
        codes = tools.finish(federation, limit_s=300)
        assert codes == dict.fromkeys(SITES, 0)
        table = [
            "| site | rounds committed | left out | without the model due |",
            "|---|---|---|---|",
        ]
        for name in SITES:
            records = tools.records(federation, name)
            committed = [record["round"] for record in records]
            left_out = {round for record in records for round in record["skipped"]}
            assert committed[-1] == first + 2
            assert len(committed) == len(set(committed))
            assert {*committed} | left_out == {*range(1, first + 3)}
            assert not [body for kind, _, body in tools.rows(federation, name) if kind == "refused"]
            journal = Journal(federation.folder(name).generation(1) / "journal.db", read_only=True)
            assert [row["body"]["generation"] for row in journal.records(("began",))] == [1, 1]
            journal.close()
            missed = sum(bool(record["missing"]) for record in records)
            table.append(f"| {name} | {len(committed)} | {len(left_out)} | {missed} |")
        refused = call(release, "--home", federation.home, "events", "--site", SITES[0])
        assert (refused.exit_code, "update mhfl-peer" in refused.stderr) == (6, True), "a journal does not go back"
        story.say("What it cost", COST)
        story.append("\n" + "\n".join(table) + "\n")
        story.check(PAGE, rewrite=rewrite)


def check_mixed_programs(federation: RollingFederation, release: Path, *, new: str, old: str) -> None:
    """Check that the commands of either program reach a daemon of the other one."""
    for name, source in ((old, ROOT), (new, release)):
        for words in (("status", "--json"), ("health", "--json")):
            finished = call(source, "--home", federation.home, *words, "--site", name)
            assert not finished.exit_code, finished.stderr
            assert json.loads(finished.stdout)["site"] == name


def programs_of_peers(federation: RollingFederation, name: str) -> dict[str, str] | None:
    """Return the program and its version of each peer, once the site knows those of all of them."""
    software = {peer: state["software"] for peer, state in federation.show(name, "peers").items()}
    return software if all(software.values()) else None
