"""What users of such systems suffer from: dead peers, wrong clocks, pauses, and input that is wrong."""

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from peer.core import limits
from peer.demo.local_federation import LocalFederation
from peer.errors import PeerError
from peer.records.ledger import Ledger

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SCHEDULE = '[schedule]\nkind = "derangement"\n'
LATE_CLOCK = """
import time

right = time.time
time.time = lambda: right() - 6.0
"""


def cli(
    loopback: LocalFederation, *words: str, program: Sequence[str] = LocalFederation.program
) -> subprocess.CompletedProcess[str]:
    """Run a command as an operator does, or with another program."""
    command = [*program, "--home", str(loopback.home), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    """Three sites, enrolled, never started."""
    return found(rounds=10, steps=20, top=SCHEDULE)


@pytest.fixture
def three(enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation]) -> LocalFederation:
    """A copy of them."""
    return copied(enrolled)


def test_a_dead_peer_costs_its_receivers_the_silence_and_five_seconds_and_the_run_goes_on(
    three: LocalFederation, tools: Any
) -> None:
    for name in tools.sites:
        three.start(name)
    tools.wait_until(lambda: three.show("asia", "status")["round"] >= 2)
    three.kill("asia")
    others = [name for name in tools.sites if name != "asia"]
    waits = []

    def all_left() -> bool:
        for name in others:
            if three.daemons[name].poll() is None:
                status = three.show(name, "status")
                waits.extend(wait["since_s"] for wait in status["waiting_for"] if wait["artifact"] == "model")
        return all(len(tools.records(three, name)) == 10 for name in others)

    tools.wait_until(all_left)
    assert max(waits, default=0) <= limits.SILENCE_S + 5
    missing = [record["missing"] for name in others for record in tools.records(three, name)]
    assert {"asia": "silent"} in missing
    assert all(set(reasons) <= {"asia"} for reasons in missing)


def test_pause_is_told_and_resume_goes_on(three: LocalFederation, tools: Any) -> None:
    for name in tools.sites:
        three.start(name)
    tools.wait_until(lambda: three.show("europe", "status")["round"] >= 1)
    with three.control("europe") as client:
        client.act("pause")
    tools.wait_until(lambda: three.show("asia", "peers")["europe"]["phase"] == "paused", limit_s=20)
    before = three.show("europe", "status")["committed"]
    tools.wait_until(lambda: three.show("asia", "status")["committed"] >= before + 2)
    assert three.show("europe", "status")["committed"] == before
    assert cli(three, "resume", "--site", "europe").returncode == 0
    tools.finish_well(three)
    assert tools.records(three, "europe")[-1]["round"] == 10


def test_a_clock_six_seconds_off_is_reported_and_changes_nothing(found, copied, tools, tmp_path: Path) -> None:
    three = copied(found(rounds=2))
    (tmp_path / "sitecustomize.py").write_text(LATE_CLOCK)
    for name in tools.sites:
        late = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"} if name == "africa" else {}
        three.start(name, environment=late)

    def greeted() -> Any:
        peers = three.show("asia", "peers")
        return peers if all(peer["clock_skew_s"] is not None for peer in peers.values()) else None

    peers = tools.wait_until(greeted)
    assert -8 < peers["africa"]["clock_skew_s"] < -4
    assert abs(peers["europe"]["clock_skew_s"]) < 2
    tools.finish_well(three)
    for name in tools.sites:
        assert all(record["missing"] == {} for record in tools.records(three, name))


def test_a_restart_closes_the_transfers_that_a_kill_left_open(three: LocalFederation, tools: Any) -> None:
    ledger = Ledger(three.folder("asia").egress_db)
    ledger.intend(peer="europe", purpose="evaluate", kind="metrics", round=1, generation=1, sha256="ab" * 32, bytes=7)
    ledger.close()
    three.start("asia")
    tools.wait_until(lambda: three.show("asia", "egress"))
    assert [record["outcome"] for record in three.show("asia", "egress")][:1] == ["unknown"]


@pytest.fixture(scope="module")
def site_text(enrolled: LocalFederation) -> str:
    """The site.toml of asia."""
    return enrolled.folder("asia").site_toml.read_text()


def refused(loopback: LocalFederation, code: int, *words: str, warm: bool = False) -> str:
    """`start` at asia ends with this code and one line that holds these words; nothing was begun.

    ``warm``: it is the worker that refuses, and that one is forked.
    """
    done = cli(loopback, "start", "--site", "asia", program=loopback.program if warm else LocalFederation.program)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    last = lines[-1]
    assert last.startswith("mhfl-peer: ")
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in last
    return last


@pytest.mark.parametrize(
    ("old", "new", "code", "words"),
    [
        ("width = 8", "widht = 8", 11, ("widht", "width")),
        ("[model]", "[modle]", 3, ("modle", "model")),
        ("datalist.json", "nowhere.json", 10, ("nowhere.json",)),
    ],
)
def test_a_wrong_site_toml_is_named(
    three: LocalFederation, site_text: str, old: str, new: str, code: int, words: tuple[str, ...]
) -> None:
    assert old in site_text
    three.folder("asia").site_toml.write_text(site_text.replace(old, new))
    refused(three, code, *words, warm=code != 3)


def test_wrong_files_for_tls_refuse_the_start(three: LocalFederation, found, copied) -> None:
    asia, other = three.folder("asia"), copied(found(rounds=6)).folder("asia")
    federation_toml = asia.federation_toml.read_bytes()
    shutil.copy(other.federation_toml, asia.federation_toml)
    refused(three, 4, "ca.pem")
    asia.federation_toml.write_bytes(federation_toml)
    (asia.pki / "site.key").chmod(0o644)
    refused(three, 4, "site.key")
    for file in ("site.key", "cert.pem"):
        (asia.pki / file).unlink()
        refused(three, 4, file)


def test_a_second_daemon_in_the_same_folder_is_refused(three: LocalFederation, tools: Any) -> None:
    first = three.start("asia")
    tools.wait_until(lambda: three.show("asia", "status"))
    refused(three, 7, str(first.pid))


def test_resume_require_and_changed_models_are_refused(three: LocalFederation, site_text: str, tools: Any) -> None:
    done = cli(three, "start", "--site", "asia", "--resume", "require")
    assert done.returncode == 6
    assert not (three.folder("asia").path / "gen-0001").exists()
    three.start("asia")
    tools.wait_until(lambda: three.show("asia", "status")["phase"] == "gathering")
    assert cli(three, "stop", "--site", "asia").returncode == 0
    tools.finish(three)
    three.folder("asia").site_toml.write_text(site_text.replace("width = 8", "width = 9"))
    refused(three, 6, "model.parameters.width", "--accept-change")


def test_commands_without_a_daemon_say_so_and_read_the_journal(three: LocalFederation) -> None:
    done = cli(three, "pause", "--site", "asia")
    assert done.returncode == 14
    status = cli(three, "status", "--site", "asia", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["daemon"] == "down"
    assert cli(three, "status", "--site", "atlantis").returncode != 0
    plan = json.loads(cli(three, "plan", "--site", "asia", "--rounds", "3", "--json").stdout)
    assert [round["round"] for round in plan["rounds"]] == [1, 2, 3]
    assert all(set(round["receives_from"]) == {"africa", "asia", "europe"} for round in plan["rounds"])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with 3 MB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(mount)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("this user may not mount a small file system")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=False)


def test_a_full_disk_ends_the_daemon_by_name_and_leaves_a_whole_journal(
    enrolled: LocalFederation, small_disk: Path, tools: Any
) -> None:
    home = small_disk / "sites"
    shutil.copytree(enrolled.home / "trial" / "asia", home / "trial" / "asia")
    three = type(enrolled)(home, enrolled.federation)
    filler = small_disk / "filler"
    with three:
        three.start("asia")
        tools.wait_until(lambda: three.show("asia", "status")["phase"] == "gathering")
        with contextlib.suppress(OSError):  # where the daemon writes meanwhile, the disk is full all the same
            filler.write_bytes(b"\0" * (shutil.disk_usage(small_disk).free - 4096))
        with contextlib.suppress(PeerError), three.control("asia") as client:  # each is a row, until the daemon ends
            for action in ("pause", "resume") * 200:
                client.act(action)
        codes = tools.finish(three, limit_s=60)
    assert codes == {"asia": 9}, three.console("asia")[-2000:]
    filler.unlink()
    assert tools.rows(three, "asia")[0][0] == "configured"
