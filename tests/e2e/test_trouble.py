"""What users of such systems suffer from: a peer that dies, a model that cannot be built, and a full disk."""

import contextlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from peer.errors import PeerError
from peer.lab.demo.local_federation import LocalFederation

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ROUNDS = 7
SCHEDULE = '[schedule]\nkind = "derangement"\n'


@pytest.fixture(scope="module")
def enrolled(found: Callable[..., LocalFederation]) -> LocalFederation:
    """Three sites, enrolled, never started."""
    return found(rounds=ROUNDS, steps=2, top=SCHEDULE, pace="beat_s = 0.5")


def test_a_dead_peer_is_missing_and_the_run_goes_on(
    enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any
) -> None:
    three = copied(enrolled)
    tools.start(three, tools.sites)
    tools.wait_until(lambda: three.show("asia", "status")["round"] >= 2)
    three.kill("asia")
    others = [name for name in tools.sites if name != "asia"]
    tools.wait_until(lambda: all(len(tools.records(three, name)) == ROUNDS for name in others))
    missing = [record["missing"] for name in others for record in tools.records(three, name)]
    assert {"asia": "silent"} in missing
    assert all(set(reasons) <= {"asia"} for reasons in missing)


def start_in_vain(loopback: LocalFederation, old: str, new: str) -> tuple[int, str]:
    """Change asia's site.toml and start it: its exit code, and its last line."""
    site_toml = loopback.folder("asia").site_toml
    site_toml.write_text(site_toml.read_text().replace(old, new))
    code = loopback.start("asia").wait(120)
    assert "Traceback" not in loopback.console("asia")
    last = loopback.console("asia").strip().splitlines()[-1]
    assert last.startswith("mhfl-peer: ")
    return code, last


def test_a_model_that_cannot_be_built_ends_the_start(
    enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation]
) -> None:
    code, last = start_in_vain(copied(enrolled), "width = 8", "widht = 8")
    assert code == 11
    assert "widht" in last
    assert "width" in last


def test_a_model_that_changed_ends_the_start(
    enrolled: LocalFederation, copied: Callable[[LocalFederation], LocalFederation], tools: Any
) -> None:
    three = copied(enrolled)
    three.start("asia")
    tools.wait_until(lambda: three.show("asia", "status")["phase"] == "gathering")
    three.kill("asia")
    code, last = start_in_vain(three, "width = 8", "width = 9")
    assert code == 6
    assert "model.parameters.width" in last
    assert "--accept-change" in last


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
        with contextlib.suppress(PeerError):  # each is a row, until the daemon ends
            for action in ("pause", "resume") * 200:
                three.control("asia").act(action)
        codes = tools.finish(three, limit_s=60)
    assert codes == {"asia": 9}, three.console("asia")[-2000:]
    filler.unlink()
    assert tools.rows(three, "asia")[0][0] == "configured"
